"""Scores, KL estimates, shaped rewards, controllers: against the float64 reference and at their edges."""

import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numeric import MASKS, as_tensor, close, gradient, mask_types, masks, random

import ppo_teach as pt

ESTIMATORS = ["k1", "k2", "k3"]


# ---------------------------------------------------------------- place_scores


@masks
@mask_types
def test_scores_land_on_the_last_real_token(mask, kind):
    scores = random((3,))
    mask = [[1] * 4] * 3 if mask is None else mask
    placed = pt.place_scores(scores, as_tensor(mask, kind))
    close(placed, reference.place_scores(scores, mask), 0.0)
    assert ((placed != 0).sum(1) == as_tensor(mask).any(1)).all()


def test_the_last_column_would_be_noticed():
    scores, mask = random((3,)), MASKS["prefixes"]
    wrong = torch.zeros(3, 4).double()
    wrong[:, -1] = scores
    with pytest.raises(AssertionError):
        close(wrong, reference.place_scores(scores, mask))


def test_one_response_of_one_token():
    assert pt.place_scores(torch.tensor([2.5]), torch.ones(1, 1)).tolist() == [[2.5]]
    assert pt.place_scores(torch.tensor([3]), torch.ones(1, 2)).tolist() == [
        [0.0, 3.0]
    ]  # integers are scores too


def test_placed_scores_are_constants():
    scores = torch.ones(2, requires_grad=True)
    assert not pt.place_scores(scores, torch.ones(2, 3)).requires_grad


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_refused_with_its_row(bad):
    scores, zeros = torch.tensor([0.0, bad]), torch.zeros(2, 3)
    for call in (
        lambda: pt.place_scores(scores, torch.ones(2, 3)),
        lambda: pt.shape_rewards(scores, zeros, zeros, 0.1),
        lambda: pt.missing_eos_penalty(scores, torch.ones(2, 3).long(), 2, 1.0),
    ):
        with pytest.raises(ValueError, match=r"scores must be finite, got (nan|inf|-inf) in row 1"):
            call()


@pytest.mark.parametrize("shape", [(3,), (2, 1), (1,), ()])
def test_there_is_one_score_per_response(shape):
    with pytest.raises(
        ValueError, match=r"scores must be a tensor of shape \(2,\), one number per response, got"
    ):
        pt.place_scores(torch.zeros(shape), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"mask must be a tensor of shape \[B, T\]"):
        pt.place_scores(torch.zeros(2), torch.ones(2))
    with pytest.raises(ValueError, match="scores .* got list"):
        pt.place_scores([1.0, 2.0], torch.ones(2, 3))


# ---------------------------------------------------------------- kl_estimate


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_estimates_and_their_gradients(estimator):
    lp, ref, w = random((3, 4)), random((3, 4), 1), random((3, 4), 2)
    close(pt.kl_estimate(lp, ref, estimator), reference.kl_estimate(lp, ref, estimator))
    slope = gradient(lambda x: pt.kl_estimate(x, ref, estimator), lp, w)
    close(slope, w.numpy() * reference.kl_estimate_gradient(lp, ref, estimator))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_other_direction_would_be_noticed(estimator):
    lp, ref, w = random((3, 4)), random((3, 4), 1), random((3, 4), 2)
    swapped = lambda x: pt.kl_estimate(ref, x, estimator)
    if estimator == "k2":  # the same value, by symmetry
        swapped = lambda x: (x - ref).abs()
    with pytest.raises(AssertionError):
        close(swapped(lp), reference.kl_estimate(lp, ref, estimator), 1e-3)
    with pytest.raises(AssertionError):
        close(gradient(swapped, lp, w), w.numpy() * reference.kl_estimate_gradient(lp, ref, estimator), 1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_exact_expectations_over_a_vocabulary(seed):
    p, q = (2 * random((2, 5), seed)).log_softmax(-1)
    expected = lambda name: float((p.exp() * pt.kl_estimate(p, q, name)).sum())
    kl = float((p.exp() * (p - q)).sum())
    assert expected("k1") == pytest.approx(kl, abs=1e-12) and expected("k3") == pytest.approx(kl, abs=1e-12)
    assert abs(expected("k2") - kl) > 1e-3, "k2 is biased"


def test_only_k1_can_be_negative_on_a_sample():
    lp, ref = torch.tensor([[-2.0]]), torch.tensor([[-1.0]])
    assert [pt.kl_estimate(lp, ref, name).item() < 0 for name in ESTIMATORS] == [True, False, False]


def test_k1_as_a_loss_has_no_gradient_towards_the_reference():
    """E[d log π] = 0: over the policy's own tokens the mean slope of k1 vanishes; that of k2 is the KL's."""
    logits, ref = random((5,)).requires_grad_(True), random((5,), 1).log_softmax(-1)

    def slope_of(estimator):
        lp = logits.log_softmax(-1)
        return torch.autograd.grad((lp.exp().detach() * pt.kl_estimate(lp, ref, estimator)).sum(), logits)[0]

    lp = logits.log_softmax(-1)
    (true,) = torch.autograd.grad((lp.exp() * (lp - ref)).sum(), logits)
    close(slope_of("k1"), np.zeros(5))
    close(slope_of("k2"), true)
    assert true.abs().max() > 0.1 and (slope_of("k3") - true).abs().max() > 1e-2


def test_kl_estimate_refuses_broadcasting_and_unknown_names():
    with pytest.raises(
        ValueError, match=r"log_probs_ref has shape \(2, 1\) but log_probs has shape \(2, 3\)"
    ):
        pt.kl_estimate(torch.zeros(2, 3), torch.zeros(2, 1))
    for name in ("k4", None, "K1", 1):
        with pytest.raises(ValueError, match="estimator must be 'k1', 'k2' or 'k3', got"):
            pt.kl_estimate(torch.zeros(1, 1), torch.zeros(1, 1), name)
    with pytest.raises(ValueError, match="log_probs_ref must be a torch.Tensor, got list"):
        pt.kl_estimate(torch.zeros(1, 1), [[0.0]])


# ---------------------------------------------------------------- shape_rewards


@masks
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_shaped_rewards_as_in_the_reference(mask, estimator):
    scores, lp, ref = random((3,), 2), random((3, 4)), random((3, 4), 1)
    shaped, kl = pt.shape_rewards(scores, lp, ref, 0.3, as_tensor(mask), estimator)
    wanted, wanted_kl = reference.shape_rewards(scores, lp, ref, 0.3, mask, estimator)
    close(shaped, wanted)
    close(kl, wanted_kl)


@masks
def test_they_add_up_to_the_score_minus_the_price_of_the_kl(mask):
    scores, lp, ref = random((3,), 2), random((3, 4)), random((3, 4), 1)
    real = torch.ones(3, 4).double() if mask is None else as_tensor(mask).double()
    shaped, _ = pt.shape_rewards(scores, lp, ref, 0.3, as_tensor(mask))
    has_tokens = real.any(1)
    close(shaped.sum(1), scores * has_tokens - 0.3 * ((lp - ref) * real).sum(1))
    with pytest.raises(AssertionError):  # paying for the KL instead of charging it
        close(shaped.sum(1), scores * has_tokens + 0.3 * ((lp - ref) * real).sum(1), 0.05)


def test_both_results_are_constants():
    lp, ref = random((2, 3)).requires_grad_(True), random((2, 3), 1).requires_grad_(True)
    scores = random((2,)).requires_grad_(True)
    shaped, kl = pt.shape_rewards(scores, lp, ref, 0.1)
    assert not shaped.requires_grad and not kl.requires_grad


@pytest.mark.parametrize("hidden", [math.inf, -math.inf, math.nan, 1e30])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_padding_may_hold_anything(hidden, estimator):
    mask = as_tensor(MASKS["an empty row"])
    scores, lp, ref = random((3,), 2), random((3, 4)), random((3, 4), 1)
    dirty = lambda x: torch.where(mask, x, torch.tensor(hidden).double())
    clean = pt.shape_rewards(scores, lp, ref, 0.3, mask, estimator)
    assert all(
        torch.equal(a, b)
        for a, b in zip(clean, pt.shape_rewards(scores, dirty(lp), dirty(ref), 0.3, mask, estimator))
    )
    assert all((x[~mask] == 0).all() for x in clean)


def test_a_coefficient_of_zero_leaves_the_score():
    shaped, kl = pt.shape_rewards(torch.ones(2), torch.zeros(2, 3), torch.ones(2, 3), 0.0)
    assert shaped.tolist() == [[0.0, 0.0, 1.0]] * 2 and kl.tolist() == [[-1.0] * 3] * 2


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, "0.1", True, None])
def test_the_price_is_a_number_not_below_zero(bad):
    with pytest.raises(ValueError, match="kl_coef must be a finite number in"):
        pt.shape_rewards(torch.ones(1), torch.zeros(1, 2), torch.zeros(1, 2), bad)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_log_probs_do_not_spoil_the_score(half):
    log_probs = torch.zeros(2, 2, dtype=half)
    shaped, _ = pt.shape_rewards(torch.tensor([70_001.0, 1.2345]), log_probs, log_probs, 0.1)
    assert torch.equal(shaped, torch.tensor([[0.0, 70_001.0], [0.0, 1.2345]]))


def test_shaped_rewards_refuse_other_shapes():
    with pytest.raises(ValueError, match=r"log_probs_ref has shape \(2, 1\)"):
        pt.shape_rewards(torch.ones(2), torch.zeros(2, 3), torch.zeros(2, 1), 0.1)
    with pytest.raises(ValueError, match=r"mask has shape \(3,\)"):
        pt.shape_rewards(torch.ones(2), torch.zeros(2, 3), torch.zeros(2, 3), 0.1, torch.ones(3))
    with pytest.raises(ValueError, match=r"scores must be a tensor of shape \(2,\)"):
        pt.shape_rewards(torch.ones(3), torch.zeros(2, 3), torch.zeros(2, 3), 0.1)


# ---------------------------------------------------------------- missing_eos_penalty


def test_the_penalty_is_taken_off_where_the_response_never_stopped():
    ids = torch.tensor([[5, 2, 0], [5, 6, 7], [2, 2, 2], [5, 6, 2], [0, 0, 0]])
    scores = torch.tensor([1.0, 2.0, 3.0, 4.0, -1.0])
    assert pt.missing_eos_penalty(scores, ids, 2, 0.5).tolist() == [1.0, 1.5, 3.0, 4.0, -1.5]
    assert pt.missing_eos_penalty(scores, ids, 2, 0.0).tolist() == scores.tolist()
    assert scores.tolist() == [1.0, 2.0, 3.0, 4.0, -1.0], "the argument is left alone"
    assert not pt.missing_eos_penalty(scores.requires_grad_(True), ids, 2, 0.5).requires_grad


def test_bad_penalties_and_eos_are_refused():
    for bad in (-1.0, math.nan, "1", True):
        with pytest.raises(ValueError, match="penalty must be a finite number"):
            pt.missing_eos_penalty(torch.zeros(1), torch.ones(1, 2).long(), 2, bad)
    with pytest.raises(ValueError, match="eos_id must be a token id"):
        pt.missing_eos_penalty(torch.zeros(1), torch.ones(1, 2).long(), None, 1.0)
    with pytest.raises(ValueError, match=r"scores must be a tensor of shape \(1,\)"):
        pt.missing_eos_penalty(torch.zeros(2), torch.ones(1, 2).long(), 2, 1.0)


# ---------------------------------------------------------------- AdaptiveKLController


@pytest.mark.parametrize("kl", [0.0, 0.9, 1.0, 1.1, 5.0, -3.0])
def test_the_controller_follows_the_reference(kl):
    controller = pt.AdaptiveKLController(0.2, target=1.0, horizon=100)
    wanted = 0.2
    for n_steps in (10, 32, 1):
        wanted = reference.adaptive_kl(wanted, kl, 1.0, 100, n_steps)
        assert controller.update(kl, n_steps) == controller.value == pytest.approx(wanted, rel=1e-14)


def test_it_moves_towards_the_target_from_both_sides():
    up, down = pt.AdaptiveKLController(0.1, 1.0, 100), pt.AdaptiveKLController(0.1, 1.0, 100)
    assert up.update(2.0, 10) > 0.1 > down.update(0.5, 10)


def test_a_giant_batch_cannot_turn_the_price_negative():
    assert pt.AdaptiveKLController(0.1, 1.0, 10).update(0.0, 1000) == 0.0


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, "1", None, True])
def test_bad_settings_are_refused_by_name(bad):
    with pytest.raises(ValueError, match="target must be"):
        pt.AdaptiveKLController(0.1, bad, 100)
    with pytest.raises(ValueError, match="horizon must be"):
        pt.AdaptiveKLController(0.1, 1.0, bad)
    if bad != 0:
        with pytest.raises(ValueError, match="init_kl_coef must be"):
            pt.AdaptiveKLController(bad, 1.0, 100)


def test_a_kl_that_is_no_number_is_refused_and_changes_nothing():
    controller = pt.AdaptiveKLController(0.1, 1.0, 100)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="kl_per_response must be"):
            controller.update(bad, 10)
    with pytest.raises(ValueError, match="n_steps must be"):
        controller.update(1.0, -1)
    assert controller.value == 0.1


# ---------------------------------------------------------------- RunningMoments


@given(st.lists(hnp.arrays(np.float64, st.integers(0, 5), elements=st.floats(-1e3, 1e3)), max_size=5))
def test_moments_of_all_values_seen(batches):
    moments = pt.RunningMoments()
    for batch in batches:
        moments.update(torch.tensor(batch))
    everything = np.concatenate([[], *batches])
    assert moments.count == everything.size
    assert moments.mean == pytest.approx(everything.mean() if everything.size else 0.0, abs=1e-9)
    assert moments.var == pytest.approx(everything.var() if everything.size else 0.0, abs=1e-6)


def test_moments_far_from_zero_keep_their_digits():
    moments = pt.RunningMoments()
    for value in (1e9 + 1, 1e9 + 2, 1e9 + 3):
        moments.update([value])
    assert moments.var == pytest.approx(2 / 3, rel=1e-9)
    naive = (sum(x * x for x in (1e9 + 1, 1e9 + 2, 1e9 + 3)) / 3) - (1e9 + 2) ** 2
    assert naive != pytest.approx(2 / 3, rel=0.5)


def test_moments_take_any_shape_and_refuse_what_is_no_number():
    moments = pt.RunningMoments()
    moments.update(torch.tensor([[1, 2], [3, 4]]))
    moments.update(torch.tensor(5.0, requires_grad=True))
    assert (moments.mean, moments.var) == (3.0, 2.0)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="x must hold finite numbers only"):
            moments.update(torch.tensor([1.0, bad]))
    assert (moments.count, moments.mean, moments.var) == (5, 3.0, 2.0)
