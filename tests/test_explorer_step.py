"""The step explorer of notebook 07: the tensors are those of the step, and move where the theory says so."""

import copy

import numpy as np
import pytest
import torch

from ppo_teach import PPOConfig, ReviewWorld, explorers, make_reference
from ppo_teach.explorers.step import TENSORS, step_tensors
from ppo_teach.rollout import collect_rollout

FROZEN = [name for name, (stage, _, _) in TENSORS.items() if stage < 5]


@pytest.fixture(scope="module")
def rollout():
    world, generator = ReviewWorld(), torch.Generator().manual_seed(1)
    policy = world.policy().double()
    reference = make_reference(policy)
    with torch.no_grad():
        policy.lm_head.bias += 0.4 * torch.randn(world.vocab_size, generator=generator)
        policy.value_head.weight += 0.05 * torch.randn(1, 64, generator=generator)
    return policy, collect_rollout(
        policy, reference, world.sample_prompts(6, generator), world.true_score, 8, eos_id=world.eos_id,
        pad_id=world.pad_id, generator=generator,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tensors(rollout):
    policy, data = rollout
    return step_tensors(copy.deepcopy(policy), data, PPOConfig())


@pytest.fixture(scope="module")
def explorer():
    made = explorers.step_explorer()
    yield made
    made.close()


def test_before_the_first_step_new_is_old(tensors, rollout):
    arrays, metrics = tensors
    real = rollout[1].mask.numpy()
    np.testing.assert_allclose(arrays["ratio"][0][real], 1.0, atol=1e-9)
    np.testing.assert_allclose(arrays["log_probs_new"][0], arrays["log_probs_old"][0], atol=1e-9)
    np.testing.assert_allclose(arrays["values_new"][0], arrays["values_old"][0], atol=1e-9)
    np.testing.assert_allclose(arrays["push"][0], arrays["whitened"][0], atol=1e-6)  # dρ/dlog π = ρ = 1
    assert abs(metrics["policy_loss"][0]) < 1e-6 and metrics["clip_fraction"][0] == 0


def test_nine_moments_and_what_moves_between_them(tensors, rollout):
    arrays, metrics = tensors
    real = rollout[1].mask.numpy()
    assert arrays["ratio"].shape == (9, 6, 8), "4 epochs of 2 minibatches, and the moment before"
    for name in TENSORS:
        moved = np.ptp(arrays[name], axis=0)[real].max()
        assert (moved == 0) == (name in FROZEN), name
        assert (arrays[name][:, ~real] == 0).all(), "padding"
    assert metrics["approx_kl"][-1] > metrics["approx_kl"][1] > 1e-6


def test_the_frozen_rows_belong_together(tensors, rollout):
    arrays = {name: tensor[0] for name, tensor in tensors[0].items()}
    np.testing.assert_allclose(arrays["kl"], arrays["log_probs_old"] - arrays["log_probs_ref"], atol=1e-9)
    np.testing.assert_allclose(arrays["shaped_rewards"], arrays["scores"] - 0.1 * arrays["kl"], atol=1e-6)
    np.testing.assert_allclose(arrays["returns"], arrays["advantages"] + arrays["values_old"], atol=1e-6)
    real = rollout[1].mask.numpy()
    assert abs(arrays["whitened"][real].mean()) < 1e-9 and arrays["whitened"][real].std() == pytest.approx(1)
    assert abs(arrays["advantages"][real].mean()) > 0.05
    assert (np.count_nonzero(arrays["scores"], axis=1) == 1).all()


def test_the_push_is_ratio_times_advantage_or_nothing(tensors, rollout):
    arrays, real = tensors[0], rollout[1].mask.numpy()
    for ratio, advantage, push in zip(arrays["ratio"], arrays["whitened"], arrays["push"], strict=True):
        blocked = ((advantage > 0) & (ratio > 1.2)) | ((advantage < 0) & (ratio < 0.8))
        np.testing.assert_allclose(push[real], np.where(blocked, 0, ratio * advantage)[real], atol=1e-6)
    assert blocked.any(), "after the last step the clip blocks something"


def test_a_row_appears_when_its_stage_has_run(explorer):
    explorer.reset()
    count = []
    for stage in range(1, 8):
        explorer.sliders["stage"].value = stage
        canvas = explorer.canvas
        table = canvas.at_position(canvas.arrays["table"]["value"]).reshape(len(TENSORS), -1)
        filled = [name for name, row in zip(TENSORS, table, strict=True) if any(row)]
        assert filled == [name for name, (first, _, _) in TENSORS.items() if first <= stage]
        count.append(len(filled))
        assert bool(canvas.at_position(canvas.arrays["log"]["value"])[0]) == (stage == 7)
    assert count == [2, 5, 6, 9, 12, 13, 13]


def test_k_moves_what_hangs_on_the_weights_and_nothing_else(explorer):
    for name in TENSORS:
        explorer.sliders["tensor"].value = name
        seen = []
        for steps in (0, 1, 8):
            explorer.sliders["steps"].value = steps
            seen.append(explorer.drawn()["shown"])
        assert all(np.array_equal(seen[0], other) == (name in FROZEN) for other in seen[1:]), name


def test_the_bars_are_the_tensor_in_its_own_colour(explorer):
    explorer.sliders["steps"].value = 8
    for name, (_, meaning, _) in TENSORS.items():
        explorer.sliders["tensor"].value = name
        drawn = explorer.drawn()
        for other in {m for _, m, _ in TENSORS.values()}:
            expected = drawn["shown"] if other == meaning else 0 * drawn["shown"]
            np.testing.assert_array_equal(drawn[other], expected)
        assert drawn["chosen"][0] == -1 - list(TENSORS).index(name)


def test_the_words_say_shape_and_graph(explorer):
    explorer.reset()
    assert "Stage 4" in explorer.words and "advantages [4, 8], a constant" in explorer.words
    explorer.sliders["tensor"].value = "ratio"
    assert "ratio [4, 8], with a graph" in explorer.words and "0% of" in explorer.words
    explorer.sliders["tensor"].value = "scores"
    explorer.sliders["steps"].value = 8
    assert "scores [4], a constant" in explorer.words
    clipped = explorer.drawn()["clipped"][0]
    assert clipped > 5 and f"{clipped:.0f}% of the batch" in explorer.words
