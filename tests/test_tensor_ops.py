"""Masks, gathers and masked statistics, against the float64 reference and at their edges."""

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
from ppo_teach.tensor_ops import check_number, dropout_off, kl_from_log_ratio, position_ids, single_thread

# ---------------------------------------------------------------- masked_mean, masked_whiten


@masks
@mask_types
def test_masked_mean_and_its_gradient(mask, kind):
    x, m = random((3, 4)), as_tensor(mask, kind)
    close(pt.masked_mean(x, m), reference.masked_mean(x, mask))
    close(gradient(lambda x: pt.masked_mean(x, m), x), reference.masked_mean_gradient(x, mask))


def test_the_mean_of_everything_would_be_noticed():
    x, mask = random((3, 4)), MASKS["prefixes"]
    with pytest.raises(AssertionError):
        close(x.mean(), reference.masked_mean(x, mask))
    with pytest.raises(AssertionError):
        close(torch.full((3, 4), 1 / 12), reference.masked_mean_gradient(x, mask))


@pytest.mark.parametrize("dim", [0, 1, -1])
@masks
def test_masked_mean_along_one_axis(mask, dim):
    x, m = random((3, 4)), as_tensor(mask)
    along = pt.masked_mean(x, m, dim=dim)
    lines = [
        (x.select(1 - dim % 2, i), None if m is None else m.select(1 - dim % 2, i)) for i in range(len(along))
    ]
    close(along, [reference.masked_mean(line, line_mask) for line, line_mask in lines])


@pytest.mark.parametrize("hidden", [math.inf, -math.inf, math.nan])
def test_what_stands_under_the_mask_is_harmless_also_in_the_gradient(hidden):
    mask = as_tensor(MASKS["prefixes"])
    x = torch.where(mask, random((3, 4)), torch.tensor(hidden).double())
    for function in (
        lambda x: pt.masked_mean(x, mask),
        lambda x: pt.masked_mean(x, mask, dim=1).sum(),
        lambda x: (pt.masked_whiten(x, mask) * random((3, 4), 1)).sum(),
        lambda x: (pt.masked_whiten(x, mask, keep_mean=True) * random((3, 4), 1)).sum(),
    ):
        assert torch.isfinite(function(x))
        slope = gradient(function, x)
        assert torch.isfinite(slope).all() and (slope[~mask] == 0).all() and (slope[mask] != 0).any()
    multiplied = gradient(lambda x: (x * mask).sum() / mask.sum(), x)
    assert not torch.isfinite((x * mask).sum()) or not torch.isfinite(multiplied).all()  # what is avoided


@masks
@pytest.mark.parametrize("keep_mean", [False, True])
def test_masked_whiten_and_its_gradient(mask, keep_mean):
    x, m, w = 3 + 2 * random((3, 4)), as_tensor(mask), random((3, 4), 1)
    close(pt.masked_whiten(x, m, keep_mean=keep_mean), reference.masked_whiten(x, mask, keep_mean))
    if not keep_mean and mask != MASKS["one token"]:
        # one number: its whitened value is 0 whatever it is, and the slope is 0 / 1e-4 exactly
        close(gradient(lambda x: pt.masked_whiten(x, m), x, w), reference.masked_whiten_gradient(x, w, mask))


def test_the_unbiased_variance_would_be_noticed():
    x = random((3, 4))
    expected = reference.masked_whiten(x)
    with pytest.raises(AssertionError):
        close((x - x.mean()) / x.std(), expected, 1e-3)
    with pytest.raises(AssertionError):
        close(
            gradient(lambda x: (x - x.mean()) / x.std(), x, random((3, 4), 1)),
            reference.masked_whiten_gradient(x, random((3, 4), 1)),
            1e-3,
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("constant", [0.7, -3.0, 1e4])
def test_a_constant_whitens_to_zero_in_every_precision(dtype, constant):
    whitened = pt.masked_whiten(torch.full((2, 7), constant, dtype=dtype))
    assert whitened.dtype == dtype and (whitened.abs() < 1e-3).all()


def test_one_token_whitens_to_zero_or_to_itself():
    x = torch.tensor([[5.0]])
    assert pt.masked_whiten(x).item() == 0.0 and pt.masked_whiten(x, keep_mean=True).item() == 5.0
    naive = (x - x.mean()) / ((x - x.mean()) ** 2).mean().sqrt()
    assert torch.isnan(naive).all()


def test_whitening_with_eps_zero_survives_a_constant():
    x = torch.ones(2, 3, requires_grad=True)
    pt.masked_whiten(x, eps=0.0).sum().backward()
    assert (x.grad == 0).all()
    assert pt.masked_whiten(random((4, 5)), eps=0.0).var(unbiased=False).item() == pytest.approx(
        1.0, abs=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_long_sum_in_low_precision_stays_right(dtype):
    x = torch.ones(7, 10_000, dtype=dtype)  # float16 ends at 65,504
    assert pt.masked_mean(x).item() == 1.0 and pt.masked_mean(x, dim=1).tolist() == [1.0] * 7
    assert pt.masked_mean(x).dtype == dtype


def test_integers_have_a_mean_too():
    assert pt.masked_mean(torch.tensor([[1, 2], [3, 9]]), torch.tensor([[1, 1], [1, 0]])).item() == 2.0
    assert pt.masked_whiten(torch.tensor([[1, 3]])).tolist() == [[-1.0, 1.0]]


def test_masks_of_another_shape_are_refused():
    x = torch.zeros(2, 3)
    for mask in (torch.ones(2, 1), torch.ones(3), torch.ones(2, 3, 1)):
        with pytest.raises(ValueError, match=r"mask has shape .* data has shape \(2, 3\)"):
            pt.masked_mean(x, mask)
        with pytest.raises(ValueError, match="mask has shape"):
            pt.masked_whiten(x, mask)
    with pytest.raises(ValueError, match="mask must be a torch.Tensor or None, got list"):
        pt.masked_mean(x, [[1, 1, 1], [1, 1, 1]])
    with pytest.raises(ValueError, match="must be a torch.Tensor, got list"):
        pt.masked_mean([1.0, 2.0])


@given(hnp.arrays(np.float64, (3, 5), elements=st.floats(-100, 100)), hnp.arrays(bool, (3, 5)))
def test_whitened_tokens_have_mean_zero_and_at_most_variance_one(x, mask):
    whitened = pt.masked_whiten(torch.tensor(x), torch.tensor(mask))
    assert (whitened[~torch.tensor(mask)] == 0).all()
    assert abs(reference.masked_mean(whitened, mask)) < 1e-6
    assert reference.masked_mean(whitened**2, mask) <= 1 + 1e-9
    close(whitened, reference.masked_whiten(x, mask), 1e-7)


# ---------------------------------------------------------------- response_mask

EOS, PAD = 2, 0
ROWS = {
    "stops in the middle": ([5, 6, 2, 0, 0], [1, 1, 1, 0, 0]),
    "never stops": ([5, 6, 7, 8, 9], [1, 1, 1, 1, 1]),
    "stops at once": ([2, 0, 0, 0, 0], [1, 0, 0, 0, 0]),
    "stops at the last place": ([5, 6, 7, 8, 2], [1, 1, 1, 1, 1]),
    "tokens behind the EOS": ([5, 2, 7, 7, 2], [1, 1, 0, 0, 0]),
    "EOS twice": ([5, 2, 2, 2, 2], [1, 1, 0, 0, 0]),
    "a tail of pads, no EOS": ([4, 0, 0, 0, 0], [1, 0, 0, 0, 0]),
    "a pad inside": ([4, 0, 5, 0, 0], [1, 1, 1, 0, 0]),
    "a pad in front of the EOS": ([4, 0, 2, 0, 0], [1, 1, 1, 0, 0]),
    "pads only": ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
}


@pytest.mark.parametrize(("ids", "mask"), ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_response_mask_row_by_row(ids, mask, kind):
    found = pt.response_mask(torch.tensor([ids], dtype=kind), EOS, PAD)
    assert found.dtype == torch.bool and found.int().tolist() == [mask]


def test_a_row_is_masked_the_same_in_a_batch():
    rows = torch.tensor([ids for ids, _ in ROWS.values()])
    assert pt.response_mask(rows, EOS, PAD).int().tolist() == [mask for _, mask in ROWS.values()]


def test_without_a_pad_id_only_the_eos_counts():
    ids = torch.tensor([[4, 0, 0, 2, 0], [4, 0, 0, 0, 0]])
    assert pt.response_mask(ids, EOS).int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def test_pad_and_eos_may_be_the_same_token():
    ids = torch.tensor([[5, 6, 2, 2, 2], [2, 2, 2, 2, 2], [5, 6, 7, 8, 9], [5, 6, 7, 8, 2]])
    wanted = [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]
    assert pt.response_mask(ids, EOS, EOS).int().tolist() == wanted
    assert (ids != EOS).int().tolist() != wanted  # the usual shortcut loses the EOS


@given(hnp.arrays(np.int64, (4, 6), elements=st.integers(0, 4)), st.sampled_from([None, 0, 2]))
def test_response_mask_is_a_prefix_as_in_the_reference(ids, pad_id):
    found = pt.response_mask(torch.tensor(ids), EOS, pad_id)
    np.testing.assert_array_equal(found.numpy(), reference.response_mask(ids, EOS, pad_id))
    assert (found.int().diff(dim=1) <= 0).all()


@pytest.mark.parametrize(
    "bad", [torch.zeros(2), torch.zeros(2, 3), torch.zeros(2, 3).bool(), torch.zeros(0, 3).long()]
)
def test_response_mask_wants_integer_rows(bad):
    with pytest.raises(ValueError, match="response_ids"):
        pt.response_mask(bad, EOS)


@pytest.mark.parametrize("bad", [None, -1, 1.5, True, [2]])
def test_response_mask_wants_a_token_as_eos(bad):
    with pytest.raises(ValueError, match="eos_id must be a token id"):
        pt.response_mask(torch.ones(1, 2).long(), bad)


# ---------------------------------------------------------------- log-probs, values, entropy

IDS = torch.tensor([[1, 4, 0], [2, 2, 3]])


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
def test_response_log_probs_and_their_gradient(temperature):
    logits, w = random((2, 5, 6)), random((2, 3), 1)
    close(
        pt.response_log_probs(logits, IDS, temperature),
        reference.response_log_probs(logits, IDS, temperature),
    )
    slope = gradient(lambda x: pt.response_log_probs(x, IDS, temperature), logits, w)
    close(slope, reference.response_log_probs_gradient(logits, IDS, w, temperature))
    assert (slope[:, -1] == 0).all(), "the last position scores nothing"


def test_logits_one_late_would_be_noticed():
    logits, w = random((2, 5, 6)), random((2, 3), 1)
    late = lambda x: x[:, -3:].log_softmax(-1).gather(-1, IDS.unsqueeze(-1)).squeeze(-1)
    with pytest.raises(AssertionError):
        close(late(logits), reference.response_log_probs(logits, IDS), 0.1)
    with pytest.raises(AssertionError):
        close(gradient(late, logits, w), reference.response_log_probs_gradient(logits, IDS, w), 0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_scored_in_float32(dtype):
    logits = random((2, 5, 6)).to(dtype)
    found = pt.response_log_probs(logits, IDS)
    assert found.dtype == torch.float32
    close(found, reference.response_log_probs(logits.double(), IDS), 1e-6)


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.uint8])
def test_any_integer_type_names_a_token(kind):
    logits = random((2, 5, 6))
    assert torch.equal(pt.response_log_probs(logits, IDS.to(kind)), pt.response_log_probs(logits, IDS))


def test_forbidden_tokens_leave_finite_log_probs_and_gradient():
    logits = random((1, 2, 4))
    logits[..., 2] = -math.inf
    slope = gradient(lambda x: pt.response_log_probs(x, torch.tensor([[1]])), logits, torch.ones(1, 1))
    assert torch.isfinite(slope).all() and slope[0, 0, 2] == 0
    assert pt.response_log_probs(logits, torch.tensor([[2]])).item() == -math.inf


def test_the_smallest_batch_there_is():
    logits = torch.tensor([[[0.0, math.log(3.0)], [9.0, 9.0]]])
    assert pt.response_log_probs(logits, torch.tensor([[1]])).item() == pytest.approx(math.log(0.75))


@pytest.mark.parametrize(
    ("shape", "ids"), [((2, 3, 6), IDS), ((2, 2, 6), IDS), ((1, 5, 6), IDS), ((3, 5, 6), IDS)]
)
def test_log_probs_want_a_prompt_token_and_one_row_per_response(shape, ids):
    with pytest.raises(ValueError, match=rf"logits of shape \({shape[0]}, {shape[1]}, 6\).*\(2, 3\)"):
        pt.response_log_probs(torch.zeros(shape), ids)


def test_log_probs_refuse_foreign_ids_and_bad_temperatures():
    logits = torch.zeros(2, 5, 4)
    with pytest.raises(
        ValueError, match=r"response_ids must hold token ids in \[0, 4\), got ids from 0 to 4"
    ):
        pt.response_log_probs(logits, IDS)
    with pytest.raises(ValueError, match="ids from -100 to 3"):
        pt.response_log_probs(logits, IDS.clamp(max=3).masked_fill(IDS == 0, -100))
    for temperature in (0.0, -1.0, math.nan, math.inf, True, "1"):
        with pytest.raises(ValueError, match="temperature"):
            pt.response_log_probs(logits, IDS.clamp(max=3), temperature)
    for bad in ([[1.0]], torch.zeros(2, 5)):
        with pytest.raises(ValueError, match="logits must have shape"):
            pt.response_log_probs(bad, IDS)


def test_values_are_those_before_each_token():
    values = torch.arange(14.0).reshape(2, 7)
    assert pt.response_values(values, 3).tolist() == [[3.0, 4.0, 5.0], [10.0, 11.0, 12.0]]
    assert pt.response_values(values, 6).shape == (2, 6)
    for length in (0, 7, -1):
        with pytest.raises(ValueError, match="response_length must be between 1 and 6"):
            pt.response_values(values, length)
    with pytest.raises(ValueError, match=r"values must have shape \[B, P\+T\], got \(2, 7, 1\)"):
        pt.response_values(values.unsqueeze(-1), 3)


def test_entropy_and_its_gradient():
    logits, w = 3 * random((2, 3, 5)), random((2, 3), 1)
    close(pt.entropy(logits), reference.entropy(logits))
    slope = reference.entropy_gradient(logits) * w.numpy()[..., None]
    close(gradient(pt.entropy, logits, w), slope)
    cross = lambda x: (
        -(x.log_softmax(-1).exp().detach() * x.log_softmax(-1)).sum(-1)
    )  # p as a constant: the same value
    close(cross(logits), reference.entropy(logits))
    with pytest.raises(AssertionError):
        close(gradient(cross, logits, w), slope, 0.1)


def test_entropy_of_uniform_certain_and_forbidden_tokens():
    assert pt.entropy(torch.zeros(3, 7)).tolist() == pytest.approx([math.log(7)] * 3)
    assert pt.entropy(torch.tensor([0.0, 200.0, 0.0])).item() == pytest.approx(0.0, abs=1e-6)
    logits = torch.tensor([[0.0, 0.0, -math.inf], [1.0, -math.inf, -math.inf]])
    assert pt.entropy(logits).tolist() == pytest.approx([math.log(2), 0.0])
    slope = gradient(pt.entropy, logits, torch.ones(2))
    assert torch.isfinite(slope).all() and (slope[logits == -math.inf] == 0).all()
    assert pt.entropy(torch.zeros(4).bfloat16()).item() == pytest.approx(math.log(4), abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_from_log_ratio_is_accurate_for_tiny_steps(estimator):
    tiny = torch.tensor([1e-9], dtype=torch.float64)
    wanted = {"k1": 1e-9, "k2": 5e-19, "k3": 5e-19}[estimator]
    # exp(-l) - 1 + l loses every digit here; expm1 keeps the size
    assert kl_from_log_ratio(tiny, estimator).item() == pytest.approx(wanted, abs=3e-19)


# ---------------------------------------------------------------- positions, threads, dropout


def test_positions_count_real_tokens():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 0, 1, 1, 0]])
    assert position_ids(mask)[mask != 0].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2]
    assert torch.equal(position_ids(mask), position_ids(mask.bool()))


def test_single_thread_puts_the_number_back_also_after_an_error():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError), single_thread():
            assert torch.get_num_threads() == 1
            raise RuntimeError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_dropout_off_puts_each_mode_back():
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Sequential(torch.nn.Dropout(0.5)))
    model[1].eval()
    x = torch.ones(1000)
    with pytest.raises(RuntimeError), dropout_off(model, None):
        assert torch.equal(model(x), x)
        raise RuntimeError
    assert [model.training, model[0].training, model[1].training, model[1][0].training] == [
        True,
        True,
        False,
        False,
    ]
    assert not torch.equal(model(x), x)


def test_check_number_names_argument_range_and_value():
    for bad in (math.nan, math.inf, -0.1, 1.1, "0.5", None, True, torch.ones(2)):
        with pytest.raises(ValueError, match=r"gamma must be a finite number in \[0, 1\], got"):
            check_number("gamma", bad, low=0.0, high=1.0)
    for good in (0, 1, 0.5, np.float32(0.5), torch.tensor(0.5)):
        check_number("gamma", good, low=0.0, high=1.0)
