"""ReviewWorld: its language, its true score, its raters and its learned reward model."""

import math

import pytest
import torch

from ppo_teach import ReviewWorld, response_mask
from ppo_teach.worlds import build
from ppo_teach.worlds.grammar import CONTENT_WORDS, is_grammatical, sample_corpus
from ppo_teach.worlds.lexicon import RATINGS
from ppo_teach.worlds.review import WEIGHTS, new_policy


@pytest.fixture(scope="module")
def world():
    return ReviewWorld()


def score(world, prompt, response):
    ids = world.encode(response)
    padded = torch.full((1, world.max_new_tokens), world.pad_id)
    padded[0, : len(ids)] = ids
    return world.true_score(world.encode(prompt).unsqueeze(0), padded).item()


def sampled(world, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    prompts = world.sample_prompts(n, generator)
    stop = dict(eos_id=world.eos_id, pad_id=world.pad_id)
    return prompts, world.policy().generate(prompts, world.max_new_tokens, generator=generator, **stop)


def test_text_survives_encoding_and_decoding(world):
    text = "quite delicious but the staff was rude ."
    assert world.decode(world.encode(text)) == text
    assert world.decode(torch.tensor([*world.encode("good . bad .").tolist(), world.pad_id])) == "good ."


def test_true_score_of_reviews_scored_by_hand(world):
    squash = lambda total: 3 * math.tanh(total / 4)
    assert score(world, "the soup was", "good .") == pytest.approx(squash(1.9), abs=1e-5)
    assert score(world, "the soup was", "very good .") == pytest.approx(squash(1.9 + 0.293), abs=1e-5)
    assert score(world, "the soup was", "slightly bad .") == pytest.approx(squash(-2.5 + 0.293), abs=1e-5)
    assert score(world, "the soup was", "good but the staff was rude .") == pytest.approx(squash(1.9 - 2.0), abs=1e-5)
    assert score(world, "the soup was", "plain .") == pytest.approx(0.0, abs=1e-6)


def test_repeating_costs_and_not_stopping_costs(world):
    once = score(world, "the soup was", "good and nice .")
    twice = score(world, "the soup was", "good and good .")
    assert twice == pytest.approx(3 * math.tanh((1.9 + 1.9 - 1.5) / 4), abs=1e-5)
    assert twice < once
    own_noun = score(world, "the soup was", "good and the soup was nice .")
    assert own_noun == pytest.approx(3 * math.tanh((1.9 + 1.8 - 1.5) / 4), abs=1e-5)
    endless = " ".join(["good"] + ["and"] * 13)
    assert score(world, "the soup was", endless) == pytest.approx(3 * math.tanh(1.9 / 4) - 2, abs=1e-5)


def test_score_reads_nothing_after_the_full_stop(world):
    prompts, responses = sampled(world, 200)
    before = world.true_score(prompts, responses)
    real = response_mask(responses, world.eos_id)
    generator = torch.Generator().manual_seed(1)
    garbage = torch.randint(world.vocab_size, responses.shape, generator=generator)
    stopped = (responses == world.eos_id).any(1, keepdim=True)
    mixed = torch.where(real | ~stopped, responses, garbage)
    assert not torch.equal(mixed, responses)
    torch.testing.assert_close(world.true_score(prompts, mixed), before)


def test_score_is_bounded_and_a_row_scores_alone_as_in_a_batch(world):
    generator = torch.Generator().manual_seed(2)
    prompts = world.sample_prompts(300, generator)
    noise = torch.randint(world.vocab_size, (300, world.max_new_tokens), generator=generator)
    scores = world.true_score(prompts, noise)
    assert scores.min() >= -5 and scores.max() <= 3 and scores.std() > 0.5
    for i in (0, 7, 299):
        assert world.true_score(prompts[i : i + 1], noise[i : i + 1]).item() == pytest.approx(scores[i].item(), abs=1e-6)


def test_reference_writes_sentences_of_mixed_mood(world):
    prompts, responses = sampled(world, 1000)
    scores = world.true_score(prompts, responses)
    assert -0.5 < scores.mean() < 0.3 and scores.std() > 1.0
    texts = [world.decode(torch.cat(row)) for row in zip(prompts, responses)]
    assert sum(map(is_grammatical, texts)) >= 800
    assert (responses == world.eos_id).any(1).float().mean() > 0.95
    assert len(set(texts)) > 700


def test_grammar_and_ratings_agree():
    prompts, responses = sample_corpus(200, torch.Generator().manual_seed(0))
    world = ReviewWorld()
    assert all(is_grammatical(world.decode(torch.cat(row))) for row in zip(prompts, responses))
    assert not is_grammatical("the soup was was good .")
    assert set(RATINGS) <= CONTENT_WORDS and RATINGS["great"] == 3.1 and RATINGS["bad"] == -2.5


def test_shipped_weights_are_small_and_know_the_language(world):
    assert WEIGHTS.stat().st_size < 1_000_000
    corpus = sample_corpus(500, torch.Generator().manual_seed(3))
    with torch.no_grad():
        loss = build.corpus_loss(world.policy(), *corpus).item()
        untrained = build.corpus_loss(new_policy(), *corpus).item()
    assert loss < 1.75 < 3.5 < untrained


def test_rebuild_in_reduced_form_makes_loadable_weights(tmp_path):
    build.main(["--fraction", "0.04", "--out", str(tmp_path)])
    rebuilt = ReviewWorld(tmp_path / "review.pt")
    corpus = sample_corpus(300, torch.Generator().manual_seed(3))
    with torch.no_grad():
        loss, untrained = build.corpus_loss(rebuilt.policy(), *corpus), build.corpus_loss(new_policy(), *corpus)
    assert loss < untrained - 0.5
    assert (tmp_path / "chain.pt").exists()


def test_each_policy_is_a_fresh_copy(world):
    first, second = world.policy(), world.policy(critic="separate")
    with torch.no_grad():
        first.lm_head.weight.zero_()
    assert world.policy().lm_head.weight.abs().sum() > 0
    torch.testing.assert_close(second.critic.token_embedding.weight, second.trunk.token_embedding.weight)
    ids = world.prompts
    torch.testing.assert_close(second(ids)[0], world.policy()(ids)[0])


def test_noise_is_the_share_of_coin_flips(world):
    def agreement(noise):
        prompts, first, second, chosen = world.sample_pairs(4000, noise, seed=0)
        better = world.true_score(prompts, first) - world.true_score(prompts, second)
        clear = better.abs() > 2
        return ((better > 0) == chosen)[clear].float().mean().item()

    honest, half, blind = agreement(0.0), agreement(0.5), agreement(1.0)
    assert honest > 0.9
    assert half == pytest.approx((honest + 0.5) / 2, abs=0.04)
    assert blind == pytest.approx(0.5, abs=0.04)


def test_reward_model_learns_what_raters_prefer(world):
    model = world.train_reward_model(1000, noise=0.1, seed=0)
    again = world.train_reward_model(1000, noise=0.1, seed=0)
    prompts, responses = sampled(world, 1000, seed=4)
    learned, true = model(prompts, responses), world.true_score(prompts, responses)
    assert torch.equal(learned, again(prompts, responses))
    assert model.true_accuracy > 0.75
    assert torch.corrcoef(torch.stack([learned, true]))[0, 1] > 0.6
    assert learned.mean().abs() < 0.3 and 0.6 < learned.std() < 1.6


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda w: w.sample_prompts(0, torch.Generator()), "n"),
        (lambda w: w.train_reward_model(0), "num_pairs"),
        (lambda w: w.train_reward_model(10, noise=1.5), "noise"),
        (lambda w: w.encode("the soup was tepid"), "tepid"),
        (lambda w: w.decode(torch.tensor([10_000])), "ids"),
        (lambda w: w.true_score(w.prompts, torch.full((3, 4), 2)), "rows"),
        (lambda w: w.true_score(w.prompts, torch.full((10, 4), 999)), "response_ids"),
    ],
)
def test_bad_input_is_named(world, call, name):
    with pytest.raises(ValueError, match=name):
        call(world)
