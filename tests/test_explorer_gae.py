"""The GAE explorer of notebook 05 against the theory, and the bias and spread it draws."""

import numpy as np
import pytest
import torch

from ppo_teach import explorers
from ppo_teach.advantages import gae
from ppo_teach.exact import bias_and_spread, exact_values
from ppo_teach.explorers.gae import GAMMAS, LAMBDAS, AllResponses, train_critic
from ppo_teach.worlds import ChainWorld, ReviewWorld


@pytest.fixture(scope="module")
def explorer():
    made = explorers.gae_explorer()
    yield made
    made.close()


@pytest.fixture(scope="module")
def every():
    return AllResponses(ChainWorld(num_tokens=3, max_new_tokens=3, seed=2))


def place(explorer, **values):
    for name, value in values.items():
        explorer.sliders[name].value = value
    return explorer.drawn()


@pytest.mark.parametrize(("gamma", "lam"), [(1, 0.95), (0.8, 1), (0.9, 0.5), (0.95, 0), (1, 1)])
def test_weights_fall_by_gamma_lambda_a_token(explorer, gamma, lam):
    drawn = place(explorer, gamma=gamma, lam=lam)
    np.testing.assert_allclose(drawn["weights"], (gamma * lam) ** np.arange(8), atol=1e-6)
    assert drawn["reach"][0] == pytest.approx((gamma * lam) ** 7)


def test_advantages_are_weighted_sums_of_the_steps(explorer):
    for gamma, lam, quality in ((1, 0.95, 0.6), (0.8, 0.5, 1), (0.9, 1, 0.2)):
        drawn = place(explorer, gamma=gamma, lam=lam, quality=quality)
        base = explorer.canvas.at_position(explorer.canvas.arrays["delta"]["base"])
        delta = drawn["delta"] - base
        for t in range(8):
            wanted = sum((gamma * lam) ** (j - t) * delta[j] for j in range(t, 8))
            assert drawn["advantage"][t] == pytest.approx(wanted, abs=1e-5)


def test_the_staircase_has_no_gap_at_gamma_1_and_ends_at_the_score(explorer):
    drawn = place(explorer, gamma=1, quality=1)
    base = explorer.canvas.at_position(explorer.canvas.arrays["delta"]["base"])
    np.testing.assert_allclose(drawn["delta"][:-1], base[1:], atol=1e-6)
    assert drawn["delta"][-1] == pytest.approx(drawn["score"][0], abs=1e-6)
    steps = dict(zip("really warm but the soup was bad .".split(), drawn["delta"] - base, strict=True))
    assert steps["warm"] > 0.5 and steps["but"] + steps["bad"] < -0.5, "the critic has read reviews"


def test_bias_is_0_at_lambda_1_whatever_the_critic_and_anywhere_with_the_exact_one(explorer):
    for quality in (0, 0.4, 1):
        assert place(explorer, gamma=1, lam=1, quality=quality)["mean_bias"][0] < 1e-6
    drawn = place(explorer, gamma=1, lam=0, quality=1)
    assert drawn["mean_bias"][0] < 1e-6 and drawn["mean_spread"][0] < 1e-6
    assert np.abs(drawn["bias"]).max() < 1e-6


def test_lambda_trades_bias_for_spread(explorer):
    drawn = place(explorer, gamma=1, quality=0.4)
    assert (np.diff(drawn["bias"]) < 0).all() and (np.diff(drawn["spread"]) > 0).all()


def test_a_discount_biases_even_the_exact_critic(explorer):
    biases = [place(explorer, gamma=gamma, lam=1, quality=1)["mean_bias"][0] for gamma in GAMMAS]
    assert biases[0] > 0.4 and (np.diff(biases) < 0).all() and biases[-1] < 1e-6
    along = place(explorer, gamma=0.8)["bias"]
    assert np.ptp(along) < 1e-6, "with the critic that is exact for this γ, λ does not matter"


def test_the_words_name_what_is_drawn(explorer):
    drawn = place(explorer, gamma=0.8, lam=0.95, quality=0.6)
    assert f"'really' hears {0.76**7:.2f} of" in explorer.words
    bias, spread = drawn["here"]
    assert f"bias {bias:.2f}, spread {spread:.2f}" in explorer.words
    at = LAMBDAS.index(0.95)
    assert (drawn["bias"][at], drawn["spread"][at]) == (bias, spread) and (drawn["here_x"] == 0.95).all()


# ---- the numbers behind the last panel -------------------------------------------------------------------
def test_probabilities_and_exact_values_belong_together(every):
    assert every.probabilities.sum().item() == pytest.approx(1)
    first = (every.probabilities * every.values[:, 0]).sum()
    assert first.item() == pytest.approx((every.probabilities * every.rewards.sum(1)).sum().item())


def by_loops(every, estimates):
    """The definition, with dictionaries."""
    groups = {"state": {}, "choice": {}}
    cells = []
    for i, ids in enumerate(torch.cat([every.prompt_ids, every.response_ids], dim=1).tolist()):
        for t in range(int(every.mask[i].sum())):
            weight, e = every.probabilities[i].item(), (estimates - every.advantages)[i, t].item()
            keys = tuple(ids[: t + 1]), tuple(ids[: t + 2])
            cells.append((weight, e, *keys))
            for group, key in zip(groups.values(), keys, strict=True):
                total = group.setdefault(key, [0.0, 0.0])
                total[0] += weight
                total[1] += weight * e
    mean = {name: {key: b / a for key, (a, b) in group.items()} for name, group in groups.items()}
    total, bias, rest = sum(w for w, *_ in cells), 0.0, 0.0
    for w, e, state, choice in cells:
        wrong = mean["choice"][choice] - mean["state"][state]
        bias, rest = bias + w * wrong**2, rest + w * (e - wrong) ** 2
    return (bias / total) ** 0.5, (rest / total) ** 0.5


@pytest.mark.parametrize(("gamma", "lam", "quality"), [(1, 0, 0), (1, 0.5, 0.5), (0.7, 0.9, 1), (1, 1, 0)])
def test_bias_and_spread_as_defined(every, gamma, lam, quality):
    values = quality * every.exact(exact_values, gamma=gamma)
    estimates, _ = gae(every.rewards, values, gamma, lam, every.mask)
    assert every.judge(estimates) == pytest.approx(by_loops(every, estimates), abs=1e-9)


def test_an_error_of_a_whole_state_is_spread_and_no_bias(every):
    shifted = every.advantages + every.prompt_ids  # another constant for each prompt
    bias, spread = every.judge(shifted)
    weights = every.probabilities * every.mask.sum(1)
    wanted = (weights * every.prompt_ids[:, 0] ** 2).sum() / weights.sum()
    assert bias < 1e-9 and spread == pytest.approx(wanted.sqrt().item())
    assert every.judge(every.advantages) == (0.0, 0.0)


def test_padding_does_not_count(every):
    noisy = every.advantages + 5.0 * ~every.mask
    assert bias_and_spread(noisy, every.advantages, every.probabilities, every.prompt_ids, every.response_ids,
                           every.world) == (0.0, 0.0)  # fmt: skip


def test_training_the_critic_leaves_the_policy_alone():
    world = ReviewWorld()
    trained, before = train_critic(world, num_updates=1), world.policy(critic="separate")
    ids = torch.cat([world.prompts[:2], world.prompts[:2]], dim=1)
    with torch.no_grad():
        (logits, values), (logits_before, values_before) = trained(ids), before(ids)
    assert torch.equal(logits, logits_before) and not torch.allclose(values, values_before)
