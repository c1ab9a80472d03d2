"""Notebook 07's exercises: right answers of other forms are accepted; each broken step fails where it is said."""

import math

import pytest
import torch
import torch.nn.functional as F

from ppo_teach import (
    LanguageModelPPO,
    MockLanguageModel,
    ReviewWorld,
    clipped_policy_loss,
    gae,
    generate,
    make_reference,
    masked_mean,
    masked_whiten,
    response_log_probs,
    response_mask,
    response_values,
    shape_rewards,
    value_loss,
)
from ppo_teach.exercises import check_invariants, check_training_step
from ppo_teach.exercises.step import BROKEN_STEPS


def test_a_builtin_is_no_step():
    assert not check_training_step(max).ok


# ---- the step, right in other ways -----------------------------------------------------------------------
def by_the_class(scores, new, old, ref, values_new, values_old, mask, config):
    ppo = LanguageModelPPO(MockLanguageModel(5, 8, seed=0), MockLanguageModel(5, 8, seed=1), None, config)
    advantages, returns, _ = ppo.compute_rewards_and_advantages(scores, old, ref, values_old, mask)
    policy_term = ppo.ppo_loss(new, old, masked_whiten(advantages, mask), mask)
    return config.value_coef * ppo.value_loss(values_new, returns, mask) + policy_term


def token_by_token(scores, new, old, ref, values_new, values_old, mask, config):
    raw, targets = {}, {}
    for b in range(len(scores)):
        length, future, ahead = int(mask[b].sum()), 0.0, 0.0
        for t in range(length - 1, -1, -1):
            reward = -config.kl_coef * float(old[b, t] - ref[b, t]) + (float(scores[b]) if t == length - 1 else 0)
            error = reward + config.gamma * ahead - float(values_old[b, t])
            future, ahead = error + config.gamma * config.lam * future, float(values_old[b, t])
            raw[b, t], targets[b, t] = future, future + ahead
    mean = sum(raw.values()) / len(raw)
    spread = math.sqrt(sum((a - mean) ** 2 for a in raw.values()) / len(raw) + 1e-8)
    total = 0.0
    for (b, t), advantage in raw.items():
        rho, a = torch.exp(new[b, t] - old[b, t]), (advantage - mean) / spread
        clipped = rho.clamp(1 - config.clip_epsilon, 1 + config.clip_epsilon)
        error = values_new[b, t] - targets[b, t]
        total = total - torch.min(rho * a, clipped * a) + config.value_coef * error**2
    return total / len(raw)


def in_float32(scores, new, old, ref, values_new, values_old, mask, config):
    old, ref, values_old = old.float(), ref.float(), values_old.float()
    rewards, _ = shape_rewards(scores, old, ref, config.kl_coef, mask.long())
    advantages, returns = gae(rewards, values_old, config.gamma, config.lam, mask)
    whitened = masked_whiten(advantages, mask)
    loss = clipped_policy_loss(new.float(), old, whitened, config.clip_epsilon, mask)
    return (loss + config.value_coef * value_loss(values_new.float(), returns, mask)).view(1)


@pytest.mark.parametrize("fn", [by_the_class, token_by_token, in_float32])
def test_other_right_steps_are_accepted(fn):
    verdict = check_training_step(fn)
    assert verdict.ok, verdict


def untouched(scores, new, old, ref, values_new, values_old, mask, config):
    ...


def not_a_scalar(scores, new, old, ref, values_new, values_old, mask, config):
    return new - old


def slipped(scores, new, old, ref, values_new, values_old, mask, config):
    return torch.cat(new, old)  # the student's own line


def too_few(scores, new):
    return new.sum()


def test_what_is_no_loss_is_named():
    assert not check_training_step(untouched).attempted and not check_training_step(...).attempted
    verdict = check_training_step(not_a_scalar)
    assert verdict.mistake == "exception" and "one number" in verdict.message
    assert "`return torch.cat(new, old)  # the student's own line`" in check_training_step(slipped).message
    assert check_training_step(too_few).mistake == "signature"
    assert check_training_step(0.5).mistake == "not_a_function"


# ---- eight broken steps ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def sampled():
    world = ReviewWorld()
    policy = world.policy().double()
    other = make_reference(policy)
    with torch.no_grad():
        policy.lm_head.bias += 0.3 * torch.randn(world.vocab_size, generator=torch.Generator().manual_seed(1))
        policy.value_head.weight += 0.1
    prompts = world.sample_prompts(6, torch.Generator().manual_seed(2))
    return world, policy, other, prompts


def first_to_fail(step, world, policy, other, prompts):
    """Build the step with one broken line, then the eight invariants of section 7.6 in their order."""
    options = dict(eos_id=world.eos_id, pad_id=world.pad_id, generator=torch.Generator().manual_seed(0))
    response = generate(policy, prompts, 8, top_k=2 if step == "D" else None, **options)
    mask = response_mask(response, world.eos_id)
    reference = policy if step == "A" else other

    def measured(model, ids):
        logits, values = model(torch.cat([prompts, ids], dim=1))
        return response_log_probs(logits, ids), response_values(values, 8), logits[:, 2:-1]

    with torch.set_grad_enabled(step == "B"):
        old, values_old, logits = measured(policy, response)
        values_old = values_old.detach()
    if step == "D":
        kept = logits.masked_fill(logits < logits.topk(2).values[..., -1:], -math.inf)
        old = kept.log_softmax(-1).gather(-1, response.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        ref, scores = measured(reference, response)[0], world.true_score(prompts, response)
    rewards, kl = shape_rewards(scores, old, ref, 0.1, mask)
    rewards = rewards + 0.2 * kl if step == "C" else rewards
    advantages, returns = gae(rewards, values_old, 1.0, 0.95, mask)
    advantages = advantages if step == "F" else masked_whiten(advantages, mask)

    def losses(ids):
        noise = torch.Generator().manual_seed(3)
        drop = lambda module, inputs: inputs[0] * (torch.rand(inputs[0].shape, generator=noise) > 0.1) / 0.9
        handle = policy.lm_head.register_forward_pre_hook(drop) if step == "E" else None
        new, values, _ = measured(policy, ids)
        if handle:
            handle.remove()
        value_term = F.mse_loss(values, returns) if step == "G" else value_loss(values, returns, mask)
        return new, policy_loss(new, old, advantages), value_term

    def policy_loss(new, old, advantages):
        if step == "H":
            return -masked_mean((new - old.detach()).exp() * advantages, mask)
        return clipped_policy_loss(new, old, advantages, 0.2, mask)

    with torch.no_grad():
        one_pass = measured(policy, response)[0]
        new, policy_term, value_term = losses(response)
        garbage = torch.where(mask, response, world.vocab_size - 2)
        other_pads = losses(garbage)
    far = (old.detach() + 1.0).requires_grad_()
    (slope,) = torch.autograd.grad(policy_loss(far, old, torch.ones_like(advantages)), far)
    stored = [old, ref, values_old, scores, advantages, returns]
    shared = {p.data_ptr() for p in policy.parameters()} & {p.data_ptr() for p in reference.parameters()}
    k1 = ((old - ref) * mask).sum(1).detach()
    holds = [
        (one_pass - old)[mask].abs().max() < 1e-8, (new - old)[mask].abs().max() < 1e-8,
        policy_term.abs() < 1e-6, not any(tensor.requires_grad for tensor in stored),
        (value_term - other_pads[2]).abs() < 1e-8 and (policy_term - other_pads[1]).abs() < 1e-8,
        not shared, torch.allclose(rewards.sum(1), (scores - 0.1 * k1).to(rewards)), slope.abs().max() == 0,
    ]  # fmt: skip
    return next((number for number, good in enumerate(holds, 1) if not good), None)


@pytest.mark.parametrize("step", [*BROKEN_STEPS, "none"])
def test_each_broken_step_fails_first_where_the_exercise_says(step, sampled):
    assert first_to_fail(step, *sampled) == (BROKEN_STEPS[step][0] if step in BROKEN_STEPS else None)


RIGHT = {letter: number for letter, (number, _) in BROKEN_STEPS.items()}


def test_the_right_numbers_are_accepted():
    assert sorted(RIGHT.values()) == list(range(1, 9)) and check_invariants(RIGHT).ok


@pytest.mark.parametrize("letter", RIGHT)
def test_a_wrong_number_gets_a_question_of_its_own(letter):
    verdict = check_invariants(RIGHT | {letter: RIGHT[letter] % 8 + 1})
    assert not verdict.ok and verdict.mistake == f"step_{letter}" and "7 of 8" in verdict.message
    assert verdict.message.endswith(BROKEN_STEPS[letter][1]) and verdict.message.endswith("?")


@pytest.mark.parametrize(("answer", "mistake"), [([6, 4], "not_a_dict"), ({"A": 6}, "missing")])
def test_an_incomplete_answer_says_what_is_missing(answer, mistake):
    assert check_invariants(answer).mistake == mistake


@pytest.mark.parametrize("answer", [None, ...])
def test_no_answer_is_not_attempted(answer):
    assert not check_invariants(answer).attempted
