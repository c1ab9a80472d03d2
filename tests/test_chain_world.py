"""ChainWorld: sizes, scores, the reference and its pretrained copy, and what the lessons rely on."""

import itertools

import numpy as np
import pytest
import torch

from ppo_teach.tensor_ops import response_log_probs
from ppo_teach.worlds.chain import WEIGHTS, ChainWorld, pretrain_chain_policy, sample_chain


@pytest.fixture(scope="module")
def world():
    return ChainWorld()


def score_by_hand(world, prompt, response):
    """Sum of the table over the transitions, in plain Python."""
    total, last = 0.0, prompt
    for token in response:
        total += float(world.reward_table[last, token])
        if token == world.eos_id:
            break
        last = token
    return total


def divergence(world, policy):
    """KL(policy, chain) in nats per response, mean over prompts, by listing every response."""
    response_ids, mask = world.responses()
    divergences = []
    for prompt in world.prompts():
        ids = torch.cat([prompt.expand(len(response_ids), 1), response_ids], dim=1)
        with torch.no_grad():
            logits = [model(ids)[0].double() for model in (policy, world.table_policy())]
        p, q = ((response_log_probs(one, response_ids) * mask).sum(1) for one in logits)
        divergences.append(float((p.exp() * (p - q)).sum()))
    return np.mean(divergences)


def test_interface(world):
    assert (world.name, world.vocab_size, world.eos_id, world.pad_id) == ("chain", 5, 0, 0)
    assert (world.prompt_length, world.max_new_tokens) == (1, 6)
    assert world.words == ("<eos>", "a", "b", "c", "d")
    assert world.prompts().tolist() == [[1], [2], [3], [4]]
    assert world.decode(torch.tensor([1, 2, 0, 0])) == "a b <eos>"
    assert world.decode([1, 2, 3]) == "a b c"  # cut off: no EOS to show


@pytest.mark.parametrize("sizes", [(4, 6), (1, 1), (1, 3), (2, 5), (26, 1)])
def test_responses_are_all_there_once(sizes):
    K, T = sizes
    world = ChainWorld(num_tokens=K, max_new_tokens=T)
    response_ids, mask = world.responses()
    assert response_ids.shape == mask.shape == (world.num_responses, T)
    assert len({tuple(row) for row in response_ids.tolist()}) == len(response_ids)
    expected = sum(K**t for t in range(T)) + K**T
    assert len(response_ids) == expected
    lengths = mask.sum(1)
    stopped = (response_ids == world.eos_id).any(1)
    assert (lengths[~stopped] == T).all() and int((~stopped).sum()) == K**T
    # order: by the number of words before the stop, then alphabetically; EOS-filled rows sort that way
    words = (response_ids != world.eos_id).sum(1).tolist()
    keys = list(zip(words, response_ids.tolist(), strict=True))
    assert keys == sorted(keys)


def test_score_is_the_sum_over_transitions(world, generator):
    prompt_ids = world.sample_prompts(200, generator)
    response_ids = torch.randint(0, 5, (200, 6), generator=generator)
    rows = zip(prompt_ids.tolist(), response_ids.tolist(), strict=True)
    by_hand = [score_by_hand(world, prompt[0], response) for prompt, response in rows]
    scores = world.true_score(prompt_ids, response_ids)
    assert scores.shape == (200,)
    np.testing.assert_allclose(scores, by_hand, atol=1e-5)
    # what stands after the first EOS is not read
    one = response_ids.clone()
    one[:, 0] = world.eos_id
    other = torch.cat([one[:, :1], one[:, 1:].flip(1)], dim=1)
    assert torch.equal(world.true_score(prompt_ids, one), world.true_score(prompt_ids, other))


def test_token_reward_ignores_what_stands_before():
    world = ChainWorld(reward="tokens")
    response = torch.tensor([[4, 2, 1, 0, 0, 0], [1, 2, 4, 0, 0, 0]])
    one, other = world.true_score(torch.tensor([[1], [3]]), response)
    assert one == pytest.approx(float(other)) == pytest.approx(1.0 + 0.0 - 0.5)
    transitions = ChainWorld().true_score(torch.tensor([[1], [3]]), response)
    assert transitions[0] != transitions[1]


def best_response(world, prompt):
    response_ids, _ = world.responses()
    scores = world.true_score(torch.full((len(response_ids), 1), prompt), response_ids)
    return world.decode(response_ids[scores.argmax()]), float(scores.max())


def test_the_best_next_reward_misleads(world):
    """From "a" the largest next reward is "a" again, for ever; the best answer goes down to go up."""
    last, greedy = 1, []
    for _ in range(world.max_new_tokens):
        last = int(world.reward_table[last].argmax())
        greedy.append(last)
    assert world.decode(greedy) == "a a a a a a"
    answer, score = best_response(world, 1)
    assert answer == "a a b c d <eos>"
    assert score == pytest.approx(3.0) and score_by_hand(world, 1, greedy) == pytest.approx(1.8)


def test_when_to_stop_is_a_real_choice(world):
    assert [best_response(world, prompt)[0] for prompt in (2, 3, 4)] == ["c d <eos>", "d <eos>", "<eos>"]


def test_reference_is_a_chain_with_full_support_and_a_low_score(world, generator):
    assert torch.allclose(world.chain.sum(1), torch.ones(5)) and bool((world.chain > 0.05).all())
    probabilities = world.table_policy()(torch.tensor([[1, 2, 3]]))[0].softmax(-1)
    torch.testing.assert_close(probabilities[0], world.chain[[1, 2, 3]])
    prompts = world.sample_prompts(4000, generator)
    assert float(world.true_score(prompts, sample_chain(world, prompts, generator)).mean()) < -1.5


def test_samples_of_the_chain_have_its_frequencies(world, generator):
    prompts = torch.full((20_000, 1), 2)
    response_ids = sample_chain(world, prompts, generator)
    frequency = torch.bincount(response_ids[:, 0], minlength=5) / 20_000
    assert float((frequency - world.chain[2]).abs().max()) < 4 * 0.5 / 20_000**0.5
    stopped = (response_ids == world.eos_id).long().cumsum(1) > 0
    assert bool((response_ids[stopped] == world.pad_id).all())  # nothing after EOS


def test_shipped_policy_is_close_to_the_chain(world):
    policy = world.policy()
    assert WEIGHTS.stat().st_size < 200_000
    assert divergence(world, policy) < 0.005
    # the control: an untrained model of the same size is far from it
    assert divergence(world, pretrain_chain_policy(world, num_steps=1, batch_size=2)) > 0.1


def test_policies_are_fresh_copies(world):
    first, second = world.policy(), world.policy()
    with torch.no_grad():
        first.lm_head.weight.add_(1.0)
    assert not torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert torch.equal(second.lm_head.weight, world.policy().lm_head.weight)


def test_separate_critic_has_the_same_policy_and_its_own_trunk(world):
    ids = torch.tensor([[1, 2, 3, 4]])
    shared, separate = world.policy(), world.policy("separate")
    torch.testing.assert_close(shared(ids)[0], separate(ids)[0])
    assert separate.critic is not separate.trunk
    torch.testing.assert_close(separate.critic(ids), separate.trunk(ids))
    with pytest.raises(ValueError, match="critic"):
        world.policy("both")


def test_pretraining_rebuilds_the_policy_with_a_small_budget():
    """A small budget gets most of the way, and the same seed gives the same weights."""
    world = ChainWorld(num_tokens=2, max_new_tokens=3)
    first, second = (pretrain_chain_policy(world, num_steps=60, batch_size=128) for _ in range(2))
    untrained = pretrain_chain_policy(world, num_steps=1, batch_size=2)
    assert divergence(world, first) < 0.03 < divergence(world, untrained)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_other_seeds_are_other_worlds():
    worlds = [ChainWorld(seed=seed) for seed in (0, 1, 1)]
    assert not torch.equal(worlds[0].reward_table, worlds[1].reward_table)
    assert not torch.equal(worlds[0].chain, worlds[1].chain)
    assert torch.equal(worlds[1].reward_table, worlds[2].reward_table)
    assert torch.equal(worlds[1].chain, worlds[2].chain)
    assert float((worlds[0].reward_table - worlds[1].reward_table).abs().max()) < 0.21


def test_reward_model_learns_from_comparisons(world):
    response_ids, _ = world.responses()
    prompt_ids = torch.full((len(response_ids), 1), 2)
    truth = world.true_score(prompt_ids, response_ids)
    scores = lambda model: torch.stack([model(prompt_ids, response_ids), truth])
    correlation = lambda model: float(torch.corrcoef(scores(model))[0, 1])
    learned = world.train_reward_model(num_pairs=600, noise=0.0, seed=1)
    assert learned(prompt_ids, response_ids).shape == (len(response_ids),)
    assert correlation(learned) > 0.8
    coin_flips = world.train_reward_model(num_pairs=600, noise=1.0, seed=1)
    assert correlation(coin_flips) < 0.5


def test_global_generator_is_left_alone(world):
    before = torch.random.get_rng_state()
    other = ChainWorld(seed=3)
    generator = torch.Generator().manual_seed(0)
    sample_chain(other, other.sample_prompts(5, generator), generator)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "arguments, named",
    [
        (dict(num_tokens=0), "num_tokens"),
        (dict(num_tokens=2.0), "num_tokens"),
        (dict(num_tokens=27, max_new_tokens=1), "num_tokens"),
        (dict(max_new_tokens=0), "max_new_tokens"),
        (dict(max_new_tokens=True), "max_new_tokens"),
        (dict(num_tokens=5, max_new_tokens=8), "488281 responses"),
        (dict(reward="length"), "reward"),
    ],
)
def test_bad_sizes_are_refused(arguments, named):
    with pytest.raises(ValueError, match=named):
        ChainWorld(**arguments)


def test_bad_ids_are_refused(world):
    prompt_ids, response_ids = torch.tensor([[1]]), torch.tensor([[1, 0]])
    with pytest.raises(ValueError, match="same number of rows"):
        world.true_score(prompt_ids, response_ids.repeat(2, 1))
    with pytest.raises(ValueError, match="response_ids"):
        world.true_score(prompt_ids, torch.tensor([[1, 5]]))
    with pytest.raises(ValueError, match="prompt_ids"):
        world.true_score(torch.tensor([[-1]]), response_ids)
    with pytest.raises(ValueError, match="n must be"):
        world.sample_prompts(0)
    with pytest.raises(ValueError, match="ids"):
        world.decode([1, 9])
