"""The clipped objective, and what it does to one real batch, for notebook 06 (layer 6)."""

import copy
import functools
from dataclasses import replace

import numpy as np
import torch

from ..canvas import Explorer
from ..config import PPOConfig
from ..losses import clip_fraction, clipped_policy_loss, probability_ratio
from ..marks import Panel, Slider, band, bars, guide, line, points, sweep, text
from ..tensor_ops import response_log_probs
from ..train import PPOTrainer, ppo_epochs, shaped_advantages
from ..worlds import ReviewWorld

EPSILONS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
MAX_EPOCHS = 8
EDGE = 8.0  # the histogram goes from ratio 1/8 to 8; what lies further out is counted in its last bars


def reuse_batch(trainer, rollout, clip_epsilon, num_epochs=MAX_EPOCHS):
    """Train a copy of the trainer's policy on one rollout, and reread the rollout after every epoch.

    Returns: log_probs_new [K+1, B, T], entry k after k epochs; advantages [B, T], whitened.
    Taught in: notebooks/06_clipping.ipynb
    """
    config = replace(trainer.config, clip_epsilon=clip_epsilon, num_epochs=num_epochs)
    policy, optimizer = copy.deepcopy((trainer.policy, trainer.optimizer))
    advantages, returns, _ = shaped_advantages(rollout, config)

    @torch.no_grad()
    def reread():
        return response_log_probs(policy(rollout.input_ids)[0], rollout.response_ids, config.temperature)

    found, order = [reread()], torch.Generator().manual_seed(0)
    steps = ppo_epochs(policy, None, optimizer, rollout, advantages, returns, config, order)
    for number, _ in enumerate(steps, start=1):
        if number % config.num_minibatches == 0:
            found.append(reread())
    return torch.stack(found), advantages


@functools.cache
def objective_and_slope(ratio, advantage, clip_epsilon):
    """One token's clipped objective and its derivative by ρ: the package's loss, negated, and autograd.

    Taught in: notebooks/06_clipping.ipynb
    """
    new = torch.tensor([[ratio]], dtype=torch.float64).log().requires_grad_()
    loss = clipped_policy_loss(new, torch.zeros_like(new), torch.full_like(new, advantage), clip_epsilon)
    loss.backward()
    return -loss.item(), -new.grad.item() / ratio + 0.0


def has_no_gradient(log_probs_new, log_probs_old, advantages, clip_epsilon, mask):
    """Which real tokens the clip cuts off from the loss, asked of the loss itself: [B, T] bool.

    Taught in: notebooks/06_clipping.ipynb
    """
    new = log_probs_new.clone().requires_grad_()
    clipped_policy_loss(new, log_probs_old, advantages, clip_epsilon, mask).backward()
    return (new.grad == 0) & (advantages != 0) & mask


def _one_token(sliders, panel, side, sign):
    """The marks of an upper panel, and the slope for every position of the sliders."""
    def at(ratio, advantage, clip_epsilon):
        near = ratio ** (1 - 1e-9)  # on a corner: the slope on the side of 1
        return objective_and_slope(near, sign * advantage, clip_epsilon)

    def curve(clip_epsilon, advantage):
        corners = [0.02, max(1 - clip_epsilon, 0.02), 1 + clip_epsilon, 2.5]  # straight in between
        return corners, [at(place, advantage, clip_epsilon)[0] for place in corners]

    def tangent(clip_epsilon, ratio, advantage):
        value, slope = at(ratio, advantage, clip_epsilon)
        reach = 0.4 / np.hypot(1, slope) * np.array([-1, 1])
        return ratio + reach, value + slope * reach, value, slope

    (x, y), (near_x, near_y, value, slope) = sweep(sliders, curve), sweep(sliders, tangent)
    unclipped = sweep(sliders, lambda advantage: [at(place, advantage, 1e6)[0] for place in (0.02, 2.5)])
    return [
        band(f"band_{side}", lambda clip_epsilon: 1 - clip_epsilon, lambda clip_epsilon: 1 + clip_epsilon,
             panel=panel, alpha=0.08, label="band 1 ± ε"),
        line(f"unclipped_{side}", [0.02, 2.5], unclipped, panel=panel, width=1.2, dash=(4, 3),
             label="no clip: ρÂ", label_at="key"),
        line(f"objective_{side}", x, y, "policy", panel=panel, width=3.2, label="PPO", label_at="key"),
        line(f"tangent_{side}", near_x, near_y, "advantage", panel=panel, width=6),
        points(f"point_{side}", lambda ratio: ratio, value, panel=panel, size=10),
        text(f"slope_{side}", 0.1, 3.4 * sign, slope, panel=panel, format="gradient at your ρ: {:g}"),
    ], slope  # fmt: skip


def clip_explorer(*, clip_epsilon=0.2, ratio=1.5, advantage=1.0, epochs=4, world=None, seed=0):
    """The clip's ε, one token's ratio and advantage, and the ratios of a batch that was used several times.

    Above: the objective of one token with Â = |A| and with Â = -|A|, and its slope at the ratio. Below: the
    ratios of all tokens of one rollout after K epochs with this ε.

    Args: the first four, where the sliders start; world (default: a ReviewWorld); seed, of the rollout.
    Returns: Explorer. Taught in: notebooks/06_clipping.ipynb
    """
    sliders = [
        Slider("clip_epsilon", "ε", EPSILONS, clip_epsilon, label="clip epsilon", format="{:g}"),
        Slider("ratio", "ρ", [i / 10 for i in range(1, 25)], ratio, label="ratio", format="{:.1f}"),
        Slider("advantage", "|A|", (0.5, 1.0, 1.5), advantage, label="size of the advantage", format="{:g}"),
        Slider("epochs", "K", range(1, MAX_EPOCHS + 1), epochs, label="epochs"),
    ]
    trainer = PPOTrainer(ReviewWorld() if world is None else world, PPOConfig(), seed=seed)
    rollout, bins = trainer.sample(), np.linspace(-np.log(EDGE), np.log(EDGE), 62)
    runs = {epsilon: reuse_batch(trainer, rollout, epsilon) for epsilon in EPSILONS}

    def measured(clip_epsilon, epochs):
        new, advantages = runs[clip_epsilon]
        given = new[epochs], rollout.log_probs_old, advantages, clip_epsilon, rollout.mask
        ratios = probability_ratio(*given[:2])[rollout.mask].double().numpy()
        blocked = has_no_gradient(*given)[rollout.mask].numpy()
        shown = np.log(ratios).clip(bins[0], bins[-1])
        free, cut = (np.histogram(shown[part], bins)[0] / len(ratios) for part in (~blocked, blocked))
        share = 100 * clip_fraction(*given).item()
        moments = {"mean": ratios.mean(), "largest": ratios.max()}
        return {"free": free, "all": free + cut, "share": share, **moments}

    batch, places = sweep(sliders, measured), (bins[:-1] + bins[1:]) / 2
    low, high = bins[0] - 0.05, bins[-1] + 0.05
    marks = [
        band("clip_band", lambda clip_epsilon: np.log(max(1 - clip_epsilon, np.exp(low))),
             lambda clip_epsilon: np.log(1 + clip_epsilon), panel=2, alpha=0.08, label="band 1 ± ε"),
        bars("free", batch["free"], "policy", x=places, panel=2, width=0.068, label="tokens with a gradient"),
        bars("blocked", batch["all"], "black", x=places, base=batch["free"], panel=2, width=0.068, hatch="/",
             label="blocked by the clip"),
        guide("largest_ratio", np.log(batch["largest"]).clip(None, bins[-1]), panel=2, label="largest"),
    ]  # fmt: skip
    slopes = {}
    for panel, (side, sign) in enumerate({"up": 1, "down": -1}.items()):
        drawn, slopes[f"gradient_{side}"] = _one_token(sliders, panel, side, sign)
        marks += drawn
    ticks = [(np.log(2.0**power), words) for power, words in zip(range(-3, 4), "⅛ ¼ ½ 1 2 4 8".split())]
    axes = dict(xlabel="ratio ρ", ylabel="objective", xlim=(0, 2.55), zero=True)
    return Explorer(
        "clip_explorer", sliders,
        [Panel("Â > 0: no more gain above 1 + ε", ylim=(-0.3, 3.9), **axes),
         Panel("Â < 0: no more gain below 1 − ε", ylim=(-3.9, 0.3), **axes),
         Panel("A real batch after K epochs: the clip does not bound the ratio",
               "ratio ρ of a token (log scale)", "share of tokens", (low, high),
               (0, 1.05 * float(batch["all"].max())), xticks=ticks)],
        marks, height=270,
        words="At ρ = {ratio} and ε = {clip_epsilon} the gradient is {gradient_up:g} for Â = {advantage}, "
              "and {gradient_down:g} for Â = −{advantage}. In the batch, at K = {epochs}, the clip blocks "
              "{share:.0f}% of the tokens; the largest ratio is {largest:.1f}, the mean {mean:.2f}.",
        readouts=slopes | {key: batch[key] for key in ("share", "largest", "mean")},
        presets={"Default": {"clip_epsilon": 0.2, "ratio": 1.5, "advantage": 1, "epochs": 4},
                 "Too large a step": {"clip_epsilon": 1, "epochs": 8}, "One epoch": {"epochs": 1}},
        caption="Above: gradients by ρ, by autograd of the package's loss. Below: the "
                f"{int(rollout.mask.sum())} tokens of one rollout, measured; beyond ⅛ and 8 they stand at "
                "the edge. Which tokens outside the band still have their gradient?",
        alt="Above, two broken lines over the ratio. For a positive advantage the objective rises, and is "
            "flat beyond 1 + ε; for a negative one it is flat up to 1 − ε and then falls on and on. A point "
            "with its slope moves along both. Below, a histogram of ratios around 1: outside the band some "
            "tokens are blocked and others not, and the largest ratio lies far outside.",
    )  # fmt: skip
