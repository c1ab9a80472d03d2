"""One whole PPO step, stage by stage and tensor by tensor, for notebook 07 (layer 6)."""

import copy
from dataclasses import replace

import numpy as np
import torch

from ..canvas import Explorer
from ..config import PPOConfig
from ..losses import clipped_policy_loss, probability_ratio
from ..marks import Panel, Slider, band, bars, format_number, guide, points, text
from ..models import make_reference
from ..rewards import place_scores, shape_rewards
from ..rollout import collect_rollout
from ..tensor_ops import response_log_probs, response_values
from ..train import Adam, minibatch_loss, ppo_epochs, shaped_advantages, train_ppo
from ..worlds import ReviewWorld

STAGES = {
    1: "the policy answers the prompts; what it thought of each token is kept as numbers",
    2: "the reward reads the text, the reference rereads it",
    3: "each token pays for its KL, the last one also gets the score",
    4: "GAE asks which token did better than forecast",
    5: "the only forward pass with a graph; new against old",
    6: "backward: how hard each token is pushed; then the weights move",
    7: "what was measured goes to the log",
}
# tensor -> (stage, what its colour means, what it says of a token); from stage 5 on it hangs on the weights
TENSORS = {
    "log_probs_old": (1, "old", "log-probability under the policy that sampled"),
    "values_old": (1, "value", "the critic's forecast before the token"),
    "scores": (2, "score", "one number a review, at its last real token"),
    "log_probs_ref": (2, "reference", "log-probability under the reference"),
    "kl": (2, "kl", "log_probs_old − log_probs_ref"),
    "shaped_rewards": (3, "score", "−β kl, plus the score at the end"),
    "advantages": (4, "advantage", "how much better than forecast"),
    "returns": (4, "value", "advantages + values_old, the critic's target"),
    "whitened": (4, "advantage", "advantages with mean 0 and spread 1 over the batch"),
    "log_probs_new": (5, "policy", "log-probability under the policy in training"),
    "ratio": (5, "policy", "new probability over old"),
    "values_new": (5, "value", "the forecast of the critic in training"),
    "push": (6, "policy", "−N ∂L/∂log_probs_new for N tokens, 0 where clipped"),
}  # fmt: skip
BORDER = -9.5  # between stage 4 and stage 5: row i of the table stands at -1 - i


def step_tensors(policy, rollout, config, seed=0):
    """All tensors of one PPO update, after 0, 1, ... K optimiser steps. The policy is trained.

    Returns: tensors, name -> [K + 1, B, T] numpy; metrics, name -> [K + 1], over the whole rollout.
    """
    raw, returns, kl = shaped_advantages(rollout, replace(config, whiten_advantages="none"))
    whitened, old, mask = shaped_advantages(rollout, config)[0], rollout.log_probs_old, rollout.mask
    shaped, _ = shape_rewards(rollout.scores, old, rollout.log_probs_ref, config.kl_coef, mask)
    frozen = {
        "log_probs_old": old, "values_old": rollout.values_old, "scores": place_scores(rollout.scores, mask),
        "log_probs_ref": rollout.log_probs_ref, "kl": kl, "shaped_rewards": shaped, "advantages": raw,
        "returns": returns, "whitened": whitened,
    }  # fmt: skip
    optimizer, shuffle = Adam(policy.parameters(), config.learning_rate, config.adam_eps), torch.Generator()
    shuffle.manual_seed(seed)
    steps = ppo_epochs(policy, None, optimizer, rollout, whitened, returns, config, shuffle)
    moments, metrics, going = [], [], True
    while going:
        with torch.no_grad():
            logits, values = policy(rollout.input_ids)
        new = response_log_probs(logits, rollout.response_ids, config.temperature).requires_grad_()
        loss = clipped_policy_loss(new, old, whitened, config.clip_epsilon, mask)
        moving = {"log_probs_new": new, "ratio": probability_ratio(new, old),
                  "values_new": response_values(values, old.shape[1]),
                  "push": -mask.sum() * torch.autograd.grad(loss, new)[0]}  # fmt: skip
        moments.append(frozen | moving)
        metrics.append(minibatch_loss(policy, None, rollout, whitened, returns, config)[1])
        going = next(steps, None) is not None
    stacked = {name: torch.stack([m[name] for m in moments]).detach().double() * mask for name in TENSORS}
    return ({name: tensor.numpy() for name, tensor in stacked.items()},
            {name: np.array([row[name] for row in metrics]) for name in metrics[0]})  # fmt: skip


def _example(world):
    """A policy three updates old and its rollout of four short reviews."""
    policy = world.policy().double()
    reference, generator = make_reference(policy), torch.Generator().manual_seed(3)
    train_ppo(world, policy=policy, num_updates=3, batch_size=64, progress=False)
    return policy, collect_rollout(
        policy, reference, world.sample_prompts(4, generator), world.true_score, 8, eos_id=world.eos_id,
        pad_id=world.pad_id, generator=generator,
    )  # fmt: skip


def step_explorer(world=None, policy=None, rollout=None, config=None):
    """One PPO step on real reviews: its stages, every tensor, and what k optimiser steps do to it.

    Top: the table of all tensors of one review; a row is filled in when its stage has run, the dashed line is
    the detach border. Bottom: one tensor, token by token.

    Args: world; policy (it is copied) and its rollout, default: after three updates; config, a PPOConfig.
    Returns: Explorer. Taught in: notebooks/07_training_step.ipynb
    """
    world, config = world or ReviewWorld(), config or PPOConfig()
    policy, rollout = (policy, rollout) if rollout is not None else _example(world)
    arrays, metrics = step_tensors(copy.deepcopy(policy), rollout, config)
    names, (K, B, T) = list(TENSORS), arrays["ratio"].shape
    real, words = rollout.mask.numpy(), [world.decode(row[None]) for row in rollout.response_ids.flatten()]
    words = np.where(real, np.array(words, dtype=object).reshape(B, T), "")
    sliders = [
        Slider("stage", "", range(1, 8), 4, label="stages done"),
        Slider("review", "", range(1, B + 1), min(2, B), label="review"),
        Slider("steps", "k", range(K), 0, label="optimiser steps"),
        Slider("tensor", "", names, "advantages", label="tensor below"),
    ]
    columns, rows, foot = np.arange(T), -1.0 - np.arange(len(names)), -1.0 - len(names)
    low, high = float(min(a.min() for a in arrays.values())), float(max(a.max() for a in arrays.values()))

    def shown(tensor, review, steps):
        return arrays[tensor][steps, review - 1]

    def table(stage, review, steps):
        cells = [[format_number("{:.2f}", v) if there and TENSORS[name][0] <= stage else ""
                  for v, there in zip(shown(name, review, steps), real[review - 1], strict=True)]
                 for name in names]  # fmt: skip
        return np.array(cells, dtype=object).ravel()

    def rows_of(stage):
        own = [row for row, name in zip(rows, names, strict=True) if TENSORS[name][0] == stage] or [foot]
        return {"lo": min(own) - 0.5, "hi": max(own) + 0.5}

    def labels(tensor, review, steps):
        written = [format_number("{:.2f}", v) for v in shown(tensor, review, steps)]
        return np.where(real[review - 1], np.array(written, dtype=object), "")

    def graph(tensor):
        stage = TENSORS[tensor][0]
        return ("a constant", "with a graph", "what flows back")[(stage > 4) + (stage > 5)]

    def logged(stage, steps):
        if stage < 7:
            return ""
        template = ("policy loss {0[policy_loss]:.2f}, value loss {0[value_loss]:.2f}, "
                    "KL from old {0[approx_kl]:.3f}, clipped {0[clip_fraction]:.0%}")  # fmt: skip
        return format_number(template, {name: row[steps] for name, row in metrics.items()})

    def colored(meaning):
        def frame(tensor, review, steps):
            return shown(tensor, review, steps) * (TENSORS[tensor][1] == meaning)
        return bars(meaning, frame, meaning, panel=1)

    reach, ticks = high - low, [f"t = {t}" for t in columns]
    marks = [
        band("frozen", BORDER, -0.5, "reference", axis="y", alpha=0.12),
        band("with_graph", foot + 0.5, BORDER, "policy", axis="y", alpha=0.12),
        bars("frozen_strip", [-0.5], "reference", x=[T - 0.3], base=BORDER, hatch=".", width=0.1),
        bars("graph_strip", [BORDER], "policy", x=[T - 0.3], base=foot + 0.5, hatch="/", width=0.1),
        text("strip_words", T - 0.2, [rows[4], rows[11] + 0.5], np.array(["frozen", "graph"], dtype=object)),
        band("now", lambda stage: rows_of(stage)["lo"], lambda stage: rows_of(stage)["hi"], "advantage",
             axis="y", alpha=0.35),
        guide("border", BORDER, "black", axis="y", width=2),
        points("chosen", -0.62, lambda tensor: rows[names.index(tensor)], "black", marker="D"),
        text("tokens", columns, 0.1, lambda review: words[review - 1], align="center"),
        text("table", np.tile(columns, len(names)), np.repeat(rows, T), table, align="center"),
        text("log", -0.45, foot, logged),
        *map(colored, dict.fromkeys(meaning for _, meaning, _ in TENSORS.values())),
        text("numbers", columns, lambda tensor, review, steps: shown(tensor, review, steps) + 0.05 * reach
             * np.where(shown(tensor, review, steps) < 0, -1, 1), labels, panel=1, align="center"),
        text("words_below", columns, low - 0.17 * reach, lambda review: words[review - 1], panel=1,
             align="center"),
    ]  # fmt: skip
    return Explorer(
        "step_explorer", sliders,
        [Panel("Above the dashed line everything is frozen; below it gradients flow", "", "",
               (-0.75, T + 0.5), (foot - 0.6, 0.7), xticks=ticks,
               yticks=[*zip(rows, (f"{TENSORS[n][0]} {n}" for n in names), strict=True), (foot, "7 log")]),
         Panel("The chosen tensor, token by token", "", "value", (-0.75, T + 0.5),
               (low - 0.25 * reach, high + 0.13 * reach), zero=True, xticks=ticks)],
        marks, height=350, columns=1,
        words="Stage {stage}: {doing}. Below: {tensor} {shape}, {graph}: {meaning}. After {steps} of "
              f"{K - 1} steps the clip blocks {{clipped:.0f}}% of the batch's tokens.",
        readouts={"doing": lambda stage: np.array([STAGES[stage]], dtype=object),
                  "graph": lambda tensor: np.array([graph(tensor)], dtype=object),
                  "shape": lambda tensor: np.array([f"[{B}]" if tensor == "scores" else f"[{B}, {T}]"],
                                                   dtype=object),
                  "meaning": lambda tensor: np.array([TENSORS[tensor][2]], dtype=object),
                  "clipped": lambda steps: 100 * metrics["clip_fraction"][steps], "shown": shown},
        presets={"Before the first step": {"stage": 5, "steps": 0, "tensor": "ratio"},
                 "After the last step": {"stage": 7, "steps": K - 1, "tensor": "ratio"},
                 "Where the clip blocks": {"stage": 6, "steps": K - 1, "tensor": "push"}},
        caption=f"A real step on a real review, ε = {config.clip_epsilon:g}, β = {config.kl_coef:g}. Which "
                "rows change when you move k, and which never do?",
        alt="Top: a table with a row for each tensor of the step and a column for each token; rows fill in "
            "stage by stage. A dashed line parts the frozen rows of stages 1 to 4 from the rows that hang on "
            "the weights. Bottom: bars of one chosen tensor over the same tokens.",
    )  # fmt: skip
