from ppo_teach.explorers import clip_explorer

from . import Case

ABOVE = ("objective_up", "objective_up_x", "objective_down", "objective_down_x", "band_up", "band_down")
TOKEN = ("point_up", "point_down", "tangent_down_x")
BATCH = ("free", "blocked")
EXPLORERS = {
    "clip_explorer": Case(
        build=clip_explorer,
        moves={"clip_epsilon": (*ABOVE, *BATCH, "clip_band", "largest"),
               "ratio": ("point_up_x", "point_down_x", "tangent_up_x", "tangent_down_x"),
               "epochs": (*BATCH, "largest", "mean")},
        changes={"advantage": ("objective_up", "objective_down", "unclipped_up", "unclipped_down", *TOKEN),
                 "clip_epsilon": ("share",), "epochs": ("share",)},
        fixed=("unclipped_up_x", "free_x"),
    )
}  # fmt: skip
BROWSER = (("clip_epsilon", "ratio", "advantage", "epochs"), "objective_up.y")
ANSWERS = {
    "def my_clipped_policy_loss(": (
        "    ratio = (log_probs_new - log_probs_old.detach()).exp()\n"
        "    A, clipped = advantages.detach(), ratio.clamp(1 - clip_epsilon, 1 + clip_epsilon)\n"
        "    return -masked_mean(torch.min(ratio * A, clipped * A), mask)",
        "    ratio = (log_probs_new - log_probs_old.detach()).exp()\n"
        "    A, clipped = advantages.detach(), ratio.clamp(1 - clip_epsilon, 1 + clip_epsilon)\n"
        "    return -masked_mean(clipped * A, mask)",
        "A bad token whose ratio grew costs you nothing more",
    ),
    "my_gradients = ": (
        "my_gradients = [1, 0, 0, -1]",
        "my_gradients = [0, 0, 0, 0]",
        "nothing outside the band has a gradient",
    ),
    "def my_clip_fraction(": (
        "    ratio = (log_probs_new - log_probs_old).exp()\n"
        "    up = (advantages > 0) & (ratio > 1 + clip_epsilon)\n"
        "    down = (advantages < 0) & (ratio < 1 - clip_epsilon)\n"
        "    return masked_mean((up | down).double(), mask)",
        "    ratio = (log_probs_new - log_probs_old).exp()\n"
        "    return masked_mean(((ratio - 1).abs() > clip_epsilon).double(), mask)",
        "You count every ratio outside the band",
    ),
}  # fmt: skip
