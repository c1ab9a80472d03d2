"""Tensors, masks and comparisons that the numeric tests share."""

import numpy as np
import pytest
import torch

MASKS = {
    "none": None,
    "prefixes": [[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]],
    "holes": [[1, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0]],
    "an empty row": [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]],
    "one token": [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]],
}
masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
mask_types = pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.uint8, torch.float32])


def as_tensor(mask, kind=torch.bool):
    return None if mask is None else torch.tensor(mask).to(kind)


def random(shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradient(function, x, weights=None):
    """Gradient of function(x), or of Σ weights · function(x)."""
    x = x.clone().requires_grad_(True)
    y = function(x)
    (y if weights is None else (y * weights).sum()).backward()
    return x.grad


def close(actual, expected, tolerance=1e-12):
    """Assert that no element differs by more than the tolerance; NaN never agrees with a number."""
    actual = actual.detach().numpy() if isinstance(actual, torch.Tensor) else actual
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)
