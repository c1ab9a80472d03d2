"""Every explorer: each slider from end to end, each button, and what the theory says must change."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from lessons import EXPLORERS

from ppo_teach import explorers


def same(a, b):
    return np.array_equal(a, b, equal_nan=True)


@pytest.fixture(scope="module")
def opened():
    made = {name: case.build() for name, case in EXPLORERS.items()}
    yield made
    for explorer in made.values():
        explorer.close()


@pytest.fixture
def explorer(opened, request):
    opened[request.param].reset()
    return opened[request.param]


by_explorer = pytest.mark.parametrize("explorer", EXPLORERS, indirect=True)


def test_every_explorer_is_tested():
    public = {name for name in vars(explorers) if name.endswith(("_explorer", "_lab"))}
    assert public == set(EXPLORERS)


@by_explorer
def test_each_slider_moves_what_it_should_and_nothing_else(explorer):
    case = EXPLORERS[explorer.canvas.spec["name"]]
    assert set(explorer.sliders) == set(case.moves) | set(case.changes)
    for slider in explorer.canvas.sliders:
        seen, fixed, ends = [], [], []
        for place in np.linspace(0, len(slider.positions) - 1, 7).round().astype(int):
            explorer.sliders[slider.name].value = slider.positions[place]
            assert explorer.sliders[slider.name].value == slider.positions[place]
            drawn = explorer.drawn()
            assert all(np.isfinite(array).all() for name, array in drawn.items() if name not in case.gaps)
            seen.append({key: drawn[key] for key in case.moves.get(slider.name, ())})
            ends.append({key: drawn[key] for key in case.changes.get(slider.name, ())})
            fixed.append({key: drawn[key] for key in case.fixed})
        for before, after in zip(seen, seen[1:], strict=False):
            assert all(not np.allclose(before[key], after[key], atol=1e-6) for key in before)
            assert all(same(fixed[0][key], again[key]) for again in fixed for key in fixed[0])
        assert all(not np.allclose(ends[0][key], ends[-1][key], atol=1e-6) for key in ends[0])
    assert plt.get_fignums() == [] and explorer.canvas.error == ""


@by_explorer
def test_each_button_goes_where_it_says(explorer):
    start = dict(explorer.drawn())
    words = set()
    for title, button in explorer.presets.items():
        button.click()
        words.add(explorer.words)
        for slider, place in zip(explorer.canvas.sliders, explorer.canvas.presets[title], strict=True):
            assert place is None or explorer.sliders[slider.name].value == slider.positions[place]
    assert len(words) >= len(explorer.presets) - 1, "the buttons lead to different pictures"
    explorer.presets["Reset"].click()
    assert all(same(start[key], array) for key, array in explorer.drawn().items())


@by_explorer
def test_everything_drawn_is_inside_its_panel(explorer):
    canvas = explorer.canvas
    for mark in canvas.marks:
        panel = canvas.panels[mark.panel]
        for axis, (low, high) in (("x", panel.xlim), ("y", panel.ylim)):
            if axis in canvas.arrays[mark.name] and mark.kind != "line":
                array = canvas.arrays[mark.name][axis]
                array = array[np.isfinite(array)]
                if not array.size:
                    continue
                assert low <= array.min() and array.max() <= high, (mark.name, axis)
