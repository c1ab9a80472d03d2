"""The clip explorer of notebook 06: corners and slopes as in the paper, bars as measured."""

import numpy as np
import pytest
import torch

from ppo_teach import PPOConfig, ReviewWorld, clip_fraction, explorers, probability_ratio
from ppo_teach.explorers.clipping import has_no_gradient, objective_and_slope, reuse_batch
from ppo_teach.train import PPOTrainer


@pytest.fixture(scope="module")
def explorer():
    made = explorers.clip_explorer()
    yield made
    made.close()


def at(explorer, **values):
    for name, value in values.items():
        explorer.sliders[name].value = value
    return explorer.drawn()


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("size", [0.5, 1.5])
def test_the_corners_stand_at_one_plus_and_minus_epsilon(explorer, epsilon, size):
    drawn = at(explorer, clip_epsilon=epsilon, advantage=size)
    np.testing.assert_allclose(drawn["objective_up_x"][2], 1 + epsilon)
    np.testing.assert_allclose(drawn["objective_up"][2:], size * (1 + epsilon))  # flat from there on
    np.testing.assert_allclose(drawn["objective_up"][:3], size * drawn["objective_up_x"][:3])
    low = max(1 - epsilon, 0.02)
    np.testing.assert_allclose(drawn["objective_down"][:2], -size * low)  # flat up to there
    np.testing.assert_allclose(drawn["objective_down"][1:], -size * drawn["objective_down_x"][1:])
    np.testing.assert_allclose(drawn["band_up"], [[1 - epsilon, 1 + epsilon]])
    np.testing.assert_allclose(np.exp(drawn["clip_band"][0, 1]), 1 + epsilon)


@pytest.mark.parametrize(("ratio", "up", "down"), [(0.5, 1, 0), (1.0, 1, -1), (1.5, 0, -1)])
def test_the_slopes_of_the_six_cases(explorer, ratio, up, down):
    """Outside the band, two of four corners keep their gradient."""
    drawn = at(explorer, clip_epsilon=0.2, ratio=ratio, advantage=1.0)
    assert (drawn["slope_up"][0], drawn["slope_down"][0]) == pytest.approx((up, down))
    assert (drawn["gradient_up"][0], drawn["gradient_down"][0]) == pytest.approx((up, down))
    for side in ("up", "down"):
        rise, run = np.diff(drawn[f"tangent_{side}"]), np.diff(drawn[f"tangent_{side}_x"])
        assert rise / run == pytest.approx(drawn[f"slope_{side}"], abs=1e-9)
        assert drawn[f"tangent_{side}"].mean() == pytest.approx(drawn[f"point_{side}"][0])


def test_a_bad_token_that_grew_is_not_capped():
    assert objective_and_slope(1.8, -1.0, 0.2) == pytest.approx((-1.8, -1.0))  # not -1.2


def test_the_bars_are_the_batch(explorer):
    trainer = PPOTrainer(ReviewWorld(), PPOConfig(), seed=0)
    rollout = trainer.sample()
    new, advantages = reuse_batch(trainer, rollout, 0.3, num_epochs=2)
    assert new.shape == (3, *rollout.response_ids.shape)
    torch.testing.assert_close(new[0][rollout.mask], rollout.log_probs_old[rollout.mask])  # no step yet
    drawn = at(explorer, clip_epsilon=0.3, epochs=2)
    ratios = probability_ratio(new[2], rollout.log_probs_old)[rollout.mask]
    assert drawn["largest"][0] == pytest.approx(ratios.max().item(), rel=1e-3)
    assert drawn["mean"][0] == pytest.approx(ratios.mean().item(), rel=1e-3)
    given = new[2], rollout.log_probs_old, advantages, 0.3, rollout.mask
    share = clip_fraction(*given).item()
    assert has_no_gradient(*given).sum() / rollout.mask.sum() == pytest.approx(share)
    assert drawn["share"][0] == pytest.approx(100 * share, abs=1e-3)
    assert drawn["blocked"].sum() == pytest.approx(1), "every token is somewhere"
    assert (drawn["blocked"] - drawn["free"]).sum() == pytest.approx(share, abs=1e-6)


def test_reusing_a_batch_leaves_the_trainer_alone():
    trainer = PPOTrainer(ReviewWorld(), PPOConfig(), batch_size=8, seed=0)
    before = {name: value.clone() for name, value in trainer.policy.state_dict().items()}
    rollout = trainer.sample()
    first, _ = reuse_batch(trainer, rollout, 0.2, num_epochs=1)
    again, _ = reuse_batch(trainer, rollout, 0.2, num_epochs=1)
    assert torch.equal(first, again) and not torch.equal(first[0], first[1])
    assert all(torch.equal(before[name], value) for name, value in trainer.policy.state_dict().items())
    assert not trainer.optimizer.state


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 0.3])
def test_the_clip_does_not_bound_the_ratio_and_the_mean_says_nothing(explorer, epsilon):
    for epochs in (2, 8):
        drawn = at(explorer, clip_epsilon=epsilon, epochs=epochs)
        assert drawn["largest"][0] > 1.2 + epsilon and abs(drawn["mean"][0] - 1) < 0.15
        assert 0 < drawn["share"][0] < 100


def test_with_a_wide_band_little_is_blocked_and_the_ratio_goes_further(explorer):
    wide, narrow = (at(explorer, clip_epsilon=e, epochs=8) for e in (1.0, 0.2))
    assert wide["share"][0] < narrow["share"][0] and wide["largest"][0] > narrow["largest"][0]


def test_the_words_name_the_numbers_drawn(explorer):
    explorer.reset()
    drawn = explorer.drawn()
    assert "At ρ = 1.5 and ε = 0.2 the gradient is 0 for Â = 1, and −1 for Â = −1." in explorer.words
    assert f"at K = 4, the clip blocks {drawn['share'][0]:.0f}% of the tokens" in explorer.words
    assert f"the largest ratio is {drawn['largest'][0]:.1f}" in explorer.words
