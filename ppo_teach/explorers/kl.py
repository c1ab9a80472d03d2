"""The KL leash, for notebook 03 (layer 6): three estimates of the KL, and what it costs each token."""

import numpy as np
import torch

from ..canvas import Explorer
from ..config import PPOConfig
from ..exact import kl_divergence, next_token_log_probs, sequence_log_probs
from ..marks import Panel, Slider, bars, guide, points
from ..models import make_reference
from ..rewards import kl_estimate, shape_rewards
from ..tensor_ops import response_log_probs, response_mask
from ..train import train_ppo
from ..worlds import ChainWorld

BATCHES = 30
SAMPLES = (2, 4, 8, 16, 32, 64, 128, 256)
KL_COEFS = (0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1)
LOWEST, HIGHEST = -1.5, 6.0  # nats: what the left panel shows; a dot outside stands on its edge


def kl_explorer(world=None, reference=None, *, policy=None, prompt=1, response=(2, 3, 4, 0), seed=0):
    """k1, k2 and k3 from n samples against the exact KL, and the shaped reward of each token of a response.

    `distance` mixes the logits: (1 - d) of the reference, d of the policy. Left: the mean of Σ_t k_t over
    n responses, for 30 batches of them. Right: -β k_t of each token of one response, and its score.

    Args: world, a ChainWorld; reference, its frozen policy; policy, a trained one (default: trained here for
        15 PPO updates); prompt, row of world.prompts(); response, ids up to EOS; seed, of the samples.
    Returns: Explorer. Taught in: notebooks/03_kl_leash.ipynb
    """
    world = ChainWorld() if world is None else world
    reference = make_reference(world.policy()) if reference is None else reference
    if policy is None:
        policy, _ = train_ppo(world, PPOConfig(kl_coef=0.5), num_updates=15, progress=False)
    sliders = [
        Slider("kl_coef", "β", KL_COEFS, 0.3, label="KL coefficient", format="{:g}"),
        Slider("estimator", "k", ("k1", "k2", "k3"), "k1", label="estimator"),
        Slider("distance", "d", np.linspace(0, 1, 11), 0.4, label="distance", format="{:.1f}"),
        Slider("samples", "n", SAMPLES, 8, label="samples a batch"),
    ]
    asked = world.prompts()[prompt : prompt + 1]
    ref, far = (next_token_log_probs(model, asked, world) for model in (reference, policy))
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(BATCHES, SAMPLES[-1], generator=generator, dtype=torch.float64)
    mixed, drawn, exact = {}, {}, {}
    for d in sliders[2].positions:
        mixed[d] = [((1 - d) * p + d * q).log_softmax(-1) for p, q in zip(ref, far, strict=True)]
        log_probs = sequence_log_probs(mixed[d])
        exact[d] = kl_divergence(log_probs, sequence_log_probs(ref)).item()
        total = log_probs[0].exp().cumsum(0)
        drawn[d] = torch.searchsorted(total, chance * total[-1])  # which response each sample is

    def estimates(estimator, distance):
        """Σ_t k_t of every sample: the tree's k_t, summed along each response as log-probs are."""
        steps = [kl_estimate(p, q, estimator) for p, q in zip(mixed[distance], ref, strict=True)]
        return sequence_log_probs(steps)[0][drawn[distance]]

    def means(estimator, distance, samples):
        return estimates(estimator, distance)[:, :samples].mean(1).numpy()

    ids = torch.tensor([response])
    whole, length = torch.cat([asked, ids], dim=1), ids.shape[1]
    mask, score = response_mask(ids, world.eos_id), world.true_score(asked, ids)
    with torch.no_grad():
        logits = [model(whole)[0].double() for model in (reference, policy)]

    def shaped(kl_coef, estimator, distance):
        pair = ((1 - distance) * logits[0] + distance * logits[1], logits[0])
        log_probs = [response_log_probs(of, ids) for of in pair]
        return shape_rewards(score, *log_probs, kl_coef, mask, estimator)[0][0].numpy()

    def cost(kl_coef, estimator, distance):
        return shaped(kl_coef, estimator, distance) - shaped(0, estimator, distance)

    def shown(estimator, distance, samples):
        return means(estimator, distance, samples).clip(LOWEST, HIGHEST)

    def mean(estimator, distance, samples):
        return means(estimator, distance, samples).mean()

    def below(estimator, distance, samples):
        return int((means(estimator, distance, samples) < -1e-9).sum())  # rounding is no negative KL

    words, x = world.decode(ids[0]).split(), np.arange(length)
    marks = [
        points("batches", np.arange(1, BATCHES + 1), shown, "kl", label="a batch", size=7),
        guide("exact", lambda distance: exact[distance], axis="y", label="exact KL", dash=(), width=2),
        guide("mean", mean, "kl", axis="y", width=2),
        bars("kl_cost", cost, "kl", x=x - 0.2, panel=1, width=0.36, label="-β k", values="{:+.2f}"),
        bars("score", [score.item()], "score", x=[x[-1] + 0.2], panel=1, width=0.36, label="score",
             values="{:+.2f}"),
        points("shaped", x, shaped, "black", panel=1, label="shaped reward", marker="D", size=8),
    ]  # fmt: skip
    return Explorer(
        "kl_explorer", sliders,
        [Panel("Small batches miss the exact KL", "batch", "mean Σ k of the batch, nats",
               (0, BATCHES + 1), (LOWEST - 0.2, HIGHEST + 0.2), zero=True),
         Panel(f"After '{world.decode(asked[0])}': KL all the way, score at the end", "token of the response",
               "reward", (-0.6, length - 0.4), (-2.6, 3.2), zero=True, xticks=words)],
        marks, height=330,
        words="With {samples} samples, {estimator} is below 0 in {below:.0f} of 30 batches; their mean is "
              "{average:.2f}, the exact KL {exact_kl:.2f} nats. At β = {kl_coef}, the response on the right "
              f"keeps {{kept:.2f}} of its score {score.item():.2f}.",
        readouts={"below": below, "average": mean, "exact_kl": lambda distance: exact[distance],
                  "kept": lambda kl_coef, estimator, distance: shaped(kl_coef, estimator, distance).sum()},
        presets={"Default": {"kl_coef": 0.3, "estimator": "k1", "distance": 0.4, "samples": 8},
                 "No leash": {"kl_coef": 0}, "Tight leash": {"kl_coef": 1},
                 "Far away, few samples": {"distance": 1, "samples": 4}},
        caption="Left: 30 batches of n real samples; the dashed line is their mean, and a batch outside "
                "the panel stands on its edge. Right: one response. What does a token earn that the policy has "
                "made rarer?",
        alt="Left: 30 triangles, one for each batch, scatter around a solid line at the exact KL; with k1, few "
            "samples and a small distance some lie below zero. Right: for each token of a response a bar for "
            "its KL cost, and at the last token a bar for the score; the cost bars grow with β and with the "
            "distance.",
    )  # fmt: skip
