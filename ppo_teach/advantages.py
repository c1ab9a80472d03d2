"""Credit assignment (layer 2): which token earned the reward?

Everything here is a constant for the losses, so it is computed without gradient. Responses are [B, T] with a mask;
the state after the last real token is worth 0 (the response is over) unless `last_value` says otherwise.
"""

import torch

from .tensor_ops import as_mask, check_number, check_same_shape, hide_padding


def _prepare(rewards, values, mask, last_value, gamma):
    """Check shapes, zero the padding, and return everything time-major ([T, B]) in one floating dtype."""
    check_number("gamma", gamma, low=0.0, high=1.0)
    check_same_shape(rewards=rewards, values=values)
    if rewards.dim() != 2 or rewards.shape[1] == 0:
        raise ValueError(f"rewards must have shape [B, T] with T >= 1, got {tuple(rewards.shape)}")
    mask = as_mask(mask, rewards)
    dtype = rewards.dtype if values is None else torch.promote_types(rewards.dtype, values.dtype)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    dtype = torch.promote_types(dtype, torch.float32)  # a recursion in half precision would lose the small terms
    rewards = hide_padding(mask, rewards.to(dtype))
    values = torch.zeros_like(rewards) if values is None else hide_padding(mask, values.to(dtype))
    if last_value is None:
        last_value = rewards.new_zeros(rewards.shape[0])
    elif not isinstance(last_value, torch.Tensor) or last_value.shape != rewards.shape[:1]:
        got = tuple(last_value.shape) if isinstance(last_value, torch.Tensor) else type(last_value).__name__
        raise ValueError(f"last_value must have shape ({rewards.shape[0]},), one per response, got {got}")
    return rewards.T, values.T, mask.T, last_value.to(dtype)


@torch.no_grad()
def discounted_returns(rewards, gamma, mask=None):
    """Reward still to come from each token on.

    G_t = r_t + γ G_{t+1},   G after the last real token = 0

    Args: rewards [B, T]; gamma in [0, 1]; mask [B, T]. Returns: [B, T]; 0 at padding.
    Source: Sutton & Barto 2018, eq. 3.9.
    Taught in: notebooks/05_gae.ipynb
    """
    rewards, _, mask, future = _prepare(rewards, None, mask, None, gamma)
    returns = torch.zeros_like(rewards)
    for t in reversed(range(len(rewards))):
        future = torch.where(mask[t], rewards[t] + gamma * future, future)
        returns[t] = future
    return hide_padding(mask, returns).T


@torch.no_grad()
def td_errors(rewards, values, gamma, mask=None, last_value=None):
    """One-step surprise of the critic.

    δ_t = r_t + γ V(s_{t+1}) - V(s_t),   V after the last real token = last_value, or 0

    Args: rewards, values [B, T]; gamma in [0, 1]; mask [B, T]; last_value [B]. Returns: [B, T]; 0 at padding.
    Source: Sutton & Barto 2018, eq. 6.5, with the reward of action t written r_t.
    Taught in: notebooks/05_gae.ipynb
    """
    if values is None:
        raise ValueError("values must be a tensor of shape [B, T], got None")
    check_same_shape(rewards=rewards, values=values)
    rewards, values, mask, next_value = _prepare(rewards, values, mask, last_value, gamma)
    errors = torch.zeros_like(rewards)
    for t in reversed(range(len(rewards))):
        errors[t] = rewards[t] + gamma * next_value - values[t]
        next_value = torch.where(mask[t], values[t], next_value)  # padding is passed over
    return hide_padding(mask, errors).T


@torch.no_grad()
def gae(rewards, values, gamma, lam, mask=None, last_value=None):
    """Generalised advantage estimation.

    δ_t = r_t + γ V(s_{t+1}) - V(s_t)
    Â_t = δ_t + γ λ Â_{t+1},   Â after the last real token = 0
    G_t = Â_t + V(s_t)

    λ = 0 trusts the critic (one-step error), λ = 1 trusts the sample (Monte Carlo return minus V).

    Args:
        rewards, values: [B, T]; values[:, t] is V *before* token t is chosen.
        gamma, lam: in [0, 1].
        mask: [B, T], 1 = real token.
        last_value: [B], V after the last token of a response that was cut off; 0 for one that stopped.
    Returns: advantages [B, T], returns [B, T] (the critic's targets; take them before whitening); 0 at padding.
    Raises: ValueError for shapes that differ, gamma or lam outside [0, 1].
    Source: Schulman et al. 2016, eq. 16; γλ is written γ·λ, and the last state has value 0.
    Taught in: notebooks/05_gae.ipynb
    """
    check_number("lam", lam, low=0.0, high=1.0)
    errors = td_errors(rewards, values, gamma, mask, last_value)
    errors, values, mask, _ = _prepare(errors, values, mask, last_value, gamma)
    advantages, next_advantage = torch.zeros_like(errors), torch.zeros_like(errors[0])
    for t in reversed(range(len(errors))):
        next_advantage = torch.where(mask[t], errors[t] + gamma * lam * next_advantage, next_advantage)
        advantages[t] = next_advantage
    advantages = hide_padding(mask, advantages)
    return advantages.T, (advantages + values).T
