"""The trainer's Adam against PyTorch's, and what it is for: no compiler is imported."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ppo_teach.train import Adam

ROOT = Path(__file__).resolve().parents[1]


def parameters(generator):
    return [torch.randn(size, generator=generator).requires_grad_() for size in ((5, 3), (3,), ())]


def give_gradients(step, *lists):
    """The same gradients for every list; the last parameter has none in the first two steps."""
    generator = torch.Generator().manual_seed(step)
    for i, twins in enumerate(zip(*lists, strict=True)):
        gradient = torch.randn(twins[0].shape, generator=generator)
        for parameter in twins:
            parameter.grad = None if i == 2 and step < 2 else gradient.clone()


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_adam_is_pytorchs_adam(generator, eps):
    ours = parameters(generator)
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    frozen = ours[2].detach().clone()
    adam, reference = Adam(iter(ours), lr=0.1, eps=eps), torch.optim.Adam(theirs, lr=0.1, eps=eps)
    for step in range(5):
        for optimizer in (adam, reference):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        give_gradients(step, ours, theirs)
        adam.step()
        reference.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
        assert torch.equal(ours[2], frozen) == (step < 2)
    saved, expected = adam.state_dict(), reference.state_dict()
    assert saved["state"].keys() == expected["state"].keys() and saved["param_groups"][0]["params"] == [0, 1, 2]
    for i, moments in expected["state"].items():
        torch.testing.assert_close(saved["state"][i], moments, rtol=1e-6, atol=1e-7)
    adam.zero_grad()
    assert all(p.grad is None for p in ours)


def test_adam_goes_on_from_its_state(generator):
    first = parameters(generator)
    adam = Adam(first, lr=0.1, eps=1e-8)
    for step in range(3):
        give_gradients(step, first)
        adam.step()
    second = [p.detach().clone().requires_grad_() for p in first]
    copied = {i: {name: x.clone() for name, x in moments.items()} for i, moments in adam.state_dict()["state"].items()}
    resumed = Adam(second, lr=7.0, eps=7.0)
    resumed.load_state_dict(adam.state_dict() | {"state": copied})
    fresh = [p.detach().clone().requires_grad_() for p in first]
    forgetful = Adam(fresh, lr=0.1, eps=1e-8)
    give_gradients(3, first, second, fresh)
    for optimizer in (adam, resumed, forgetful):
        optimizer.step()
    assert all(map(torch.equal, first, second)) and not any(map(torch.equal, first, fresh))


def test_training_does_not_import_pytorchs_compiler():
    code = (
        "import sys; from ppo_teach import ChainWorld, PPOConfig, train_ppo\n"
        "train_ppo(ChainWorld(), PPOConfig(), num_updates=1, batch_size=4)\n"
        "assert 'torch._dynamo' not in sys.modules; print('lean')"
    )
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert child.stdout.strip() == "lean", child.stderr
