import json
from pathlib import Path

from ppo_teach.explorers import hacking_explorer

from . import Case

STORED = json.loads((Path(__file__).parents[2] / "figures/runs/hacking.json").read_text())

CURVES = ("learned", "learned_low", "learned_high", "true", "true_low", "true_high", "path", "path_x", "distinct")
EXPLORERS = {
    "hacking_explorer": Case(
        build=lambda: hacking_explorer(STORED),
        moves={"stop": ("stop_here", "believed_at_stop", "true_at_stop", "true_at_stop_x", "path_at_stop")},
        changes={"kl_coef": (*CURVES, "outside", "believed_at_stop", "true_at_stop", "path_at_stop"),
                 "num_pairs": (*CURVES, "outside"), "noise": (*CURVES, "outside")},
        fixed=("nothing", "adds"),
        gaps=("adds_x",),
    )
}  # fmt: skip
BROWSER = (("kl_coef", "num_pairs", "noise", "stop"), "true.y")
ANSWERS = {
    "my_choice = ": ("my_choice = (0.1, 30)", "my_choice = (0, 39)", "Too late for this β"),
    "def my_stop(": (
        "    return next((t for t, share in enumerate(signs['outside']) if share > 0.6), None)",
        "    return signs['learned'].index(max(signs['learned']))",
        "Which sign had moved before that",
    ),
    "def my_reward(": (
        "    return (response_ids == world.encode('great').item()).sum(1).float()",
        "    return -(response_ids != world.pad_id).sum(1).float()",
        "it became: shorter",
    ),
}  # fmt: skip
