import json
from pathlib import Path

from ppo_teach.explorers import reward_model_explorer

from . import Case

MODELS = json.loads((Path(__file__).parents[2] / "figures/runs/reward_models.json").read_text())

EXPLORERS = {
    "reward_model_explorer": Case(
        build=lambda: reward_model_explorer(MODELS),
        moves={},
        changes={slider: ("raters", "raters_x", "reviews", "accuracy", "correlation")
                 for slider in ("num_pairs", "noise")},
        fixed=("bradley_terry", "reviews_x", "no_difference"),
    )
}  # fmt: skip
BROWSER = (("num_pairs", "noise"), "reviews.y")
ANSWERS = {
    "def my_bradley_terry(": (
        "    return torch.nn.functional.softplus(rejected - preferred).mean()",
        "    return -torch.nn.functional.logsigmoid(rejected - preferred).mean()",
        "Your loss falls when the *rejected* one scores higher",
    ),
    "def my_place_scores(": (
        "    columns = torch.arange(mask.shape[1])\n"
        "    last = columns == mask.long().sum(1, keepdim=True) - 1\n"
        "    return torch.where(last, scores[:, None], torch.zeros_like(scores[:, None]))",
        "    rewards = torch.zeros(mask.shape, dtype=scores.dtype)\n"
        "    rewards[:, -1] = scores\n"
        "    return rewards",
        "The score stands in the last column",
    ),
}
