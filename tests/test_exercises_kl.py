"""Notebook 03's exercises: right answers of other forms are accepted, the famous wrong ones are named."""

import math

import numpy as np
import pytest
import torch

from ppo_teach.exercises import check_kl_controller, check_kl_estimate, check_shape_rewards


# ---- 3.1 -------------------------------------------------------------------------------------------------
def loop_estimate(log_probs, log_probs_ref, estimator):
    result = torch.zeros(log_probs.shape)  # float32
    for b, row in enumerate(log_probs.tolist()):
        for t, p in enumerate(row):
            l = p - log_probs_ref[b, t].item()
            result[b, t] = {"k1": l, "k2": 0.5 * l * l, "k3": math.exp(-l) - 1 + l}[estimator]
    return result


def ratio_estimate(lp, ref, k):
    ratio = (ref - lp).exp()  # the other way round, with the signs to match
    return {"k1": -ratio.log(), "k2": ratio.log() ** 2 / 2, "k3": ratio - 1 - ratio.log()}[k]


def numpy_estimate(lp, ref, k):
    l = (lp - ref).numpy().astype(np.float32)
    return l if k == "k1" else l**2 / 2 if k == "k2" else np.expm1(-l) + l


def list_estimate(lp, ref, k):
    return ratio_estimate(lp, ref, k).tolist()


@pytest.mark.parametrize("fn", [loop_estimate, ratio_estimate, numpy_estimate, list_estimate])
def test_other_right_estimates_are_accepted(fn):
    assert check_kl_estimate(fn).ok


def published(lp, ref, k):
    """The sign of a well-known book: minus k1, and exp(+l) - 1 - l."""
    l = lp - ref
    return {"k1": -l, "k2": l**2 / 2, "k3": l.expm1() - l}[k]


def mean_of_all(lp, ref, k):
    return ratio_estimate(lp, ref, k).mean()


def in_place(lp, ref, k):
    lp -= ref
    return ratio_estimate(lp, 0 * ref, k)


@pytest.mark.parametrize(
    ("fn", "mistake"),
    [(published, "swapped"), (mean_of_all, "wrong_shape"), (in_place, "in_place"),
     (lambda lp, ref, k: (lp - ref).long(), "wrong_dtype")],
)  # fmt: skip
def test_wrong_estimates_of_other_forms_are_named(fn, mistake):
    assert check_kl_estimate(fn).mistake == mistake


# ---- 3.2 -------------------------------------------------------------------------------------------------
def loop_rewards(scores, log_probs, log_probs_ref, kl_coef, mask):
    rows = []
    for R, p, q, m in zip(scores.tolist(), log_probs.tolist(), log_probs_ref.tolist(), mask.tolist()):
        length = int(sum(m))
        row = [-kl_coef * (a - b) if t < length else 0.0 for t, (a, b) in enumerate(zip(p, q))]
        row[length - 1] += R
        rows.append(row)
    return rows


def vectorised_rewards(scores, lp, ref, beta, mask):
    last = mask.cumsum(1) == mask.sum(1, keepdim=True)
    return (beta * (ref - lp.detach()) + last * scores[:, None]) * mask


def numpy_rewards(scores, lp, ref, beta, mask):
    rewards = -beta * (lp.detach() - ref).numpy() * mask.numpy()
    rewards[np.arange(len(scores)), mask.sum(1).long().numpy() - 1] += scores.numpy()
    return rewards.astype(np.float32)


@pytest.mark.parametrize("fn", [loop_rewards, vectorised_rewards, numpy_rewards])
def test_other_right_rewards_are_accepted(fn):
    assert check_shape_rewards(fn).ok


def attached(scores, lp, ref, beta, mask):
    last = mask.cumsum(1) == mask.sum(1, keepdim=True)
    return (-beta * (lp - ref) + last * scores[:, None]) * mask


def wrong_scores_in_place(scores, lp, ref, beta, mask):
    scores *= 2
    return vectorised_rewards(scores / 2, lp, ref, beta, mask)


@pytest.mark.parametrize(
    ("fn", "mistake"),
    [(attached, "attached"), (wrong_scores_in_place, "in_place"),
     (lambda R, lp, ref, beta, m: vectorised_rewards(R, lp, ref, beta, m).sum(1), "wrong_shape")],
)  # fmt: skip
def test_wrong_rewards_of_other_forms_are_named(fn, mistake):
    assert check_shape_rewards(fn).mistake == mistake


# ---- 3.3 -------------------------------------------------------------------------------------------------
def array_controller(kl_coef, kls, target, horizon, n_steps):
    errors = np.clip(np.array(kls) / target - 1, -0.2, 0.2)
    return kl_coef * np.cumprod(1 + errors * n_steps / horizon)


def tensor_controller(kl_coef, kls, target, horizon, n_steps):
    errors = (torch.tensor(kls) / target - 1).clamp(-0.2, 0.2)
    return kl_coef * (1 + errors * n_steps / horizon).cumprod(0)  # float32


@pytest.mark.parametrize("fn", [array_controller, tensor_controller])
def test_other_right_controllers_are_accepted(fn):
    assert check_kl_controller(fn).ok


def test_a_controller_that_gives_the_last_price_only_is_named():
    assert check_kl_controller(lambda *a: array_controller(*a)[-1]).mistake == "wrong_shape"
