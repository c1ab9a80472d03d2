"""The oracle against brute force, closed forms, limits, finite differences and samples.

The brute force walks the tree of prefixes in plain Python and asks the model for one prefix at a time, so
it shares neither the batching nor the backward pass of the package.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from ppo_teach.advantages import td_errors
from ppo_teach.exact import (
    all_scores,
    best_of_n_kl_bound,
    best_of_n_log_probs,
    evaluate_policy,
    exact_advantages,
    exact_expected_reward,
    exact_kl,
    exact_policy_gradient,
    exact_values,
    find_candidates,
    kl_divergence,
    next_token_log_probs,
    optimal_policy,
    reward_kl_frontier,
    sequence_log_probs,
    share_of_gain,
    soft_values,
)
from ppo_teach.losses import probability_ratio
from ppo_teach.models import TablePolicy, TinyLM
from ppo_teach.rewards import shape_rewards
from ppo_teach.tensor_ops import response_log_probs
from ppo_teach.worlds.chain import ChainWorld, sample_chain

BETAS = np.geomspace(0.05, 5.0, 30)


@pytest.fixture(scope="module")
def world():
    """The world of the notebooks: 4 prompts, 5,461 responses each."""
    return ChainWorld()


@pytest.fixture(scope="module")
def reference(world):
    return world.policy()


@pytest.fixture(scope="module")
def small():
    """3 prompts, 40 responses each: small enough for brute force."""
    return ChainWorld(num_tokens=3, max_new_tokens=3, seed=1)


def random_table(world, seed, scale=1.0):
    table = TablePolicy(world.vocab_size, 1 + world.max_new_tokens).double()
    with torch.no_grad():
        table.logits.normal_(0.0, scale, generator=torch.Generator().manual_seed(seed))
    return table


def random_lm(world, seed):
    """An untrained TinyLM with a lively head: it reads the whole history, unlike a table."""
    lm = TinyLM(world.vocab_size, d_model=8, num_layers=1, num_heads=2, max_length=8, seed=seed).double()
    with torch.no_grad():
        lm.trunk.token_embedding.weight.mul_(40.0)
        lm.lm_head.weight.mul_(2.0)
    return lm


@pytest.fixture(scope="module", params=["table", "lm"])
def pair(request, small):
    """A policy and a reference of each kind."""
    make = random_table if request.param == "table" else random_lm
    return make(small, 1), make(small, 2)


class BruteForce:
    """V and sums over responses by recursion over prefixes, in Python floats and numpy float64."""

    def __init__(self, world, policy, reference=None, kl_coef=0.0, gamma=1.0):
        self.world, self.policy, self.reference = world, policy, reference
        self.kl_coef, self.gamma = kl_coef, gamma

    def log_probs(self, model, prefix):
        with torch.no_grad():
            logits = model(torch.tensor([prefix]))[0][0, -1].double().numpy()
        return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())

    def score(self, prefix):
        return sum(float(self.world.reward_table[a, b]) for a, b in itertools.pairwise(prefix))

    def q_values(self, prefix):
        log_p, q = self.log_probs(self.policy, prefix), []
        log_ref = self.log_probs(self.reference, prefix) if self.reference is not None else log_p
        for action in range(self.world.vocab_size):
            after = [*prefix, action]
            ends = action == self.world.eos_id or len(after) == 1 + self.world.max_new_tokens
            future = self.score(after) if ends else self.gamma * self.value(after)
            q.append(future - self.kl_coef * (log_p[action] - log_ref[action]))
        return np.array(q)

    def value(self, prefix):
        return float(np.exp(self.log_probs(self.policy, prefix)) @ self.q_values(prefix))

    def responses(self, prompt, prefix=None):
        """All (response, log π, log π_ref) of a prompt."""
        prefix = [prompt] if prefix is None else prefix
        log_p, log_ref = self.log_probs(self.policy, prefix), self.log_probs(self.reference, prefix)
        for action in range(self.world.vocab_size):
            after = [*prefix, action]
            if action == self.world.eos_id or len(after) == 1 + self.world.max_new_tokens:
                yield after[1:], log_p[action], log_ref[action]
            else:
                for response, rest, rest_ref in self.responses(prompt, after):
                    yield response, log_p[action] + rest, log_ref[action] + rest_ref


# --- the tree itself


@pytest.mark.parametrize("kind", ["pretrained", "chain", "random"])
def test_probabilities_of_all_responses_sum_to_one(world, reference, kind):
    policy = {"pretrained": reference, "chain": world.table_policy(), "random": random_lm(world, 0)}[kind]
    log_probs = sequence_log_probs(next_token_log_probs(policy, world.prompts(), world))
    assert log_probs.shape == (4, world.num_responses) and log_probs.dtype == torch.float64
    assert float((log_probs.exp().sum(1) - 1).abs().max()) < 1e-10
    # control: leaving out the responses that were cut off loses real probability
    assert float((log_probs[:, : -(4**6)].exp().sum(1) - 1).abs().max()) > 1e-3


def test_a_hundred_thousand_responses_are_no_trouble():
    large = ChainWorld(num_tokens=4, max_new_tokens=8)
    log_probs = sequence_log_probs(next_token_log_probs(large.table_policy(), large.prompts()[:1], large))
    assert log_probs.shape == (1, 87_381)
    assert abs(float(log_probs.exp().sum()) - 1) < 1e-10


def test_log_probs_agree_with_brute_force(small, pair):
    policy, other = pair
    trees = [next_token_log_probs(model, small.prompts(), small) for model in pair]
    response_ids, _ = small.responses()
    keys = list(map(tuple, response_ids.tolist()))
    ours = [dict(zip(keys, sequence_log_probs(tree)[1].tolist(), strict=True)) for tree in trees]
    brute = list(BruteForce(small, policy, other).responses(2))
    assert len(brute) == len(response_ids)
    for response, log_p, log_ref in brute:
        padded = tuple(response + [small.pad_id] * (small.max_new_tokens - len(response)))
        assert ours[0][padded] == pytest.approx(log_p, abs=1e-12)
        assert ours[1][padded] == pytest.approx(log_ref, abs=1e-12)


def test_log_probs_agree_with_the_training_pass(world, reference):
    """The same numbers as `response_log_probs`, which PPO trains on (float32 there)."""
    response_ids, mask = world.responses()
    rows = torch.randperm(len(response_ids), generator=torch.Generator().manual_seed(0))[:300]
    ids = torch.cat([torch.full((300, 1), 3), response_ids[rows]], dim=1)
    with torch.no_grad():
        trained_on = (response_log_probs(reference(ids)[0], response_ids[rows]) * mask[rows]).sum(1)
    ours = sequence_log_probs(next_token_log_probs(reference, torch.tensor([[3]]), world))[0, rows]
    torch.testing.assert_close(ours.float(), trained_on, atol=1e-5, rtol=0)


# --- values, advantages, KL, reward


def test_kl_and_reward_agree_with_brute_force(small, pair):
    policy, other = pair
    kl = exact_kl(policy, other, small.prompts(), small)
    reward = exact_expected_reward(policy, small.prompts(), small)
    for row, prompt in enumerate((1, 2, 3)):
        brute = BruteForce(small, policy, other)
        listed = list(brute.responses(prompt))
        assert float(kl[row]) == pytest.approx(sum(math.exp(p) * (p - q) for _, p, q in listed), abs=1e-12)
        mean = sum(math.exp(p) * brute.score([prompt, *response]) for response, p, _ in listed)
        assert float(reward[row]) == pytest.approx(mean, abs=1e-6)  # scores are float32
    backwards = exact_kl(other, policy, small.prompts(), small)
    assert float((kl - backwards).abs().min()) > 1e-3  # control: the two directions differ
    assert float(exact_kl(policy, policy, small.prompts(), small).abs().max()) == 0.0


@pytest.mark.parametrize("kl_coef, gamma", [(0.0, 1.0), (0.3, 1.0), (0.3, 0.9), (0.0, 0.0), (1.5, 0.5)])
def test_values_and_advantages_agree_with_brute_force(small, pair, kl_coef, gamma):
    policy, other = pair
    objective = dict(reference=other, kl_coef=kl_coef, gamma=gamma)
    values = exact_values(policy, small.prompts(), small, **objective)
    advantages = exact_advantages(policy, small.prompts(), small, **objective)
    brute = BruteForce(small, policy, **objective)
    for depth in range(small.max_new_tokens):
        for state, words in enumerate(itertools.product((1, 2, 3), repeat=depth)):
            prefix = [3, *words]
            expected = brute.value(prefix)
            assert float(values[depth][2, state]) == pytest.approx(expected, abs=1e-6)
            by_hand = brute.q_values(prefix) - expected
            np.testing.assert_allclose(advantages[depth][2, state].numpy(), by_hand, atol=1e-6)


@pytest.mark.parametrize("wrong", [dict(gamma=0.99), dict(kl_coef=0.31), dict(reference="itself")])
def test_the_comparison_with_brute_force_can_fail(small, pair, wrong):
    policy, other = pair
    right = dict(reference=other, kl_coef=0.3, gamma=1.0)
    wrong = {**right, **(dict(reference=policy) if "reference" in wrong else wrong)}
    value = float(exact_values(policy, small.prompts(), small, **wrong)[0][0, 0])
    assert abs(value - BruteForce(small, policy, **right).value([1])) > 1e-3


def test_value_at_the_start_is_reward_minus_price_of_kl(world, reference):
    policy, x = random_table(world, 5), world.prompts()
    start = exact_values(policy, x, world, reference=reference, kl_coef=0.4)[0][:, 0]
    expected = exact_expected_reward(policy, x, world) - 0.4 * exact_kl(policy, reference, x, world)
    torch.testing.assert_close(start, expected, atol=1e-12, rtol=0)


def test_advantages_have_mean_zero_in_every_state(small, pair):
    policy, other = pair
    log_probs = next_token_log_probs(policy, small.prompts(), small)
    advantages = exact_advantages(policy, small.prompts(), small, reference=other, kl_coef=0.2, gamma=0.9)
    means = [(p.exp() * a).sum(-1) for p, a in zip(log_probs, advantages, strict=True)]
    assert max(float(mean.abs().max()) for mean in means) < 1e-12
    uniform = [a.mean(-1) for a in advantages]  # control: only under the policy's own probabilities
    assert max(float(mean.abs().max()) for mean in uniform) > 1e-2


def test_one_step_errors_with_exact_values_are_the_exact_advantages(world, reference, generator):
    """Transitions are certain, so δ_t with the true V *is* A: oracle and `td_errors` must agree."""
    policy, gamma, kl_coef = random_table(world, 3, 0.5), 0.95, 0.3
    prompt_ids = world.sample_prompts(64, generator)
    response_ids = sample_chain(world, prompt_ids, generator)
    mask = (response_ids == world.eos_id).long().cumsum(1).roll(1, 1)
    mask[:, 0] = 0
    mask = mask == 0
    ids = torch.cat([prompt_ids, response_ids], dim=1)
    with torch.no_grad():
        logits = [model(ids)[0].double() for model in (policy, reference)]
    log_probs, log_ref = (response_log_probs(one, response_ids) for one in logits)
    scores = world.true_score(prompt_ids, response_ids).double()
    rewards, _ = shape_rewards(scores, log_probs, log_ref, kl_coef, mask)
    along = dict(response_ids=response_ids, reference=reference, kl_coef=kl_coef, gamma=gamma)
    values = exact_values(policy, prompt_ids, world, **along)
    advantages = exact_advantages(policy, prompt_ids, world, **along)
    assert values.shape == advantages.shape == (64, 6)
    torch.testing.assert_close(td_errors(rewards, values, gamma, mask), advantages, atol=1e-6, rtol=0)
    assert float(values[~mask].abs().max()) == float(advantages[~mask].abs().max()) == 0.0
    off_by_one = td_errors(rewards, values.roll(-1, 1), gamma, mask)  # control: V that has seen the action
    assert float((off_by_one - advantages).abs().max()) > 0.1


def test_expected_ratio_is_one_exactly(world, reference):
    """E_old[π_new / π_old] = 1 for any two policies, per token in every state and per response."""
    old = next_token_log_probs(reference, world.prompts(), world)
    new = next_token_log_probs(random_table(world, 7, 2.0), world.prompts(), world)
    for before, after in zip(old, new, strict=True):
        mean = (before.exp() * probability_ratio(after, before)).sum(-1)
        assert float((mean - 1).abs().max()) < 1e-12
    before, after = sequence_log_probs(old), sequence_log_probs(new)
    assert float(((before.exp() * probability_ratio(after, before)).sum(1) - 1).abs().max()) < 1e-10
    other_way = (after.exp() * probability_ratio(after, before)).sum(1)  # control: the mean under π_new
    assert float(other_way.min()) > 1.5


def test_one_row_in_a_batch_equals_a_batch_of_one(world, reference):
    policy, batch = random_lm(world, 4), torch.tensor([[3], [1], [3], [4]])
    objective = dict(reference=reference, kl_coef=0.2)
    for compute in (
        lambda x: exact_kl(policy, reference, x, world),
        lambda x: exact_expected_reward(policy, x, world),
        lambda x: exact_values(policy, x, world, **objective)[3],
        lambda x: exact_advantages(policy, x, world, **objective)[5],
    ):
        together, alone = compute(batch), compute(batch[2:3])
        torch.testing.assert_close(together[2:3], alone, atol=1e-6, rtol=0)
        assert torch.equal(together[0], together[2])


# --- the gradient


def assert_gradients_equal(one, other, atol):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=atol, rtol=0)


def objective_of(policy, small, reference, kl_coef, gamma=1.0):
    values = exact_values(policy, small.prompts(), small, reference=reference, kl_coef=kl_coef, gamma=gamma)
    return float(values[0].mean())


@pytest.mark.parametrize("kl_coef, gamma", [(0.0, 1.0), (0.3, 1.0), (0.3, 0.8)])
def test_policy_gradient_equals_finite_differences(small, pair, kl_coef, gamma):
    policy, other = pair
    objective = dict(reference=other, kl_coef=kl_coef, gamma=gamma)
    gradient = exact_policy_gradient(policy, small.prompts(), small, **objective)
    generator, step = torch.Generator().manual_seed(0), 1e-5
    for name, parameter in policy.named_parameters():
        if name not in gradient:
            continue
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        slopes = []
        with torch.no_grad():
            for sign in (1, -1):
                parameter.add_(sign * step * direction)
                slopes.append(objective_of(policy, small, other, kl_coef, gamma))
                parameter.sub_(sign * step * direction)
        expected = (slopes[0] - slopes[1]) / (2 * step)
        assert float((gradient[name] * direction).sum()) == pytest.approx(expected, abs=1e-8), name
    assert all(parameter.grad is None for parameter in policy.parameters())
    # the critic is no part of J
    assert not {"values", "value_head.weight", "value_head.bias"} & set(gradient)


def likelihood_ratio_gradient(policy, small, other, advantage_objective):
    """E[Σ_t A_t ∇ log π(a_t | s_t)] by listing the responses and differentiating their log-probabilities."""
    response_ids, mask = small.responses()
    total = 0.0
    for prompt in small.prompts():
        x = prompt.expand(len(response_ids), 1)
        A = exact_advantages(policy, x, small, response_ids=response_ids, **advantage_objective)
        log_probs = response_log_probs(policy(torch.cat([x, response_ids], dim=1))[0], response_ids) * mask
        probability = log_probs.sum(1).exp().detach()
        total = total + (probability.unsqueeze(1) * A * log_probs).sum() / len(small.prompts())
    named = {name: p for name, p in policy.named_parameters()}
    gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return {name: g for name, g in zip(named, gradients, strict=True) if g is not None}


def test_policy_gradient_is_the_expected_advantage_times_score_function(small, pair):
    policy, other = pair
    objective = dict(reference=other, kl_coef=0.3)
    exact = exact_policy_gradient(policy, small.prompts(), small, **objective)
    assert_gradients_equal(exact, likelihood_ratio_gradient(policy, small, other, objective), atol=1e-6)
    for wrong in (dict(objective, gamma=0.5), dict(objective, kl_coef=0.0)):  # controls
        with pytest.raises(AssertionError):
            assert_gradients_equal(exact, likelihood_ratio_gradient(policy, small, other, wrong), atol=1e-6)


def test_nothing_but_the_gradient_carries_gradient(small):
    policy, x = random_lm(small, 0), small.prompts()
    found = [exact_kl(policy, policy, x, small), exact_expected_reward(policy, x, small)]
    found += exact_values(policy, x, small) + exact_advantages(policy, x, small)
    optimum = optimal_policy(small, policy, 0.5)
    found += next_token_log_probs(policy, x, small) + evaluate_policy(policy, x, small)[1]
    found += [optimum.log_probs, *optimum.soft_values, *optimum.next_log_probs]
    assert not any(tensor.requires_grad for tensor in found)
    with torch.no_grad():
        assert exact_policy_gradient(policy, x, small)  # works inside no_grad too


# --- the optimum


@pytest.mark.parametrize("beta", [0.05, 0.3, 1.0, 5.0])
def test_optimum_agrees_with_brute_force(small, pair, beta):
    reference, _ = pair
    optimum = optimal_policy(small, reference, beta)
    rewards, kls, objectives = [], [], []
    for prompt in (1, 2, 3):
        brute = BruteForce(small, reference, reference)
        listed = [(brute.score([prompt, *y]), p) for y, p, _ in brute.responses(prompt)]
        R, p = np.array([r for r, _ in listed]), np.exp([p for _, p in listed])
        Z = (p * np.exp(R / beta)).sum()
        best = p * np.exp(R / beta) / Z
        rewards.append((best * R).sum())
        kls.append((best * np.log(best / p)).sum())
        objectives.append(beta * np.log(Z))
    assert optimum.reward == pytest.approx(np.mean(rewards), abs=1e-5)
    assert optimum.kl == pytest.approx(np.mean(kls), abs=1e-5)
    assert optimum.objective == pytest.approx(np.mean(objectives), abs=1e-5)
    np.testing.assert_allclose(optimum.per_prompt["reward"], rewards, atol=1e-5)
    assert optimum.objective == pytest.approx(optimum.reward - beta * optimum.kl, abs=1e-10)
    wrong = optimal_policy(small, reference, beta * 1.1)  # control: another beta
    assert abs(wrong.objective - np.mean(objectives)) > 1e-4


@pytest.mark.parametrize("beta", [0.05, 0.5, 5.0])
def test_backward_pass_equals_enumeration(world, reference, beta):
    optimum = optimal_policy(world, reference, beta)
    start = optimum.soft_values[0][:, 0]
    torch.testing.assert_close(start, optimum.per_prompt["objective"], atol=1e-10, rtol=0)
    by_steps = sequence_log_probs(optimum.next_log_probs)
    torch.testing.assert_close(by_steps, optimum.log_probs, atol=1e-9, rtol=0)
    for depth, log_probs in enumerate(optimum.next_log_probs):
        assert log_probs.shape == (4, 4**depth, 5)
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(4, 4**depth, dtype=torch.float64))


def test_backward_pass_with_a_hard_maximum_differs(small, pair):
    """Control: the two natural slips (plain mean, plain maximum) are not the soft value."""
    reference, _ = pair
    tree, scores = next_token_log_probs(reference, small.prompts(), small), all_scores(small, small.prompts())
    soft = soft_values(tree, scores, 0.5)[0][0]
    mean = evaluate_policy(reference, small.prompts(), small)[0][0]
    assert bool((soft > mean + 1e-3).all()) and bool((soft < scores.max(1, keepdim=True).values - 1e-3).all())


def test_optimum_as_a_policy(world, reference):
    """π* judged like any policy: its reward, its KL, V* as its values, and no action better than another."""
    beta, x = 0.3, world.prompts()
    optimum = optimal_policy(world, reference, beta)
    tree, objective = optimum.next_log_probs, dict(reference=reference, kl_coef=beta)
    assert float(exact_kl(tree, reference, x, world).mean()) == pytest.approx(optimum.kl, abs=1e-10)
    assert float(exact_expected_reward(tree, x, world).mean()) == pytest.approx(optimum.reward, abs=1e-10)
    for ours, soft in zip(exact_values(tree, x, world, **objective), optimum.soft_values, strict=True):
        torch.testing.assert_close(ours, soft, atol=1e-9, rtol=0)
    assert max(float(a.abs().max()) for a in exact_advantages(tree, x, world, **objective)) < 1e-9
    plain = exact_advantages(tree, x, world)  # control: under the score alone some actions are better
    assert max(float(a.abs().max()) for a in plain) > 0.1


def test_no_other_policy_does_better(world, reference):
    beta, generator = 0.3, torch.Generator().manual_seed(0)
    optimum = optimal_policy(world, reference, beta)
    scores = all_scores(world, world.prompts())
    for scale in (1e-3, 0.1, 1.0):
        noise = torch.randn(optimum.log_probs.shape, generator=generator, dtype=torch.float64)
        other = (optimum.log_probs + scale * noise).log_softmax(1)
        net = (other.exp() * scores).sum(1) - beta * kl_divergence(other, optimum.candidates.log_weights)
        assert bool((net < optimum.per_prompt["objective"]).all())


def test_small_beta_gives_the_best_response(world, reference):
    optimum = optimal_policy(world, reference, 1e-3)
    scores = all_scores(world, world.prompts())
    assert torch.equal(optimum.log_probs.argmax(1), scores.argmax(1))
    assert optimum.reward == pytest.approx(float(scores.max(1).values.mean()), abs=1e-6)
    best = scores.argmax(1, keepdim=True)
    cost = -optimum.candidates.log_weights.gather(1, best).mean()  # a sure answer costs -log π_ref of it
    assert optimum.kl == pytest.approx(float(cost), abs=1e-6)
    assert abs(optimal_policy(world, reference, 0.5).reward - optimum.reward) > 0.1  # control


def test_large_beta_gives_the_reference(world, reference):
    optimum = optimal_policy(world, reference, 1e6)
    mean = float(exact_expected_reward(reference, world.prompts(), world).mean())
    assert optimum.reward == pytest.approx(mean, abs=1e-5)
    assert optimum.objective == pytest.approx(mean, abs=1e-5)
    assert optimum.kl == pytest.approx(0.0, abs=1e-9)
    torch.testing.assert_close(optimum.log_probs, optimum.candidates.log_weights, atol=1e-4, rtol=0)
    assert abs(optimal_policy(world, reference, 1.0).reward - mean) > 0.1  # control


@pytest.mark.parametrize("beta", [0.1, 1.0, 10.0])
def test_closed_form_of_the_one_token_world(beta):
    """Stop, or say "a" once: the log-odds of the optimum are the reference's plus the difference / beta."""
    tiny = ChainWorld(num_tokens=1, max_new_tokens=1)
    reference = tiny.table_policy()
    p, r_a, r_stop = float(tiny.chain[1, 1]), float(tiny.reward_table[1, 1]), float(tiny.reward_table[1, 0])
    log_odds = math.log(p / (1 - p)) + (r_a - r_stop) / beta
    q = 1 / (1 + math.exp(-log_odds))
    optimum = optimal_policy(tiny, reference, beta)
    assert tiny.responses()[0].tolist() == [[0], [1]]
    assert optimum.log_probs.exp().tolist()[0] == pytest.approx([1 - q, q], abs=1e-6)
    assert optimum.reward == pytest.approx(q * r_a + (1 - q) * r_stop, abs=1e-6)
    kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    assert optimum.kl == pytest.approx(kl, abs=1e-6)
    log_z = math.log(p * math.exp(r_a / beta) + (1 - p) * math.exp(r_stop / beta))
    assert optimum.objective == pytest.approx(beta * log_z, abs=1e-6)


# --- the frontier


def test_frontier_is_monotone_and_clearly_curved(world, reference):
    curve = reward_kl_frontier(world, reference, BETAS)
    assert set(curve) == {"beta", "reward", "kl", "objective"}
    assert all(x.shape == (30,) and x.dtype == np.float64 for x in curve.values())
    np.testing.assert_allclose(curve["beta"], BETAS)
    assert (np.diff(curve["reward"]) < 0).all() and (np.diff(curve["kl"]) < 0).all()
    # dearer KL: the slope d reward / d kl along the frontier is beta itself, so the curve is concave
    slope = np.diff(curve["reward"]) / np.diff(curve["kl"])
    assert ((slope > curve["beta"][:-1]) & (slope < curve["beta"][1:])).all()
    assert curve["reward"][0] > 2.5 and curve["reward"][-1] < -0.9 and curve["kl"][0] > 20 * curve["kl"][-1]


def test_objective_falls_by_kl_as_beta_rises(world, reference):
    """The envelope theorem: d objective / d beta = -KL."""
    beta, step = 0.4, 1e-4
    high, low = (optimal_policy(world, reference, beta + d).objective for d in (step, -step))
    assert (high - low) / (2 * step) == pytest.approx(-optimal_policy(world, reference, beta).kl, abs=1e-5)


class Counting(nn.Module):
    """A model that counts how often it is called."""

    def __init__(self, model):
        super().__init__()
        self.model, self.calls = model, 0

    def forward(self, ids):
        self.calls += 1
        return self.model(ids)


def test_frontier_lists_the_responses_once(small):
    counting = Counting(random_table(small, 1))
    reward_kl_frontier(small, counting, BETAS)
    assert counting.calls == 1
    optimal_policy(small, counting, 0.3)
    assert counting.calls == 2


def test_frontier_of_a_given_list_equals_that_of_a_fresh_one(small):
    reference = random_table(small, 1)
    found = find_candidates(small, reference)
    one = reward_kl_frontier(small, reference, [0.1, 1.0], candidates=found)
    other = reward_kl_frontier(small, reference, [0.1, 1.0])
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


# --- estimates from samples


@pytest.fixture(scope="module")
def sample(world, reference):
    return find_candidates(world, reference, exact=False, generator=torch.Generator().manual_seed(0))


def deviations(estimate, exact):
    """How many standard errors the three estimates are off."""
    error = lambda name: abs(getattr(estimate, name) - getattr(exact, name))
    return [error(name) / stderr for name, stderr in estimate.stderr.items()]


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_estimate_agrees_with_the_exact_optimum(world, reference, sample, beta):
    exact, estimate = (optimal_policy(world, reference, beta, candidates=c) for c in (None, sample))
    assert sample.scores.shape == (4, 10_000) and estimate.ess > 100
    assert max(deviations(estimate, exact)) < 3
    assert all(0 < error < 0.05 for error in estimate.stderr.values())
    # control: the optimum of a beta 10% away is many standard errors off
    assert max(deviations(estimate, optimal_policy(world, reference, 1.1 * beta))) > 5


def test_a_proposal_reaches_where_the_reference_does_not(world, reference, sample, pulled):
    """A proposal that has learned to write good responses makes a small beta answerable."""
    beta = 0.2
    with pytest.raises(ValueError, match="proposal"):
        optimal_policy(world, reference, beta, candidates=sample)
    how = dict(exact=False, num_samples=4000, generator=torch.Generator().manual_seed(1))
    mixed = find_candidates(world, reference, proposal=pulled, **how)
    assert mixed.scores.shape == (4, 4000)
    estimate, exact = (optimal_policy(world, reference, beta, candidates=c) for c in (mixed, None))
    assert estimate.ess > 200
    assert max(deviations(estimate, exact)) < 3
    # control: forgetting that half of the samples are the proposal's is many standard errors off
    mixed.log_weights = torch.zeros_like(mixed.log_weights).log_softmax(1)
    assert max(deviations(optimal_policy(world, reference, beta, candidates=mixed), exact)) > 5


@pytest.fixture(scope="module")
def pulled(world):
    """The world's TinyLM, taught by a few supervised steps to write samples of the optimum at beta 0.3."""
    policy, generator = world.policy(), torch.Generator().manual_seed(0)
    optimum = optimal_policy(world, policy, 0.3)
    response_ids, mask = world.responses()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(40):
        rows = torch.multinomial(optimum.log_probs.exp(), 32, replacement=True, generator=generator).flatten()
        ids = torch.cat([world.prompts().repeat_interleave(32, 0), response_ids[rows]], dim=1)
        loss = -(response_log_probs(policy(ids)[0], response_ids[rows]) * mask[rows]).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


def test_standard_errors_are_honest(world, reference):
    """Over repeated small samples, the spread of each estimate is the standard error it claims."""
    estimates, claimed, generator = [], [], torch.Generator().manual_seed(3)
    for _ in range(40):
        found = find_candidates(world, reference, exact=False, num_samples=400, generator=generator)
        optimum = optimal_policy(world, reference, 2.0, candidates=found)
        estimates.append([optimum.reward, optimum.kl, optimum.objective])
        claimed.append(list(optimum.stderr.values()))
    spread, claim = np.std(estimates, axis=0, ddof=1), np.mean(claimed, axis=0)
    # 40 repetitions know a standard deviation to 11%
    np.testing.assert_allclose(spread, claim, rtol=0.35)


def test_too_small_a_beta_is_refused(world, reference, sample):
    with pytest.raises(ValueError) as refusal:
        optimal_policy(world, reference, 0.05, candidates=sample)
    message = str(refusal.value)
    assert "beta = 0.05" in message and "at least 100" in message and "10000 samples" in message
    assert optimal_policy(world, reference, 0.05, candidates=sample, min_ess=1).ess < 100
    curve = reward_kl_frontier(world, reference, [0.05, 1.0], candidates=sample)
    assert np.isnan(curve["reward"][0]) and np.isnan(curve["objective_stderr"][0])
    assert np.isfinite(curve["reward"][1]) and 0 < curve["stderr"][1] < 0.05
    assert curve["ess"][0] < 100 < curve["ess"][1]
    exact = reward_kl_frontier(world, reference, [0.05])
    assert np.isfinite(exact["reward"][0])  # the listing never refuses


def test_sampling_is_repeatable_and_leaves_the_global_generator_alone(world, reference):
    before = torch.random.get_rng_state()
    seeded = lambda seed: torch.Generator().manual_seed(seed)
    draw = lambda seed: find_candidates(world, reference, exact=False, num_samples=50, generator=seeded(seed))
    one, other = draw(5), draw(5)
    assert not torch.equal(one.scores, draw(6).scores)
    assert torch.equal(one.scores, other.scores) and torch.equal(one.response_ids, other.response_ids)
    assert torch.equal(before, torch.random.get_rng_state())


# --- share of the gain


def test_share_is_zero_for_the_reference_and_one_for_the_optimum(world, reference):
    optimum = optimal_policy(world, reference, 0.3)
    assert share_of_gain(reference, reference, world, 0.3).share == pytest.approx(0.0, abs=1e-9)
    best = share_of_gain(optimum.next_log_probs, reference, world, 0.3)
    assert best.share == pytest.approx(1.0, abs=1e-9) and best.stderr == 0.0
    half = share_of_gain(optimum.next_log_probs, reference, world, 1.0)  # another price: no longer the best
    assert half.share < 0.95
    assert half.objective == pytest.approx(half.reward - 1.0 * half.kl)


def test_sampled_share_agrees_with_the_exact_one(world, reference, sample, pulled, generator):
    exact = share_of_gain(pulled, reference, world, 0.5)
    sampled = share_of_gain(pulled, reference, world, 0.5, candidates=sample, generator=generator)
    assert 0.5 < exact.share < 1 and 0 < sampled.stderr < 0.05
    assert abs(sampled.share - exact.share) < 3 * sampled.stderr
    assert sampled.kl == pytest.approx(exact.kl, abs=0.1)
    assert sampled.reward == pytest.approx(exact.reward, abs=0.1)
    other_price = share_of_gain(pulled, reference, world, 1.0)
    assert abs(sampled.share - other_price.share) > 3 * sampled.stderr  # control


def test_error_bar_of_the_share_is_honest(world, reference, sample, generator):
    """With few samples of the policy, the spread over repetitions is the standard error that is claimed."""
    how = dict(candidates=sample, num_samples=20, generator=generator)
    gains = [share_of_gain(reference, reference, world, 1.0, **how) for _ in range(40)]
    spread, claim = np.std([gain.share for gain in gains], ddof=1), np.mean([gain.stderr for gain in gains])
    assert spread == pytest.approx(claim, rel=0.35)
    assert abs(np.mean([gain.share for gain in gains])) < 4 * claim / 40**0.5 + 0.02


def test_nothing_to_gain_is_said(small):
    constant = lambda prompt_ids, response_ids: torch.ones(len(prompt_ids))
    with pytest.raises(ValueError, match="no better than the reference"):
        share_of_gain(random_table(small, 1), random_table(small, 2), small, 0.5, reward=constant)


# --- best of n


def test_best_of_n_agrees_with_listing_all_draws():
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    scores = torch.tensor([[2.0, 1.0, 2.0, 0.0]])
    for n in (1, 2, 3):
        expected = np.zeros(4)
        for draw in itertools.product(range(4), repeat=n):
            best = max(scores[0, i] for i in draw)
            winners = [i for i in draw if scores[0, i] == best]
            for winner in winners:
                expected[winner] += math.prod(float(p[0, i]) for i in draw) / len(winners)
        found = best_of_n_log_probs(p.log(), scores, n).exp()[0]
        np.testing.assert_allclose(found, expected, atol=1e-12)
    assert torch.allclose(best_of_n_log_probs(p.log(), scores, 1), p.log())


@pytest.mark.parametrize("n", [1, 2, 4, 16, 64, 1000])
def test_best_of_n_stays_below_its_bound_and_below_the_frontier(world, reference, n):
    found = find_candidates(world, reference)
    best = best_of_n_log_probs(found.log_weights, found.scores, n)
    assert float((best.exp().sum(1) - 1).abs().max()) < 1e-10
    kl = float(kl_divergence(best, found.log_weights).mean())
    assert -1e-12 <= kl <= best_of_n_kl_bound(n) + 1e-12
    if n in (4, 16):
        # no policy of this KL has more reward than the frontier; best of n comes close to it
        curve = reward_kl_frontier(world, reference, np.geomspace(0.2, 5, 60), candidates=found)
        frontier = np.interp(kl, curve["kl"][::-1], curve["reward"][::-1])
        reward = float((best.exp() * found.scores).sum(1).mean())
        assert frontier - 0.4 < reward < frontier


def test_the_bound_is_nearly_reached_where_nothing_ties_and_nothing_is_likely():
    log_probs = torch.full((1, 20_000), -math.log(20_000), dtype=torch.float64)
    scores = torch.arange(20_000.0).unsqueeze(0)
    for n in (2, 8, 32):
        kl = float(kl_divergence(best_of_n_log_probs(log_probs, scores, n), log_probs))
        assert best_of_n_kl_bound(n) - 0.01 < kl <= best_of_n_kl_bound(n)
        assert kl > best_of_n_kl_bound(n) - 1 / n  # control: log n - 1 would be no bound


# --- rewards, prompts and bad input


def test_another_reward_takes_the_place_of_the_true_score(small, pair):
    policy, other = pair
    higher = lambda prompt_ids, response_ids: small.true_score(prompt_ids, response_ids) + 5.0
    x = small.prompts()
    torch.testing.assert_close(
        exact_expected_reward(policy, x, small, reward=higher), exact_expected_reward(policy, x, small) + 5.0
    )
    one, raised = (optimal_policy(small, policy, 0.5, reward=r) for r in (None, higher))
    # a constant moves no one (the scores are float32)
    torch.testing.assert_close(one.log_probs, raised.log_probs, atol=1e-5, rtol=0)
    assert raised.objective == pytest.approx(one.objective + 5.0)
    learned = small.train_reward_model(num_pairs=50)
    assert abs(optimal_policy(small, policy, 0.5, reward=learned).reward - one.reward) > 1e-3


def test_only_the_prompts_asked_for(small, pair):
    policy, _ = pair
    alone = optimal_policy(small, policy, 0.5, prompts=torch.tensor([[2]]))
    assert alone.reward == pytest.approx(float(optimal_policy(small, policy, 0.5).per_prompt["reward"][1]))


class NoList:
    """A world that cannot list its responses."""

    vocab_size, prompt_length, max_new_tokens, eos_id, pad_id = 4, 1, 3, 0, 0
    prompts = torch.tensor([[1], [2]])

    def true_score(self, prompt_ids, response_ids):
        return response_ids.float().mean(1)


def test_a_world_without_a_list_is_sampled_or_refused():
    world, policy = NoList(), TinyLM(4, d_model=8, num_heads=2, num_layers=1, max_length=4)
    with pytest.raises(ValueError, match="NoList"):
        exact_kl(policy, policy, world.prompts, world)
    with pytest.raises(ValueError, match="NoList"):
        find_candidates(world, policy, exact=True)
    optimum = optimal_policy(world, policy, 1.0, num_samples=500, generator=torch.Generator().manual_seed(0))
    assert optimum.soft_values is None and optimum.ess > 100 and optimum.log_probs.shape == (2, 500)
    generator = torch.Generator().manual_seed(1)
    gain = share_of_gain(policy, policy, world, 0.5, num_samples=500, generator=generator)
    assert abs(gain.share) < 4 * gain.stderr


def test_bad_input_is_refused(small):
    policy, x = random_table(small, 1), small.prompts()
    with pytest.raises(ValueError, match="beta must be"):
        optimal_policy(small, policy, 0.0)
    with pytest.raises(ValueError, match="beta must be"):
        optimal_policy(small, policy, float("nan"))
    with pytest.raises(ValueError, match="beta must be"):
        soft_values(next_token_log_probs(policy, x, small), all_scores(small, x), -1.0)
    with pytest.raises(ValueError, match="betas"):
        reward_kl_frontier(small, policy, [])
    with pytest.raises(ValueError, match="gamma"):
        exact_values(policy, x, small, gamma=1.5)
    with pytest.raises(ValueError, match="kl_coef"):
        exact_values(policy, x, small, kl_coef=-0.1)
    with pytest.raises(ValueError, match="reference must be given"):
        exact_advantages(policy, x, small, kl_coef=0.1)
    with pytest.raises(ValueError, match="prompt_ids"):
        exact_kl(policy, policy, torch.tensor([[1, 2]]), small)
    with pytest.raises(ValueError, match="prompt_ids"):
        exact_kl(policy, policy, torch.tensor([[9]]), small)
    with pytest.raises(ValueError, match="response_ids"):
        exact_values(policy, x, small, response_ids=torch.tensor([[1, 0, 0]]))
    with pytest.raises(ValueError, match="finite"):
        optimal_policy(small, policy, 0.5, reward=lambda x, y: torch.full((len(x),), float("nan")))
    with pytest.raises(ValueError, match="generate"):
        find_candidates(small, policy, exact=False)
    with pytest.raises(ValueError, match="num_samples"):
        find_candidates(small, small.table_policy(), exact=False, num_samples=1)
    with pytest.raises(ValueError, match="tree of 1 prompts"):
        exact_kl(optimal_policy(small, policy, 0.5, prompts=x[:1]).next_log_probs, policy, x, small)
    for n in (0, float("inf")):
        with pytest.raises(ValueError, match="n must be"):
            best_of_n_kl_bound(n)
