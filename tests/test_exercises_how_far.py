"""Notebook 04's exercises: right answers of other forms are accepted, wrong prices are diagnosed."""

import math

import numpy as np
import pytest
import torch

from ppo_teach.exercises import check_kl_budget, check_optimal_policy, check_soft_values


# ---- right in other ways ---------------------------------------------------------------------------------
def loop_policy(log_probs_ref, scores, beta):
    rows = []
    for ref, row in zip(log_probs_ref.tolist(), scores.tolist()):
        tilted = [r + s / beta for r, s in zip(ref, row)]
        top = max(tilted)
        log_z = top + math.log(sum(math.exp(t - top) for t in tilted))
        rows.append([t - log_z for t in tilted])
    return torch.tensor(rows)  # float32


def numpy_policy(log_probs_ref, scores, beta):
    tilted = log_probs_ref.numpy() + scores.numpy() / beta
    return tilted - np.logaddexp.reduce(tilted, axis=1, keepdims=True)


def shifted_policy(ref, R, b):
    tilted = R / b + ref - (R / b).amax(-1, keepdim=True)
    return tilted - tilted.exp().sum(-1, keepdim=True).log()


def single_precision_policy(ref, R, b):
    return (ref.float() + R.float() / b).log_softmax(-1)


@pytest.mark.parametrize("fn", [loop_policy, numpy_policy, shifted_policy, single_precision_policy])
def test_other_right_policies_are_accepted(fn):
    assert check_optimal_policy(fn).ok


def loop_values(log_probs_ref, rewards, num_steps, beta):
    size = len(rewards)
    values = torch.zeros(num_steps + 1, size, dtype=torch.float64)
    for t in range(num_steps - 1, -1, -1):
        for s in range(1, size):
            q = [rewards[s, a] + (values[t + 1, a] if a else 0.0) for a in range(size)]
            terms = [math.exp(log_probs_ref[s, a] + q[a] / beta) for a in range(size)]
            values[t, s] = beta * math.log(sum(terms))
    return values[:-1]


def list_of_float32(log_probs_ref, rewards, num_steps, beta):
    V, rows = torch.zeros(len(rewards)), []
    for _ in range(num_steps):
        V = beta * torch.logsumexp((rewards.float() + V) / beta + log_probs_ref.float(), dim=1)
        V[0] = 0.0
        rows = [V.clone(), *rows]
    return rows


@pytest.mark.parametrize("fn", [loop_values, list_of_float32])
def test_other_right_values_are_accepted(fn):
    assert check_soft_values(fn).ok


# ---- reading the frontier --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("beta", "mistake"),
    [(0.3, "over_budget"), (1.0, "under_budget"), (2.0, "budget_as_price"), (1.54, "inverse"),
     (0.0, "not_positive"), (-0.6, "not_positive"),
     (math.inf, "not_positive"), (math.nan, "not_positive"), ("0.6", "not_a_number")],
)  # fmt: skip
def test_a_wrong_price_is_diagnosed(beta, mistake):
    verdict = check_kl_budget(beta)
    assert (verdict.ok, verdict.attempted, verdict.mistake) == (False, True, mistake)
    assert "?" in verdict.message or mistake == "not_a_number"


@pytest.mark.parametrize("beta", [0.65, 0.655, 0.66])
def test_a_price_that_spends_the_budget_is_accepted(beta):
    assert check_kl_budget(beta).ok


@pytest.mark.parametrize("beta", [None, ...])
def test_no_price_is_not_attempted(beta):
    assert not check_kl_budget(beta).attempted
