"""Notebook 01's exercises: right answers of other forms are accepted, wrong numbers are diagnosed."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ppo_teach.exercises import check_response_log_probs, check_response_mask, check_stored_log_prob


def naive_softmax(read, response_ids):
    probabilities = read.exp() / read.exp().sum(-1, keepdim=True)
    return probabilities.log().gather(-1, response_ids.unsqueeze(-1))[..., 0]


# ---- right in other ways ---------------------------------------------------------------------------------
def loop_log_probs(logits, response_ids, temperature):
    P = logits.shape[1] - response_ids.shape[1]
    rows = []
    for b, ids in enumerate(response_ids.tolist()):
        rows.append([])
        for t, token in enumerate(ids):
            scores = [z / temperature for z in logits[b, P + t - 1].tolist()]
            top = max(scores)
            log_z = top + math.log(sum(math.exp(z - top) for z in scores))
            rows[-1].append(scores[token] - log_z)
    return rows  # a list of lists


def numpy_log_probs(logits, response_ids, temperature):
    P = logits.shape[1] - response_ids.shape[1]
    scores = logits.numpy()[:, P - 1 : -1] / temperature
    log_probs = scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    return np.take_along_axis(log_probs, response_ids.numpy()[..., None], axis=-1)[..., 0]


def cross_entropy(logits, response_ids, temperature):
    read = logits.float()[:, -response_ids.shape[1] - 1 : -1] / temperature
    return -F.cross_entropy(read.transpose(1, 2), response_ids, reduction="none")


def chapters_form(logits, response_ids, temperature):
    response_start = logits.shape[1] - response_ids.shape[1]
    log_probs = F.log_softmax(logits[:, response_start - 1 : -1, :] / temperature, dim=-1)
    return torch.gather(log_probs, dim=-1, index=response_ids.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("fn", [loop_log_probs, numpy_log_probs, cross_entropy, chapters_form])
def test_other_right_log_probs_are_accepted(fn):
    assert check_response_log_probs(fn).ok


def loop_mask(response_ids, eos_id):
    rows = []
    for ids in response_ids.tolist():
        n = ids.index(eos_id) + 1 if eos_id in ids else len(ids)
        rows.append([1] * n + [0] * (len(ids) - n))
    return rows  # integers


def bool_mask(response_ids, eos_id):
    is_eos = (response_ids == eos_id).long()
    return is_eos.cumsum(1) - is_eos == 0


def numpy_mask(response_ids, eos_id):
    before = np.cumsum(response_ids.numpy() == eos_id, axis=1) - (response_ids.numpy() == eos_id)
    return (before == 0).astype(np.float32)


def argmax_mask(response_ids, eos_id):
    is_eos = response_ids == eos_id
    T = response_ids.shape[1]
    last = torch.where(is_eos.any(1), is_eos.int().argmax(1), T - 1)
    return torch.arange(T) <= last.unsqueeze(1)


@pytest.mark.parametrize("fn", [loop_mask, bool_mask, numpy_mask, argmax_mask])
def test_other_right_masks_are_accepted(fn):
    assert check_response_mask(fn).ok


def test_a_softmax_that_overflows_is_said_to():
    def naive(logits, response_ids, temperature):
        read = logits[:, -response_ids.shape[1] - 1 : -1] / temperature
        return naive_softmax(read, response_ids)

    verdict = check_response_log_probs(naive)
    assert verdict.mistake == "not_finite" and verdict.message.count("large logits") == 1


def test_an_overflow_does_not_hide_the_wrong_place():
    def naive(logits, response_ids, temperature):
        read = logits[:, -response_ids.shape[1] :] / temperature
        return naive_softmax(read, response_ids)

    assert check_response_log_probs(naive).mistake == "own_position"


# ---- one number ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("answer", "mistake"),
    [(-0.974, "filtered"), (-1.440, "temperature_forgotten"), (-1.313, "filtered_cold"),
     (-2.143, "temperature_times"), (0.276, "probability"), (1.287, "sign"), (0.5, "logit"),
     (0.378, "filtered_probability"),
     (-0.787, "other_token"), (-5, "unknown"), (math.nan, "unknown"), ("-1.29", "not_a_number")],
)  # fmt: skip
def test_a_wrong_log_prob_is_diagnosed(answer, mistake):
    verdict = check_stored_log_prob(answer)
    assert (verdict.ok, verdict.attempted, verdict.mistake) == (False, True, mistake)
    assert "?" in verdict.message or mistake == "not_a_number"


@pytest.mark.parametrize("answer", [-1.29, -1.287, np.log(0.276), torch.tensor([-1.287])])
def test_the_log_prob_under_the_policy_is_accepted(answer):
    assert check_stored_log_prob(answer).ok


@pytest.mark.parametrize("answer", [None, ...])
def test_no_number_is_not_attempted(answer):
    assert not check_stored_log_prob(answer).attempted


def test_a_zero_taken_for_padding_is_found():
    """Right wherever 0 pads; wrong where 0 is the EOS."""
    assert not check_response_mask(lambda ids, eos_id: bool_mask(ids, eos_id) & (ids != 0)).ok
