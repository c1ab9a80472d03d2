"""Notebook 02's exercises: right answers of other forms are accepted, an overflow is named."""

import numpy as np
import pytest
import torch
from torch import nn

from ppo_teach.exercises import check_bradley_terry, check_place_scores


# ---- the Bradley-Terry loss, right in other ways ---------------------------------------------------------
def loop_loss(preferred, rejected):
    losses = []
    for i in range(len(preferred)):
        losses.append(nn.functional.softplus(rejected[i] - preferred[i]))
    return sum(losses) / len(losses)


def as_classification(preferred, rejected):
    """A two-class classifier whose first class is always right."""
    both = torch.stack([preferred, rejected], dim=1)
    return nn.functional.cross_entropy(both, torch.zeros(len(both), dtype=torch.long))


def binary(preferred, rejected):
    gap = preferred - rejected
    return nn.functional.binary_cross_entropy_with_logits(gap, torch.ones_like(gap))


def single_precision(preferred, rejected):
    return -nn.functional.logsigmoid(preferred.float() - rejected.float()).mean()


def normaliser(preferred, rejected):
    return (torch.logaddexp(preferred, rejected) - preferred).mean()


@pytest.mark.parametrize("fn", [loop_loss, as_classification, binary, single_precision, normaliser])
def test_other_right_losses_are_accepted(fn):
    assert check_bradley_terry(fn).ok


@pytest.mark.parametrize(
    ("fn", "mistake"),
    [
        (lambda preferred, rejected: -torch.sigmoid(preferred - rejected).log().mean(), "not_finite"),
        (lambda p, r: torch.log(1 + torch.exp(r - p)).mean(), "not_finite"),
        (lambda p, r: -nn.functional.logsigmoid(p - r), "wrong_shape"),
        (lambda p, r: -nn.functional.logsigmoid(p - r).mean().detach(), "detached"),
    ],
)
def test_losses_that_cannot_be_trained_on_are_refused(fn, mistake):
    assert check_bradley_terry(fn).mistake == mistake


# ---- the place of the score ------------------------------------------------------------------------------
def loop_placement(scores, mask):
    rows = []
    for score, row in zip(scores.tolist(), mask.tolist(), strict=True):
        real = [t for t, is_real in enumerate(row) if is_real]
        rows.append([score if real and t == real[-1] else 0.0 for t in range(len(row))])
    return rows


def numpy_placement(scores, mask):
    scores, lengths = scores.numpy(), mask.long().sum(1).numpy()
    rewards = np.zeros(mask.shape)
    for row in np.flatnonzero(lengths):
        rewards[row, lengths[row] - 1] = scores[row]
    return rewards


def by_running_count(scores, mask):
    real = mask.float()
    return scores[:, None] * real * (real.cumsum(1) == real.sum(1, keepdim=True))


def by_neighbour(scores, mask):
    real = mask.bool()
    ended = torch.cat([~real[:, 1:], torch.ones_like(real[:, :1])], dim=1)
    return (real & ended) * scores.float()[:, None]


@pytest.mark.parametrize("fn", [loop_placement, numpy_placement, by_running_count, by_neighbour])
def test_other_right_placements_are_accepted(fn):
    verdict = check_place_scores(fn)
    assert verdict.ok, verdict


def test_an_index_that_counts_from_the_end_is_diagnosed():
    def naive(scores, mask):
        rewards = torch.zeros(mask.shape, dtype=scores.dtype)
        rewards[torch.arange(len(scores)), mask.long().sum(1) - 1] = scores
        return rewards

    verdict = check_place_scores(naive)
    assert verdict.mistake == "empty_row" and "row 0 (case 'a row without tokens')" in verdict.message


def test_a_colon_in_the_place_of_the_rows_is_diagnosed():
    def naive(scores, mask):
        rewards = torch.zeros(mask.shape)  # float32, as the scores are
        rewards[:, mask.long().sum(1) - 1] = scores
        return rewards

    assert check_place_scores(naive).mistake == "every_row"


def test_an_integer_table_loses_what_is_after_the_point():
    verdict = check_place_scores(lambda scores, mask: (scores[:, None] * mask).long())
    assert verdict.mistake == "wrong_dtype"
