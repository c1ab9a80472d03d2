"""The models of the course (layer 1): the handbook chapter's mocks made correct, and a tiny causal LM that learns.

Left out against a production model: tokenizer, dropout, weight tying, mixed precision, rotary positions.
Shapes: B batch, L length of prompt + response, V vocabulary, D width, H heads.
"""

import copy
import inspect
import math
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from .tensor_ops import (
    as_mask,
    check_number,
    check_prompt_mask,
    check_token_ids,
    dropout_off,
    position_ids,
    single_thread,
)


def causal_mask(length, attention_mask=None, device=None):
    """Which positions may be read: bool [L, L], or [B, L, L] with an attention mask; True = may be read.

    Position i reads 0 ... i, and never a padded position (a padded row reads itself, to stay finite).
    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    allowed = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    if attention_mask is None:
        return allowed
    itself = torch.eye(length, dtype=torch.bool, device=device)
    return (allowed & (attention_mask != 0).unsqueeze(1)) | itself


def keep_top_k(logits, top_k=None):
    """Forbid all but the k likeliest tokens: logits [..., V], with -inf for the others. Equals are kept together.

    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    if top_k is None or top_k >= logits.shape[-1]:
        return logits
    smallest = logits.topk(top_k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest, -math.inf)


def sample_tokens(logits, temperature=1.0, top_k=None, generator=None):
    """Draw one token a row, and score it.

    Inverse-CDF sampling: one uniform number a row, and the first token whose cumulative probability exceeds it.
    `top_k` forbids all but the k likeliest tokens, but the log-probability returned is that of the *unfiltered*
    policy at this temperature: it is the one the training pass recomputes. A filtered one would make the ratio
    differ from 1 before the first step.

    Args: logits [B, V]. Returns: tokens [B], log_probs [B] in nats. Raises: FloatingPointError for NaN logits.
    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    log_probs = F.log_softmax(logits / temperature if temperature != 1.0 else logits, dim=-1)
    cumulative = keep_top_k(log_probs, top_k).exp().cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    if total.isnan().any():
        raise FloatingPointError("the policy's logits hold NaN or infinity: its weights have exploded")
    # a float64 draw times the total stays strictly below it, so a token of probability 0 is never chosen
    draw = torch.rand(len(logits), 1, dtype=torch.float64, generator=generator) * total
    tokens = torch.searchsorted(cumulative, draw, right=True)  # [B, 1]
    return tokens.squeeze(-1), log_probs.gather(-1, tokens).squeeze(-1)


def attend(query, key, value, bias):
    """Attention of every position, all heads at once: softmax(QKᵀ / √d + bias) V.

    Args: query [B, Lq, H, d], key, value [B, L, H, d]; bias [Lq, L] or [B, 1, Lq, L], 0 = may be read, -inf = not.
    Returns: [B, Lq, H·d]. Written out because at 24 positions it is faster than PyTorch's fused kernel.
    Source: Vaswani et al. 2017, eq. 1.
    """
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))  # [B, H, L, d]
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(2, 3) + bias
    return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


def attend_from_last(query, keys, values, bias=None):
    """The same for one new token a row, which may read everything before it: a cache is all it needs.

    Args: query [B, H, d]; keys, values [L, B, H, d], time first; bias [B, 1, 1, L] or None. Returns: [B, H·d].
    """
    scores = (keys * query).sum(-1) * query.shape[-1] ** -0.5  # [L, B, H]
    if bias is not None:
        scores = scores + bias[:, 0, 0].T.unsqueeze(-1)
    return (scores.softmax(0).unsqueeze(-1) * values).sum(0).flatten(1)


class Block(nn.Module):
    """One pre-norm transformer block; with a cache it reads keys and values of earlier positions from there."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention = nn.LayerNorm(d_model)
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.mix_heads = nn.Linear(d_model, d_model)
        self.norm_mlp = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x, bias=None, cache=None, start=0, last=None):
        """x [B, L, D] -> [B, L, D], or [B, last, D] where only the last positions are wanted.

        bias: see `attend`. cache: (keys, values), each [longest, B, H, D/H], which is filled from `start` on: with
        the whole prompt first, then one token at a time.
        """
        B, L, D = x.shape
        heads = self.query_key_value(self.norm_attention(x)).view(B, L, 3, self.num_heads, -1)
        query, key, value = heads.unbind(2)  # each [B, L, H, D/H]
        if cache is not None:
            keys, values = cache
            keys[start : start + L], values[start : start + L] = key.transpose(0, 1), value.transpose(0, 1)
        if start > 0:
            read = attend_from_last(query[:, 0], keys[: start + 1], values[: start + 1], bias).unsqueeze(1)
        else:
            if last is not None:  # every position is read, but only these go on
                x, query, bias = x[:, -last:], query[:, -last:], bias[..., -last:, :]
            read = attend(query, key, value, bias)
        x = x + self.mix_heads(read)
        return x + self.mlp(self.norm_mlp(x))


class Trunk(nn.Module):
    """Token and position embeddings, blocks, final norm: ids [B, L] -> hidden states [B, L, D] (or the last ones)."""

    def __init__(self, vocab_size, d_model, num_layers, num_heads, max_length):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        self.position_embedding = nn.Embedding(max_length, d_model)
        self.blocks = nn.ModuleList(Block(d_model, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, ids, positions=None, allowed=None, caches=None, start=0, last=None):
        length = ids.shape[1]
        if positions is None:
            embedded = self.position_embedding.weight[start : start + length]
        else:
            embedded = self.position_embedding(positions)
        x = self.token_embedding(ids) + embedded
        if allowed is None and start == 0:  # with start > 0 it is one new token, which may read all before it
            allowed = causal_mask(length, device=ids.device)
        bias = None if allowed is None else x.new_zeros(allowed.shape).masked_fill(~allowed, -math.inf)
        for i, block in enumerate(self.blocks):
            last_block = i == len(self.blocks) - 1
            x = block(x, bias, caches[i] if caches else None, start, last if last_block else None)
        return self.norm(x)


class TinyLM(nn.Module):
    """A causal transformer small enough to train by PPO in seconds, with a critic.

    Args:
        vocab_size, d_model, num_layers, num_heads, max_length: sizes; max_length counts prompt + response.
        critic: "shared" puts a value head on the policy's trunk; "separate" gives the critic a trunk of its own,
            so that value gradients never reach the policy.
        seed: of the initial weights (drawn from a generator of their own).

    forward(ids [B, L], attention_mask [B, L] or None) -> (logits [B, L, V], values [B, L]); for less
    work, logits_to_keep=n gives only the last n positions, and with_values=False the logits alone.
    The value head starts at 0, so the first advantages are the plain rewards-to-go.
    Raises: ValueError for sizes that do not fit, ids outside the vocabulary, sequences longer than max_length.
    Source: Vaswani et al. 2017; pre-norm as in Radford et al. 2019.
    Taught in: notebooks/01_language_model_as_policy.ipynb
    """

    def __init__(
        self, vocab_size, d_model=64, num_layers=2, num_heads=4, max_length=32, *, critic="shared", seed=0
    ):
        super().__init__()
        sizes = dict(vocab_size=vocab_size, d_model=d_model, num_layers=num_layers, max_length=max_length)
        for name, size in {**sizes, "num_heads": num_heads}.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be an integer >= 1, got {size!r}")
        if d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model = {d_model}, got {num_heads}")
        if critic not in ("shared", "separate"):
            raise ValueError(f"critic must be 'shared' or 'separate', got {critic!r}")
        self.vocab_size, self.max_length = vocab_size, max_length
        with seeded(seed):  # PyTorch's own initialisation would draw from the global generator
            self.trunk = Trunk(vocab_size, d_model, num_layers, num_heads, max_length)
            self.lm_head = nn.Linear(d_model, vocab_size)
            self.critic = copy.deepcopy(self.trunk) if critic == "separate" else None
            self.value_head = nn.Linear(d_model, 1)
        self._initialise(torch.Generator().manual_seed(seed), num_layers)

    @torch.no_grad()
    def _initialise(self, generator, num_layers):
        for name, weight in self.named_parameters():
            if "norm" in name:
                continue
            if name.endswith("bias") or name.startswith("value_head"):
                weight.zero_()
                continue
            # what each block adds to the residual stream is scaled so that depth does not blow it up
            into_residual = name.endswith(("mix_heads.weight", "mlp.2.weight"))
            std = (0.02 if "embedding" in name else weight.shape[1] ** -0.5) / (
                math.sqrt(2 * num_layers) if into_residual else 1.0
            )
            weight.normal_(0.0, std, generator=generator)

    def forward(self, ids, attention_mask=None, logits_to_keep=None, with_values=True):
        self._check_ids(ids)
        positions = allowed = None
        if attention_mask is not None and not bool(as_mask(attention_mask, ids).all()):
            positions = position_ids(attention_mask)
            allowed = causal_mask(ids.shape[1], attention_mask, ids.device).unsqueeze(1)
        hidden = self.trunk(ids, positions, allowed, last=logits_to_keep)
        if not with_values:
            return self.lm_head(hidden)
        judged = hidden if self.critic is None else self.critic(ids, positions, allowed, last=logits_to_keep)
        return self.lm_head(hidden), self.value_head(judged).squeeze(-1)

    def _check_ids(self, ids, more=0, name="input_ids"):
        check_token_ids(name, ids, self.vocab_size)
        if ids.shape[1] + more > self.max_length:
            raise ValueError(
                f"{name} of length {ids.shape[1]}{f' plus {more} new tokens' if more else ''} does not fit: "
                f"this model has {self.max_length} positions"
            )

    def generate(
        self, prompt_ids, max_new_tokens, *, eos_id=None, pad_id=None, temperature=1.0, top_k=None,
        attention_mask=None, generator=None, return_log_probs=False,
    ):  # fmt: skip
        """Sample a response for each prompt, reusing the keys and values of earlier positions (KV cache).

        A row stops at its own `eos_id`; later cells hold `pad_id` (default: the eos_id). A row that never stops
        keeps the tokens that were sampled: no EOS is written over the last one.

        Args: prompt_ids [B, P], padded on the left if at all (then give attention_mask [B, P]).
        Returns: response_ids [B, max_new_tokens], and with return_log_probs also the log-probabilities [B, T] of
            the policy at this temperature (0 at padding).
        Taught in: notebooks/01_language_model_as_policy.ipynb
        """
        check_sampling(max_new_tokens, temperature, top_k)
        self._check_ids(prompt_ids, max_new_tokens, "prompt_ids")
        B, P = prompt_ids.shape
        T, block = max_new_tokens, self.trunk.blocks[0]
        head_size, dtype = self.lm_head.in_features // block.num_heads, self.lm_head.weight.dtype
        real = check_prompt_mask(attention_mask, prompt_ids)
        padded = not bool(real.all())
        if padded:
            real = torch.cat([real, torch.ones(B, T, dtype=torch.bool)], dim=1)
            where, may_read = position_ids(real), causal_mask(P + T, real).unsqueeze(1)
        fill = pad_id if pad_id is not None else eos_id
        response = torch.full((B, T), fill if fill is not None else 0, dtype=torch.long)
        log_probs = torch.zeros(B, T, dtype=dtype)
        running = torch.ones(B, dtype=torch.bool)
        ids, start = prompt_ids, 0
        with torch.inference_mode(), dropout_off(self), single_thread():  # a tenth faster than no_grad
            new_cache = lambda: torch.empty(P + T, B, block.num_heads, head_size, dtype=dtype)
            caches = [(new_cache(), new_cache()) for _ in self.trunk.blocks]
            for t in range(T):
                end = start + ids.shape[1]
                extra = (where[:, start:end], may_read[:, :, start:end, :end]) if padded else (None, None)
                hidden = self.trunk(ids, *extra, caches, start, last=1)
                tokens, scored = sample_tokens(self.lm_head(hidden[:, -1]), temperature, top_k, generator)
                if eos_id is None:
                    response[:, t], log_probs[:, t] = tokens, scored
                else:
                    tokens = torch.where(running, tokens, response[:, t])
                    response[:, t], log_probs[:, t] = tokens, torch.where(running, scored, log_probs[:, t])
                    running = running & (tokens != eos_id)
                    if not running.any():
                        break
                ids, start = tokens.unsqueeze(1), end
        return (response, log_probs) if return_log_probs else response


@contextmanager
def seeded(seed):
    """Build a module from a seed of its own, leaving the global generator as it was; None = use the global one."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_sampling(max_new_tokens, temperature, top_k):
    """Raise `ValueError` unless the sampling options make sense."""
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be an integer >= 1, got {max_new_tokens!r}")
    check_number("temperature", temperature, low=0.0, low_open=True)
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"top_k must be an integer >= 1 or None, got {top_k!r}")


class TablePolicy(nn.Module):
    """A policy without a network: one row of logits, and one value, per (position, last token).

    Where the reward depends on neighbouring tokens only, nothing better exists, and everything is exact.
    forward(ids [B, L]) -> (logits [B, L, V], values [B, L]), as for TinyLM.
    Taught in: notebooks/04_how_far.ipynb
    """

    def __init__(self, vocab_size, max_length):
        super().__init__()
        self.vocab_size, self.max_length = vocab_size, max_length
        self.logits = nn.Parameter(torch.zeros(max_length, vocab_size, vocab_size))
        self.values = nn.Parameter(torch.zeros(max_length, vocab_size))

    def forward(self, ids, attention_mask=None):
        check_token_ids("input_ids", ids, self.vocab_size)
        if ids.shape[1] > self.max_length:
            raise ValueError(f"input_ids of length {ids.shape[1]} does not fit: the table has {self.max_length} rows")
        position = torch.arange(ids.shape[1])
        if attention_mask is not None:
            position = position_ids(as_mask(attention_mask, ids))
        return self.logits[position, ids], self.values[position, ids]


class MockLanguageModel(nn.Module):
    """The chapter's mock LM, made correct: positions, a causal mask and no dropout.

    forward(input_ids [B, L], attention_mask [B, L] or None) -> logits [B, L, V].
    Untrained: its tokens are noise; it is here for the shapes. `TinyLM` is the one that learns.
    Taught in: notebooks/01_language_model_as_policy.ipynb
    """

    def __init__(self, vocab_size=1000, hidden_dim=128, *, max_length=512, seed=None):
        super().__init__()
        self.vocab_size, self.max_length = vocab_size, max_length
        with seeded(seed):
            self.embedding = nn.Embedding(vocab_size, hidden_dim)
            self.position_embedding = nn.Embedding(max_length, hidden_dim)
            # dropout 0: PyTorch's default of 0.1 scores the same token differently in each pass
            self.transformer = nn.TransformerEncoderLayer(hidden_dim, nhead=4, dropout=0.0, batch_first=True)
            self.lm_head = nn.Linear(hidden_dim, vocab_size)

    def forward(self, input_ids, attention_mask=None):
        check_token_ids("input_ids", input_ids, self.vocab_size)
        length = input_ids.shape[1]
        if length > self.max_length:
            raise ValueError(f"input_ids of length {length} does not fit: this model has {self.max_length} positions")
        if attention_mask is not None:
            attention_mask = as_mask(attention_mask, input_ids)
        allowed = causal_mask(length, attention_mask, input_ids.device)
        positions = torch.arange(length, device=input_ids.device)
        if attention_mask is not None:
            positions = position_ids(attention_mask)
            allowed = allowed.repeat_interleave(self.transformer.self_attn.num_heads, dim=0)
        x = self.embedding(input_ids) + self.position_embedding(positions)
        return self.lm_head(self.transformer(x, src_mask=~allowed))


class MockValueHead(nn.Module):
    """The chapter's value head: hidden_states [..., D] -> values [...]. Starts at 0 (no opinion yet).

    Taught in: notebooks/01_language_model_as_policy.ipynb
    """

    def __init__(self, hidden_dim=128):
        super().__init__()
        self.value_head = nn.Linear(hidden_dim, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, hidden_states):
        return self.value_head(hidden_states).squeeze(-1)


class MockRewardModel(nn.Module):
    """The chapter's reward model, made to see word order: input_ids [B, L] -> scores [B].

    Averaging embeddings and then applying a linear head cannot tell a text from its reversal. Here each token meets
    its position in a non-linear layer *before* the average.
    Taught in: notebooks/02_rewards.ipynb
    """

    def __init__(self, vocab_size=1000, hidden_dim=64, *, max_length=512, seed=None):
        super().__init__()
        self.vocab_size, self.max_length = vocab_size, max_length
        with seeded(seed):
            self.embedding = nn.Embedding(vocab_size, hidden_dim)
            self.position_embedding = nn.Embedding(max_length, hidden_dim)
            self.mix = nn.Linear(hidden_dim, hidden_dim)
            self.pool = nn.AdaptiveAvgPool1d(1)
            self.head = nn.Linear(hidden_dim, 1)

    def forward(self, input_ids):
        check_token_ids("input_ids", input_ids, self.vocab_size)
        length = input_ids.shape[1]
        if length > self.max_length:
            raise ValueError(f"input_ids of length {length} does not fit: this model has {self.max_length} positions")
        x = self.embedding(input_ids) + self.position_embedding.weight[:length]
        x = torch.relu(self.mix(x))
        return self.head(self.pool(x.transpose(1, 2)).squeeze(-1)).squeeze(-1)


def make_reference(policy):
    """A frozen copy of the policy, sharing no storage with it: the fixed end of the KL leash.

    Copying matters: with `reference = policy`, freezing one freezes the other, and the KL is 0 for ever.
    Taught in: notebooks/03_kl_leash.ipynb
    """
    reference = copy.deepcopy(policy).eval()
    for parameter in reference.parameters():
        parameter.requires_grad_(False)
    return reference


def logits_of(output):
    """The logits in what a model returned: a tensor, an object with `.logits` (Hugging Face), or (logits, values)."""
    if hasattr(output, "logits"):
        return output.logits
    return output[0] if isinstance(output, tuple) else output


def call_model(model, input_ids, attention_mask=None, keep=None, values=True):
    """Call any language model; where it can be told, tell it about left padding and about what is wanted.

    With `keep`, only the last positions' logits are needed; a model without the option `logits_to_keep` (the name
    is Hugging Face's) returns them all. With values=False, a TinyLM leaves its critic out.
    Raises: ValueError when the prompts are padded and the model takes no attention_mask.
    """
    takes, options = inspect.signature(model.forward).parameters, {}
    if keep is not None and "logits_to_keep" in takes:
        options["logits_to_keep"] = keep
    if not values and "with_values" in takes:
        options["with_values"] = False
    if attention_mask is not None and not bool((attention_mask != 0).all()):
        if "attention_mask" not in takes:
            raise ValueError(f"prompts are padded, but {type(model).__name__}.forward takes no attention_mask")
        options["attention_mask"] = attention_mask.long()
        if "position_ids" in takes:
            options["position_ids"] = position_ids(attention_mask)
    return model(input_ids, **options)


def logits_and_values(policy, input_ids, value_head=None, attention_mask=None, keep=None):
    """One forward pass that gives both the logits [B, L, V] and the values [B, L].

    With `keep`, a model that can leaves out all but the last `keep` positions: count from the end.
    Without a value_head the policy returns (logits, values) itself, as TinyLM does. With one, the head reads the
    hidden states that the policy's `lm_head` reads, so the backbone is not run a second time.
    """
    if value_head is None:
        output = call_model(policy, input_ids, attention_mask, keep)
        if not isinstance(output, tuple) or hasattr(output, "logits"):
            raise ValueError("value_head must be given: this policy returns logits only")
        return output[0], output[1]
    seen = []
    handle = _lm_head(policy).register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        logits = logits_of(call_model(policy, input_ids, attention_mask, keep))
    finally:
        handle.remove()
    return logits, value_head(seen[-1])


def _lm_head(policy):
    found = policy.get_output_embeddings() if hasattr(policy, "get_output_embeddings") else None
    found = found if found is not None else getattr(policy, "lm_head", None)
    if found is None:
        raise ValueError(f"policy of type {type(policy).__name__} must have an lm_head, whose input the value_head reads")
    return found


def new_value_head(policy, prompt_ids):
    """A value head at 0 for a policy that returns logits only; None for one that returns (logits, values) itself."""
    with torch.no_grad(), dropout_off(policy):
        output = call_model(policy, prompt_ids)
    if isinstance(output, tuple) and not hasattr(output, "logits"):
        return None
    weight = _lm_head(policy).weight  # [V, D]
    with seeded(0):
        return MockValueHead(weight.shape[1]).to(weight)


def check_separate(policy, reference):
    """Raise `ValueError` when policy and reference are one object or share a parameter's storage."""
    storages = lambda model: {p.untyped_storage().data_ptr() for p in model.parameters() if p.numel()}
    if policy is reference or storages(policy) & storages(reference):
        raise ValueError(
            "ref_model must not share weights with the policy, got the same storage: freezing one would freeze the "
            "other and the KL would stay 0; use make_reference(policy)"
        )
