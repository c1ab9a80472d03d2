"""Returns, TD errors and GAE, against sums in float64 numpy over any mask."""

import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numeric import MASKS, as_tensor, close, mask_types, masks, random

import ppo_teach as pt

SETTINGS = [(1.0, 0.95), (0.99, 0.9), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5), (0.0, 0.0)]
settings = pytest.mark.parametrize(("gamma", "lam"), SETTINGS)
last_values = pytest.mark.parametrize("last_value", [None, [0.5, -2.0, 3.0]], ids=["ended", "cut off"])
numbers = st.floats(-10, 10)


def tensor(x):
    return None if x is None else torch.tensor(x, dtype=torch.float64)


# ---------------------------------------------------------------- against the reference


@masks
@mask_types
@settings
@last_values
def test_everything_as_in_the_reference(mask, kind, gamma, lam, last_value):
    rewards, values, m = random((3, 4)), random((3, 4), 1), as_tensor(mask, kind)
    close(pt.discounted_returns(rewards, gamma, m), reference.discounted_returns(rewards, gamma, mask))
    errors = pt.td_errors(rewards, values, gamma, m, tensor(last_value))
    close(errors, reference.td_errors(rewards, values, gamma, mask, last_value))
    found = pt.gae(rewards, values, gamma, lam, m, tensor(last_value))
    for computed, wanted in zip(
        found, reference.gae(rewards, values, gamma, lam, mask, last_value), strict=True
    ):
        close(computed, wanted)


@st.composite
def batches(draw):
    batch, length = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    array = lambda elements, dtype=np.float64, shape=(batch, length): draw(
        hnp.arrays(dtype, shape, elements=elements)
    )
    ragged = array(st.booleans(), bool)
    if draw(st.booleans()):  # responses as they come: a prefix each, an empty one among them
        lengths = array(st.integers(0, length), np.int64, (batch,))
        ragged = np.arange(length) < lengths[:, None]
    last_value = draw(st.none() | hnp.arrays(np.float64, (batch,), elements=numbers))
    return array(numbers), array(numbers), ragged, last_value


@given(batches(), st.floats(0, 1), st.floats(0, 1))
def test_gae_over_ragged_masks_equals_a_loop(batch, gamma, lam):
    rewards, values, mask, last_value = batch
    found = pt.gae(tensor(rewards), tensor(values), gamma, lam, torch.tensor(mask), tensor(last_value))
    for computed, wanted in zip(
        found, reference.gae(rewards, values, gamma, lam, mask, last_value), strict=True
    ):
        np.testing.assert_allclose(computed.numpy(), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wrong", [
    dict(gamma=0.98), dict(lam=0.89), dict(mask=None), dict(last_value=tensor([1.0, 1.0, 1.0])),
], ids=str)  # fmt: skip
def test_a_wrong_setting_would_be_noticed(wrong):
    mask = MASKS["prefixes"]
    right = dict(rewards=random((3, 4)), values=random((3, 4), 1), gamma=0.99, lam=0.9)
    wanted = reference.gae(**right, mask=mask)
    close(pt.gae(**right, mask=as_tensor(mask))[0], wanted[0])
    with pytest.raises(AssertionError):
        close(pt.gae(**{**right, "mask": as_tensor(mask), **wrong})[0], wanted[0], 1e-3)


def test_values_one_late_would_be_noticed():
    """The critic reads V after each token: same shapes, other advantages."""
    full, rewards = random((3, 6)), random((3, 4), 1)
    right, late = pt.response_values(full, 4), full[:, 2:]
    wanted = reference.gae(rewards, full[:, 1:5], 1.0, 0.95)[0]
    close(pt.gae(rewards, right, 1.0, 0.95)[0], wanted)
    with pytest.raises(AssertionError):
        close(pt.gae(rewards, late, 1.0, 0.95)[0], wanted, 0.1)


# ---------------------------------------------------------------- identities


@masks
@last_values
def test_lambda_zero_is_the_td_error(mask, last_value):
    rewards, values, m = random((3, 4)), random((3, 4), 1), as_tensor(mask)
    advantages, _ = pt.gae(rewards, values, 0.9, 0.0, m, tensor(last_value))
    close(advantages, pt.td_errors(rewards, values, 0.9, m, tensor(last_value)).numpy())


@masks
def test_lambda_one_is_the_return_minus_the_value(mask):
    rewards, values, m = random((3, 4)), random((3, 4), 1), as_tensor(mask)
    advantages, returns = pt.gae(rewards, values, 0.9, 1.0, m)
    close(returns, pt.discounted_returns(rewards, 0.9, m).numpy())
    close((advantages + values) * (1.0 if m is None else m), returns.numpy())


@settings
def test_a_triangular_matrix_gives_the_same(gamma, lam):
    errors = pt.td_errors(random((3, 6)), random((3, 6), 1), gamma)
    steps = torch.arange(6).unsqueeze(1) - torch.arange(6)
    discount = torch.tensor((gamma * lam) ** steps.clamp(min=0).numpy()) * (steps >= 0)
    close(pt.gae(random((3, 6)), random((3, 6), 1), gamma, lam)[0], errors @ discount, 1e-12)


def test_gamma_one_is_the_sum_of_what_is_still_to_come():
    assert pt.discounted_returns(torch.tensor([[1.0, 2.0, 4.0]]), 1.0).tolist() == [[7.0, 6.0, 4.0]]
    assert pt.discounted_returns(torch.tensor([[0.0, 0.0, 1.0]]), 0.5).tolist() == [[0.25, 0.5, 1.0]]
    assert pt.discounted_returns(torch.tensor([[1.0, 2.0, 4.0]]), 0.0).tolist() == [[1.0, 2.0, 4.0]]


def test_a_truncated_last_step_differs_by_gamma_times_the_next_value():
    rewards, values, after = random((3, 4)), random((3, 4), 1), random((3,), 2)
    cut, _ = pt.gae(rewards, values, 0.9, 0.8, last_value=after)
    ended, _ = pt.gae(rewards, values, 0.9, 0.8)
    close((cut - ended)[:, -1], 0.9 * after)
    close((cut - ended)[:, 0], 0.9 * after * (0.9 * 0.8) ** 3)


# ---------------------------------------------------------------- padding, rows, types


@pytest.mark.parametrize("hidden", [math.inf, -math.inf, math.nan, 1e30])
@pytest.mark.parametrize("name", [name for name in MASKS if name != "none"])
def test_padding_may_hold_anything_and_comes_out_as_zero(hidden, name):
    mask, after = as_tensor(MASKS[name]), random((3,), 2)
    dirty = lambda x: torch.where(mask, x, torch.tensor(hidden).double())
    for function in (
        lambda r, v: pt.gae(r, v, 0.9, 0.8, mask, after),
        lambda r, v: (pt.td_errors(r, v, 0.9, mask, after),),
        lambda r, v: (pt.discounted_returns(r, 0.9, mask),),
    ):
        clean = function(random((3, 4)), random((3, 4), 1))
        for a, b in zip(clean, function(dirty(random((3, 4))), dirty(random((3, 4), 1))), strict=True):
            assert torch.equal(a, b) and (a[~mask] == 0).all()


@masks
def test_more_padding_changes_nothing(mask):
    rewards, values = random((3, 4)), random((3, 4), 1)
    mask = torch.ones(3, 4) if mask is None else as_tensor(mask).float()
    wide = lambda x, fill: torch.cat([x, torch.full((3, 2), fill, dtype=x.dtype)], dim=1)
    narrow = pt.gae(rewards, values, 0.9, 0.8, mask)
    padded = pt.gae(wide(rewards, 7.0), wide(values, -7.0), 0.9, 0.8, wide(mask, 0.0))
    for a, b in zip(narrow, padded, strict=True):
        assert torch.equal(a, b[:, :4]) and (b[:, 4:] == 0).all()


def test_a_batch_of_one_equals_the_row_in_a_batch():
    rewards, values, mask, after = (
        random((3, 4)),
        random((3, 4), 1),
        as_tensor(MASKS["holes"]),
        random((3,), 2),
    )
    whole = pt.gae(rewards, values, 0.9, 0.8, mask, after)
    for i in range(3):
        row = pt.gae(*(x[i : i + 1] for x in (rewards, values)), 0.9, 0.8, mask[i : i + 1], after[i : i + 1])
        assert all(torch.equal(a[i], b[0]) for a, b in zip(whole, row, strict=True))


def test_one_token():
    advantages, returns = pt.gae(torch.tensor([[2.0]]), torch.tensor([[0.5]]), 0.9, 0.8)
    assert (advantages.item(), returns.item()) == (1.5, 2.0)


def test_results_are_constants():
    rewards, values = random((2, 3)).requires_grad_(True), random((2, 3), 1).requires_grad_(True)
    after = random((2,), 2).requires_grad_(True)
    results = [*pt.gae(rewards, values, 1.0, 0.9, last_value=after), pt.td_errors(rewards, values, 1.0)]
    results.append(pt.discounted_returns(rewards, 1.0))
    assert not any(result.requires_grad for result in results)


def test_precision_is_that_of_the_input_and_at_least_float32():
    rewards, values = random((2, 200)), random((2, 200), 1)
    wanted = reference.gae(rewards, values, 1.0, 0.95)[0]
    single = pt.gae(rewards.float(), values.float(), 1.0, 0.95)[0]
    assert single.dtype == torch.float32
    close(single, wanted, 2e-5)
    half = pt.gae(rewards.bfloat16(), values.bfloat16(), 1.0, 0.95)[0]
    assert half.dtype == torch.float32
    close(half, reference.gae(rewards.bfloat16(), values.bfloat16(), 1.0, 0.95)[0], 2e-5)
    assert pt.gae(torch.ones(1, 2).long(), torch.zeros(1, 2).long(), 1.0, 1.0)[0].tolist() == [[2.0, 1.0]]
    assert pt.gae(rewards, values.float(), 1.0, 0.9)[0].dtype == torch.float64


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("bad", [-0.01, 1.01, math.nan, math.inf, "1", None, True])
def test_gamma_and_lambda_stay_in_the_unit_interval(bad):
    x = torch.zeros(1, 2)
    for call in (
        lambda: pt.gae(x, x, bad, 0.9),
        lambda: pt.td_errors(x, x, bad),
        lambda: pt.discounted_returns(x, bad),
    ):
        with pytest.raises(ValueError, match=r"gamma must be a finite number in \[0, 1\], got"):
            call()
    with pytest.raises(ValueError, match=r"lam must be a finite number in \[0, 1\], got"):
        pt.gae(x, x, 1.0, bad)


def test_shapes_are_never_broadcast():
    x = torch.zeros(2, 3)
    for values in (torch.zeros(2, 1), torch.zeros(1, 3), torch.zeros(2, 4), torch.zeros(2, 3, 1)):
        with pytest.raises(ValueError, match=r"values has shape .* but rewards has shape \(2, 3\)"):
            pt.gae(x, values, 1.0, 0.9)
    with pytest.raises(ValueError, match=r"mask has shape \(2, 1\)"):
        pt.gae(x, x, 1.0, 0.9, torch.ones(2, 1))
    for after in (torch.zeros(3), torch.zeros(2, 1), torch.zeros(()), 0.0):
        with pytest.raises(ValueError, match=r"last_value must have shape \(2,\), one per response, got"):
            pt.gae(x, x, 1.0, 0.9, last_value=after)
    for empty in (torch.zeros(2, 0), torch.zeros(3)):
        with pytest.raises(ValueError, match=r"rewards must have shape \[B, T\]"):
            pt.gae(empty, empty, 1.0, 0.9)
    with pytest.raises(ValueError, match="rewards must be a torch.Tensor, got list"):
        pt.gae([[1.0]], [[1.0]], 1.0, 0.9)


@pytest.mark.parametrize("call", [
    lambda: pt.td_errors(tensor([[1.0, 2.0]]), None, 1.0),
    lambda: pt.gae(tensor([[1.0, 2.0]]), None, 1.0, 0.95),
], ids=["td_errors", "gae"])  # fmt: skip
def test_values_left_out_are_not_taken_for_zeros(call):
    with pytest.raises(ValueError, match="values must be a tensor"):
        call()
