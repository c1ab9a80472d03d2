from ppo_teach.explorers import step_explorer

from . import Case

EXPLORERS = {
    "step_explorer": Case(
        build=step_explorer,
        moves={"stage": ("now",), "tensor": ("chosen", "shown")},
        changes={"review": ("shown", "numbers"), "steps": ("clipped",)},
        fixed=("frozen", "with_graph", "border", "tokens_x", "table_x"),
    )
}
BROWSER = (("stage", "review", "steps"), "now.lo")
_STEP = (
    "    rewards, _ = shape_rewards(scores, log_probs_old, log_probs_ref, config.kl_coef, mask)\n"
    "    A, G = gae(rewards, {critic}, config.gamma, config.lam, mask)\n"
    "    A = masked_whiten(A, mask)\n"
    "    policy_term = clipped_policy_loss(log_probs_new, log_probs_old, A, config.clip_epsilon, mask)\n"
    "    return policy_term + config.value_coef * value_loss(values_new, G, mask)"
)
_NUMBERS = '{"A": 6, "B": 4, "C": 7, "D": 1, "E": 2, "F": 3, "G": 5, "H": 8}'
ANSWERS = {
    "def my_training_step(": (
        _STEP.format(critic="values_old"),
        _STEP.format(critic="values_new"),
        "Your advantages change from step to step",
    ),
    "my_invariants = ": (
        f"my_invariants = {_NUMBERS}",
        f"my_invariants = {_NUMBERS.replace('6', '4')}",
        "7 of 8 are right. Step A",
    ),
}
