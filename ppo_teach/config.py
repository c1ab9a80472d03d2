"""Hyperparameters and notation of the course (layer 0)."""

import math
from dataclasses import KW_ONLY, dataclass, fields


@dataclass
class PPOConfig:
    """Every knob of PPO for language models, with the range it may take.

    The first five fields are the handbook chapter's, in its order and with its defaults; the rest are keyword-only.
    Raises: ValueError naming the field, the value and what is allowed.
    Source: Schulman et al. 2017 (PPO), Ziegler et al. 2019 and Ouyang et al. 2022 (language models).
    Taught in: notebooks/08_training_run.ipynb
    """

    clip_epsilon: float = 0.2  # ε, half-width of the band in which the ratio may move the loss
    kl_coef: float = 0.1  # β, price of one nat of KL to the reference, in units of reward
    value_coef: float = 0.5  # c₁, weight of the value loss (plain MSE, no 1/2)
    gamma: float = 1.0  # γ, discount per token
    lam: float = 0.95  # λ of GAE
    _: KW_ONLY
    num_epochs: int = 4  # K, passes over one rollout; with 1 pass and 1 minibatch the clip can never act
    num_minibatches: int = 2  # parts a rollout is cut into in each epoch
    learning_rate: float = 5e-4  # Adam's step size
    lr_schedule: str = "constant"  # or "linear": down to 0 at the last update
    adam_eps: float = 1e-8  # Adam's ε (the clip's ε is clip_epsilon)
    max_grad_norm: float | None = 1.0  # gradient norm is cut to this; None = never
    entropy_coef: float = 0.0  # c₂, entropy bonus (subtracted from the loss)
    value_clip_epsilon: float | None = None  # ε_V; None = plain MSE
    value_warmup: int = 0  # updates at the start that train the critic only
    whiten_advantages: str = "batch"  # once per rollout; or "minibatch", or "none"
    kl_estimator: str = "k1"  # the KL estimate inside the shaped reward
    kl_target: float | None = None  # nats per response; set = adaptive KL coefficient starting at kl_coef
    kl_horizon: int = 10_000  # responses over which the adaptive coefficient moves
    target_kl: float | None = None  # stop the epochs of one update when approx_kl exceeds this
    missing_eos_penalty: float = 0.0  # subtracted from the score of a response that never stops
    bootstrap_truncated: bool = False  # give a cut-off response V(s_T) as its future instead of 0
    temperature: float = 1.0  # of sampling; the policy being trained is the tempered one
    eos_id: int | None = None  # run_ppo_training_step: the token that ends a response; None = all tokens real
    pad_id: int | None = None  # run_ppo_training_step: the padding token

    def __post_init__(self):
        in_unit = {"gamma": self.gamma, "lam": self.lam}
        not_negative = {
            name: getattr(self, name)
            for name in ("kl_coef", "value_coef", "entropy_coef", "missing_eos_penalty", "adam_eps")
        }
        positive = {name: getattr(self, name) for name in ("clip_epsilon", "learning_rate", "temperature")}
        for name in ("max_grad_norm", "value_clip_epsilon", "kl_target", "target_kl"):
            if getattr(self, name) is not None:
                positive[name] = getattr(self, name)
        for group, test, allowed in (
            (in_unit, lambda v: 0 <= v <= 1, "a number in [0, 1]"),
            (not_negative, lambda v: v >= 0, "a finite number >= 0"),
            (positive, lambda v: v > 0, "a finite number > 0"),
        ):
            for name, value in group.items():
                if not _is_number(value) or not test(value):
                    raise ValueError(f"{name} must be {allowed}, got {value!r}")
        for name, low in (("num_epochs", 1), ("num_minibatches", 1), ("kl_horizon", 1), ("value_warmup", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(f"{name} must be an integer >= {low}, got {value!r}")
        for name in ("eos_id", "pad_id"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ValueError(f"{name} must be a token id >= 0 or None, got {value!r}")
        for name, allowed in (
            ("lr_schedule", ("constant", "linear")),
            ("whiten_advantages", ("batch", "minibatch", "none")),
            ("kl_estimator", ("k1", "k2", "k3")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        if not isinstance(self.bootstrap_truncated, bool):
            raise ValueError(f"bootstrap_truncated must be True or False, got {self.bootstrap_truncated!r}")

    def changed(self):
        """The fields that differ from the defaults, as a dict (for the title of a plot or a log)."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# name in code -> (symbol, shape, meaning). One list for the package, the notebooks and the figures.
NOTATION = {
    "prompt_ids": ("x", "[B, P]", "the prompt's tokens"),
    "response_ids": ("y = (a₀ … a_{T-1})", "[B, T]", "the sampled tokens: the actions"),
    "mask": ("m_t", "[B, T]", "1 = real token, through the first EOS"),
    "scores": ("R(x, y)", "[B]", "the reward model's number, once per response"),
    "log_probs_new": ("log π_θ(a_t | s_t)", "[B, T]", "under the policy being trained, nats"),
    "log_probs_old": ("log π_old(a_t | s_t)", "[B, T]", "under the policy at rollout, nats"),
    "log_probs_ref": ("log π_ref(a_t | s_t)", "[B, T]", "under the frozen reference, nats"),
    "kl": ("k_t", "[B, T]", "estimate of the KL to the reference, nats per token"),
    "kl_coef": ("β", "number", "price of one nat of KL"),
    "shaped_rewards": ("r_t", "[B, T]", "-β k_t, plus R at the last real token"),
    "values": ("V(s_t)", "[B, T]", "the critic's forecast before a_t is chosen"),
    "td_errors": ("δ_t", "[B, T]", "r_t + γ V(s_{t+1}) - V(s_t)"),
    "advantages": ("Â_t", "[B, T]", "how much better than expected a_t was"),
    "returns": ("G_t", "[B, T]", "Â_t + V(s_t): the critic's target"),
    "ratio": ("ρ_t", "[B, T]", "π_θ / π_old of a_t (the PPO paper writes r_t, which is reward here)"),
    "clip_epsilon": ("ε", "number", "half-width of the clip band around ρ = 1"),
    "gamma": ("γ", "number", "discount per token"),
    "lam": ("λ", "number", "GAE's mix between one-step (0) and Monte Carlo (1)"),
}
