"""From one score per response to one reward per token (layer 2): placement, KL estimates, shaping, controllers."""

import torch

from .tensor_ops import (
    as_mask,
    check_number,
    check_same_shape,
    check_scores,
    check_token_id,
    check_token_ids,
    hide_padding,
    kl_from_log_ratio,
)


@torch.no_grad()
def place_scores(scores, mask):
    """Put each response's score on its last real token; every other token gets 0.

    The last real token is the EOS, or the last sampled token of a response that was cut off; it is the last *column*
    only by accident. A row without real tokens gets nothing.

    Args: scores [B]; mask [B, T], 1 = real token. Returns: [B, T].
    Raises: ValueError when the batch sizes differ or a score is not finite.
    Taught in: notebooks/02_rewards.ipynb
    """
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        raise ValueError(f"mask must be a tensor of shape [B, T], got {getattr(mask, 'shape', type(mask).__name__)}")
    scores = check_scores(scores, mask.shape[0])
    real = mask != 0
    real_after = real.flip(1).long().cumsum(1).flip(1) - real.long()  # real tokens strictly after this one
    is_last = real & (real_after == 0)
    return torch.where(is_last, scores.unsqueeze(1), torch.zeros_like(scores).unsqueeze(1))


def kl_estimate(log_probs, log_probs_ref, estimator="k1"):
    """Per-token estimate of KL(policy, reference), from tokens the policy itself sampled.

    With l = log_probs - log_probs_ref:  k1 = l,  k2 = l²/2,  k3 = exp(-l) - 1 + l.
    A single k1 may be negative; only its mean is a KL. The sign is the point: exp(+l) in k3, or a minus in front of
    k1, measures something else and pays for drifting away.

    Args: log_probs, log_probs_ref [B, T], nats. Returns: [B, T], nats per token.
    Raises: ValueError for different shapes or an unknown estimator.
    Source: Schulman 2020, "Approximating KL Divergence".
    Taught in: notebooks/03_kl_leash.ipynb
    """
    check_same_shape(log_probs=log_probs, log_probs_ref=log_probs_ref)
    return kl_from_log_ratio(log_probs - log_probs_ref, estimator)


@torch.no_grad()
def shape_rewards(scores, log_probs, log_probs_ref, kl_coef, mask=None, estimator="k1"):
    """The reward of each token: the price of its KL, plus the score at the end.

    r_t = -β k_t (+ R at the last real token)

    Both results are constants (detached): a reward that carries gradient would let the losses move the policy by
    making rewards easy to predict.

    Args:
        scores: [B], one number per response.
        log_probs, log_probs_ref: [B, T], nats, of the sampled tokens under policy and reference.
        kl_coef: β >= 0, reward per nat.
        mask: [B, T], 1 = real token.
        estimator: "k1" (then Σ_t r_t = R - β Σ_t k_t is the KL-regularised objective), "k2" or "k3".
    Returns: shaped_rewards [B, T], kl [B, T]; 0 at padding.
    Raises: ValueError for shapes that differ, non-finite scores, negative kl_coef.
    Source: Ziegler et al. 2019, eq. 2; Ouyang et al. 2022.
    Taught in: notebooks/03_kl_leash.ipynb
    """
    check_number("kl_coef", kl_coef, low=0.0)
    check_same_shape(log_probs=log_probs, log_probs_ref=log_probs_ref)
    mask = as_mask(mask, log_probs)
    log_probs, log_probs_ref = hide_padding(mask, log_probs, log_probs_ref)
    kl = kl_estimate(log_probs, log_probs_ref, estimator)
    dtype = torch.promote_types(kl.dtype, torch.float32)  # half precision would round the score, or make it infinite
    return place_scores(scores, mask).to(dtype) - kl_coef * kl, kl


@torch.no_grad()
def missing_eos_penalty(scores, response_ids, eos_id, penalty):
    """Subtract `penalty` from the score of every response that never stopped.

    Only the response is searched: an EOS in the prompt says nothing. The penalty is subtracted, it does not replace
    the score.

    Args: scores [B]; response_ids [B, T]; penalty >= 0, in units of reward. Returns: [B].
    Source: Ziegler et al. 2019 (as a replacement score), TRL (as a subtraction, the convention here).
    Taught in: notebooks/02_rewards.ipynb
    """
    check_number("penalty", penalty, low=0.0)
    check_token_ids("response_ids", response_ids)
    check_token_id("eos_id", eos_id)
    scores = check_scores(scores, response_ids.shape[0])
    stopped = (response_ids == eos_id).any(dim=1)
    return torch.where(stopped, scores, scores - penalty)


class AdaptiveKLController:
    """Moves the KL coefficient so that the KL per response approaches a target.

    β ← β · (1 + clip(KL/target - 1, -0.2, 0.2) · n/horizon)

    Args: init_kl_coef >= 0; target > 0, nats per response; horizon > 0, responses. `.value` is the present β.
    Raises: ValueError for anything else.
    Source: Ziegler et al. 2019, section 2.2.
    Taught in: notebooks/03_kl_leash.ipynb
    """

    def __init__(self, init_kl_coef, target, horizon):
        check_number("init_kl_coef", init_kl_coef, low=0.0)
        check_number("target", target, low=0.0, low_open=True)
        check_number("horizon", horizon, low=0.0, low_open=True)
        self.value, self.target, self.horizon = float(init_kl_coef), float(target), float(horizon)

    def update(self, kl_per_response, n_steps):
        """Take the measured KL (nats per response, summed over its tokens) of `n_steps` responses; return β."""
        check_number("kl_per_response", kl_per_response)
        check_number("n_steps", n_steps, low=0.0)
        error = min(max(float(kl_per_response) / self.target - 1.0, -0.2), 0.2)
        # one giant batch could turn the factor negative, and a negative price pays for drifting
        self.value *= max(1.0 + error * float(n_steps) / self.horizon, 0.0)
        return self.value


class RunningMoments:
    """Mean and population variance of all numbers ever given to `update`, in float64, without storing them.

    Batches are merged by Chan et al. 1983: M ← M + M_b + d² n n_b / (n + n_b), with d the difference of the means.
    Taught in: notebooks/02_rewards.ipynb
    """

    def __init__(self):
        self.count, self.mean, self._squares = 0, 0.0, 0.0

    @property
    def var(self):
        """Population variance; 0 before anything was seen."""
        return self._squares / self.count if self.count else 0.0

    def update(self, x):
        """Take in a tensor (any shape) or a list of finite numbers."""
        x = torch.as_tensor(x, dtype=torch.float64).detach().flatten()
        if not torch.isfinite(x).all():
            raise ValueError("x must hold finite numbers only, got NaN or infinity")
        if x.numel() == 0:
            return
        n, mean = x.numel(), x.mean().item()
        shift, total = mean - self.mean, self.count + n
        self._squares += ((x - mean) ** 2).sum().item() + shift**2 * self.count * n / total
        self.mean += shift * n / total
        self.count = total
