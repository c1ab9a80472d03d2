"""The explorer of notebook 03 against the exact KL, and what the theory says of k1, k2, k3 and the reward."""

import numpy as np
import pytest
import torch

from ppo_teach import explorers, kl_estimate, response_log_probs
from ppo_teach.exact import exact_kl
from ppo_teach.models import make_reference
from ppo_teach.worlds import ChainWorld

WORLD = ChainWorld()
REFERENCE = make_reference(WORLD.policy())


@pytest.fixture(scope="module")
def policy():
    """A moved policy without training: the reference's copy, fonder of "a"."""
    moved = WORLD.table_policy()
    with torch.no_grad():
        moved.logits[:, :, 1] += 1.5
    return moved


@pytest.fixture(scope="module")
def opened(policy):
    made = explorers.kl_explorer(WORLD, REFERENCE, policy=policy)
    yield made
    made.close()


@pytest.fixture
def explorer(opened):
    opened.reset()
    return opened


def at(explorer, **places):
    for name, value in places.items():
        explorer.sliders[name].value = value
    return explorer.drawn()


def test_the_line_is_the_exact_kl_from_the_reference_to_the_policy(explorer, policy):
    asked = WORLD.prompts()[1:2]
    assert at(explorer, distance=0)["exact"][0] == pytest.approx(0, abs=1e-9)
    full = at(explorer, distance=1)["exact"][0]
    assert full == pytest.approx(exact_kl(policy, REFERENCE, asked, WORLD).item())
    assert full != pytest.approx(exact_kl(REFERENCE, policy, asked, WORLD).item(), rel=0.05)
    exact = [at(explorer, distance=d)["exact"][0] for d in np.linspace(0, 1, 11)]
    assert (np.diff(exact) > 0).all()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
@pytest.mark.parametrize("distance", [0.2, 0.5, 1.0])
def test_k1_and_k3_find_the_exact_kl_in_the_mean(explorer, estimator, distance):
    drawn = at(explorer, estimator=estimator, distance=distance, samples=256)
    error = drawn["batches"].std() / np.sqrt(30)
    assert drawn["mean"][0] == pytest.approx(drawn["batches"].mean())
    assert abs(drawn["mean"][0] - drawn["exact"][0]) < 4 * error


def test_k2_stays_biased_however_many_samples(explorer):
    drawn = at(explorer, estimator="k2", distance=1, samples=256)
    error = drawn["batches"].std() / np.sqrt(30)
    assert abs(drawn["mean"][0] - drawn["exact"][0]) > 8 * error


def test_only_k1_goes_below_zero_and_less_often_with_more_samples(explorer):
    below = [at(explorer, estimator="k1", distance=0.2, samples=n)["below"][0] for n in (2, 16, 256)]
    assert below[0] > below[1] > below[2] >= 0
    counted = at(explorer, samples=2)
    assert below[0] == (counted["batches"] < 0).sum()
    for estimator in ("k2", "k3"):
        assert at(explorer, estimator=estimator, samples=2)["batches"].min() >= 0
        assert explorer.drawn()["below"][0] == 0


def test_more_samples_scatter_less_by_the_root_law(explorer):
    few, many = (at(explorer, distance=0.4, samples=n)["batches"].std() for n in (4, 256))
    assert 5 < few / many < 12, "the square root of 64 is 8"


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_each_token_pays_beta_times_its_estimate(explorer, policy, estimator):
    ids = torch.tensor([[2, 3, 4, 0]])
    whole = torch.cat([WORLD.prompts()[1:2], ids], dim=1)
    pair = [response_log_probs(model(whole)[0].detach(), ids) for model in (policy, REFERENCE)]
    kl, score = kl_estimate(*pair, estimator)[0].numpy(), WORLD.true_score(whole[:, :1], ids).item()
    for beta in (0, 0.3, 1):
        drawn = at(explorer, kl_coef=beta, estimator=estimator, distance=1)
        np.testing.assert_allclose(drawn["kl_cost"], -beta * kl, atol=1e-5)
        assert drawn["score"] == pytest.approx([score]) and drawn["score_x"][0] > 3
        assert drawn["kept"][0] == pytest.approx(score - beta * kl.sum(), abs=1e-5)
        np.testing.assert_allclose(drawn["shaped"], drawn["kl_cost"] + [0, 0, 0, score], atol=1e-5)


def test_a_rarer_token_is_paid_with_k1_and_pays_with_k3(explorer):
    """The response holds no "a", which this policy writes more: all its words became rarer."""
    assert (at(explorer, estimator="k1", distance=1, kl_coef=1)["kl_cost"] > 0).all()
    assert (at(explorer, estimator="k3")["kl_cost"] < 0).all()


def test_the_words_name_the_numbers_drawn(explorer):
    drawn = at(explorer, kl_coef=0.5, samples=4)
    said = f"With 4 samples, k1 is below 0 in {drawn['below'][0]:.0f} of 30 batches; their mean is "
    assert explorer.words.startswith(said + f"{drawn['mean'][0]:.2f}, the exact KL {drawn['exact'][0]:.2f} nats.")
    assert f"At β = 0.5, the response on the right keeps {drawn['kept'][0]:.2f} of its score 2.40." in explorer.words


def test_another_prompt_response_and_seed(policy):
    made = explorers.kl_explorer(WORLD, REFERENCE, policy=policy, prompt=0, response=(1, 0), seed=3)
    assert len(made.drawn()["shaped"]) == 2 and "After 'a'" in made.canvas.panels[1].title
    made.close()
