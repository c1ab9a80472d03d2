"""Notebook 06's exercises: other right answers are accepted, gradients count, corners are diagnosed."""

import math

import numpy as np
import pytest
import torch

from ppo_teach import clipped_policy_loss, masked_mean
from ppo_teach.checker import Exercise, Mistake, check
from ppo_teach.exercises import check_clip_fraction, check_clipped_policy_loss, check_quadrants
from ppo_teach.exercises.clipping import CLIPPED_LOSS


# ---- the clipped loss ------------------------------------------------------------------------------------
def loop_loss(new, old, A, e, mask):
    terms = []
    for b in range(len(new)):
        for t in range(new.shape[1]):
            if mask[b, t]:
                ratio, advantage = torch.exp(new[b, t] - old[b, t].detach()), A[b, t].item()
                clipped = torch.clamp(ratio, 1 - e, 1 + e)
                terms.append(torch.minimum(ratio * advantage, clipped * advantage))
    return -sum(terms) / len(terms)


def single_precision_loss(new, old, A, e, mask):
    ratio, A = (new.float() - old.detach().float()).exp(), A.detach().float()
    surrogate = torch.where(A >= 0, ratio.clamp(max=1 + e), ratio.clamp(min=1 - e)) * A
    return -(surrogate * mask).sum() / mask.sum()


def max_of_losses(new, old, A, e, mask):
    ratio, A = new.exp() / old.detach().exp(), A.detach()
    losses = torch.stack([-ratio * A, -ratio.clip(1 - e, 1 + e) * A]).amax(0)
    return losses[mask].mean()


@pytest.mark.parametrize("fn", [loop_loss, single_precision_loss, max_of_losses, clipped_policy_loss])
def test_other_right_losses_are_accepted(fn):
    assert check_clipped_policy_loss(fn).ok


def test_a_detached_loss_and_the_right_number_with_a_wrong_gradient_are_seen():
    for cut in (torch.Tensor.detach, torch.Tensor.item):
        verdict = check_clipped_policy_loss(lambda *given, cut=cut: cut(clipped_policy_loss(*given)))
        assert verdict.mistake == "detached"

    def doubled(new, *rest):
        return clipped_policy_loss(2 * new - new.detach(), *rest)

    verdict = check_clipped_policy_loss(doubled)
    assert verdict.mistake == "unknown" and "in the gradient of token" in verdict.message


def test_a_wrong_gradient_alone_is_a_known_mistake():
    """The number of every case agrees, so that only the comparison of gradients can tell."""
    wrong = CLIPPED_LOSS.mistakes["old_attached"].wrong
    for arguments in CLIPPED_LOSS.cases().values():
        torch.testing.assert_close(wrong(*arguments.values()), clipped_policy_loss(*arguments.values()))
    assert check_clipped_policy_loss(wrong).mistake == "old_attached"


@pytest.mark.parametrize("key", [key for key in CLIPPED_LOSS.mistakes if not key.endswith("attached")])
def test_a_wrong_number_is_named_before_its_gradient(key):
    assert "for the loss" in check_clipped_policy_loss(CLIPPED_LOSS.mistakes[key].wrong).message


def test_a_gradient_exercise_is_one_more_field():
    def cases():
        return {"two": {"x": torch.tensor([1.0, 3.0], requires_grad=True)}}

    half = Mistake(lambda x: (x * x.detach()).sum(), "You cut one x off: {yours} {place}.", "Which x moves?")
    square = Exercise(
        number="9.8", name="square", solution=lambda x: (x**2).sum(), cases=cases, mistakes={"half": half},
        place=lambda case, i: f"at {i}", hints=("", "", ""), shapes="[]", gradient="x",
    )  # fmt: skip
    assert check(square, lambda x: (x * x).sum()).ok
    verdict = check(square, lambda x: x @ x.detach())
    assert verdict.mistake == "half" and "3.000 at 2" in verdict.message


# ---- the four corners ------------------------------------------------------------------------------------
@pytest.mark.parametrize("answer", [
    [1, 0, 0, -1], (1.0, -0.0, 0.0, -1.0), np.array([1, 0, 0, -1]), torch.tensor([1.0, 0.0, 0.0, -1.0]),
    {"(0.5, +)": 1, "(1.5, +)": 0, "(0.5, -)": 0, "(1.5, -)": -1},
])  # fmt: skip
def test_the_four_gradients_are_accepted_in_any_form(answer):
    assert check_quadrants(answer).ok


@pytest.mark.parametrize(("answer", "mistake"), [
    ([0, 0, 0, 0], "all_blocked"), ([1, 1, -1, -1], "no_clip"), ([-1, 0, 0, 1], "loss"),
    ([0, 1, -1, 0], "mirrored"), ([1, 0, 0, 1], "sign_of_advantage"), ([1, 0, -1, 0], "only_side_of_ratio"),
    ([0.5, 0, 0, -1.5], "by_log_prob"), ([1, 0.2, 0, -1], "unknown"), ([1, 0, 0], "not_four"),
    (["a", 0, 0, 1], "not_numbers"), (3, "not_numbers"), ([math.nan, 0, 0, -1], "unknown"),
])  # fmt: skip
def test_wrong_corners_are_diagnosed(answer, mistake):
    verdict = check_quadrants(answer)
    assert (verdict.ok, verdict.attempted, verdict.mistake) == (False, True, mistake)
    assert "?" in verdict.message or mistake.startswith("not_")


@pytest.mark.parametrize("answer", [None, ..., [..., ..., ..., ...]])
def test_no_corners_are_not_attempted(answer):
    assert not check_quadrants(answer).attempted


# ---- the clip fraction -----------------------------------------------------------------------------------
def loop_fraction(new, old, A, e, mask):
    hits = [(a > 0 and math.exp(n - o) > 1 + e) or (a < 0 and math.exp(n - o) < 1 - e)
            for n, o, a, m in zip(*(x.flatten().tolist() for x in (new, old, A, mask))) if m]  # fmt: skip
    return sum(hits) / len(hits)


def numpy_fraction(new, old, A, e, mask):
    ratio, A = np.exp(new.numpy() - old.numpy()), A.numpy()
    return np.mean((np.sign(A) * (ratio - 1) > e)[mask.numpy()])


def where_the_clipped_branch_is_smaller(new, old, A, e, mask):
    ratio = (new.float() - old.float()).exp()
    blocked = ratio.clamp(1 - e, 1 + e) * A.float() < ratio * A.float()
    return masked_mean(blocked.float(), mask)


@pytest.mark.parametrize("fn", [loop_fraction, numpy_fraction, where_the_clipped_branch_is_smaller])
def test_other_right_fractions_are_accepted(fn):
    assert check_clip_fraction(fn).ok
