from ppo_teach.explorers import sampling_explorer

from . import Case

EXPLORERS = {
    "sampling_explorer": Case(
        build=sampling_explorer,
        moves={"temperature": ("policy", "policy_review", "sampler_review", "entropy"),
               "top_k": ("sampler", "entropy_kept"),
               "position": ("policy", "sampler", "here", "entropy")},
        changes={"top_k": ("sampler_review",)},
        fixed=("policy_x", "written"),
    )
}  # fmt: skip
BROWSER = (("temperature", "top_k", "position"), "policy.y")
ANSWERS = {
    "def my_response_log_probs(": (
        "    T = response_ids.shape[1]\n"
        "    log_probs = (logits[:, -T - 1 : -1] / temperature).log_softmax(-1)\n"
        "    return log_probs.gather(-1, response_ids.unsqueeze(-1)).squeeze(-1)",
        "    T = response_ids.shape[1]\n"
        "    log_probs = (logits[:, -T:] / temperature).log_softmax(-1)\n"
        "    return log_probs.gather(-1, response_ids.unsqueeze(-1)).squeeze(-1)",
        "logits that have already read it",
    ),
    "def my_response_mask(": (
        "    is_eos = (response_ids == eos_id).long()\n"
        "    return is_eos.cumsum(1) - is_eos == 0",
        "    return (response_ids == eos_id).cumsum(1) == 0",
        "Your mask stops before the EOS",
    ),
    "my_log_prob = ": ("my_log_prob = -1.29", "my_log_prob = -0.97", "or by what top-k leaves of it"),
}  # fmt: skip
