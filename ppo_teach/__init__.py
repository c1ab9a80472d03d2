"""PPO for language models, taught on models small enough to train while you watch.

The list below is the table of contents, in the order in which a training step uses it.
"""

from .config import NOTATION, PPOConfig
from .tensor_ops import entropy, masked_mean, masked_whiten, response_log_probs, response_mask, response_values
from .models import MockLanguageModel, MockRewardModel, MockValueHead, TablePolicy, TinyLM, make_reference
from .worlds import ChainWorld, ReviewWorld
from .rollout import Rollout, collect_rollout, generate
from .rewards import (
    AdaptiveKLController,
    RunningMoments,
    kl_estimate,
    missing_eos_penalty,
    place_scores,
    shape_rewards,
)
from .advantages import discounted_returns, gae, td_errors
from .losses import (
    approx_kl,
    clip_fraction,
    clipped_policy_loss,
    explained_variance,
    probability_ratio,
    ratio_outside_fraction,
    value_loss,
)
from .exact import (
    exact_advantages,
    exact_expected_reward,
    exact_kl,
    exact_policy_gradient,
    exact_values,
    optimal_policy,
    reward_kl_frontier,
    share_of_gain,
)
from .ppo import LanguageModelPPO
from .train import PPOTrainer, TrainingLog, run_ppo_training_step, train_ppo
from .bugs import BUGS, Bug
from .checkup import Finding, checkup

__all__ = [
    "NOTATION",
    "PPOConfig",
    "entropy",
    "masked_mean",
    "masked_whiten",
    "response_log_probs",
    "response_mask",
    "response_values",
    "MockLanguageModel",
    "MockRewardModel",
    "MockValueHead",
    "TablePolicy",
    "TinyLM",
    "make_reference",
    "ChainWorld",
    "ReviewWorld",
    "Rollout",
    "collect_rollout",
    "generate",
    "AdaptiveKLController",
    "RunningMoments",
    "kl_estimate",
    "missing_eos_penalty",
    "place_scores",
    "shape_rewards",
    "discounted_returns",
    "gae",
    "td_errors",
    "approx_kl",
    "clip_fraction",
    "clipped_policy_loss",
    "explained_variance",
    "probability_ratio",
    "ratio_outside_fraction",
    "value_loss",
    "exact_advantages",
    "exact_expected_reward",
    "exact_kl",
    "exact_policy_gradient",
    "exact_values",
    "optimal_policy",
    "reward_kl_frontier",
    "share_of_gain",
    "LanguageModelPPO",
    "PPOTrainer",
    "TrainingLog",
    "run_ppo_training_step",
    "train_ppo",
    "BUGS",
    "Bug",
    "Finding",
    "checkup",
]
