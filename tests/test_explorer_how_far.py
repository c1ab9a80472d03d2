"""The frontier explorer of notebook 04 against the oracle, and the figure of the same plane."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from lessons.lesson_04_how_far import RECIPE, RUNS

from ppo_teach import explorers, plots
from ppo_teach.exact import find_candidates, optimal_policy
from ppo_teach.models import make_reference
from ppo_teach.worlds import ChainWorld


@pytest.fixture(scope="module")
def explorer():
    made = explorers.frontier_explorer(measured={"PPO": RUNS, "recipe": RECIPE})
    yield made
    made.close()


@pytest.fixture(scope="module")
def oracle():
    world = ChainWorld()
    reference = make_reference(world.policy())
    return world, reference, find_candidates(world, reference)


@pytest.mark.parametrize("beta", [0.02, 0.1, 0.65, 2.0, 10.0])
def test_the_point_is_the_optimum_and_its_line_touches_the_frontier(explorer, oracle, beta):
    explorer.sliders["kl_coef"].value = beta
    drawn, best = explorer.drawn(), optimal_policy(*oracle[:2], beta, candidates=oracle[2])
    assert drawn["optimum_x"][0] == pytest.approx(best.kl)
    assert drawn["optimum"][0] == pytest.approx(best.reward)
    assert drawn["objective"][0] == pytest.approx(best.reward - beta * best.kl)
    line = np.interp(drawn["frontier_x"], drawn["equally_good_x"], drawn["equally_good"])
    gap = line - drawn["frontier"]
    assert gap.min() >= -1e-9 and gap.min() < 0.02, "above the frontier, except where it touches"
    slope = np.diff(drawn["equally_good"]) / np.diff(drawn["equally_good_x"])
    assert slope == pytest.approx(beta)


def test_no_measured_run_beats_the_frontier(explorer):
    drawn = explorer.drawn()
    order = np.argsort(drawn["frontier_x"])
    assert len(drawn["ppo"]) == len(RUNS) == 21 and len(drawn["ppo_2"]) == len(RECIPE) == 25
    for name in ("ppo", "ppo_2"):
        possible = np.interp(drawn[f"{name}_x"], drawn["frontier_x"][order], drawn["frontier"][order])
        assert (drawn[name] <= possible + 1e-3).all()


def test_the_stored_runs_agree_with_the_oracle(oracle):
    """Their share follows from reward, KL and the exact optimum."""
    world, reference, found = oracle
    start = float((found.log_weights.exp() * found.scores).sum(1).mean())
    for run in RUNS:
        best = optimal_policy(world, reference, run["kl_coef"], candidates=found).objective
        share = (run["reward"] - run["kl_coef"] * run["kl"] - start) / (best - start)
        assert share == pytest.approx(run["share"], abs=2e-3)


def test_bars_tilt_from_the_reference_to_the_best_answer(explorer):
    explorer.sliders["kl_coef"].value = 10
    drawn = explorer.drawn()
    np.testing.assert_allclose(drawn["optimum_probability"], drawn["reference_probability"], atol=0.04)
    explorer.sliders["kl_coef"].value = 0.02
    drawn = explorer.drawn()
    assert drawn["scores"].argmax() == drawn["optimum_probability"].argmax() == len(drawn["scores"]) - 1
    assert drawn["optimum_probability"].max() > 0.99 and drawn["kinds"][0] < 1.1 and drawn["share"][0] > 99


def test_the_words_name_the_numbers_drawn(explorer):
    explorer.sliders["kl_coef"].value = 0.5
    assert "At β = 0.5, π* earns 1.99 for 2.69 nats: worth 0.64 after the bill, 86%" in explorer.words


def test_without_runs_no_dots_and_another_start(oracle):
    explorer = explorers.frontier_explorer(*oracle[:2], candidates=oracle[2], prompt=0, kl_coef=1)
    assert "ppo" not in explorer.drawn() and "'a'" in explorer.words
    assert explorer.sliders["kl_coef"].value == 1
    explorer.close()


# ---- the figure of the same plane ------------------------------------------------------------------------
def test_plot_plane_draws_lines_and_points_as_given():
    best, runs = {"best": ([0, 1, 2], [0, 3, 4], "black")}, {"PPO": ([1], [2], "policy")}
    figure = plots.plot_plane(best, runs, title="T")
    line, dots = figure.axes[0].lines
    np.testing.assert_array_equal(line.get_xydata(), [[0, 0], [1, 3], [2, 4]])
    np.testing.assert_array_equal(dots.get_xydata(), [[1, 2]])
    assert dots.get_linestyle() == "None" and dots.get_marker() == "o" and plt.get_fignums() == []
    (label,) = [text for text in figure.axes[0].texts if text.get_text() == "best"]
    assert label.xy[1] == pytest.approx(figure.axes[0].transLimits.transform((2, 4))[1])


def test_plot_plane_refuses_what_does_not_fit_together():
    with pytest.raises(ValueError, match="best: kl and reward must have the same length, got 2 and 1"):
        plots.plot_plane({"best": ([0, 1], [0], "black")}, title="T")
