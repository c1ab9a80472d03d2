"""The same numbers from two libraries that other people wrote, gradients included, where conventions agree.

torchrl: generalized_advantage_estimate, ClipPPOLoss. stable-baselines3: RolloutBuffer. CI must have both.
Each comparison is repeated with a setting that is slightly wrong, to see that it would fail.
"""

import importlib.util
import os

import numpy as np
import pytest
import torch
from numeric import close, random

import ppo_teach as pt

INSTALLED = {
    name: importlib.util.find_spec(name) is not None
    for name in ("torchrl", "tensordict", "stable_baselines3")
}
B, T = 32, 24
LENGTHS = torch.randint(1, T + 1, (B,), generator=torch.Generator().manual_seed(7))
RAGGED = torch.arange(T) < LENGTHS.unsqueeze(1)
FULL = torch.ones(B, T, dtype=torch.bool)
EPS = 0.2


def needs(*names):
    """Skip without the library, except in CI, where the test then fails on the import."""
    missing = not all(INSTALLED[name] for name in names) and not os.environ.get("CI")
    return pytest.mark.skipif(missing, reason=f"needs {' and '.join(names)}: pip install -e .[test]")


def exactly(number):
    """A float64 tensor: the libraries turn Python numbers into float32, which costs the last digits."""
    return torch.tensor(number, dtype=torch.float64)


def test_ci_has_both_libraries():
    if os.environ.get("CI"):
        assert all(INSTALLED.values()), INSTALLED


masks = pytest.mark.parametrize("mask", [FULL, RAGGED], ids=["full", "ragged"])
settings = pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.99, 0.9), (1.0, 1.0), (0.9, 0.0)])
REWARDS, VALUES, LAST = random((B, T)), random((B, T), 1), random((B,), 2)


# ---------------------------------------------------------------- torchrl: GAE


def torchrl_gae(gamma, lam, mask, last_value=None):
    """Advantages and targets. The last real token ends the episode; it is terminal unless it was cut off."""
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    is_last = mask & ~torch.cat([mask[:, 1:], torch.zeros(B, 1, dtype=torch.bool)], dim=1)
    after = LAST if last_value is None else last_value
    next_values = torch.where(is_last, after.unsqueeze(1), torch.cat([VALUES[:, 1:], VALUES[:, :1]], dim=1))
    terminated = is_last if last_value is None else torch.zeros_like(is_last)
    column = lambda x: x.unsqueeze(-1)
    advantages, targets = generalized_advantage_estimate(
        exactly(gamma), exactly(lam), column(VALUES), column(next_values), column(REWARDS),
        column(is_last), column(terminated),
    )  # fmt: skip
    return advantages.squeeze(-1), targets.squeeze(-1)


@needs("torchrl", "tensordict")
@masks
@settings
@pytest.mark.parametrize("last_value", [None, LAST], ids=["ended", "cut off"])
def test_gae_as_in_torchrl(mask, gamma, lam, last_value):
    ours = pt.gae(REWARDS, VALUES, gamma, lam, mask, last_value)
    for computed, wanted in zip(ours, torchrl_gae(gamma, lam, mask, last_value), strict=True):
        close(computed[mask], wanted[mask].numpy())
    if last_value is not None:
        with pytest.raises(AssertionError):
            close(
                pt.gae(REWARDS, VALUES, gamma, lam, mask)[0][mask],
                torchrl_gae(gamma, lam, mask, LAST)[0][mask].numpy(),
                1e-3,
            )


@needs("torchrl", "tensordict")
@pytest.mark.parametrize(
    "wrong",
    [dict(gamma=0.989), dict(lam=0.89), dict(mask=FULL), dict(values=VALUES.roll(1, 1))],
    ids=["gamma", "lambda", "mask", "values one late"],
)
def test_gae_that_differs_from_torchrl_is_noticed(wrong):
    arguments = dict(rewards=REWARDS, values=VALUES, gamma=0.99, lam=0.9, mask=RAGGED) | wrong
    with pytest.raises(AssertionError):
        close(pt.gae(**arguments)[0][RAGGED], torchrl_gae(0.99, 0.9, RAGGED)[0][RAGGED].numpy(), 1e-3)


# ---------------------------------------------------------------- torchrl: the losses

OLD = -1 + 0.5 * random((B, T), 3)
NEW, A = OLD + 0.3 * random((B, T), 4), random((B, T), 5)
V_NEW, TARGETS = VALUES + 0.3 * random((B, T), 6), random((B, T), 8)


def torchrl_losses(mask, epsilon=EPS, value_clip=None):
    """Policy loss, value loss (no 1/2), their gradients, and the metrics of ClipPPOLoss."""
    from tensordict import TensorDict
    from tensordict.nn import (
        ProbabilisticTensorDictModule,
        ProbabilisticTensorDictSequential,
        TensorDictModule,
    )
    from torchrl.objectives import ClipPPOLoss

    new, values = (x[mask].clone().requires_grad_(True) for x in (NEW, V_NEW))

    class Given(torch.distributions.Distribution):
        """A distribution that has the log-probabilities it is given."""

        arg_constraints, has_rsample = {}, False

        def __init__(self, log_prob):
            self.given = log_prob
            super().__init__(log_prob.shape, validate_args=False)

        def log_prob(self, action):
            return self.given

        @property
        def mode(self):
            return torch.zeros_like(self.given)

        deterministic_sample = mean = mode

        def sample(self, shape=()):
            return torch.zeros_like(self.given)

        def entropy(self):
            return torch.zeros_like(self.given)

    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(lambda index: new[index], in_keys=["index"], out_keys=["log_prob"]),
        ProbabilisticTensorDictModule(in_keys=["log_prob"], out_keys=["action"], distribution_class=Given),
    )
    critic = TensorDictModule(
        lambda index: values[index].unsqueeze(-1), in_keys=["index"], out_keys=["state_value"]
    )
    loss = ClipPPOLoss(
        actor, critic, clip_epsilon=epsilon, entropy_bonus=False, critic_coeff=1.0, loss_critic_type="l2",
        normalize_advantage=False, clip_value=value_clip, functional=False,
    )  # fmt: skip
    loss.clip_epsilon = exactly(epsilon)
    if value_clip is not None:
        loss.clip_value = exactly(value_clip)
    n = int(mask.sum())
    batch = TensorDict({
        "index": torch.arange(n), "action": torch.zeros(n).double(), "action_log_prob": OLD[mask],
        "advantage": A[mask].unsqueeze(-1), "value_target": TARGETS[mask].unsqueeze(-1),
        "state_value": VALUES[mask].unsqueeze(-1),
    }, batch_size=[n])  # fmt: skip
    found = loss(batch)
    (policy_slope,) = torch.autograd.grad(found["loss_objective"], new)
    (value_slope,) = torch.autograd.grad(found["loss_critic"], values)
    return found["loss_objective"].detach(), policy_slope, found["loss_critic"].detach(), value_slope, found


def with_slope(function, x):
    x = x.clone().requires_grad_(True)
    y = function(x)
    (slope,) = torch.autograd.grad(y, x)
    return y.detach(), slope


@needs("torchrl", "tensordict")
@masks
def test_policy_loss_and_gradient_as_in_torchrl(mask):
    value, slope, _, _, found = torchrl_losses(mask)
    ours, our_slope = with_slope(lambda x: pt.clipped_policy_loss(x, OLD, A, EPS, mask), NEW)
    close(ours, value.numpy())
    close(our_slope[mask], slope.numpy())
    assert (our_slope[~mask] == 0).all()
    # torchrl's clip_fraction counts every ratio outside the band
    close(pt.ratio_outside_fraction(NEW, OLD, EPS, mask), found["clip_fraction"].numpy(), 1e-6)
    close(pt.approx_kl(NEW, OLD, mask, "k1"), found["kl_approx"].numpy(), 1e-6)
    assert pt.clip_fraction(NEW, OLD, A, EPS, mask) < found["clip_fraction"] - 0.1


@needs("torchrl", "tensordict")
def test_a_policy_loss_that_differs_from_torchrls_is_noticed():
    value, slope, *_ = torchrl_losses(RAGGED)
    for epsilon, mask in ((0.21, RAGGED), (EPS, FULL)):
        ours, our_slope = with_slope(
            lambda x, e=epsilon, m=mask: pt.clipped_policy_loss(x, OLD, A, e, m), NEW
        )
        with pytest.raises(AssertionError):
            close(ours, value.numpy(), 1e-4)
        with pytest.raises(AssertionError):
            close(our_slope[RAGGED], slope.numpy(), 1e-5)


@needs("torchrl", "tensordict")
@masks
@pytest.mark.parametrize("value_clip", [None, 0.2])
def test_value_loss_and_gradient_as_in_torchrl(mask, value_clip):
    _, _, value, slope, _ = torchrl_losses(mask, value_clip=value_clip)
    ours, our_slope = with_slope(lambda x: pt.value_loss(x, TARGETS, mask, VALUES, value_clip), V_NEW)
    close(ours, value.numpy())
    close(our_slope[mask], slope.numpy())
    wrong = [
        dict(mask=mask, values_old=VALUES, value_clip_epsilon=0.25),
        dict(mask=~mask if mask is RAGGED else RAGGED),
    ]
    for arguments in wrong:
        ours, our_slope = with_slope(lambda x, a=arguments: pt.value_loss(x, TARGETS, **a), V_NEW)
        with pytest.raises(AssertionError):
            close(ours, value.numpy(), 1e-4)
        with pytest.raises(AssertionError):
            close(our_slope[mask], slope.numpy(), 1e-5)


# ---------------------------------------------------------------- stable-baselines3: GAE


def buffer_gae(gamma, lam, mask, last_value=None):
    """Advantages and returns of a RolloutBuffer in float64; a row is an episode."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import RolloutBuffer

    space = spaces.Box(-1, 1, (1,))
    buffer = RolloutBuffer(T, space, space, gae_lambda=lam, gamma=gamma, n_envs=B)
    buffer.rewards, buffer.values = REWARDS.T.numpy().copy(), VALUES.T.numpy().copy()
    buffer.advantages = np.zeros((T, B))
    buffer.episode_starts = np.zeros((T, B))
    buffer.episode_starts[1:] = ~mask.T.numpy()[1:]  # a padded cell belongs to an episode of its own
    after, dones = (torch.zeros(B), np.ones(B)) if last_value is None else (last_value, np.zeros(B))
    buffer.compute_returns_and_advantage(after.double(), dones)
    return buffer.advantages.T, buffer.returns.T


@needs("stable_baselines3")
@masks
@settings
def test_gae_as_in_stable_baselines3(mask, gamma, lam):
    for computed, wanted in zip(
        pt.gae(REWARDS, VALUES, gamma, lam, mask), buffer_gae(gamma, lam, mask), strict=True
    ):
        close(computed[mask], wanted[mask.numpy()])


@needs("stable_baselines3")
@settings
def test_a_truncated_row_as_in_stable_baselines3(gamma, lam):
    for computed, wanted in zip(
        pt.gae(REWARDS, VALUES, gamma, lam, None, LAST), buffer_gae(gamma, lam, FULL, LAST), strict=True
    ):
        close(computed, wanted)
    with pytest.raises(AssertionError):
        close(pt.gae(REWARDS, VALUES, gamma, lam)[0], buffer_gae(gamma, lam, FULL, LAST)[0], 1e-3)


@needs("stable_baselines3")
@pytest.mark.parametrize(
    "wrong", [dict(gamma=0.989), dict(lam=0.89), dict(mask=FULL)], ids=["gamma", "lambda", "mask"]
)
def test_gae_that_differs_from_stable_baselines3_is_noticed(wrong):
    arguments = dict(gamma=0.99, lam=0.9, mask=RAGGED) | wrong
    with pytest.raises(AssertionError):
        close(
            pt.gae(REWARDS, VALUES, **arguments)[0][RAGGED],
            buffer_gae(0.99, 0.9, RAGGED)[0][RAGGED.numpy()],
            1e-3,
        )
