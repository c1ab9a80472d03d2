"""Notebook 05's exercises: right answers of other forms are accepted, further mistakes are diagnosed."""

import numpy as np
import pytest
import torch

from ppo_teach.exercises import check_gae, check_masked_whiten, check_td_errors


# ---- TD errors -------------------------------------------------------------------------------------------
def loop_errors(rewards, values, gamma):
    B, T = rewards.shape
    return [[float(rewards[b, t] + gamma * (values[b, t + 1] if t + 1 < T else 0.0) - values[b, t])
             for t in range(T)] for b in range(B)]  # fmt: skip


def numpy_errors(rewards, values, gamma):
    after = np.pad(values.numpy(), ((0, 0), (0, 1)))[:, 1:]
    return rewards.numpy() + gamma * after - values.numpy()


def single_precision_errors(rewards, values, gamma):
    after = torch.nn.functional.pad(values.float(), (0, 1))[:, 1:]
    return rewards.float() - values.float() + after * gamma


@pytest.mark.parametrize("fn", [loop_errors, numpy_errors, single_precision_errors])
def test_other_right_td_errors_are_accepted(fn):
    assert check_td_errors(fn).ok


# ---- GAE -------------------------------------------------------------------------------------------------
def loop_gae(rewards, values, gamma, lam, mask):
    """Token by token, in lists and single precision."""
    advantages, returns = torch.zeros(rewards.shape), torch.zeros(rewards.shape)
    for b in range(len(rewards)):
        following, ahead = 0.0, 0.0
        for t in range(int(mask[b].sum()) - 1, -1, -1):
            delta = float(rewards[b, t]) + gamma * following - float(values[b, t])
            ahead = delta + gamma * lam * ahead
            following = float(values[b, t])
            advantages[b, t], returns[b, t] = ahead, ahead + following
    return advantages, returns


def matrix_gae(rewards, values, gamma, lam, mask):
    """Weights (γλ)^l as a triangular matrix."""
    r, V, T = rewards * mask, values * mask, rewards.shape[1]
    delta = r + gamma * torch.cat([V[:, 1:], 0 * V[:, :1]], dim=1) - V
    lag = torch.arange(T).unsqueeze(0) - torch.arange(T).unsqueeze(1)
    weights = torch.where(lag >= 0, torch.tensor(gamma * lam, dtype=torch.float64) ** lag.clamp(min=0), 0.0)
    advantages = delta @ weights.T * mask
    return torch.stack([advantages, advantages + V])


def multiplied_gae(rewards, values, gamma, lam, mask):
    """The mask as numbers, in numpy, the recursion on columns."""
    m, r, V = mask.numpy().astype(float), rewards.numpy(), values.numpy()
    A, nextv, nexta = np.zeros_like(r), 0.0, 0.0
    for t in range(r.shape[1])[::-1]:
        nexta = m[:, t] * (r[:, t] + gamma * nextv - V[:, t] + gamma * lam * nexta)
        nextv = m[:, t] * V[:, t]
        A[:, t] = nexta
    return A, (A + V) * m


@pytest.mark.parametrize("fn", [loop_gae, matrix_gae, multiplied_gae])
def test_other_right_gae_is_accepted(fn):
    assert check_gae(fn).ok


def test_one_tensor_instead_of_two_is_noticed():
    verdict = check_gae(lambda r, V, g, lam, m: loop_gae(r, V, g, lam, m)[0])
    assert verdict.mistake == "wrong_shape" and "(advantages, returns)" in verdict.message


def test_two_mistakes_are_one_unknown_one():
    def reward_only(r, V, g, lam, m):
        A = torch.stack([r, r + V]) * m
        return A * 2

    assert check_gae(reward_only).mistake == "unknown"


def test_masked_errors_with_an_unmasked_next_value_are_named():
    """The usual first attempt: δ is masked, V(s_{t+1}) is not."""
    def attempt(rewards, values, gamma, lam, mask):
        after = torch.nn.functional.pad(values, (0, 1))[:, 1:]
        delta, A, rows = (rewards + gamma * after - values) * mask, 0.0, []
        for t in reversed(range(rewards.shape[1])):
            A = delta[:, t] + gamma * lam * A
            rows.insert(0, A)
        A = torch.stack(rows, dim=1) * mask
        return A, (A + values) * mask

    assert check_gae(attempt).mistake == "padded_value_behind"


def test_a_change_in_place_is_noticed():
    def writes(rewards, values, gamma, lam, mask):
        values[~mask] = 0.0
        return loop_gae(rewards, values, gamma, lam, mask)

    assert check_gae(writes).mistake == "in_place"


def test_a_learnable_value_leaves_its_gradient_on_the_advantages():
    weight = torch.ones((), requires_grad=True)
    verdict = check_gae(lambda r, V, g, lam, m: [part * weight for part in loop_gae(r, V, g, lam, m)])
    assert verdict.mistake == "attached"


# ---- whitening -------------------------------------------------------------------------------------------
def indexed_whiten(x, mask):
    real, out = x[mask], torch.zeros(x.shape)
    out[mask] = ((real - real.mean()) / (real.var(correction=0) + 1e-8).sqrt()).float()
    return out


def numpy_whiten(x, mask):
    real = x.numpy()[mask.numpy()]
    return np.where(mask.numpy(), (x.numpy() - real.mean()) / (real.std() + 1e-8), 0.0)


def second_moment_whiten(x, mask):
    n = mask.sum()
    mean = (x * mask).sum() / n
    variance = ((x * mask) ** 2).sum() / n - mean**2
    return (x - mean) * (variance + 1e-8).rsqrt() * mask


@pytest.mark.parametrize("fn", [indexed_whiten, numpy_whiten, second_moment_whiten])
def test_other_right_whitening_is_accepted(fn):
    assert check_masked_whiten(fn).ok


def test_std_of_one_element_is_named():
    verdict = check_masked_whiten(lambda x, m: torch.where(m, (x - x[m].mean()) / (x[m].std() + 1e-8), 0.0))
    assert verdict.mistake == "unbiased"
