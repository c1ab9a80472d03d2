"""Sampling and freezing: what a rollout holds, from any model, and what it refuses."""

import math
from dataclasses import fields

import pytest
import torch
from stubs import ForeignActorCritic, HuggingFaceStyle, perturbed, tiny_lm
from torch import nn

import ppo_teach as pt
from ppo_teach.models import logits_and_values
from ppo_teach.rollout import freeze_rollout

PROMPTS = torch.tensor([[0, 0, 3], [0, 5, 4], [6, 3, 4], [7, 8, 9]])
MASK = PROMPTS != 0
EOS, PAD, T = 2, 0, 6


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def score(prompt_ids, response_ids):
    return response_ids.float().mean(1)


def collect(policy=None, prompts=PROMPTS, prompt_mask=MASK, seed=1, **options):
    policy = tiny_lm() if policy is None else policy
    options = dict(eos_id=EOS, pad_id=PAD, generator=seeded(seed)) | options
    return pt.collect_rollout(
        policy, perturbed(policy, 0.3), prompts, score, T, prompt_mask=prompt_mask, **options
    )


class Uncached(nn.Module):
    """A TinyLM in disguise: the same numbers, without its cache."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def forward(self, input_ids, attention_mask=None):
        return self.policy(input_ids, attention_mask)


# ---------------------------------------------------------------- generate, for any model


@pytest.mark.parametrize("eos_id", [None, EOS])
@pytest.mark.parametrize("padded", [False, True])
def test_the_cache_changes_no_token(eos_id, padded):
    policy = tiny_lm("separate")
    options = dict(eos_id=eos_id, pad_id=PAD, attention_mask=MASK if padded else None, return_log_probs=True)
    fast, log_probs = pt.generate(policy, PROMPTS, T, generator=seeded(), **options)
    slow, slow_log_probs = pt.generate(Uncached(policy), PROMPTS, T, generator=seeded(), **options)
    assert torch.equal(fast, slow)
    assert (log_probs - slow_log_probs).abs().max() < 1e-5


@pytest.mark.parametrize("policy", [
    HuggingFaceStyle(dropout=0.5), ForeignActorCritic(), pt.MockLanguageModel(11, 16, seed=0),
], ids=lambda policy: type(policy).__name__)  # fmt: skip
def test_any_model_can_write(policy):
    """The log-probabilities are those of a full pass with dropout off; mode and generator are left alone."""
    policy.train()
    before = torch.get_rng_state()
    prompts = PROMPTS[2:]
    response, log_probs = pt.generate(
        policy,
        prompts,
        T,
        eos_id=EOS,
        pad_id=PAD,
        generator=seeded(4),
        return_log_probs=True,
        temperature=0.8,
    )
    assert torch.equal(before, torch.get_rng_state()) and policy.training and not log_probs.requires_grad
    policy.eval()
    output = policy(torch.cat([prompts, response], dim=1))
    logits = getattr(output, "logits", output[0] if isinstance(output, tuple) else output)
    again = pt.response_log_probs(logits, response, 0.8)
    mask = pt.response_mask(response, EOS)
    assert (again - log_probs)[mask].abs().max() < 1e-5 and (log_probs[~mask] == 0).all()
    policy.train()


def test_dropout_inside_a_tiny_lm_is_off_too():
    policy = tiny_lm()
    policy.trunk.norm = nn.Sequential(policy.trunk.norm, nn.Dropout(0.5))
    assert torch.equal(
        pt.generate(policy, PROMPTS, T, generator=seeded()),
        pt.generate(tiny_lm(), PROMPTS, T, generator=seeded()),
    )
    assert policy.trunk.norm[1].training


def test_a_foreign_model_is_refused_what_it_cannot_hold():
    policy = pt.MockLanguageModel(11, 8, max_length=8, seed=0)
    with pytest.raises(
        ValueError, match="max_new_tokens of 6 after 3 prompt tokens does not fit: this model has 8"
    ):
        pt.generate(policy, PROMPTS, 6)
    with pytest.raises(ValueError, match=r"prompt_ids must hold token ids in \[0, 11\)"):
        pt.generate(policy, PROMPTS + 5, 2)
    with pytest.raises(ValueError, match="padded on the right"):
        pt.generate(policy, PROMPTS, 2, attention_mask=MASK.flip(1))
    with pytest.raises(ValueError, match="takes no attention_mask"):
        pt.generate(ForeignActorCritic(), PROMPTS, 2, attention_mask=MASK)


# ---------------------------------------------------------------- what a rollout holds


def test_shapes_and_constants():
    rollout = collect()
    assert len(rollout) == 4 and rollout.input_ids.shape == rollout.attention_mask.shape == (4, 3 + T)
    for name in ("response_ids", "mask", "log_probs_old", "log_probs_ref", "values_old", "entropy"):
        assert getattr(rollout, name).shape == (4, T), name
    assert rollout.scores.shape == rollout.last_value.shape == (4,)
    for field in fields(rollout):
        value = getattr(rollout, field.name)
        assert not value.requires_grad and torch.isfinite(value.float()).all(), field.name
    assert torch.equal(rollout.mask, pt.response_mask(rollout.response_ids, EOS))
    assert torch.equal(rollout.scores, score(None, rollout.response_ids))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_it_is_what_a_full_pass_measures(temperature):
    policy = tiny_lm("separate")
    rollout = collect(policy, temperature=temperature)
    logits, values = policy(rollout.input_ids, rollout.attention_mask)
    response = rollout.response_ids
    close = dict(rtol=0, atol=1e-5)
    torch.testing.assert_close(
        rollout.log_probs_old, pt.response_log_probs(logits, response, temperature), **close
    )
    torch.testing.assert_close(rollout.values_old, values[:, 2:-1], **close)
    torch.testing.assert_close(rollout.entropy, pt.entropy(logits[:, 2:-1] / temperature), **close)
    reference = perturbed(policy, 0.3)(rollout.input_ids, rollout.attention_mask)[0]
    torch.testing.assert_close(
        rollout.log_probs_ref, pt.response_log_probs(reference, response, temperature), **close
    )
    assert (rollout.values_old - values[:, 3:]).abs().max() > 0.01, "one later is something else"


def test_the_last_value_is_that_after_the_last_real_token():
    policy = tiny_lm()
    response = torch.tensor([[4, 5, 2, 0], [4, 5, 6, 7], [2, 0, 0, 0], [4, 5, 6, 2]])
    masks = (
        pt.response_mask(response, EOS),
        torch.tensor([[1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]),
    )
    for mask, last in zip(masks, ([2, 3, 0, 3], [2, 3, 1, -1]), strict=True):
        rollout = freeze_rollout(policy, perturbed(policy), PROMPTS, response, torch.zeros(4), mask=mask)
        values = policy(rollout.input_ids)[1]
        wanted = values[range(4), [3 + t for t in last]]  # an empty row: the state after the prompt
        torch.testing.assert_close(rollout.last_value, wanted, rtol=0, atol=1e-6)


def test_rows_of_a_rollout_are_a_rollout():
    rollout = collect()
    part = rollout.rows(torch.tensor([2, 0]))
    assert len(part) == 2 and torch.equal(part.input_ids, rollout.input_ids[[2, 0]])
    assert torch.equal(part.attention_mask, rollout.attention_mask[[2, 0]])


def test_without_an_eos_every_token_is_real():
    assert collect(eos_id=None).mask.all()


def test_the_models_keep_their_modes_and_no_gradient():
    policy, head = HuggingFaceStyle(dropout=0.5).train(), pt.MockValueHead(16).train()
    rollout = collect(policy, value_head=head)
    again = collect(policy, value_head=head)
    assert policy.training and head.training and policy.block.dropout.training
    assert torch.equal(rollout.log_probs_old, again.log_probs_old), "dropout was off"
    assert all(p.grad is None for p in policy.parameters())


def test_scores_of_every_number_type_are_taken():
    for kind in (torch.float64, torch.float32, torch.int64, torch.bool):
        scored = pt.collect_rollout(
            tiny_lm(),
            tiny_lm(seed=4),
            PROMPTS,
            lambda p, r, k=kind: torch.ones(4, dtype=k),
            T,
            generator=seeded(),
        )
        assert scored.scores.dtype == torch.float32 and scored.scores.tolist() == [1.0] * 4


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(("result", "match"), [
    (torch.tensor([0.0, math.nan, 0.0, 0.0]), "scores must be finite, got nan in row 1"),
    (torch.tensor([0.0, 0.0, math.inf, 0.0]), "scores must be finite, got inf in row 2"),
    (torch.zeros(4, 1), r"scores must be a tensor of shape \(4,\), one number per response, got \(4, 1\)"),
    (torch.zeros(3), r"scores .* got \(3,\)"),
    ([0.0] * 4, "scores .* got list"),
])  # fmt: skip
def test_a_reward_must_be_one_finite_number_per_response(result, match):
    with pytest.raises(ValueError, match=match):
        pt.collect_rollout(tiny_lm(), tiny_lm(seed=4), PROMPTS, lambda p, r: result, T, generator=seeded())


@pytest.mark.parametrize(("changed", "match"), [
    (dict(prompt_ids=PROMPTS[:3]), r"prompt_ids of shape \(3, 3\) and response_ids of shape \(4, 2\)"),
    (dict(prompt_ids=PROMPTS[:, :0]), "prompt_ids must hold at least one token"),
    (dict(response_ids=torch.zeros(4, 0, dtype=torch.long)), "response_ids must hold at least one token"),
    (dict(response_ids=torch.zeros(4, 2)), "response_ids must be an integer tensor"),
    (dict(response_ids=torch.full((4, 2), 11)), r"input_ids must hold token ids in \[0, 11\)"),
    (dict(response_ids=torch.ones(4, 14, dtype=torch.long)), "this model has 16 positions"),
    (dict(mask=torch.ones(4, 3)), r"mask has shape \(4, 3\) but the data has shape \(4, 2\)"),
    (dict(prompt_mask=torch.ones(4, 2)), r"mask has shape \(4, 2\) but the data has shape \(4, 3\)"),
    (dict(prompt_mask=MASK.flip(1)), "padded on the right, got padding at the end of row 0"),
    (dict(temperature=0.0), "temperature must be"),
])  # fmt: skip
def test_what_does_not_fit_together_is_refused(changed, match):
    arguments = (
        dict(prompt_ids=PROMPTS, response_ids=torch.ones(4, 2, dtype=torch.long), scores=torch.zeros(4))
        | changed
    )
    with pytest.raises(ValueError, match=match):
        freeze_rollout(tiny_lm(), tiny_lm(seed=4), **arguments)


def test_logits_and_values_come_from_one_pass():
    policy = HuggingFaceStyle(dropout=0.0)
    logits_and_values(policy, PROMPTS, pt.MockValueHead(16))
    assert len(policy.calls) == 1
