"""Learned against true score under a leash and a stop, for notebook 09 (layer 6)."""

import numpy as np

from ..canvas import Explorer
from ..hacking import grid_runs
from ..marks import Panel, Slider, format_number, guide, line, points, text

LONGEST, COLUMN = 14, 7  # words of a review, and in a column of the picture
APART = 3.6  # from one column's zero to the next


def hacking_explorer(measured):
    """KL coefficient, number of pairs, rater noise and stop against what is believed and what is true.

    Top: both scores over the updates (mean of the seeds, thin: ± one standard error), and the true score over
    √KL. Bottom: two signs that need no true score, and one review at the stop, word by word.

    Args: measured, what `figures/make_hacking.py` stored. Returns: Explorer.
    Raises: ValueError when a place of the grid was not measured.
    Taught in: notebooks/09_reward_hacking.ipynb
    """
    runs = grid_runs(measured)
    betas, sizes, noises = (sorted({place[axis] for place in runs}) for axis in range(3))
    places = [(b, n, v) for b in betas for n in sizes for v in noises]
    if missing := [place for place in places if place not in runs]:
        raise ValueError(f"measured must hold every place, missing (kl_coef, num_pairs, noise): {missing}")
    stops = sorted(int(update) for update in runs[places[0]][0]["samples"])
    updates = np.arange(measured["updates"])
    stacked = {place: {name: np.array([run[name] for run in runs[place]])
                       for name in ("learned", "true", "kl", "outside", "distinct")} for place in places}  # fmt: skip

    def mean(name, sign=0):
        def curve(kl_coef, num_pairs, noise):
            x = stacked[kl_coef, num_pairs, noise][name]
            return x.mean(0) + sign * x.std(0, ddof=1) / len(x) ** 0.5 if sign else x.mean(0)
        return curve

    def root_kl(kl_coef, num_pairs, noise):
        return np.sqrt(np.maximum(mean("kl")(kl_coef, num_pairs, noise), 0))

    def at_stop(curve):
        return lambda kl_coef, num_pairs, noise, stop: float(curve(kl_coef, num_pairs, noise)[stop])

    def review(name, nothing, start=""):
        """One entry a word of the review at the stop, counted from `start`; `nothing` below its end."""
        def of(kl_coef, num_pairs, noise, stop):
            seen = runs[kl_coef, num_pairs, noise][0]["samples"][str(stop)][name]
            return start + np.array(seen + (LONGEST - len(seen)) * [nothing], dtype=object if nothing == "" else float)
        return of

    def sample(name):
        def of(kl_coef, num_pairs, noise, stop):
            return runs[kl_coef, num_pairs, noise][0]["samples"][str(stop)][name]
        return of

    def highest(kl_coef, num_pairs, noise):
        return float(mean("true")(kl_coef, num_pairs, noise).max())

    zeros, rows = np.divmod(np.arange(LONGEST, dtype=float), COLUMN)
    zeros, rows, last = APART * zeros, -rows, updates[-1]
    marks = [
        *(line(f"{name}{side}", updates, mean(name, sign), color, width=1, dash=(1, 2))
          for name, color in (("learned", "score"), ("true", "black"))
          for side, sign in (("_low", -1), ("_high", 1))),
        line("learned", updates, mean("learned"), "score", label="what the reward model believes", label_at="key"),
        line("true", updates, mean("true"), dash=(6, 3), label="true", label_at="key"),
        guide("stop_here", lambda stop: stop, label="stop"),
        points("believed_at_stop", lambda stop: stop, at_stop(mean("learned")), "score", size=11),
        points("true_at_stop", lambda stop: stop, at_stop(mean("true")), size=10),
        line("path", root_kl, mean("true"), panel=1, dash=(6, 3)),
        points("path_at_stop", at_stop(root_kl), at_stop(mean("true")), panel=1, size=11, label="stop"),
        line("outside", updates, mean("outside"), "score", panel=2, label="scores out of range",
             label_at="key"),
        line("distinct", updates, mean("distinct"), panel=2, dash=(9, 2.5, 2, 2.5), label="distinct words",
             label_at="key"),
        guide("stop_there", lambda stop: stop, panel=2),
        guide("nothing", [0.0, APART], panel=3),
        points("adds", review("scores", np.nan, zeros), rows, "score", panel=3, size=8),
        text("words", zeros - 2.4, rows - 0.1, review("words", ""), panel=3),
    ]  # fmt: skip
    ticks = [(at + x, format_number("{:g}", x)) for at in (0, APART) for x in (-1, 0, 1)]
    few, many = sizes[0], sizes[-1]
    return Explorer(
        "hacking_explorer",
        [Slider("kl_coef", "β", betas, 0, label="KL coefficient", format="{:g}"),
         Slider("num_pairs", "n", sizes, many, label="pairs behind the reward model"),
         Slider("noise", "ν", noises, 0.1, label="rater noise", format="{:.1f}"),
         Slider("stop", "t", stops, stops[-1], label="stop after update")],
        [Panel("Belief and truth part", "", "score", (-0.5, last + 6), (-5.5, 9.5), zero=True),
         Panel("Truth over distance", "√KL", "true score", (0, 12.5), (-5.5, 3.5), zero=True),
         Panel("The signs, without the truth", "update", "share", (-0.5, last + 6), (-0.03, 1.03)),
         Panel("What each word adds (one review)", "learned score", "", (-2.5, 4.7),
               (0.3 - COLUMN, 0.7), xticks=ticks, yticks=[])],
        marks, height=270,
        words="β = {kl_coef}, {num_pairs} pairs, noise {noise}, stopped after update {stop}: the reward model believes "
              "{believed:+.2f}, the truth is {truth:+.2f}, at {nats:.1f} nats of KL. The best stop of this run: "
              "{highest:+.2f}. The review shown: learned {one_learned:+.2f}, true {one_true:+.2f}.",
        readouts={"believed": at_stop(mean("learned")), "truth": at_stop(mean("true")), "nats": at_stop(mean("kl")),
                  "highest": highest, "one_learned": sample("learned"), "one_true": sample("true")},
        presets={"No leash": {"kl_coef": 0, "num_pairs": many, "noise": 0.1, "stop": last},
                 "Stopped in time": {"kl_coef": 0, "num_pairs": many, "noise": 0.1, "stop": 6},
                 "Middle": {"kl_coef": 0.1, "num_pairs": many, "noise": 0.1, "stop": last},
                 "Tight": {"kl_coef": 1, "num_pairs": many, "noise": 0.1, "stop": last},
                 "Few pairs": {"kl_coef": 0, "num_pairs": few, "noise": 0.1, "stop": last}},
        caption="Stored runs, measured by figures/make_hacking.py; thin lines: ± one standard error over the seeds. "
                "Lower right: a review that began with 'the soup was'. "
                "Where would you have stopped, had you seen the green line only?",
        alt="Top left: the learned score rises to about 6 while the true score rises, peaks early and falls below −3; "
            "with a tighter leash both stay together. Top right: the true score over √KL, a hill. Bottom left: the "
            "share of scores outside the training range rises to 1 and distinct words fall. Bottom right: one review, "
            "word by word, with what each word adds to the learned score.",
    )  # fmt: skip
