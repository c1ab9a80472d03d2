"""Masks, gathers and masked statistics: the small tools every formula of the course stands on (layer 0).

Shapes: B prompts in the batch, P prompt tokens, T response tokens, V words in the vocabulary.
A mask has 1 for a real token and 0 for padding; `None` means that every token is real.
"""

import math
from contextlib import contextmanager

import torch
import torch.nn.functional as F

HALF = (torch.float16, torch.bfloat16)


def check_same_shape(**tensors):
    """Raise `ValueError` naming both shapes unless all given tensors (None is skipped) have the same shape.

    PyTorch would broadcast [B, 1] against [B, T] in silence; here that is an error.
    """
    given = [(name, t) for name, t in tensors.items() if t is not None]
    for name, tensor in given:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    first_name, first = given[0]
    for name, tensor in given[1:]:
        if tensor.shape != first.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} but {first_name} has shape {tuple(first.shape)}: "
                "they must be equal"
            )


def check_number(name, value, low=-math.inf, high=math.inf, low_open=False):
    """Raise `ValueError` unless `value` is a finite number in [low, high] ((low, high] with `low_open`)."""
    bracket = "(" if low_open else "["
    allowed = f"a finite number in {bracket}{low:g}, {high:g}]"
    if isinstance(value, bool) or not hasattr(value, "__float__") or getattr(value, "ndim", 0):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    value = float(value)
    too_low = value <= low if low_open else value < low
    if not math.isfinite(value) or too_low or value > high:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def check_token_ids(name, ids, vocab_size=None):
    """Raise `ValueError` unless `ids` is a non-empty integer [B, L] tensor with entries in [0, vocab_size)."""
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        got = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise ValueError(f"{name} must be an integer tensor of shape [B, L], got {got}")
    if ids.numel() == 0:
        raise ValueError(f"{name} must hold at least one token, got shape {tuple(ids.shape)}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        allowed = f"[0, {vocab_size})" if vocab_size is not None else "[0, vocabulary size)"
        raise ValueError(f"{name} must hold token ids in {allowed}, got ids from {low} to {high}")


def check_token_id(name, value):
    """Raise `ValueError` unless `value` is one token id, an integer >= 0."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 0:
        raise ValueError(f"{name} must be a token id, an integer >= 0, got {value!r}")


def check_prompt_mask(mask, prompt_ids):
    """Return the prompt's mask as bool [B, P]; raise `ValueError` for another shape or padding behind a prompt.

    The response follows the last column, so that column must hold a real token in every row.
    """
    mask = as_mask(mask, prompt_ids)
    if not mask[:, -1].all():
        bad = int((~mask[:, -1]).nonzero()[0])
        raise ValueError(f"prompts must not be empty or padded on the right, got padding at the end of row {bad}")
    return mask


def check_scores(scores, batch):
    """Return the scores as a float [B] tensor; raise `ValueError` for another shape, NaN or infinity."""
    if not isinstance(scores, torch.Tensor) or scores.shape != (batch,):
        got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise ValueError(f"scores must be a tensor of shape ({batch},), one number per response, got {got}")
    scores = scores if scores.is_floating_point() else scores.to(torch.get_default_dtype())
    if not torch.isfinite(scores).all():
        bad = int((~torch.isfinite(scores)).nonzero()[0])
        raise ValueError(f"scores must be finite, got {scores[bad].item()} in row {bad}")
    return scores


def as_mask(mask, like):
    """Return `mask` as a bool tensor of `like`'s shape; `None` becomes all ones. Raises on another shape."""
    if not isinstance(like, torch.Tensor):
        raise ValueError(f"the data must be a torch.Tensor, got {type(like).__name__}")
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    if not isinstance(mask, torch.Tensor):
        raise ValueError(f"mask must be a torch.Tensor or None, got {type(mask).__name__}")
    if mask.shape != like.shape:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)} but the data has shape {tuple(like.shape)}: they must be equal"
        )
    return mask if mask.dtype == torch.bool else mask != 0


def hide_padding(mask, *tensors):
    """Replace padded cells by 0 *before* any arithmetic.

    Multiplying by the mask afterwards is not enough: 0 * inf is NaN, in the value and in the gradient.
    """
    hidden = tuple(torch.where(mask, t, 0) for t in tensors)
    return hidden[0] if len(hidden) == 1 else hidden


def masked_mean(x, mask=None, dim=None):
    """Mean of `x` over the real tokens: sum(x * mask) / sum(mask).

    Args:
        x: any shape, usually [B, T].
        mask: same shape, 1 = real token; None = all real.
        dim: the axis to reduce; None reduces everything to a scalar.

    Inf and NaN under the mask are harmless, also in the gradient. A mask with no real token gives 0.
    This is the *token mean*: long responses weigh more than short ones.
    Raises: ValueError when the shapes differ.
    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    mask = as_mask(mask, x)
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    kept = hide_padding(mask, x)
    wide = torch.float32 if x.dtype in HALF else x.dtype  # a float16 sum of 70,000 ones is infinite
    return (kept.sum(dim, dtype=wide) / mask.sum(dim).clamp(min=1)).to(x.dtype)


def masked_whiten(x, mask=None, keep_mean=False, eps=1e-8):
    """Shift and scale `x` to mean 0 and variance 1 over the real tokens; padded cells become 0.

    whitened = (x - mean) / sqrt(var + eps), with the population variance (divide by n, not n - 1), so one
    real token gives 0 instead of NaN. `keep_mean=True` adds the mean back (for rewards, never for advantages).

    Args: x [B, T]; mask [B, T], 1 = real token. Raises: ValueError when the shapes differ.
    Source: Ziegler et al. 2019 whiten per batch; the population form follows their released code.
    Taught in: notebooks/05_gae.ipynb
    """
    mask = as_mask(mask, x)
    check_number("eps", eps, low=0.0)
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    # float64 inside: for a constant x the rounding error of a float32 mean would be blown up by 1 / sqrt(eps)
    kept = hide_padding(mask, x.double())
    mean = kept.sum() / mask.sum().clamp(min=1)
    centred = hide_padding(mask, kept - mean)
    variance = (centred**2).sum() / mask.sum().clamp(min=1)
    # centred is 0 wherever the variance is 0, so a zero eps must not divide 0 by 0
    scale = torch.where(variance + eps > 0, variance + eps, torch.ones_like(variance)).rsqrt()
    whitened = centred * scale + (mean if keep_mean else 0.0)
    return hide_padding(mask, whitened).to(x.dtype)


def response_mask(response_ids, eos_id, pad_id=None):
    """Mark the real tokens of each response: everything through the first EOS.

    The EOS itself is real: choosing to stop is an action the policy must learn. Without an EOS every token is
    real, except a tail of `pad_id` (when pad_id differs from eos_id). Correct when pad_id == eos_id.

    Args: response_ids [B, T] integers. Returns: bool [B, T], 1 = real token.
    Raises: ValueError for ids that are not integers [B, T] or an eos_id that is no token id.
    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    check_token_ids("response_ids", response_ids)
    check_token_id("eos_id", eos_id)
    is_eos = response_ids == eos_id
    seen_before = is_eos.long().cumsum(1) - is_eos.long()  # how many EOS stand strictly before this position
    mask = seen_before == 0
    if pad_id is not None and pad_id != eos_id:
        not_pad = response_ids != pad_id
        # a cell belongs to the padded tail when no non-pad token stands at it or after it
        in_tail = not_pad.flip(1).long().cumsum(1).flip(1) == 0
        mask = mask & ~in_tail
    return mask


def response_log_probs(logits, response_ids, temperature=1.0):
    """Log-probability of each response token under full-sequence logits.

    The token at position j is scored by the logits at position j - 1, so a response that starts at P reads the
    logits at P-1 ... P+T-2. The softmax runs in float32 (or float64 if that came in), never in half precision.

    Args:
        logits: [B, P+T, V], one row per position of prompt + response.
        response_ids: [B, T] integers.
        temperature: > 0; the logits are divided by it, as they were when sampling.
    Returns: [B, T] log-probabilities in nats.
    Raises: ValueError for a response that leaves no prompt token in front, other batch sizes or foreign ids.
    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    check_number("temperature", temperature, low=0.0, low_open=True)
    if not isinstance(logits, torch.Tensor) or logits.dim() != 3:
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ValueError(f"logits must have shape [B, P+T, V], got {got}")
    check_token_ids("response_ids", response_ids, vocab_size=logits.shape[-1])
    batch, length = response_ids.shape
    if logits.shape[0] != batch or logits.shape[1] <= length:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} cannot score response_ids of shape {(batch, length)}: the batch "
            "sizes must agree and at least one prompt token must stand before the response"
        )
    predicting = logits[:, -length - 1 : -1]
    if predicting.dtype in HALF:
        predicting = predicting.float()
    log_probs = F.log_softmax(predicting / temperature if temperature != 1.0 else predicting, dim=-1)
    return log_probs.gather(-1, response_ids.long().unsqueeze(-1)).squeeze(-1)


def response_values(values, response_length):
    """Value of the state *before* each response token: positions P-1 ... P+T-2.

    Reading them one later would let the critic see the action it is asked to judge.

    Args: values [B, P+T]; response_length T. Returns: [B, T].
    Raises: ValueError unless 1 <= T < P+T.
    Taught in: notebooks/05_gae.ipynb
    """
    if values.dim() != 2:
        raise ValueError(f"values must have shape [B, P+T], got {tuple(values.shape)}")
    if not 1 <= response_length < values.shape[1]:
        raise ValueError(
            f"response_length must be between 1 and {values.shape[1] - 1} for values of shape "
            f"{tuple(values.shape)}, got {response_length}"
        )
    return values[:, -response_length - 1 : -1]


def entropy(logits):
    """Entropy of the softmax over the last axis: H = -Σ p log p, in nats.

    -inf logits (forbidden tokens) are allowed: they add 0, and the gradient stays finite.

    Args: logits [..., V]. Returns: [...].
    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    log_p = F.log_softmax(logits.float() if logits.dtype in HALF else logits, dim=-1)
    # p * log p at p = 0 is 0 * -inf = NaN for a computer; the limit is 0
    return -(log_p.exp() * log_p.masked_fill(log_p == -math.inf, 0.0)).sum(-1)


def kl_from_log_ratio(log_ratio, estimator="k1"):
    """The three single-sample estimates of KL(p, q), from l = log p - log q of a token drawn from p.

    k1 = l            unbiased, noisy, may be negative
    k2 = l² / 2       never negative, biased, good near 0
    k3 = exp(-l) - 1 + l   unbiased, never negative

    Args: log_ratio, any shape, nats. Raises: ValueError for another estimator.
    Source: Schulman 2020, "Approximating KL Divergence".
    Taught in: notebooks/03_kl_leash.ipynb
    """
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return log_ratio**2 / 2
    if estimator == "k3":
        return torch.expm1(-log_ratio) + log_ratio
    raise ValueError(f"estimator must be 'k1', 'k2' or 'k3', got {estimator!r}")


def position_ids(attention_mask):
    """Position of each token, counting real tokens only, so that left padding never moves a token.

    Args: attention_mask [B, L], 1 = real token. Returns: [B, L] integers; 0 at padding in front.
    """
    return ((attention_mask != 0).long().cumsum(1) - 1).clamp(min=0)


@contextmanager
def single_thread():
    """Run a block on one CPU thread and put the old number back.

    At the sizes of this course two busy threads are up to ten times slower than one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def dropout_off(*modules):
    """Run a block with the modules in eval mode and put each submodule's own mode back.

    With dropout on, the same weights score the same token differently in each pass: a ratio that is not 1 before
    the first step and a KL that is not 0. Gradients flow as usual.
    """
    modules = [module for module in modules if isinstance(module, torch.nn.Module)]  # a plain function has no dropout
    training = [part for module in modules for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
