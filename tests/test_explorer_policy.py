"""The sampling explorer of notebook 01 against the policy itself, and the heat map of the same notebook."""

import numpy as np
import pytest
import torch

from ppo_teach import ReviewWorld, entropy, generate, plots, response_log_probs
from ppo_teach.explorers import sampling_explorer
from ppo_teach.models import keep_top_k


@pytest.fixture(scope="module")
def review():
    world, generator = ReviewWorld(), torch.Generator().manual_seed(7)
    prompts = world.sample_prompts(2, generator)
    how = dict(eos_id=world.eos_id, generator=generator)
    responses = generate(world.policy(), prompts, world.max_new_tokens, **how)
    length = world.decode(responses[1]).count(" ") + 1
    return world, prompts[1], responses[1, :length]


@pytest.fixture(scope="module")
def explorer(review):
    made = sampling_explorer(review[0], prompt_ids=review[1], response_ids=review[2])
    yield made
    made.close()


def place(explorer, **values):
    for name, value in values.items():
        explorer.sliders[name].value = value
    return explorer.drawn()


@torch.no_grad()
def logits(review):
    world, prompt, response = review
    return world.policy()(torch.cat([prompt, response]).unsqueeze(0))[0]


@pytest.mark.parametrize("temperature", [0.25, 1, 3])
def test_the_review_carries_the_probabilities_of_one_pass(explorer, review, temperature):
    drawn = place(explorer, temperature=temperature)
    want = response_log_probs(logits(review), review[2].unsqueeze(0), temperature)[0].exp()
    np.testing.assert_allclose(drawn["policy_review"], want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("temperature", "position"), [(0.5, 0), (1, 3), (2, 6)])
def test_bars_and_entropy_belong_to_the_state_before_the_token(explorer, review, temperature, position):
    drawn = place(explorer, temperature=temperature, position=position, top_k=5)
    before = logits(review)[0, len(review[1]) - 1 + position] / temperature
    probabilities = before.softmax(-1)
    np.testing.assert_allclose(drawn["policy"][:10], probabilities.topk(10).values, rtol=1e-4)
    assert drawn["policy"][10] == pytest.approx(probabilities[review[2][position]].item(), rel=1e-4)
    assert drawn["entropy"][0] == pytest.approx(entropy(before).item(), rel=1e-4)
    assert drawn["here"].tolist() == [[position - 0.5, position + 0.5]]


def test_top_k_draws_from_k_words_that_share_the_probability(explorer):
    for k in (1, 2, 3, 5, 10):
        sampler = place(explorer, temperature=1, position=0, top_k=k)["sampler"][:10]
        assert (sampler > 0).sum() == k and sampler.sum() == pytest.approx(1)


def test_without_a_filter_both_policies_are_one(explorer, review):
    drawn = place(explorer, temperature=0.7, position=2, top_k=review[0].vocab_size)
    np.testing.assert_allclose(drawn["sampler"], drawn["policy"])
    np.testing.assert_allclose(drawn["sampler_review"], drawn["policy_review"])


def test_heat_spreads_the_policy(explorer):
    spread = [place(explorer, position=0, temperature=tau)["entropy"][0] for tau in (0.25, 0.5, 1, 2, 3)]
    assert spread == sorted(spread) and spread[-1] < np.log(55)


def test_a_forbidden_word_is_said_to_be_impossible(explorer):
    place(explorer, temperature=1, position=0, top_k=5)
    assert "and −∞ under what top-5 draws from" in explorer.words
    place(explorer, top_k=55)
    assert "−∞" not in explorer.words


def test_keep_top_k_forbids_the_rest_in_every_row():
    z = torch.tensor([[0.0, 3.0, 1.0], [2.0, -1.0, 5.0]])
    assert keep_top_k(z, 2).isneginf().tolist() == [[True, False, False], [False, True, False]]
    assert keep_top_k(z, 3) is z and keep_top_k(z) is z


# ---- the heat map ----------------------------------------------------------------------------------------
def test_plot_heat_maps_draws_the_tables_on_one_scale():
    left, right = np.array([[0.0, 2.0], [1.0, 4.0]]), np.array([[0.5, 0.0], [0.0, 0.25]])
    tables, labels = {"left": left, "right": right}, dict(title="T", xlabel="x", ylabel="y")
    figure = plots.plot_heat_maps(tables, ["r", "s"], ["c", "d"], **labels)
    for ax, table in zip(figure.axes, (left, right)):
        (image,) = ax.images
        np.testing.assert_array_equal(image.get_array(), table)
        assert image.get_clim() == (0, 4)
    assert [text.get_text() for text in figure.axes[0].texts] == ["0", "2.0", "1.0", "4.0"]


def test_plot_heat_maps_refuses_other_sizes():
    with pytest.raises(ValueError, match="left: rows and columns name \\(1, 2\\) cells, got \\(2, 2\\)"):
        plots.plot_heat_maps({"left": np.zeros((2, 2))}, ["r"], ["c", "d"], title="T", xlabel="x", ylabel="y")
