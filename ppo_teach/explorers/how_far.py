"""The reward-KL frontier, for notebook 04 (layer 6)."""

import numpy as np
import torch

from ..canvas import Explorer
from ..exact import find_candidates, optimal_policy, reward_kl_frontier
from ..marks import Panel, Slider, bars, line, points, text
from ..models import make_reference
from ..worlds import ChainWorld

BETAS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9,
         1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7, 10)  # fmt: skip


def frontier_explorer(world=None, reference=None, *, measured=None, prompt=1, kl_coef=0.3, candidates=None):
    """The KL coefficient β along the exact reward-KL frontier, and the responses that π* prefers there.

    Left: the best reward for every KL, the point of π* at the slider's β, and the line of all points that are
    as good as it (slope β). Right: the likeliest responses to one prompt, under reference and π*.

    Args: world, a ChainWorld; reference, its frozen policy; measured, label -> dicts with kl and reward, drawn as dots;
        prompt, row of world.prompts(); kl_coef, where the slider starts; candidates, if at hand.
    Returns: Explorer. Taught in: notebooks/04_how_far.ipynb
    """
    world = ChainWorld() if world is None else world
    reference = make_reference(world.policy()) if reference is None else reference
    found = find_candidates(world, reference) if candidates is None else candidates
    slider = Slider("kl_coef", "β", BETAS, kl_coef, label="KL coefficient", format="{:g}")
    best = {beta: optimal_policy(world, reference, beta, candidates=found) for beta in slider.positions}
    curve = reward_kl_frontier(world, reference, np.geomspace(0.01, 300, 200), candidates=found)
    start = float((found.log_weights.exp() * found.scores).sum(1).mean())
    reach = float(found.scores.amax(1).mean()) - start  # by the best response to every prompt
    width, (low, high) = float(curve["kl"].max()) * 1.06, (start - 0.3, start + reach + 0.5)
    # the responses that are likeliest somewhere along the slider, sorted by score
    lead = [found.log_weights[prompt], *(best[b].log_probs[prompt] for b in (0.1, 0.5, 1.0))]
    top = torch.stack(lead).amax(0).topk(6).indices
    top = top[found.scores[prompt, top].argsort(stable=True)]
    short = [world.decode(found.response_ids[prompt, i]).replace("<eos>", ".").replace(" ", "") for i in top]
    x, asked, kl = np.arange(len(top)), world.decode(found.prompt_ids[prompt]), np.array([0.0, width])
    before = found.log_weights[prompt, top].exp().numpy()

    def at(name):
        return lambda kl_coef: getattr(best[kl_coef], name)

    def after(kl_coef):
        return best[kl_coef].log_probs[prompt, top].exp().numpy()

    def spread(kl_coef):
        return float(torch.special.entr(best[kl_coef].log_probs[prompt].exp()).sum().exp())

    marks = [
        line("frontier", curve["kl"], curve["reward"], label="the best possible", label_at="key"),
        line("equally_good", kl, lambda kl_coef: best[kl_coef].objective + kl_coef * kl, "kl", width=1.6,
             label="as good, at this β", label_at="key"),
        points("reference", [0.0], [start], "reference", label="reference", size=9),
        points("optimum", at("kl"), at("reward"), "score", label="π* at this β", size=12),
        bars("reference_probability", before, "reference", x=x - 0.2, panel=1, width=0.36, label="reference"),
        bars("optimum_probability", after, "score", x=x + 0.2, panel=1, width=0.36, label="π* at this β",
             values="{:.2f}"),
        text("scores", x, 1.17, found.scores[prompt, top].numpy(), panel=1, format="{:+.1f}", align="center"),
    ]  # fmt: skip
    for number, (label, runs) in enumerate((measured or {}).items()):
        dots = [run["kl"] for run in runs], [run["reward"] for run in runs]
        name = f"ppo_{number + 1}" if number else "ppo"
        marks.insert(2 + number, points(name, *dots, "policy", size=7 + number, label=label, marker="os^"[number % 3]))
    return Explorer(
        "frontier_explorer", [slider],
        [Panel("Each nat buys less than the last", "KL to the reference, nats per response", "mean reward",
               (-0.1, width), (low, high)),
         Panel(f"After '{asked}', π* prefers what scores high", "response (a dot ends it), its score on top",
               "probability", (-0.6, len(top) - 0.4), (0, 1.25), xticks=short,
               yticks=[(0, "0"), (0.5, "0.5"), (1, "1")])],
        marks, height=330,
        words="At β = {kl_coef}, π* earns {reward:.2f} for {kl:.2f} nats: worth {objective:.2f} after the "
              f"bill, {{share:.0f}}% of the reward that can be gained. To '{asked}' it spreads over about "
              "{kinds:.1f} responses.",
        readouts={"reward": at("reward"), "kl": at("kl"), "objective": at("objective"), "kinds": spread,
                  "share": lambda kl_coef: 100 * (best[kl_coef].reward - start) / reach},
        presets={"Almost no leash": {"kl_coef": 0.02}, "PPOConfig's default": {"kl_coef": 0.1},
                 "One reward a nat": {"kl_coef": 1}, "Tight leash": {"kl_coef": 5}},
        caption=f"Curve and bars are exact, by listing all {world.num_responses:,} responses to each prompt"
                f"{'; each dot is a PPO run' * bool(measured)}. Where is the next nat not worth its price?",
        alt="Left: a curve rises steeply from the reference and flattens; a marker moves along it as β "
            "changes, and a line of slope β touches it there. Right: pairs of bars; as β falls, π* moves its "
            "probability from the reference's favourites to the response with the highest score.",
    )  # fmt: skip
