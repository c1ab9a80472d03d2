"""Tasks so small that the right answer is known, each isolating one part, trained for real in seconds."""

import pytest
import torch
from stubs import ForeignActorCritic, HuggingFaceStyle, ProbeWorld, parameters_of, perturbed, same

import ppo_teach as pt


def next_token_probs(policy, world, written=()):
    """π(· | prompt, written), [V]."""
    with torch.no_grad():
        logits, _ = policy(torch.tensor([[0, *written]]))
    return logits[0, -1].softmax(-1)


def value_of(policy, world, written=()):
    with torch.no_grad():
        return policy(torch.tensor([[0, *written]]))[1][0, -1].item()


def run(world, num_updates, policy=None, **config):
    config = pt.PPOConfig(**dict(kl_coef=0.0, learning_rate=3e-3, num_minibatches=1) | config)
    return pt.train_ppo(world, config, policy=policy, num_updates=num_updates, batch_size=64)


# ---------------------------------------------------------------- one token, one reward


def test_one_token_with_a_constant_reward_teaches_the_critic_and_only_the_critic():
    """There is nothing to choose: the critic must learn the constant, the policy must stay where it is."""
    world = ProbeWorld(1, 1, lambda r: torch.full((len(r),), 3.0))
    policy, log = run(world, 40, learning_rate=1e-2)
    assert value_of(policy, world) == pytest.approx(3.0, abs=0.05)
    assert next_token_probs(policy, world).tolist() == [1.0]
    losses = log.metrics["value_loss"]
    assert losses[0] > 4 and losses[-1] < 0.01
    assert log.metrics["mean_reward"] == [3.0] * 40 and log.metrics["entropy"] == [0.0] * 40
    assert max(map(abs, log.metrics["policy_loss"])) == 0.0 and max(log.metrics["max_ratio"]) == 1.0


def test_equal_rewards_leave_a_choosing_policy_alone():
    """Two tokens worth the same: whitened advantages are 0, a separate critic learns, the policy stays."""
    world = ProbeWorld(2, 1, lambda r: torch.ones(len(r)))
    policy = pt.TinyLM(2, d_model=16, num_layers=1, num_heads=2, max_length=2, critic="separate")
    before = next_token_probs(policy, world)
    run(world, 40, policy, learning_rate=1e-2)
    assert value_of(policy, world) == pytest.approx(1.0, abs=0.05)
    torch.testing.assert_close(next_token_probs(policy, world), before, rtol=0, atol=1e-3)


# ---------------------------------------------------------------- credit assignment


def delayed(r):
    """Only the second token is paid, and only after the right first one: 1, 1 -> 1."""
    return ((r[:, 0] == 1) & (r[:, 1] == 1)).float()


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_two_tokens_with_a_delayed_reward(lam):
    world = ProbeWorld(2, 2, delayed)
    policy, log = run(world, 30, lam=lam, learning_rate=1e-2)
    assert next_token_probs(policy, world)[1] > 0.9 and next_token_probs(policy, world, [1])[1] > 0.9
    assert sum(log.metrics["mean_reward"][-5:]) / 5 > 0.85 > 0.5 > log.metrics["mean_reward"][0]
    assert value_of(policy, world) == pytest.approx(0.95, abs=0.15)
    assert value_of(policy, world, [1]) == pytest.approx(0.95, abs=0.15)


def test_with_gamma_zero_the_first_token_learns_nothing():
    """The same task, short-sighted: the reward never reaches the first choice."""
    world = ProbeWorld(2, 2, delayed)
    policy, _ = run(world, 40, pt.TablePolicy(2, 3), gamma=0.0, lam=0.0, learning_rate=0.1)
    assert next_token_probs(policy, world, [1])[1] > 0.9
    assert 0.2 < next_token_probs(policy, world)[1] < 0.8


@pytest.mark.parametrize("make", [
    lambda: pt.MockLanguageModel(3, 16, seed=0), lambda: HuggingFaceStyle(3, dropout=0.0),
    lambda: ForeignActorCritic(3), lambda: pt.TablePolicy(3, 3),
    lambda: pt.TinyLM(3, d_model=16, num_layers=1, num_heads=2, max_length=3, critic="separate"),
], ids=["mock", "Hugging Face", "foreign", "table", "separate critic"])  # fmt: skip
def test_every_kind_of_model_learns_the_better_token(make):
    policy = make().train()
    learning_rate = 0.1 if isinstance(policy, pt.TablePolicy) else 3e-3
    world = ProbeWorld(3, 2, lambda r: (r == 2).float().sum(1))
    trained, log = run(world, 30, policy, learning_rate=learning_rate)
    assert trained is policy and policy.training
    assert log.metrics["mean_reward"][-1] > 1.7 > 1.1 > log.metrics["mean_reward"][0]
    assert log.metrics["value_loss"][-1] < log.metrics["value_loss"][0]


# ---------------------------------------------------------------- the leash alone


def left_after(kl_coef, num_updates):
    """KL to the reference before and after training on no reward at all, and the log."""
    world = ProbeWorld(3, 2, lambda r: torch.zeros(len(r)))
    reference = pt.make_reference(world.policy())
    policy = perturbed(reference, 0.3)
    before = parameters_of(reference)
    kl = lambda: sum(
        (p * (p / q).log()).sum().item()
        for p, q in (
            (next_token_probs(policy, world, w), next_token_probs(reference, world, w))
            for w in ((), (0,), (1,), (2,))
        )
    )
    start = kl()
    config = pt.PPOConfig(kl_coef=kl_coef, learning_rate=3e-3, num_minibatches=1, whiten_advantages="none")
    _, log = pt.train_ppo(
        world, config, policy=policy, reference=reference, num_updates=num_updates, batch_size=128
    )
    assert same(before, reference)
    return start, kl(), log


def test_with_the_kl_alone_the_policy_returns_to_its_reference():
    start, end, log = left_after(1.0, 50)
    assert start > 0.1 and end < 0.1 * start
    assert log.metrics["kl_per_response"][0] > 10 * abs(log.metrics["kl_per_response"][-1])


def test_without_the_leash_it_does_not():
    start, end, _ = left_after(0.0, 15)
    assert end > 0.5 * start


def test_the_leash_sets_how_far_a_reward_pulls():
    """Two tokens, reward 1 for one of them: the optimum is π_ref exp(R / β), known in closed form."""
    world = ProbeWorld(2, 1, lambda r: r[:, 0])
    for beta in (0.5, 2.0):
        policy, _ = run(
            world, 50, pt.TablePolicy(2, 2), kl_coef=beta, learning_rate=0.05, lr_schedule="linear"
        )
        weights = torch.tensor(
            [0.5, 0.5 * 2.718281828 ** (1 / beta)]
        )  # the table starts uniform, and is its reference
        wanted = (weights / weights.sum())[1].item()
        assert next_token_probs(policy, world)[1].item() == pytest.approx(wanted, abs=0.06)
