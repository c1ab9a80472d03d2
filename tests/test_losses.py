"""The terms of the objective and their gradients, against hand-worked ones in float64, and at their edges."""

import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from numeric import MASKS, as_tensor, close, gradient, mask_types, masks, random

import ppo_teach as pt

EPS = 0.2
NEW, OLD, A = -1 + 0.5 * random((3, 4)), -1 + 0.5 * random((3, 4), 1), random((3, 4), 2)
V, G, V_OLD = random((3, 4), 3), random((3, 4), 4), random((3, 4), 5)
value_clips = pytest.mark.parametrize("clip", [None, 0.2])


# ---------------------------------------------------------------- the clipped policy loss


@masks
@mask_types
@pytest.mark.parametrize("epsilon", [0.05, 0.2, 1.5])
def test_policy_loss_and_gradient_as_in_the_reference(mask, kind, epsilon):
    m = as_tensor(mask, kind)
    value, slope = reference.clipped_policy_loss(NEW, OLD, A, epsilon, mask)
    close(pt.clipped_policy_loss(NEW, OLD, A, epsilon, m), value)
    close(gradient(lambda x: pt.clipped_policy_loss(x, OLD, A, epsilon, m), NEW), slope)


@pytest.mark.parametrize("wrong", ["another epsilon", "no clip", "no mask", "max", "ratio of the wrong side"])
def test_a_wrong_policy_loss_would_be_noticed(wrong):
    mask = as_tensor(MASKS["prefixes"])
    value, slope = reference.clipped_policy_loss(NEW, OLD, A, EPS, mask)
    ratio = lambda x: (x - OLD).exp()
    function = {
        "another epsilon": lambda x: pt.clipped_policy_loss(x, OLD, A, 0.21, mask),
        "no clip": lambda x: -pt.masked_mean(ratio(x) * A, mask),
        "no mask": lambda x: pt.clipped_policy_loss(x, OLD, A, EPS),
        "max": lambda x: -pt.masked_mean(torch.max(ratio(x) * A, ratio(x).clamp(0.8, 1.2) * A), mask),
        "ratio of the wrong side": lambda x: (
            pt.clipped_policy_loss(OLD, x.detach(), A, EPS, mask) + 0 * x.sum()
        ),
    }[wrong]
    with pytest.raises(AssertionError):
        close(function(NEW), value, 1e-4)
    if wrong != "another epsilon":  # its slope differs only where it newly binds
        with pytest.raises(AssertionError):
            close(gradient(function, NEW), slope, 1e-4)


def test_the_gradient_is_zero_exactly_where_the_clip_binds():
    slope = gradient(lambda x: pt.clipped_policy_loss(x, OLD, A, EPS), NEW)
    binds = torch.tensor(reference.clip_binds(NEW, OLD, A, EPS))
    assert 2 <= binds.sum() <= 10
    assert torch.equal(slope == 0, binds)
    assert pt.clip_fraction(NEW, OLD, A, EPS).item() == pytest.approx(binds.double().mean().item(), abs=1e-15)


@pytest.mark.parametrize(("log_ratio", "advantage", "alive"), [
    (0.5, 1.0, False), (0.5, -1.0, True), (-0.5, 1.0, True), (-0.5, -1.0, False),
    (0.1, 1.0, True), (0.1, -1.0, True), (-0.1, 1.0, True), (-0.1, -1.0, True), (0.0, 1.0, True),
    (0.5, 0.0, False),
])  # fmt: skip
def test_quadrant_by_quadrant(log_ratio, advantage, alive):
    new, old, A1 = (torch.tensor([[x]], dtype=torch.float64) for x in (log_ratio, 0.0, advantage))
    slope = gradient(lambda x: pt.clipped_policy_loss(x, old, A1, EPS), new)
    close(slope, [[-math.exp(log_ratio) * advantage if alive else 0.0]])


def test_inside_the_band_it_is_the_plain_policy_gradient():
    old = NEW.clone()
    close(gradient(lambda x: pt.clipped_policy_loss(x, old, A, EPS), NEW), (-A / 12).numpy())
    close(pt.clipped_policy_loss(NEW, old, A, EPS), -A.mean().numpy())


@given(st.floats(-2, 2), st.floats(-3, 3), st.floats(0.01, 0.9))
def test_the_surrogate_never_exceeds_the_plain_one(log_ratio, advantage, epsilon):
    new, old, A1 = (torch.tensor([[x]], dtype=torch.float64) for x in (log_ratio, 0.0, advantage))
    assert -pt.clipped_policy_loss(new, old, A1, epsilon) <= math.exp(log_ratio) * advantage + 1e-12


def test_old_log_probs_and_advantages_are_constants_even_with_a_graph():
    leaves = [x.clone().requires_grad_(True) for x in (NEW, OLD, A)]
    pt.clipped_policy_loss(*(x * 1.0 for x in leaves), EPS).backward()
    assert leaves[0].grad is not None and leaves[1].grad is None and leaves[2].grad is None
    ratio = pt.probability_ratio(*leaves[:2])
    assert torch.equal(*torch.autograd.grad(ratio.sum(), leaves[0]), ratio.detach())


@pytest.mark.parametrize("hidden", [math.inf, -math.inf, math.nan, 1e30])
@pytest.mark.parametrize("name", [name for name in MASKS if name != "none"])
def test_padding_may_hold_anything(hidden, name):
    mask = as_tensor(MASKS[name])
    dirty = lambda x: torch.where(mask, x, torch.tensor(hidden).double())
    functions = [
        lambda f: pt.clipped_policy_loss(f(NEW), f(OLD), f(A), EPS, mask),
        lambda f: pt.value_loss(f(V), f(G), mask),
        lambda f: pt.value_loss(f(V), f(G), mask, f(V_OLD), 0.2),
        lambda f: pt.clip_fraction(f(NEW), f(OLD), f(A), EPS, mask),
        lambda f: pt.ratio_outside_fraction(f(NEW), f(OLD), EPS, mask),
        lambda f: pt.approx_kl(f(NEW), f(OLD), mask),
        lambda f: pt.explained_variance(f(V), f(G), mask),
    ]
    for function in functions:
        clean, spoiled = function(lambda x: x), function(dirty)
        assert torch.equal(clean, spoiled) and torch.isfinite(clean)
    for function in (
        lambda x: pt.clipped_policy_loss(x, dirty(OLD), dirty(A), EPS, mask),
        lambda x: pt.value_loss(x, dirty(G), mask),
        lambda x: pt.value_loss(x, dirty(G), mask, dirty(V_OLD), 0.2),
    ):
        slope = gradient(function, dirty(NEW))
        assert torch.isfinite(slope).all() and (slope[~mask] == 0).all()


def test_no_real_token_at_all_gives_zero_and_no_gradient():
    mask = torch.zeros(3, 4)
    for function in (
        lambda x: pt.clipped_policy_loss(x, OLD, A, EPS, mask),
        lambda x: pt.value_loss(x, G, mask),
    ):
        assert function(NEW) == 0 and (gradient(function, NEW) == 0).all()
    assert pt.clip_fraction(NEW, OLD, A, EPS, mask) == 0 and pt.explained_variance(V, G, mask) == 0


def test_a_batch_of_one_equals_the_row_in_a_batch():
    """The token mean of a batch is the token-weighted mean of its rows."""
    mask = as_tensor(MASKS["prefixes"])
    count = mask.sum(1)
    for function in (
        lambda i: pt.clipped_policy_loss(NEW[i], OLD[i], A[i], EPS, mask[i]),
        lambda i: pt.value_loss(V[i], G[i], mask[i], V_OLD[i], 0.2),
        lambda i: pt.approx_kl(NEW[i], OLD[i], mask[i]),
    ):
        rows = torch.stack([function(slice(i, i + 1)) for i in range(3)])
        close(function(slice(None)), ((rows * count).sum() / count.sum()).numpy())


# ---------------------------------------------------------------- the value loss


@masks
@value_clips
def test_value_loss_and_gradient_as_in_the_reference(mask, clip):
    m = as_tensor(mask)
    value, slope = reference.value_loss(V, G, mask, V_OLD, clip)
    close(pt.value_loss(V, G, m, V_OLD, clip), value)
    close(gradient(lambda x: pt.value_loss(x, G, m, V_OLD, clip), V), slope)


@pytest.mark.parametrize("wrong", ["another clip", "half", "no mask", "min"])
def test_a_wrong_value_loss_would_be_noticed(wrong):
    mask = as_tensor(MASKS["prefixes"])
    value, slope = reference.value_loss(V, G, mask, V_OLD, 0.2)
    near = lambda x: V_OLD + (x - V_OLD).clamp(-0.2, 0.2)
    function = {
        "another clip": lambda x: pt.value_loss(x, G, mask, V_OLD, 0.25),
        "half": lambda x: 0.5 * pt.value_loss(x, G, mask, V_OLD, 0.2),
        "no mask": lambda x: pt.value_loss(x, G, None, V_OLD, 0.2),
        "min": lambda x: pt.masked_mean(torch.min((x - G) ** 2, (near(x) - G) ** 2), mask),
    }[wrong]
    with pytest.raises(AssertionError):
        close(function(V), value, 1e-3)
    if wrong != "another clip":  # its slope differs only where it newly binds
        with pytest.raises(AssertionError):
            close(gradient(function, V), slope, 1e-3)


def test_plain_value_loss_is_the_mean_squared_error_without_a_half():
    assert pt.value_loss(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])).item() == 2.5
    close(pt.value_loss(V, G), torch.nn.functional.mse_loss(V, G).numpy())


def test_at_the_edge_of_the_value_band_the_gradient_is_whole():
    old, target = torch.tensor([[2.0]]), torch.tensor([[3.0]])
    edge = old + 0.2
    close(
        gradient(lambda x: pt.value_loss(x, target, None, old, 0.2), edge), 2 * (edge - target).numpy(), 1e-6
    )


def test_the_target_of_the_critic_is_a_constant_even_with_a_graph():
    leaves = [x.clone().requires_grad_(True) for x in (V, G, V_OLD)]
    pt.value_loss(leaves[0], leaves[1] * 1.0, None, leaves[2] * 1.0, 0.2).backward()
    assert leaves[0].grad is not None and leaves[1].grad is None and leaves[2].grad is None


# ---------------------------------------------------------------- what watches the update


@masks
@mask_types
def test_the_watching_numbers_as_in_the_reference(mask, kind):
    m = as_tensor(mask, kind)
    close(pt.clip_fraction(NEW, OLD, A, EPS, m), reference.clip_fraction(NEW, OLD, A, EPS, mask))
    close(pt.ratio_outside_fraction(NEW, OLD, EPS, m), reference.ratio_outside_fraction(NEW, OLD, EPS, mask))
    for estimator in ("k1", "k2", "k3"):
        close(pt.approx_kl(NEW, OLD, m, estimator), reference.approx_kl(NEW, OLD, mask, estimator))
    if mask != MASKS["one token"]:
        close(pt.explained_variance(V, G, m), reference.explained_variance(V, G, mask), 1e-6)


def test_the_two_fractions_are_not_the_same():
    bound, outside = pt.clip_fraction(NEW, OLD, A, EPS), pt.ratio_outside_fraction(NEW, OLD, EPS)
    assert 0 < bound < outside < 1
    with pytest.raises(AssertionError):
        close(outside, reference.clip_fraction(NEW, OLD, A, EPS), 1e-3)


def test_a_token_without_advantage_is_never_clipped():
    far = OLD + torch.tensor([-1.0, 1.0, -1.0, 1.0])
    assert pt.clip_fraction(far, OLD, torch.zeros(3, 4), EPS) == 0
    assert pt.ratio_outside_fraction(far, OLD, EPS) == 1


def test_approx_kl_has_the_direction_of_the_sampling_policy():
    """Over a whole vocabulary, k1 and k3 under the old policy give KL(old, new) exactly."""
    old, new = random((2, 6)).log_softmax(-1)
    kl = (old.exp() * (old - new)).sum().item()
    weights = old.exp()
    for estimator in ("k1", "k3"):
        each = torch.stack(
            [pt.approx_kl(new[i].view(1, 1), old[i].view(1, 1), estimator=estimator) for i in range(6)]
        )
        assert (weights * each).sum().item() == pytest.approx(kl, abs=1e-12)
        swapped = torch.stack(
            [pt.approx_kl(old[i].view(1, 1), new[i].view(1, 1), estimator=estimator) for i in range(6)]
        )
        assert (weights * swapped).sum().item() != pytest.approx(kl, abs=1e-2)


def test_before_the_first_step_everything_is_at_rest():
    assert (pt.probability_ratio(OLD, OLD) == 1).all()
    assert pt.approx_kl(OLD, OLD) == 0 and pt.clip_fraction(OLD, OLD, A, EPS) == 0
    assert pt.ratio_outside_fraction(OLD, OLD, EPS) == 0
    assert abs(pt.clipped_policy_loss(OLD, OLD, pt.masked_whiten(A), EPS)) < 1e-12


def test_explained_variance_of_known_critics():
    assert pt.explained_variance(G, G).item() == 1.0
    assert pt.explained_variance(torch.full((3, 4), 7.0), G).item() == pytest.approx(0.0, abs=1e-6)
    assert pt.explained_variance(-G, G).item() == pytest.approx(-3.0)
    assert pt.explained_variance(V, torch.full((3, 4), 0.1)).item() == 0.0  # nothing to explain
    assert pt.explained_variance(torch.ones(1, 1), torch.ones(1, 1)).item() == 0.0
    assert pt.explained_variance(G.float() + 1e6, G.float() + 1e6).item() == 1.0


def test_metrics_carry_no_gradient():
    new = NEW.clone().requires_grad_(True)
    found = [
        pt.clip_fraction(new, OLD, A, EPS),
        pt.ratio_outside_fraction(new, OLD, EPS),
        pt.approx_kl(new, OLD),
    ]
    assert not any(x.requires_grad for x in [*found, pt.explained_variance(new, G)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_stays_close(dtype):
    low = lambda x: x.to(dtype)
    size = 1e-5 if dtype == torch.float32 else 0.02
    close(
        pt.clipped_policy_loss(low(NEW), low(OLD), low(A), EPS).double(),
        reference.clipped_policy_loss(low(NEW), low(OLD), low(A), EPS)[0],
        size,
    )
    close(pt.value_loss(low(V), low(G)).double(), reference.value_loss(low(V), low(G))[0], 2 * size)
    close(pt.approx_kl(low(NEW), low(OLD)).double(), reference.approx_kl(low(NEW), low(OLD)), size)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("bad", [0.0, -0.2, math.nan, math.inf, "0.2", None, True])
def test_epsilon_is_a_positive_number(bad):
    for call in (
        lambda: pt.clipped_policy_loss(NEW, OLD, A, bad),
        lambda: pt.clip_fraction(NEW, OLD, A, bad),
        lambda: pt.ratio_outside_fraction(NEW, OLD, bad),
    ):
        with pytest.raises(ValueError, match=r"clip_epsilon must be a finite number in \(0, inf\], got"):
            call()
    if bad is not None:
        with pytest.raises(ValueError, match="value_clip_epsilon must be"):
            pt.value_loss(V, G, None, V_OLD, bad)


def test_shapes_are_never_broadcast():
    column = NEW[:, :1]
    with pytest.raises(
        ValueError, match=r"advantages has shape \(3, 1\) but log_probs_new has shape \(3, 4\)"
    ):
        pt.clipped_policy_loss(NEW, OLD, column, EPS)
    with pytest.raises(ValueError, match=r"log_probs_old has shape \(3, 1\)"):
        pt.probability_ratio(NEW, column)
    with pytest.raises(ValueError, match=r"log_probs_old has shape \(3, 1\)"):
        pt.approx_kl(NEW, column)
    with pytest.raises(ValueError, match=r"returns has shape \(4,\)"):
        pt.value_loss(V, G[0])
    with pytest.raises(ValueError, match=r"values_old has shape \(3, 1\)"):
        pt.value_loss(V, G, None, column, 0.2)
    with pytest.raises(ValueError, match=r"mask has shape \(3, 1\)"):
        pt.value_loss(V, G, torch.ones(3, 1))
    with pytest.raises(ValueError, match=r"returns has shape \(4,\)"):
        pt.explained_variance(V, G[0])
    with pytest.raises(ValueError, match="values_old must be given when value_clip_epsilon is"):
        pt.value_loss(V, G, value_clip_epsilon=0.2)
    with pytest.raises(ValueError, match="estimator must be"):
        pt.approx_kl(NEW, OLD, estimator="k9")
