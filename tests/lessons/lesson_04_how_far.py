import json
from pathlib import Path

from ppo_teach.explorers import frontier_explorer

from . import Case

RUNS = json.loads((Path(__file__).parents[2] / "figures/runs/chain_frontier.json").read_text())["runs"]
RECIPE = json.loads((Path(__file__).parents[2] / "figures/runs/gain_chain.json").read_text())

EXPLORERS = {
    "frontier_explorer": Case(
        build=lambda: frontier_explorer(measured={"PPO": RUNS, "recipe": RECIPE}),
        moves={"kl_coef": ("optimum", "optimum_x", "equally_good", "optimum_probability")},
        fixed=("frontier", "ppo", "ppo_2", "reference", "reference_probability", "scores"),
    )
}
BROWSER = (("kl_coef",), "optimum.y")
ANSWERS = {
    "def my_optimal_policy(": (
        "    return (log_probs_ref + scores / beta).log_softmax(-1)",
        "    return log_probs_ref + scores / beta",
        "Your probabilities do not add up to 1",
    ),
    "def my_soft_values(": (
        "    V, values = torch.zeros_like(rewards[0]), []\n"
        "    for _ in range(num_steps):\n"
        "        tilted = log_probs_ref + (rewards + V) / beta\n"
        "        V = beta * tilted.logsumexp(-1)\n"
        "        V[0] = 0.0\n"
        "        values.insert(0, V)\n"
        "    return torch.stack(values)",
        "    V, values = torch.zeros_like(rewards[0]), []\n"
        "    for _ in range(num_steps):\n"
        "        V = (log_probs_ref.exp() * (rewards + V)).sum(-1)\n"
        "        V[0] = 0.0\n"
        "        values.insert(0, V)\n"
        "    return torch.stack(values)",
        "Your values are plain averages of Q",
    ),
    "my_kl_coef = ": ("my_kl_coef = 0.65", "my_kl_coef = 0.3", "The leash is too long"),
}  # fmt: skip
