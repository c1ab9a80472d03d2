import json
from pathlib import Path

from ppo_teach.explorers import clinic_explorer
from ppo_teach.explorers.clinic import CURVES

from . import Case

RUNS = json.loads((Path(__file__).parents[2] / "figures/runs/clinic.json").read_text(encoding="utf-8"))["runs"]

EXPLORERS = {
    "clinic_explorer": Case(
        build=lambda: clinic_explorer(RUNS),
        moves={"patient": ("true_score", "entropy")},
        changes={"show": tuple(f"repaired_{name}" for name in CURVES)},
        fixed=tuple(f"healthy_{name}" for name in CURVES),
        gaps=tuple(f"repaired_{name}" for name in CURVES),
    )
}
BROWSER = (("patient",), "true_score.y")
_NAMES = '{11: "random_responses", 13: "values_late", 20: "old_recomputed", 22: "score_every_token", 27: "%s"}'
_GAP = (
    "    rewards, kl = torch.where(mask, rewards, 0), torch.where(mask, kl, 0)\n"
    "    return (rewards.sum(1) - scores {sign} kl_coef * kl.sum(1)).abs()"
)
ANSWERS = {
    "my_patients = ": (
        f"my_patients = {_NAMES % 'reference_is_policy'}",
        f"my_patients = {_NAMES % 'kl_sign'}",
        "4 of 5 are right. Patient 27 does not suffer from 'the sign of the KL'",
    ),
    "def my_reward_gap(": (_GAP.format(sign="+"), _GAP.format(sign="-"), "Your response is paid for its KL"),
    "my_broken_lines = ": ("my_broken_lines = [2, 3, 6, 7]", "my_broken_lines = [2, 3, 4, 6, 7]", "Line 4 is sound"),
}
