"""The PPO objective, term by term, and the numbers that watch it (layer 2).

Old log-probs, advantages, returns and old values are constants: the functions detach them, so that a tensor that was
stored with its graph cannot change the gradient. Padding is replaced before any arithmetic.
"""

import torch

from .tensor_ops import as_mask, check_number, check_same_shape, hide_padding, kl_from_log_ratio, masked_mean


def probability_ratio(log_probs_new, log_probs_old):
    """ρ_t = π_new(a_t | s_t) / π_old(a_t | s_t), from log-probabilities.

    The PPO paper writes r_t(θ); here r_t is the reward. ρ is 1 exactly before the first step on a rollout.

    Args: [B, T] each, nats. Returns: [B, T]; gradient flows to log_probs_new only.
    Source: Schulman et al. 2017, section 2.
    Taught in: notebooks/06_clipping.ipynb
    """
    check_same_shape(log_probs_new=log_probs_new, log_probs_old=log_probs_old)
    return torch.exp(log_probs_new - log_probs_old.detach())


def clipped_policy_loss(log_probs_new, log_probs_old, advantages, clip_epsilon, mask=None):
    """The negative of PPO's clipped surrogate, averaged over the real tokens.

    L = -mean_t min(ρ_t Â_t, clip(ρ_t, 1-ε, 1+ε) Â_t)

    The min picks the pessimistic branch *after* multiplying by Â. Only two corners lose their gradient: Â > 0 with
    ρ > 1+ε, and Â < 0 with ρ < 1-ε. In the other two the token is being pulled back, and keeps it.

    Args: log_probs_new, log_probs_old, advantages, mask [B, T]; clip_epsilon ε > 0. Returns: scalar.
    Raises: ValueError for shapes that differ (nothing is broadcast) or ε <= 0.
    Source: Schulman et al. 2017, eq. 7.
    Taught in: notebooks/06_clipping.ipynb
    """
    check_number("clip_epsilon", clip_epsilon, low=0.0, low_open=True)
    check_same_shape(log_probs_new=log_probs_new, log_probs_old=log_probs_old, advantages=advantages)
    mask = as_mask(mask, log_probs_new)
    log_probs_new, log_probs_old, advantages = hide_padding(mask, log_probs_new, log_probs_old, advantages.detach())
    ratio = probability_ratio(log_probs_new, log_probs_old)
    clipped = ratio.clamp(1.0 - clip_epsilon, 1.0 + clip_epsilon)
    return -masked_mean(torch.min(ratio * advantages, clipped * advantages), mask)


def value_loss(values, returns, mask=None, values_old=None, value_clip_epsilon=None):
    """Mean squared error of the critic over the real tokens, without a factor 1/2.

    L_V = mean_t (V_t - G_t)²,   or with clipping   mean_t max((V_t - G_t)², (clip(V_t, V_old ± ε_V) - G_t)²)

    Args: values, returns, mask, values_old [B, T]; value_clip_epsilon ε_V > 0 or None (plain). Returns: scalar.
    Raises: ValueError for shapes that differ, or ε_V without values_old.
    Source: clipped form as in Ziegler et al. 2019 (which has the 1/2); the chapter's plain MSE has none.
    Taught in: notebooks/06_clipping.ipynb
    """
    check_same_shape(values=values, returns=returns, values_old=values_old)
    mask = as_mask(mask, values)
    values, returns = hide_padding(mask, values, returns.detach())
    squared_error = (values - returns) ** 2
    if value_clip_epsilon is not None:
        check_number("value_clip_epsilon", value_clip_epsilon, low=0.0, low_open=True)
        if values_old is None:
            raise ValueError("values_old must be given when value_clip_epsilon is: it is the centre of the band")
        values_old = hide_padding(mask, values_old.detach())
        near = values.clamp(values_old - value_clip_epsilon, values_old + value_clip_epsilon)
        squared_error = torch.max(squared_error, (near - returns) ** 2)
    return masked_mean(squared_error, mask)


@torch.no_grad()
def clip_fraction(log_probs_new, log_probs_old, advantages, clip_epsilon, mask=None):
    """Share of real tokens whose clipped branch is chosen, so that their gradient is blocked.

    That is Â > 0 with ρ > 1+ε, or Â < 0 with ρ < 1-ε. Some libraries count every ratio outside the band instead: see
    `ratio_outside_fraction`.

    Args: as clipped_policy_loss. Returns: scalar in [0, 1].
    Taught in: notebooks/06_clipping.ipynb
    """
    check_number("clip_epsilon", clip_epsilon, low=0.0, low_open=True)
    check_same_shape(log_probs_new=log_probs_new, log_probs_old=log_probs_old, advantages=advantages)
    mask = as_mask(mask, log_probs_new)
    log_probs_new, log_probs_old = hide_padding(mask, log_probs_new, log_probs_old)
    ratio = probability_ratio(log_probs_new, log_probs_old)
    blocked_up = (advantages > 0) & (ratio > 1.0 + clip_epsilon)
    blocked_down = (advantages < 0) & (ratio < 1.0 - clip_epsilon)
    return masked_mean((blocked_up | blocked_down).to(ratio.dtype), mask)


@torch.no_grad()
def ratio_outside_fraction(log_probs_new, log_probs_old, clip_epsilon, mask=None):
    """Share of real tokens with |ρ - 1| > ε, whatever the sign of the advantage.

    Larger than `clip_fraction`, since a token outside the band may still have its gradient.

    Args: [B, T] each. Returns: scalar in [0, 1]. Taught in: notebooks/06_clipping.ipynb
    """
    check_number("clip_epsilon", clip_epsilon, low=0.0, low_open=True)
    check_same_shape(log_probs_new=log_probs_new, log_probs_old=log_probs_old)
    mask = as_mask(mask, log_probs_new)
    ratio = probability_ratio(*hide_padding(mask, log_probs_new, log_probs_old))
    outside = (ratio > 1.0 + clip_epsilon) | (ratio < 1.0 - clip_epsilon)
    return masked_mean(outside.to(ratio.dtype), mask)


@torch.no_grad()
def approx_kl(log_probs_new, log_probs_old, mask=None, estimator="k3"):
    """KL(old, new) per token, estimated on tokens sampled from the old policy: how far this update has moved.

    Not the KL to the reference (`kl_estimate`): two KLs, two names. Here l = log_probs_old - log_probs_new, since the
    old policy is the one that drew the tokens.

    Args: [B, T] each, nats. Returns: scalar, nats per token.
    Source: Schulman 2020. Taught in: notebooks/06_clipping.ipynb
    """
    check_same_shape(log_probs_new=log_probs_new, log_probs_old=log_probs_old)
    mask = as_mask(mask, log_probs_new)
    log_probs_new, log_probs_old = hide_padding(mask, log_probs_new, log_probs_old)
    return masked_mean(kl_from_log_ratio(log_probs_old - log_probs_new, estimator), mask)


@torch.no_grad()
def explained_variance(values, returns, mask=None):
    """1 - Var(G - V) / Var(G): 1 = the critic forecasts perfectly, 0 = no better than a constant, below 0 = worse.

    Constant returns leave nothing to explain: 0 then.

    Args: values, returns, mask [B, T]. Returns: scalar. Taught in: notebooks/08_training_run.ipynb
    """
    check_same_shape(values=values, returns=returns)
    mask = as_mask(mask, values)
    values, returns = hide_padding(mask, values.double(), returns.double())

    def variance(x):
        return masked_mean((x - masked_mean(x, mask)) ** 2, mask)

    total = variance(returns)
    # rounding noise of constant returns is not variance
    if total <= 1e-14 * max(1.0, float(masked_mean(returns**2, mask))):
        return torch.zeros((), dtype=torch.float32)
    return (1.0 - variance(returns - values) / total).float()
