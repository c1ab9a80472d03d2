from ppo_teach.explorers import gae_explorer

from . import Case

EXPLORERS = {
    "gae_explorer": Case(
        build=gae_explorer,
        moves={
            "gamma": ("delta", "advantage", "bias", "spread", "here", "mean_bias"),
            "lam": ("advantage", "here_x", "here", "mean_spread"),
            "quality": ("delta", "advantage", "spread", "here", "mean_spread"),
        },
        fixed=("score",),
        changes={"gamma": ("weights", "reach"), "lam": ("weights", "reach"), "quality": ("bias",)},
    )
}
BROWSER = (("gamma", "lam", "quality"), "advantage.y")
ANSWERS = {
    "def my_td_errors(": (
        "    after = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)\n"
        "    return rewards + gamma * after - values",
        "    after = torch.cat([values[:, 1:], values[:, -1:]], dim=1)\n"
        "    return rewards + gamma * after - values",
        "Your last token is followed by its own value",
    ),
    "def my_gae(": (
        "    next_value, next_advantage = torch.zeros(2, len(rewards), dtype=rewards.dtype)\n"
        "    advantages = torch.zeros_like(rewards)\n"
        "    for t in range(rewards.shape[1] - 1, -1, -1):\n"
        "        delta = rewards[:, t] + gamma * next_value - values[:, t]\n"
        "        new = delta + gamma * lam * next_advantage\n"
        "        next_advantage = torch.where(mask[:, t], new, next_advantage)\n"
        "        next_value = torch.where(mask[:, t], values[:, t], next_value)\n"
        "        advantages[:, t] = next_advantage\n"
        "    return advantages * mask, (advantages + values) * mask",
        "    next_value, next_advantage = torch.zeros(2, len(rewards), dtype=rewards.dtype)\n"
        "    advantages = torch.zeros_like(rewards)\n"
        "    for t in range(rewards.shape[1] - 1, -1, -1):\n"
        "        delta = mask[:, t] * (rewards[:, t] + gamma * next_value - values[:, t])\n"
        "        next_advantage = delta + lam * next_advantage\n"
        "        next_value = mask[:, t] * values[:, t]\n"
        "        advantages[:, t] = next_advantage\n"
        "    return advantages * mask, (advantages + values) * mask",
        "is weighed by λ alone",
    ),
    "def my_masked_whiten(": (
        "    n = mask.sum()\n"
        "    mean = (x * mask).sum() / n\n"
        "    variance = (((x - mean) ** 2) * mask).sum() / n\n"
        "    return (x - mean) / (variance + 1e-8).sqrt() * mask",
        "    n = mask.sum()\n"
        "    mean = (x * mask).sum() / n\n"
        "    variance = (((x - mean) ** 2) * mask).sum() / n\n"
        "    return ((x - mean) / (variance + 1e-8).sqrt() + mean) * mask",
        "The mean is back",
    ),
}
