"""A second opinion: every formula again in float64 numpy, with loops where they are clearest, and its
gradient worked out by hand. Nothing here imports the package or PyTorch.
"""

import math

import numpy as np


def array(x, dtype=np.float64):
    """Anything (a tensor, a list) as an array of its own."""
    if hasattr(x, "detach"):
        x = x.detach().double().numpy()
    return np.array(x, dtype=dtype)


def real_cells(mask, like):
    return np.ones(array(like).shape, dtype=bool) if mask is None else array(mask) != 0


# ---------------------------------------------------------------- masks and gathers


def masked_mean(x, mask=None):
    x, real = array(x), real_cells(mask, x)
    return float(x[real].sum() / real.sum()) if real.any() else 0.0


def masked_mean_gradient(x, mask=None):
    real = real_cells(mask, x)
    return real / max(real.sum(), 1)


def masked_whiten(x, mask=None, keep_mean=False, eps=1e-8):
    x, real = array(x), real_cells(mask, x)
    out = np.zeros_like(x)
    if real.any():
        data = x[real]
        mean = data.sum() / data.size
        variance = ((data - mean) ** 2).sum() / data.size
        out[real] = (data - mean) / math.sqrt(variance + eps) + (mean if keep_mean else 0.0)
    return out


def masked_whiten_gradient(x, weights, mask=None, eps=1e-8):
    """Gradient of Σ weights · whiten(x)."""
    x, w, real = array(x), array(weights), real_cells(mask, x)
    out = np.zeros_like(x)
    data, w, n = x[real], w[real], real.sum()
    centred = data - data.mean()
    scale = 1.0 / math.sqrt((centred**2).mean() + eps)
    out[real] = scale * (w - w.mean()) - scale**3 * centred * (w * centred).sum() / n
    return out


def response_mask(response_ids, eos_id, pad_id=None):
    rows = array(response_ids, int)
    out = np.zeros(rows.shape, dtype=bool)
    for row, ids in zip(out, rows.tolist(), strict=True):
        if eos_id in ids:
            length = ids.index(eos_id) + 1
        else:
            length = len(ids)
            while pad_id is not None and pad_id != eos_id and length and ids[length - 1] == pad_id:
                length -= 1
        row[:length] = True
    return out


def log_softmax(logits):
    logits = array(logits)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def response_log_probs(logits, response_ids, temperature=1.0):
    log_probs, ids = log_softmax(array(logits) / temperature), array(response_ids, int)
    batch, length = ids.shape
    first = log_probs.shape[1] - length  # P
    return np.array([[log_probs[b, first + t - 1, ids[b, t]] for t in range(length)] for b in range(batch)])


def response_log_probs_gradient(logits, response_ids, weights, temperature=1.0):
    """Gradient of Σ weights · log-probs with respect to the logits: weight · (one-hot - p) / temperature."""
    logits, ids, w = array(logits), array(response_ids, int), array(weights)
    p, out = np.exp(log_softmax(logits / temperature)), np.zeros_like(logits)
    first = logits.shape[1] - ids.shape[1]
    for b in range(ids.shape[0]):
        for t in range(ids.shape[1]):
            row = -p[b, first + t - 1]
            row[ids[b, t]] += 1.0
            out[b, first + t - 1] = w[b, t] * row / temperature
    return out


def entropy(logits):
    p = np.exp(log_softmax(logits))
    return -np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0).sum(-1)


def entropy_gradient(logits):
    """dH/dlogit = -p (log p + H)."""
    log_p = log_softmax(logits)
    p = np.exp(log_p)
    return np.where(p > 0, -p * (np.where(p > 0, log_p, 0.0) + entropy(logits)[..., None]), 0.0)


# ---------------------------------------------------------------- rewards


def place_scores(scores, mask):
    mask, scores = array(mask) != 0, array(scores)
    out = np.zeros(mask.shape)
    for b, row in enumerate(mask):
        if row.any():
            out[b, np.flatnonzero(row)[-1]] = scores[b]
    return out


def kl_estimate(log_probs, log_probs_ref, estimator="k1"):
    log_ratio = array(log_probs) - array(log_probs_ref)
    return {"k1": log_ratio, "k2": log_ratio * log_ratio / 2.0, "k3": np.exp(-log_ratio) - 1.0 + log_ratio}[
        estimator
    ]


def kl_estimate_gradient(log_probs, log_probs_ref, estimator="k1"):
    """With respect to log_probs."""
    log_ratio = array(log_probs) - array(log_probs_ref)
    return {"k1": np.ones_like(log_ratio), "k2": log_ratio, "k3": 1.0 - np.exp(-log_ratio)}[estimator]


def shape_rewards(scores, log_probs, log_probs_ref, kl_coef, mask=None, estimator="k1"):
    real = real_cells(mask, log_probs)
    kl = np.where(real, kl_estimate(log_probs, log_probs_ref, estimator), 0.0)
    return place_scores(scores, real) - kl_coef * kl, kl


def adaptive_kl(value, kl, target, horizon, n_steps):
    error = kl / target - 1.0
    return value * (1.0 + max(-0.2, min(0.2, error)) * n_steps / horizon)


# ---------------------------------------------------------------- advantages


def discounted_returns(rewards, gamma, mask=None):
    rewards, real = array(rewards), real_cells(mask, rewards)
    out = np.zeros_like(rewards)
    for b in range(rewards.shape[0]):
        where = np.flatnonzero(real[b])
        for i, t in enumerate(where):
            out[b, t] = sum(gamma**k * rewards[b, u] for k, u in enumerate(where[i:]))
    return out


def td_errors(rewards, values, gamma, mask=None, last_value=None):
    rewards, values, real = array(rewards), array(values), real_cells(mask, rewards)
    out = np.zeros_like(rewards)
    for b in range(rewards.shape[0]):
        where = np.flatnonzero(real[b])
        tail = 0.0 if last_value is None else array(last_value)[b]
        for i, t in enumerate(where):
            following = values[b, where[i + 1]] if i + 1 < len(where) else tail
            out[b, t] = rewards[b, t] + gamma * following - values[b, t]
    return out


def gae(rewards, values, gamma, lam, mask=None, last_value=None):
    """The sum of GAE's definition, not its recursion: A_t = Σ_k (γλ)^k δ_{t+k}."""
    values, real = array(values), real_cells(mask, rewards)
    errors = td_errors(rewards, values, gamma, mask, last_value)
    advantages, returns = np.zeros_like(errors), np.zeros_like(errors)
    for b in range(errors.shape[0]):
        where = np.flatnonzero(real[b])
        for i, t in enumerate(where):
            advantages[b, t] = sum((gamma * lam) ** k * errors[b, u] for k, u in enumerate(where[i:]))
            returns[b, t] = advantages[b, t] + values[b, t]
    return advantages, returns


# ---------------------------------------------------------------- losses


def clip_binds(new, old, advantages, clip_epsilon):
    """Where the clipped branch is chosen, and the gradient is blocked."""
    ratio, advantages = np.exp(array(new) - array(old)), array(advantages)
    up, down = (advantages > 0) & (ratio > 1 + clip_epsilon), (advantages < 0) & (ratio < 1 - clip_epsilon)
    return up | down


def clipped_policy_loss(new, old, advantages, clip_epsilon, mask=None):
    """Value and gradient with respect to the new log-probs."""
    real, advantages = real_cells(mask, new), array(advantages)
    ratio = np.exp(array(new) - array(old))
    total, gradient = 0.0, np.zeros_like(ratio)
    for cell in np.ndindex(ratio.shape):
        if not real[cell]:
            continue
        plain = ratio[cell] * advantages[cell]
        clipped = min(max(ratio[cell], 1 - clip_epsilon), 1 + clip_epsilon) * advantages[cell]
        total += -min(plain, clipped)
        if plain <= clipped:
            gradient[cell] = -plain
    return total / real.sum(), gradient / real.sum()


def value_loss(values, returns, mask=None, values_old=None, value_clip_epsilon=None):
    """Value and gradient with respect to the values."""
    real, values, returns = real_cells(mask, values), array(values), array(returns)
    total, gradient = 0.0, np.zeros_like(values)
    for cell in np.ndindex(values.shape):
        if not real[cell]:
            continue
        error, slope = values[cell] - returns[cell], 1.0
        if value_clip_epsilon is not None:
            move = values[cell] - array(values_old)[cell]
            near = array(values_old)[cell] + min(max(move, -value_clip_epsilon), value_clip_epsilon)
            if (near - returns[cell]) ** 2 > error**2:
                error, slope = near - returns[cell], float(abs(move) <= value_clip_epsilon)
        total += error**2
        gradient[cell] = 2.0 * error * slope
    return total / real.sum(), gradient / real.sum()


def clip_fraction(new, old, advantages, clip_epsilon, mask=None):
    return masked_mean(clip_binds(new, old, advantages, clip_epsilon).astype(float), mask)


def ratio_outside_fraction(new, old, clip_epsilon, mask=None):
    ratio = np.exp(array(new) - array(old))
    return masked_mean(((ratio > 1 + clip_epsilon) | (ratio < 1 - clip_epsilon)).astype(float), mask)


def approx_kl(new, old, mask=None, estimator="k3"):
    return masked_mean(kl_estimate(old, new, estimator), mask)


def explained_variance(values, returns, mask=None):
    real = real_cells(mask, values)
    values, returns = array(values)[real], array(returns)[real]
    return 1.0 - (returns - values).var() / returns.var()
