"""ReviewWorld: its language, its ratings, the true score, the raters, the reward model and the rebuild."""

import math

import pytest
import torch

from ppo_teach.config import PPOConfig
from ppo_teach.tensor_ops import response_log_probs, response_mask
from ppo_teach.train import train_ppo
from ppo_teach.worlds import ReviewWorld, build
from ppo_teach.worlds.grammar import ADJECTIVES, NEUTRAL, NOUNS, is_grammatical, sample_corpus
from ppo_teach.worlds.lexicon import BOOSTERS, RATINGS
from ppo_teach.worlds.review import WEIGHTS, new_policy
from ppo_teach.worlds.reward_model import (
    LearnedRewardModel,
    bradley_terry_loss,
    fit_reward_model,
    raters_prefer_first,
)


@pytest.fixture(scope="module")
def world():
    return ReviewWorld()


@pytest.fixture(scope="module")
def samples(world):
    """2,000 reviews of the pretrained policy: prompt_ids, response_ids."""
    generator = torch.Generator().manual_seed(11)
    prompt_ids = world.sample_prompts(2000, generator)
    return prompt_ids, sample(world, world.policy(), prompt_ids, generator)


@pytest.fixture(scope="module")
def reward_model(world):
    return world.train_reward_model(num_pairs=1500, noise=0.1, seed=3)


def sample(world, policy, prompt_ids, generator):
    return policy.generate(
        prompt_ids, world.max_new_tokens, eos_id=world.eos_id, pad_id=world.pad_id, generator=generator
    )


def random_ids(world, rows, seed=0):
    """Prompts and responses of random words: most of them nonsense, many without a full stop."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda length: torch.randint(1, world.vocab_size, (rows, length), generator=generator)
    return draw(3), draw(14)


def score_of(world, response, prompt="the soup was"):
    return world.true_score(world.encode(prompt).unsqueeze(0), world.encode(response).unsqueeze(0)).item()


def score_by_hand(prompt, response):
    """The true score in plain Python, word by word."""
    words = response[: response.index(".") + 1] if "." in response else response
    content = {*RATINGS, *NEUTRAL, *(noun for nouns in NOUNS.values() for noun in nouns)}
    total, used, before = 0.0, list(prompt), ""
    for word in words:
        if word in RATINGS:  # the booster acts on the strength, whatever the sign
            total += math.copysign(abs(RATINGS[word]) + BOOSTERS.get(before, 0.0), RATINGS[word])
        if word in content:
            total -= 1.5 * used.count(word)
        used.append(word)
        before = word
    return 3 * math.tanh(total / 4) - (0 if "." in words else 2)


# --- language --------------------------------------------------------------------------------------------


def test_interface(world):
    assert world.name == "review" and world.vocab_size == len(world.words) == len(set(world.words))
    assert 45 <= world.vocab_size <= 60
    assert (world.words[world.eos_id], world.words[world.pad_id]) == (".", "<pad>")
    assert (world.prompt_length, world.max_new_tokens) == (3, 14)
    assert world.decode(world.prompts[0]) == "the soup was"
    assert len({tuple(row) for row in world.prompts.tolist()}) == 10


def test_text_survives_the_round_trip(world):
    text = "the soup was quite delicious but the staff was rude ."
    assert world.decode(world.encode(text)) == text
    padded = torch.cat([world.encode(text), torch.full((5,), world.pad_id)])
    assert world.decode(padded) == text
    assert world.decode(padded.tolist()) == text
    assert world.decode(world.encode(f"{text} and lovely .")) == text  # stops at the EOS
    assert world.decode([world.pad_id, *world.encode("good").tolist()]) == "good"
    assert world.decode([]) == ""


def test_every_corpus_review_is_grammatical_and_fits(world):
    prompt_ids, response_ids = sample_corpus(500, torch.Generator().manual_seed(0))
    assert prompt_ids.shape == (500, 3) and response_ids.shape == (500, 14)
    texts = [world.decode(row) for row in torch.cat([prompt_ids, response_ids], 1)]
    assert all(is_grammatical(text) for text in texts)
    parts = world.score_parts(prompt_ids, response_ids)
    assert not parts["repeats"].any() and not parts["unstopped"].any()
    assert {text.count("was") for text in texts} == {1, 2, 3}
    assert {word for text in texts for word in text.split()} >= set(RATINGS) | set(BOOSTERS)
    # praise and complaints alike
    scores = world.true_score(prompt_ids, response_ids)
    assert (scores > 1).float().mean() > 0.2 and (scores < -1).float().mean() > 0.2


@pytest.mark.parametrize(
    "text",
    [
        "the soup was", "the soup was good", "soup was good .", "the soup was rude .", "the soup good was .",
        "the staff was delicious .", "the soup was good nice .", "the soup was very and good .",
        "the soup was good and .", "the soup was good . .", "",
    ],
)  # fmt: skip
def test_word_salad_is_not_grammatical(text):
    assert not is_grammatical(text)


def test_the_corpus_repeats_for_a_seed():
    one, two, other = (sample_corpus(20, torch.Generator().manual_seed(seed))[1] for seed in (5, 5, 6))
    assert torch.equal(one, two) and not torch.equal(one, other)


def test_the_signs_of_the_ratings_agree_with_the_grammar():
    """A word listed as praise is one that people rated above 0."""
    for (_, praise), words in ADJECTIVES.items():
        assert all((RATINGS[word] > 0) == praise for word in words)
    assert not set(NEUTRAL) & set(RATINGS)
    # ten raters, so a mean has one decimal; the scale ends at 4
    assert all(abs(rating) <= 4 and rating == round(rating, 1) for rating in RATINGS.values())


# --- true score ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "response, total, unstopped",
    [
        ("delicious .", 2.7, 0),
        ("bad .", -2.5, 0),
        ("very bad .", -2.5 - 0.293, 0),
        ("slightly good .", 1.9 - 0.293, 0),
        ("very plain .", 0.0, 0),
        ("great and the staff was friendly .", 3.1 + 2.2, 0),
        ("good but the staff was rude .", 1.9 - 2.0, 0),
        ("lovely and lovely .", 2 * 2.8 - 1.5, 0),
        ("great great great .", 3 * 3.1 - 1.5 * (1 + 2), 0),
        ("good and the soup was nice .", 1.9 + 1.8 - 1.5, 0),  # the prompt's noun again
        ("very very very good .", 1.9 + 0.293, 0),  # only the booster right in front acts
        ("delicious and", 2.7, 1),
        (".", 0.0, 0),
    ],
)
def test_true_score_of_reviews_worked_out_by_hand(world, response, total, unstopped):
    assert score_of(world, response) == pytest.approx(3 * math.tanh(total / 4) - 2 * unstopped, abs=1e-5)


def test_true_score_agrees_with_a_loop_over_words(world, samples):
    for prompt_ids, response_ids in (random_ids(world, 300), (samples[0][:300], samples[1][:300])):
        words = lambda row: [world.words[i] for i in row]
        expected = [score_by_hand(words(p), words(r)) for p, r in zip(prompt_ids, response_ids)]
        assert world.true_score(prompt_ids, response_ids).tolist() == pytest.approx(expected, abs=1e-5)


def test_good_beats_bad_beats_salad(world):
    ordered = [
        "delicious and the staff was friendly and the room was elegant .",
        "delicious .",
        "plain .",
        "bad .",
        "awful and the staff was rude .",
        "delicious delicious delicious delicious delicious delicious delicious .",
        "lovely lovely lovely lovely lovely lovely lovely lovely",
    ]
    scores = [score_of(world, review) for review in ordered]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == len(scores)


def test_true_score_is_bounded(world):
    scores = world.true_score(*random_ids(world, 5000))
    assert scores.dtype == torch.float32 and scores.shape == (5000,)
    assert scores.min() >= -5 and scores.max() <= 3
    assert score_of(world, " ".join(["great"] * 14)) == pytest.approx(-5, abs=1e-3)


def test_what_stands_after_the_full_stop_does_not_matter(world, reward_model):
    prompt_ids, response_ids = random_ids(world, 200, seed=1)
    response_ids[:, 5] = world.eos_id
    changed = response_ids.clone()
    changed[:, 6:] = random_ids(world, 200, seed=2)[1][:, 6:]
    for score in (world.true_score, reward_model):
        torch.testing.assert_close(score(prompt_ids, response_ids), score(prompt_ids, changed))
        before = response_ids.clone()
        before[:, 4] = changed[:, 12]
        before[:, :4] = world.encode("good nice great and")
        assert not torch.allclose(score(prompt_ids, response_ids), score(prompt_ids, before))


def test_padding_makes_no_difference(world, reward_model):
    prompt_ids, response_ids = world.prompts[:1], world.encode("very good .").unsqueeze(0)
    padded = torch.cat([response_ids, torch.full((1, 8), world.pad_id)], dim=1)
    for score in (world.true_score, reward_model):
        torch.testing.assert_close(score(prompt_ids, response_ids), score(prompt_ids, padded))


def test_a_batch_of_one_equals_the_row_in_a_batch(world, samples, reward_model):
    prompt_ids, response_ids = samples[0][:20], samples[1][:20]
    for score in (world.true_score, reward_model):
        together = score(prompt_ids, response_ids)
        alone = torch.cat([score(prompt_ids[i : i + 1], response_ids[i : i + 1]) for i in range(20)])
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_word_scores_point_at_the_words(world):
    response_ids = world.encode("really lovely but the staff was somewhat rude . good").unsqueeze(0)
    expected = [0, 2.8 + 0.293, 0, 0, 0, 0, 0, -(2.0 - 0.293), 0, 0]
    assert world.word_scores(response_ids)[0].tolist() == pytest.approx(expected)


# --- the pretrained policy -------------------------------------------------------------------------------


def test_the_weights_are_small_and_plain():
    assert WEIGHTS.stat().st_size < 1_000_000
    state = torch.load(WEIGHTS, weights_only=True)
    assert sum(tensor.numel() for tensor in state.values()) < 120_000


def test_the_shipped_policy_speaks_the_language(world, samples):
    prompt_ids, response_ids = samples
    texts = [world.decode(row) for row in torch.cat(samples, dim=1)]
    assert sum(map(is_grammatical, texts)) / len(texts) > 0.9
    assert (response_ids == world.eos_id).any(1).float().mean() > 0.98
    assert -0.3 < world.true_score(prompt_ids, response_ids).mean() < 0.2
    with torch.no_grad():
        loss = build.corpus_loss(world.policy(), *sample_corpus(1000, torch.Generator().manual_seed(2)))
    assert loss < 1.75  # nats per token; an untrained policy has more than 4
    # with shuffled words it is lost: what it learned is the order, not the frequencies
    shuffled = response_ids[:, torch.randperm(14, generator=torch.Generator().manual_seed(0))]
    with torch.no_grad():
        logits = world.policy()(torch.cat([prompt_ids, shuffled], 1))[0]
    assert -response_log_probs(logits, shuffled).mean() > 4


def test_two_policies_share_nothing(world):
    one, two = world.policy(), world.policy()
    with torch.no_grad():
        one.lm_head.weight.zero_()
    assert two.lm_head.weight.abs().sum() > 0 and world.policy().lm_head.weight.abs().sum() > 0


def test_a_separate_critic_starts_as_a_copy_of_the_policy(world):
    policy = world.policy(critic="separate")
    for mine, its in zip(policy.critic.parameters(), policy.trunk.parameters(), strict=True):
        assert torch.equal(mine, its) and mine.data_ptr() != its.data_ptr()
    ids = torch.cat([world.prompts, world.prompts], 1)
    with torch.no_grad():
        torch.testing.assert_close(policy(ids)[0], world.policy()(ids)[0])
        assert (policy(ids)[1] == 0).all()


def test_prompts_are_drawn_evenly_and_repeat_for_a_seed(world):
    draw = lambda seed: world.sample_prompts(5000, torch.Generator().manual_seed(seed))
    assert draw(1).shape == (5000, 3) and torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))
    counts = torch.bincount(draw(1)[:, 1])
    assert (counts[counts > 0] > 400).all() and (counts > 0).sum() == 10


def test_the_optimum_can_be_estimated_from_samples(world):
    """10,000 reference samples keep an effective sample size above 100 at beta 0.3 and above 500 at 0.5."""
    prompt_ids = world.prompts[3:4].expand(10_000, 3)
    response_ids = sample(world, world.policy(), prompt_ids, torch.Generator().manual_seed(0))
    scores = world.true_score(prompt_ids, response_ids).double()
    for beta, enough in ((0.3, 100), (0.5, 500)):
        weights = (scores / beta).softmax(0)
        assert 1 / weights.square().sum() > enough


def test_rebuild_with_a_small_budget(tmp_path, capsys):
    before = torch.get_rng_state()
    build.main(["--fraction", "0.02", "--out", str(tmp_path / "new")])
    assert torch.equal(before, torch.get_rng_state())  # global generator untouched
    assert "nats per token" in capsys.readouterr().out
    rebuilt = ReviewWorld(tmp_path / "new" / WEIGHTS.name)
    with torch.no_grad():
        corpus = sample_corpus(200, torch.Generator().manual_seed(9))
        losses = [build.corpus_loss(policy, *corpus) for policy in (new_policy(), rebuilt.policy())]
    assert losses[1] < losses[0] - 1


@pytest.mark.parametrize("fraction", ["0", "1.5", "-0.1"])
def test_rebuild_refuses_other_fractions(fraction, tmp_path):
    with pytest.raises(SystemExit):
        build.main(["--fraction", fraction, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


# --- raters and reward model -----------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("difference", [0.0, 1.0, -2.5])
def test_raters_answer_as_often_as_stated(noise, difference):
    n = 40_000
    first = raters_prefer_first(
        torch.full((n,), 0.3 + difference), torch.full((n,), 0.3), noise, torch.Generator().manual_seed(0)
    )
    expected = (1 - noise) / (1 + math.exp(-difference)) + noise / 2
    assert first.float().mean().item() == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(n))


def test_pairs_answer_the_same_prompt_and_repeat_for_a_seed(world):
    pairs = world.sample_pairs(400, noise=0.0, seed=5)
    again = world.sample_pairs(400, noise=0.0, seed=5)
    assert all(torch.equal(one, two) for one, two in zip(pairs, again))
    prompt_ids, first, second, chosen = pairs
    assert prompt_ids.shape == (400, 3) and first.shape == second.shape == (400, 14)
    assert chosen.dtype == torch.bool
    assert not torch.equal(first, second)
    gain = world.true_score(prompt_ids, first) - world.true_score(prompt_ids, second)
    assert ((gain > 0) == chosen).float().mean() > 0.75
    noisy = world.sample_pairs(400, noise=1.0, seed=5)[3]
    assert 0.4 < ((gain > 0) == noisy).float().mean() < 0.6


def test_pairs_may_come_from_another_policy(world):
    silent = world.policy()
    with torch.no_grad():
        silent.lm_head.bias[world.eos_id] = 100.0
    _, first, _, _ = world.sample_pairs(10, policy=silent)
    assert (first[:, 0] == world.eos_id).all()


def test_bradley_terry_loss_is_the_likelihood_of_the_choices():
    better, worse = torch.tensor([1.0, 0.5]), torch.tensor([-1.0, 2.0])
    expected = -(math.log(1 / (1 + math.exp(-2.0))) + math.log(1 / (1 + math.exp(1.5)))) / 2
    assert bradley_terry_loss(better, worse).item() == pytest.approx(expected)
    torch.testing.assert_close(bradley_terry_loss(better + 7, worse + 7), bradley_terry_loss(better, worse))
    with pytest.raises(ValueError, match="must be equal"):
        bradley_terry_loss(better, worse.unsqueeze(1))


def test_reward_model_learns_what_the_raters_like(world, samples, reward_model):
    assert reward_model.true_accuracy > 0.8
    assert 0.65 < reward_model.accuracy < 0.9  # the raters contradict themselves: no model can reach 1
    scores = reward_model(*samples)
    assert abs(scores.mean()) < 0.15 and abs(scores.std() - 1) < 0.15
    low, high = reward_model.score_range
    assert low < scores.quantile(0.01) and scores.quantile(0.99) < high
    correlation = torch.corrcoef(torch.stack([scores, world.true_score(*samples)]))[0, 1]
    assert correlation > 0.75
    assert (reward_model.num_pairs, reward_model.noise) == (1500, 0.1)
    assert not any(parameter.requires_grad for parameter in reward_model.parameters())


def test_reward_model_reads_the_order_of_the_words(world, reward_model):
    score = lambda text: reward_model(world.prompts[:1], world.encode(text).unsqueeze(0)).item()
    one, other = score("good but the staff was rude ."), score("rude but the staff was good .")
    assert one != pytest.approx(other, abs=1e-3)


def test_noise_and_few_pairs_cost_accuracy(world, reward_model):
    assert world.train_reward_model(num_pairs=100, seed=3).true_accuracy < reward_model.true_accuracy
    assert abs(world.train_reward_model(num_pairs=1500, noise=1.0, seed=3).true_accuracy - 0.5) < 0.2


def test_reward_model_repeats_for_a_seed_and_leaves_torch_alone(world, samples):
    before = torch.get_rng_state()
    one, two, other = (world.train_reward_model(num_pairs=60, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one(*samples), two(*samples)) and not torch.equal(one(*samples), other(*samples))


def test_accuracy_is_measured_on_other_pairs(monkeypatch):
    world, seeds = ReviewWorld(), []
    sample_pairs = world.sample_pairs
    noted = lambda n, noise, seed: seeds.append(seed) or sample_pairs(n, noise, seed)
    monkeypatch.setattr(world, "sample_pairs", noted)
    world.train_reward_model(num_pairs=5, held_out=5)
    assert len(seeds) == len(set(seeds)) == 2


def test_one_pair_is_enough_to_run(world):
    model = world.train_reward_model(num_pairs=1, d_model=4, held_out=1)
    assert torch.isfinite(model(world.prompts, world.prompts)).all()


def test_extra_pairs_are_learned_but_do_not_move_the_zero(world, samples):
    """Raters who have seen repetition teach the model to dislike it."""
    repeated = world.encode("lovely and lovely and lovely and lovely .")
    first = torch.full((300, 14), world.pad_id)
    first[:, : len(repeated)] = repeated
    prompt_ids, second = samples[0][:300], samples[1][:300]
    extra = (prompt_ids, first, second, torch.zeros(300, dtype=torch.bool))
    train = lambda more: world.train_reward_model(num_pairs=600, seed=4, extra_pairs=more)
    plain, taught = train(None), train(extra)
    assert taught.num_pairs == 900
    assert taught(prompt_ids[:1], first[:1]) < plain(prompt_ids[:1], first[:1]) - 1
    assert abs(taught(*samples).mean()) < 0.2 and abs(taught(*samples).std() - 1) < 0.2


def test_reward_hacking_happens_without_a_leash_and_not_with_one(world):
    """Without a leash the learned score leaves its training range and the true one falls from its peak."""
    learned = world.train_reward_model(seed=0)
    ends = {}
    for kl_coef in (0.0, 0.3):
        _, log = train_ppo(world, PPOConfig(kl_coef=kl_coef), reward=learned, num_updates=24, seed=0)
        true = log.metrics["true_score"]
        ends[kl_coef] = log.metrics["mean_reward"][-1], true[-1], max(true)
    reward, true, peak = ends[0.0]
    assert reward > learned.score_range[1] and true < peak - 2
    reward, true, peak = ends[0.3]
    assert reward < learned.score_range[1] and true > peak - 0.5 and true > 1.5


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda w: w.encode("the soup was scrumptious ."), "scrumptious"),
        (lambda w: w.encode(""), "text must hold"),
        (lambda w: w.decode([0, 999]), "ids must hold token ids"),
        (lambda w: w.decode(torch.zeros(2, 3, dtype=torch.long)), r"shape \[L\]"),
        (lambda w: w.sample_prompts(0, torch.Generator()), "n must be an integer >= 1, got 0"),
        (lambda w: w.sample_prompts(2.5, torch.Generator()), "n must be an integer"),
        (lambda w: w.true_score(w.prompts[:2], w.prompts[:3]), "same number of rows"),
        (lambda w: w.true_score(w.prompts, w.prompts + 100), "response_ids must hold token ids"),
        (lambda w: w.true_score(w.prompts - 100, w.prompts), "prompt_ids must hold token ids"),
        (lambda w: w.true_score(w.prompts, w.prompts.float()), "response_ids must be an integer tensor"),
        (lambda w: w.word_scores(w.prompts[0]), r"shape \[B, L\]"),
        (lambda w: w.train_reward_model(num_pairs=0), "num_pairs must be an integer >= 1, got 0"),
        (lambda w: w.train_reward_model(num_pairs=True), "num_pairs must be an integer"),
        (lambda w: w.train_reward_model(num_pairs=2, held_out=0), "held_out must be an integer"),
        (lambda w: w.train_reward_model(num_pairs=2, noise=1.2), r"noise must be a .* in \[0, 1\]"),
        (lambda w: w.train_reward_model(num_pairs=2, noise=-0.1), "noise"),
        (lambda w: w.train_reward_model(num_pairs=2, noise=math.nan), "noise"),
        (lambda w: w.train_reward_model(num_pairs=2, d_model=0), "d_model must be an integer >= 1, got 0"),
        (lambda w: w.policy(critic="none"), "critic"),
        (lambda w: sample_corpus(0, torch.Generator()), "num_reviews"),
    ],
)
def test_bad_input_is_named(world, call, message):
    with pytest.raises(ValueError, match=message):
        call(world)


def test_a_reward_model_refuses_what_it_cannot_score(world, reward_model):
    for prompt_ids, response_ids, message in (
        (world.prompts[:2], world.prompts[:3], "same number of rows"),
        (world.prompts, world.prompts + 100, "response_ids must hold"),
        (world.prompts.double(), world.prompts, "prompt_ids must be an integer tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            reward_model(prompt_ids, response_ids)


def test_fitting_lowers_the_loss_and_normalises(world):
    prompt_ids, first, second, chosen = world.sample_pairs(300, noise=0.0, seed=8)
    preferred = torch.where(chosen.unsqueeze(1), first, second)
    rejected = torch.where(chosen.unsqueeze(1), second, first)
    model = LearnedRewardModel(world.vocab_size, world.eos_id, world.pad_id, d_model=8, seed=0)
    loss = lambda: bradley_terry_loss(model(prompt_ids, preferred), model(prompt_ids, rejected)).item()
    before = loss()
    fit_reward_model(model, prompt_ids, preferred, rejected)
    assert loss() < before - 0.05
    scores = torch.cat([model(prompt_ids, preferred), model(prompt_ids, rejected)])
    assert scores.mean().item() == pytest.approx(0, abs=1e-4)
    assert scores.std(unbiased=False).item() == pytest.approx(1, abs=1e-4)
    assert model.score_range == pytest.approx((scores.min().item(), scores.max().item()), abs=1e-4)


def test_the_shipped_weights_give_this_log_probability(world):
    """A pinned number: changes only when the weights are rebuilt."""
    prompt_ids = world.prompts[:1]
    response_ids = world.encode("delicious and the staff was friendly .").unsqueeze(0)
    with torch.no_grad():
        logits = world.policy()(torch.cat([prompt_ids, response_ids], 1))[0]
    log_probs = response_log_probs(logits, response_ids)
    assert response_mask(response_ids, world.eos_id, world.pad_id).all()
    assert log_probs.sum().item() == pytest.approx(-9.3922, abs=0.002)
