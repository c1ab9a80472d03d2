"""The handbook chapter's class (layer 3): its names, as thin methods over the course's functions."""

from .advantages import gae
from .config import PPOConfig
from .losses import clipped_policy_loss, value_loss
from .models import check_separate, logits_of
from .rewards import shape_rewards
from .tensor_ops import dropout_off, masked_whiten, response_log_probs


class LanguageModelPPO:
    """PPO for language models, one method per term.

    Args:
        policy_model: the language model being trained; may return a tensor, (logits, values) or `.logits`.
        ref_model: a frozen copy of it (`make_reference`); its parameters are set to need no gradient.
        value_model: the value function (kept for the caller; the methods take its values as tensors).
        config: PPOConfig.
    Raises: ValueError when policy and reference share weights, or config is not a PPOConfig.
    Taught in: notebooks/07_training_step.ipynb
    """

    def __init__(self, policy_model, ref_model, value_model, config):
        if not isinstance(config, PPOConfig):
            raise ValueError(f"config must be a PPOConfig, got {type(config).__name__}")
        check_separate(policy_model, ref_model)
        self.policy, self.ref, self.value, self.config = policy_model, ref_model, value_model, config
        self.ref.eval()
        for parameter in self.ref.parameters():
            parameter.requires_grad_(False)

    def compute_log_probs(self, model, input_ids, response_ids):
        """Log-probability of each response token, [B, T] nats.

        The caller's grad mode holds: wrap the call in torch.no_grad() for old log-probs. Dropout is off.
        """
        with dropout_off(model):
            logits = logits_of(model(input_ids))
        return response_log_probs(logits, response_ids, self.config.temperature)

    def compute_rewards_and_advantages(self, reward_scores, log_probs_policy, log_probs_ref, values, mask=None):
        """KL-shaped rewards, then GAE. All three results are constants of shape [B, T]; 0 at padding.

        Returns: advantages (not whitened), returns = advantages + values, and the KL per token.
        """
        shaped_rewards, kl = shape_rewards(
            reward_scores, log_probs_policy, log_probs_ref, self.config.kl_coef, mask, self.config.kl_estimator
        )
        advantages, returns = gae(shaped_rewards, values, self.config.gamma, self.config.lam, mask)
        return advantages, returns, kl

    def ppo_loss(self, log_probs_new, log_probs_old, advantages, mask=None):
        """The clipped policy loss.

        Whiten the advantages once per rollout with `masked_whiten`, before the epochs; they are whitened here, per
        call, only if the config says whiten_advantages="minibatch" (the chapter's habit).
        """
        if self.config.whiten_advantages == "minibatch":
            advantages = masked_whiten(advantages, mask)
        return clipped_policy_loss(log_probs_new, log_probs_old, advantages, self.config.clip_epsilon, mask)

    def value_loss(self, values, returns, mask=None, values_old=None):
        """Mean squared error of the critic, without 1/2; clipped if the config has a value_clip_epsilon."""
        return value_loss(values, returns, mask, values_old, self.config.value_clip_epsilon)
