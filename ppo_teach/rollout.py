"""Sample, score, freeze (layer 2): everything one PPO update will learn from, as constants."""

from dataclasses import dataclass, fields

import torch

from .models import TinyLM, call_model, check_sampling, logits_and_values, logits_of, sample_tokens
from .tensor_ops import (
    as_mask,
    check_prompt_mask,
    check_scores,
    check_token_ids,
    dropout_off,
    entropy,
    response_log_probs,
    response_mask,
    response_values,
    single_thread,
)


@dataclass
class Rollout:
    """A batch of sampled responses with all that was measured on them at sampling time. Nothing carries gradient.

    B responses of up to T tokens to prompts of P tokens; padded cells of per-token fields are meaningless, see mask.
    Taught in: notebooks/07_training_step.ipynb
    """

    prompt_ids: torch.Tensor  # [B, P]
    response_ids: torch.Tensor  # [B, T]
    mask: torch.Tensor  # [B, T] bool, 1 = real token
    log_probs_old: torch.Tensor  # [B, T] nats, under the policy that sampled
    log_probs_ref: torch.Tensor  # [B, T] nats, under the reference
    values_old: torch.Tensor  # [B, T] V before each token
    last_value: torch.Tensor  # [B] V after the last token
    entropy: torch.Tensor  # [B, T] nats, of the policy before each token
    scores: torch.Tensor  # [B] one number per response
    prompt_mask: torch.Tensor  # [B, P] bool, 0 = left padding

    @property
    def input_ids(self):
        """Prompt and response, [B, P+T]."""
        return torch.cat([self.prompt_ids, self.response_ids], dim=1)

    @property
    def attention_mask(self):
        """Which of `input_ids` may be read, [B, P+T]: padding after the response is harmless under a causal mask."""
        return torch.cat([self.prompt_mask, torch.ones_like(self.mask)], dim=1)

    def __len__(self):
        return len(self.scores)

    def rows(self, index):
        """The rows of a minibatch, as a Rollout of their own."""
        return Rollout(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


def generate(
    policy, prompt_ids, max_new_tokens, *, eos_id=None, pad_id=None, temperature=1.0, top_k=None,
    attention_mask=None, generator=None, return_log_probs=False,
):  # fmt: skip
    """Sample a response for each prompt from any policy.

    A `TinyLM` uses its KV cache; any other model is called on the whole sequence for each new token. A row stops at
    its own eos_id and holds pad_id (default: eos_id) from there on; a row that never stops keeps what was sampled.

    Args: prompt_ids [B, P], left-padded if at all (then attention_mask [B, P]); temperature > 0; top_k or None;
        generator: a torch.Generator, the only source of randomness.
    Returns: response_ids [B, max_new_tokens]; with return_log_probs also [B, T] log-probabilities of the unfiltered
        policy at this temperature, 0 at padding.
    Raises: ValueError for an empty prompt, ids outside the vocabulary, a sequence longer than the model's positions.
    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    options = dict(eos_id=eos_id, pad_id=pad_id, temperature=temperature, top_k=top_k)
    options.update(attention_mask=attention_mask, generator=generator, return_log_probs=return_log_probs)
    if isinstance(policy, TinyLM):
        return policy.generate(prompt_ids, max_new_tokens, **options)
    return _generate_without_cache(policy, prompt_ids, max_new_tokens, **options)


@torch.no_grad()
def _generate_without_cache(
    policy, prompt_ids, max_new_tokens, *, eos_id, pad_id, temperature, top_k, attention_mask, generator,
    return_log_probs,
):  # fmt: skip
    check_sampling(max_new_tokens, temperature, top_k)
    check_token_ids("prompt_ids", prompt_ids, getattr(policy, "vocab_size", None))
    longest = getattr(policy, "max_length", None)
    if longest is not None and prompt_ids.shape[1] + max_new_tokens > longest:
        raise ValueError(
            f"max_new_tokens of {max_new_tokens} after {prompt_ids.shape[1]} prompt tokens does not fit: this model "
            f"has {longest} positions"
        )
    fill = pad_id if pad_id is not None else (eos_id if eos_id is not None else 0)
    ids = prompt_ids
    real = check_prompt_mask(attention_mask, prompt_ids)
    running = torch.ones(len(ids), dtype=torch.bool)
    response = torch.full((len(ids), max_new_tokens), fill)
    log_probs = torch.zeros(len(ids), max_new_tokens)
    with dropout_off(policy), single_thread():
        for t in range(max_new_tokens):
            logits = logits_of(call_model(policy, ids, real))[:, -1]
            tokens, scored = sample_tokens(logits, temperature, top_k, generator)
            response[:, t] = torch.where(running, tokens, response[:, t])
            log_probs[:, t] = torch.where(running, scored.to(log_probs.dtype), log_probs[:, t])
            if eos_id is not None:
                running = running & (tokens != eos_id)
                if not running.any():
                    break
            ids = torch.cat([ids, response[:, t : t + 1]], dim=1)
            real = torch.cat([real, torch.ones_like(real[:, :1])], dim=1)
    return (response, log_probs) if return_log_probs else response


@torch.no_grad()
def freeze_rollout(
    policy, reference, prompt_ids, response_ids, scores, *, mask=None, prompt_mask=None, value_head=None,
    temperature=1.0,
):  # fmt: skip
    """Measure policy, reference and critic on given responses, once, before any training step.

    The old log-probs come from the same pass as the ones the training step will compute, so the ratio starts at 1.

    Args: prompt_ids [B, P]; response_ids [B, T], *sampled from this policy*; scores [B]; mask [B, T].
    Returns: Rollout. Raises: ValueError for scores that are not finite or shapes that do not fit.
    Taught in: notebooks/07_training_step.ipynb
    """
    check_token_ids("prompt_ids", prompt_ids)
    check_token_ids("response_ids", response_ids)
    if len(prompt_ids) != len(response_ids):
        raise ValueError(
            f"prompt_ids of shape {tuple(prompt_ids.shape)} and response_ids of shape {tuple(response_ids.shape)} "
            "must have the same batch size"
        )
    scores = check_scores(scores, len(response_ids))
    length = response_ids.shape[1]
    mask, prompt_mask = as_mask(mask, response_ids), check_prompt_mask(prompt_mask, prompt_ids)
    input_ids = torch.cat([prompt_ids, response_ids], dim=1)
    attention_mask = torch.cat([prompt_mask, torch.ones_like(mask)], dim=1)
    with dropout_off(policy, reference, value_head):
        # needed: the positions before each response token, P-1 ... P+T-2, and the last for `last_value`
        logits, values = logits_and_values(policy, input_ids, value_head, attention_mask, keep=length + 1)
        logits_ref = logits_of(call_model(reference, input_ids, attention_mask, length + 1, values=False))
    count = torch.arange(1, length + 1) * mask  # tokens up to each real one
    last_index = count.amax(1, keepdim=True)  # of the last real token, counted from the last prompt token
    return Rollout(
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        mask=mask,
        log_probs_old=response_log_probs(logits, response_ids, temperature),
        log_probs_ref=response_log_probs(logits_ref, response_ids, temperature),
        values_old=response_values(values, length).clone(),
        last_value=values[:, -length - 1 :].gather(1, last_index).squeeze(1),
        entropy=entropy(logits[:, -length - 1 : -1] / temperature),
        scores=scores.detach().float(),
        prompt_mask=prompt_mask,
    )


def collect_rollout(
    policy, reference, prompt_ids, score, max_new_tokens, *, eos_id=None, pad_id=None, temperature=1.0,
    prompt_mask=None, value_head=None, generator=None,
):  # fmt: skip
    """Let the policy answer the prompts, have the answers scored, and freeze everything measured on them.

    Args: score: callable (prompt_ids [B, P], response_ids [B, T]) -> [B]. The rest as in `generate`.
    Returns: Rollout. Raises: ValueError naming the argument.
    Taught in: notebooks/07_training_step.ipynb
    """
    response_ids = generate(
        policy, prompt_ids, max_new_tokens, eos_id=eos_id, pad_id=pad_id, temperature=temperature,
        attention_mask=prompt_mask, generator=generator,
    )  # fmt: skip
    if eos_id is None:
        mask = torch.ones_like(response_ids, dtype=torch.bool)
    else:
        mask = response_mask(response_ids, eos_id)
    return freeze_rollout(
        policy, reference, prompt_ids, response_ids, score(prompt_ids, response_ids), mask=mask,
        prompt_mask=prompt_mask, value_head=value_head, temperature=temperature,
    )  # fmt: skip
