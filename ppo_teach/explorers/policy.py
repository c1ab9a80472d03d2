"""Temperature and top-k on a real review, for notebook 01 (layer 6)."""

import numpy as np
import torch

from ..canvas import Explorer
from ..marks import Panel, Slider, band, bars, format_number, text
from ..models import keep_top_k
from ..rollout import generate
from ..tensor_ops import entropy, response_log_probs, response_mask
from ..worlds import ReviewWorld

TEMPERATURES = (0.25, 0.5, 0.7, 0.85, 1, 1.25, 1.5, 2, 3)
SHOWN = 10  # likeliest words above


def sampling_explorer(world=None, policy=None, *, prompt_ids=None, response_ids=None, position=0):
    """What temperature and top-k make of the policy before each token of a review.

    Above: the ten likeliest words before token t, and the one that was written. Below: each token of the
    review with its probability. Solid bars: the policy at this temperature; hatched: what top-k draws from.

    Args: world, a ReviewWorld; policy, a TinyLM (default: the pretrained one); prompt_ids [P] and
        response_ids [T], one review (default: sampled); position, where the slider starts.
    Returns: Explorer. Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    world = ReviewWorld() if world is None else world
    policy = world.policy() if policy is None else policy
    prompt = world.prompts[2] if prompt_ids is None else prompt_ids
    if response_ids is None:
        generator = torch.Generator().manual_seed(0)
        response_ids = generate(policy, prompt.unsqueeze(0), world.max_new_tokens, eos_id=world.eos_id,
                                generator=generator)[0]  # fmt: skip
    response = response_ids[response_mask(response_ids.unsqueeze(0), world.eos_id, world.pad_id)[0]]
    tokens = [world.words[i] for i in response]
    ids = torch.cat([prompt, response]).unsqueeze(0)
    with torch.no_grad():
        logits = policy(ids)[0].double()  # [1, P+T, V]
    sliders = [
        Slider("temperature", "τ", TEMPERATURES, 1, label="temperature", format="{:g}"),
        Slider("top_k", "k", (1, 2, 3, 5, 10, 20, world.vocab_size), 5, label="top-k"),
        Slider("position", "t", range(len(tokens)), position, label="position in the review"),
    ]

    def measure(scores, temperature):
        """Entropy, all probabilities and the token's own, before each token of the response."""
        before = scores[0, -len(tokens) - 1 : -1] / temperature
        own = response_log_probs(scores, response.unsqueeze(0), temperature)[0]
        return entropy(before), before.softmax(-1), own

    full = {tau: measure(logits, tau) for tau in TEMPERATURES}
    kept = {(tau, k): measure(keep_top_k(logits, k), tau)
            for tau in TEMPERATURES for k in sliders[1].positions}  # fmt: skip
    best = full[1][1].topk(SHOWN, dim=-1).indices  # [T, SHOWN]; no temperature changes the order
    listed = torch.cat([best, response.unsqueeze(1)], dim=1)
    rows = np.where(np.arange(SHOWN + 1) % 2, -0.24, -0.12)  # long words side by side would touch
    x, wide = np.array([*range(SHOWN), SHOWN + 0.5]), np.arange(len(tokens))

    def policy_bars(temperature, position):
        return full[temperature][1][position, listed[position]].numpy()

    def sampler_bars(temperature, top_k, position):
        return kept[temperature, top_k][1][position, listed[position]].numpy()

    def log_prob_kept(temperature, top_k, position):
        return written(kept[temperature, top_k][2][position].item())

    def review_bars(temperature):
        return full[temperature][2].exp().numpy()

    def sampler_review(temperature, top_k):
        return kept[temperature, top_k][2].exp().numpy()

    marks = [
        band("written", [SHOWN], [SHOWN + 1], alpha=0.1),
        bars("policy", policy_bars, "policy", x=x - 0.2, width=0.38, label="policy at this temperature"),
        bars("sampler", sampler_bars, "old", x=x + 0.2, width=0.38, label="what top-k draws from"),
        text("listed", x, rows, lambda position: [world.words[i] for i in listed[position]], align="center"),
        band("here", lambda position: position - 0.5, lambda position: position + 0.5, panel=1, alpha=0.1),
        bars("policy_review", review_bars, "policy", x=wide - 0.2, panel=1, width=0.38),
        bars("sampler_review", sampler_review, "old", x=wide + 0.2, panel=1, width=0.38),
    ]  # fmt: skip
    ticks, ranks = [(0, "0"), (0.5, "0.5"), (1, "1")], [*range(1, SHOWN + 1), "written"]
    return Explorer(
        "sampling_explorer", sliders,
        [Panel("The policy before token t is one probability for each word",
               "the ten likeliest, and the one written there", "probability",
               (-0.6, SHOWN + 1.1), (-0.33, 1.05), zero=True, xticks=list(zip(x, ranks)), yticks=ticks),
         Panel("Temperature changes every token's probability; top-k forbids some tokens",
               f"after '{world.decode(prompt)}'", "probability",
               (-0.6, len(tokens) - 0.4), (0, 1.05), xticks=tokens, yticks=ticks)],
        marks, height=230, columns=1,
        words="Before token {position} the entropy is {entropy:.2f} nats, and {entropy_kept:.2f} with "
              "top-{top_k}. '{word}' was written there: its log-prob is {log_prob} under the policy at "
              "temperature {temperature}, and {log_prob_kept} under what top-{k_again} draws from.",
        readouts={
            "word": lambda position: tokens[position], "k_again": lambda top_k: f"{top_k}",
            "entropy": lambda temperature, position: full[temperature][0][position].item(),
            "entropy_kept": lambda temperature, top_k, position: kept[temperature, top_k][0][position].item(),
            "log_prob": lambda temperature, position: written(full[temperature][2][position].item()),
            "log_prob_kept": log_prob_kept,
        },
        presets={"No filter": {"temperature": 1, "top_k": world.vocab_size},
                 "Top-3": {"temperature": 1, "top_k": 3}, "Greedy": {"top_k": 1},
                 "Hot": {"temperature": 2, "top_k": world.vocab_size}},
        caption="Measured on the pretrained policy of ReviewWorld. Which tokens of this review could a "
                "sampler with top-5 never have written?",
        alt="Above: pairs of bars for the ten likeliest words at one position, and for the one written. "
            "Below: the review with a pair of bars a token. A small k removes the hatched bar of some "
            "tokens and raises the others; a low temperature does so gradually, to both bars.",
    )  # fmt: skip


def written(log_prob):
    """A log-probability as text: -inf as well."""
    return "−∞" if log_prob == -np.inf else format_number("{:.2f}", log_prob)
