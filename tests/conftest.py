"""What every test shares: one thread, no windows, reproducible property tests, the browser."""
import os
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import hypothesis  # noqa: E402
import matplotlib  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

# Not through MPLBACKEND: the notebooks' kernels would inherit it and lose their figures.
matplotlib.use("Agg")
hypothesis.settings.register_profile("course", deadline=None, derandomize=True)
hypothesis.settings.load_profile("course")


def pytest_collection_modifyitems(items):
    """Workers share by module (its fixtures are made once), the long runs of whole notebooks by notebook.

    Browser tests are skipped without a browser, except in CI, where a missing browser is a failure.
    """
    for item in items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")
        group = f"notebook {name}" if item.path.stem == "test_notebook_runs" and name else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
    if shutil.which("chromium") or os.environ.get("CI") == "true":
        return
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason="no chromium on the PATH"))


@pytest.fixture
def chromium():
    """Path of the browser."""
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("no chromium on the PATH")
    return path


@pytest.fixture
def generator():
    """A generator with a fixed seed; tests never draw from torch's global one."""
    return torch.Generator().manual_seed(0)
