"""How good a learned reward model gets, for notebook 02 (layer 6)."""

import numpy as np
import torch

from ..canvas import Explorer
from ..marks import Panel, Slider, guide, line, points


def reward_model_explorer(measured):
    """Number of pairs and rater noise against what the reward model learns from them.

    Left: held-out pairs in ten bins by the model's score difference, and how often the raters chose the
    first; the line is what Bradley-Terry says. Right: true against learned score of held-out reviews.

    Args: measured, what `figures/make_reward_models.py` stored: a dict with `true` and `rows`.
    Returns: Explorer. Raises: ValueError when a place of the grid was not measured.
    Taught in: notebooks/02_rewards.ipynb
    """
    pictures, found = {}, {}
    for row in measured["rows"]:
        key = row["num_pairs"], row["noise"]
        found.setdefault(key, []).append([row["accuracy"], row["correlation"]])
        if "learned" in row:
            pictures[key] = row
    sizes, noises = (sorted({key[axis] for key in found}) for axis in (0, 1))
    if missing := [(n, noise) for n in sizes for noise in noises if (n, noise) not in pictures]:
        raise ValueError(f"measured must hold scores for every place, missing (pairs, noise): {missing}")
    x = np.linspace(-6, 6, 121)
    curve = torch.sigmoid(torch.from_numpy(x)).numpy()

    def of(name):
        return lambda num_pairs, noise: pictures[num_pairs, noise][name]

    def mean(column):
        return lambda num_pairs, noise: float(np.mean(found[num_pairs, noise], axis=0)[column])

    return Explorer(
        "reward_model_explorer",
        [Slider("num_pairs", "n", sizes, 300, label="number of pairs"),
         Slider("noise", "ν", noises, 0.1, label="rater noise: share of coin flips", format="{:.1f}")],
        [Panel("On the curve, the model knows its raters", "score of the first − score of the second",
               "share of raters that chose the first", (-6, 6), (-0.03, 1.03)),
         Panel("A thin band ranks reviews like the truth", "true score of a review", "learned score",
               (-3.4, 3.4), (-2.8, 2.8), zero=True)],
        [line("bradley_terry", x, curve, label="Bradley-Terry", label_at="key"),
         points("raters", of("difference"), of("preferred"), "score", label="held-out pairs, in tenths"),
         guide("no_difference", 0.0),
         points("reviews", measured["true"], of("learned"), "score", panel=1, size=6)],
        height=330,
        words="{num_pairs} pairs, rater noise {noise}: the model foretells {accuracy:.0f}% of new choices "
              "(a coin: 50%). The correlation of its scores with the true ones is {correlation:.2f}.",
        readouts={"accuracy": lambda num_pairs, noise: 100 * mean(0)(num_pairs, noise),
                  "correlation": mean(1)},
        presets={"A weekend of rating": {"num_pairs": 100, "noise": 0.1},
                 "Many careful raters": {"num_pairs": 3000, "noise": 0.0},
                 "Many careless raters": {"num_pairs": 3000, "noise": 0.4}},
        caption="Stored runs, measured by figures/make_reward_models.py; triangles: one model, numbers: mean of "
                "three. What do ten times the pairs repair, and what not?",
        alt="Left: ten triangles over the model's score difference, with the S-shaped curve of Bradley and Terry; "
            "with few pairs they bunch in the middle and are steeper than the curve, with many they spread "
            "along it. Right: learned over true scores of held-out reviews: a cloud with few pairs, a rising "
            "band with many.",
    )  # fmt: skip
