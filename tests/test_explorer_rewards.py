"""The reward-model explorer of notebook 02: its stored runs, what they show, that they can be made again."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from lessons.lesson_02_rewards import MODELS

from ppo_teach import ReviewWorld, plots
from ppo_teach.explorers import reward_model_explorer

FIGURES = Path(__file__).parents[1] / "figures"
SIZES, NOISES = (30, 100, 300, 1000, 3000), (0.0, 0.1, 0.2, 0.3, 0.4)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_reward_models", FIGURES / "make_reward_models.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def explorer():
    made = reward_model_explorer(MODELS)
    yield made
    made.close()


def test_every_place_was_measured_three_times_and_the_file_is_small():
    places = [(row["num_pairs"], row["noise"], row["seed"]) for row in MODELS["rows"]]
    assert sorted(places) == sorted((n, noise, seed) for n in SIZES for noise in NOISES for seed in (0, 1, 2))
    assert (FIGURES / "runs/reward_models.json").stat().st_size < 200_000


def test_more_pairs_are_better_and_noise_is_worse(explorer):
    def seen(num_pairs, noise):
        explorer.sliders["num_pairs"].value, explorer.sliders["noise"].value = num_pairs, noise
        drawn = explorer.drawn()
        return np.array([drawn["correlation"][0], drawn["accuracy"][0]])

    for noise in NOISES:
        assert (seen(3000, noise) > seen(300, noise)).all() and (seen(300, noise) > seen(30, noise)).all()
    for num_pairs in SIZES:
        assert (seen(num_pairs, 0.0) > seen(num_pairs, 0.4)).all()


def test_the_words_are_the_mean_of_three_models_and_the_picture_is_the_first(explorer):
    drawn = explorer.drawn()
    rows = [row for row in MODELS["rows"] if (row["num_pairs"], row["noise"]) == (300, 0.1)]
    assert drawn["correlation"][0] == pytest.approx(np.mean([row["correlation"] for row in rows]))
    assert drawn["accuracy"][0] == pytest.approx(100 * np.mean([row["accuracy"] for row in rows]))
    np.testing.assert_array_equal(drawn["reviews"], rows[0]["learned"])
    np.testing.assert_array_equal(drawn["reviews_x"], MODELS["true"])
    np.testing.assert_allclose(drawn["bradley_terry"], 1 / (1 + np.exp(-drawn["bradley_terry_x"])))
    assert f"the true ones is {drawn['correlation'][0]:.2f}." in explorer.words


def test_many_pairs_bring_the_dots_onto_the_curve(explorer):
    explorer.presets["Many careful raters"].click()
    drawn = explorer.drawn()
    curve = np.interp(drawn["raters_x"], drawn["bradley_terry_x"], drawn["bradley_terry"])
    assert abs(drawn["raters"] - curve).max() < 0.08
    assert np.corrcoef(drawn["reviews_x"], drawn["reviews"])[0, 1] > 0.95
    reach = drawn["raters_x"].max()
    explorer.presets["Many careless raters"].click()
    assert explorer.drawn()["raters_x"].max() < 0.6 * reach, "less certain raters, smaller differences"


def test_a_hole_in_the_grid_is_named():
    rows = [row for row in MODELS["rows"] if (row["num_pairs"], row["noise"], row["seed"]) != (300, 0.2, 0)]
    with pytest.raises(ValueError, match=r"missing \(pairs, noise\): \[\(300, 0.2\)\]"):
        reward_model_explorer({**MODELS, "rows": rows})


def test_a_stopped_measurement_goes_on_and_gives_the_stored_numbers(script, tmp_path, capsys):
    out, first, second = tmp_path / "models.json", (30, 0.0, 0), (30, 0.4, 1)
    script.main(["--out", str(out)], grid=[first])
    script.main(["--out", str(out)], grid=[first, second])
    made = json.loads(out.read_text())
    assert len(capsys.readouterr().out.splitlines()) == 2, "the first row was not measured again"
    for row, place in zip(made["rows"], (first, second), strict=True):
        (stored,) = [r for r in MODELS["rows"] if (r["num_pairs"], r["noise"], r["seed"]) == place]
        assert stored.keys() == row.keys()
        for key in row:
            assert row[key] == pytest.approx(stored[key], abs=0.01), key
    assert made["true"] == pytest.approx(MODELS["true"], abs=1e-3)


def test_the_stored_true_scores_are_those_of_the_held_out_reviews():
    world = ReviewWorld()
    prompt_ids, first, _, _ = world.sample_pairs(4000, 0.0, seed=900)
    assert torch.allclose(world.true_score(prompt_ids, first)[:150], torch.tensor(MODELS["true"]), atol=1e-3)


# ---- the figure of the scores ----------------------------------------------------------------------------
def test_histograms_count_every_value_and_mark_the_means():
    groups = {"low": ([-2.0, -1.0, -1.0, 0.8], "score"), "high": ([1.0, 2.0], "black")}
    ax = plots.plot_histograms(groups, title="T", xlabel="raw score", bins=4).axes[0]
    outlines = [patch.get_xy() for patch in ax.patches]
    assert [outline[:, 1].max() for outline in outlines] == [2, 2], "bins of width 1, the last one closed"
    assert outlines[0][:, 0].min() == -2 and outlines[0][:, 0].max() == 2
    assert [line.get_xdata()[0] for line in ax.lines] == pytest.approx([-0.8, 1.5])
    assert ax.lines[0].get_linestyle() != ax.lines[1].get_linestyle()
    texts = {text.get_text(): text.get_ha() for text in ax.texts}
    assert texts == {"low\nmean −0.80": "right", "high\nmean 1.50": "left"}


def test_a_histogram_of_nothing_is_refused():
    with pytest.raises(ValueError, match="empty must be a non-empty list"):
        plots.plot_histograms({"empty": ([], "score")}, title="T", xlabel="x")
