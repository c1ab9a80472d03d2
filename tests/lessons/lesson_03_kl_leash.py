from ppo_teach.explorers import kl_explorer

from . import Case

EXPLORERS = {
    "kl_explorer": Case(
        build=kl_explorer,
        moves={
            "kl_coef": ("kl_cost", "shaped", "kept"),
            "distance": ("batches", "exact", "mean", "kl_cost", "kept"),
            "samples": ("batches", "mean"),
        },
        fixed=("score",),
        changes={"estimator": ("batches", "mean", "kl_cost", "kept")},
    )
}
BROWSER = (("kl_coef", "distance", "samples"), "kl_cost.y")
ANSWERS = {
    "def my_kl_estimate(": (
        "    l = log_probs - log_probs_ref\n"
        '    return {"k1": l, "k2": l**2 / 2, "k3": (-l).exp() - 1 + l}[estimator]',
        "    l = log_probs - log_probs_ref\n"
        '    return {"k1": l, "k2": l**2 / 2, "k3": l.exp() - 1 - l}[estimator]',
        "Your k3 has its ratio upside down",
    ),
    "def my_shape_rewards(": (
        "    rewards = -kl_coef * (log_probs - log_probs_ref).detach() * mask\n"
        "    rewards[torch.arange(len(scores)), mask.sum(1).long() - 1] += scores\n"
        "    return rewards",
        "    rewards = -kl_coef * (log_probs - log_probs_ref).detach() * mask\n"
        "    rewards[:, -1] += scores\n"
        "    return rewards",
        "Your score stands in the last column, padding or not",
    ),
    "def my_kl_controller(": (
        "    betas = []\n"
        "    for kl in kls:\n"
        "        error = min(max(kl / target - 1, -0.2), 0.2)\n"
        "        kl_coef = kl_coef * (1 + error * n_steps / horizon)\n"
        "        betas.append(kl_coef)\n"
        "    return betas",
        "    betas = []\n"
        "    for kl in kls:\n"
        "        kl_coef = kl_coef * (1 + (kl / target - 1) * n_steps / horizon)\n"
        "        betas.append(kl_coef)\n"
        "    return betas",
        "One wild batch moves your price without limit",
    ),
}
