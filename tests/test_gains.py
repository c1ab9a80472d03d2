"""How close PPO comes to the optimum: the stored measurements, and one of them in short form again."""

import importlib.util
import json
import statistics
from pathlib import Path

import pytest

from ppo_teach import ChainWorld, make_reference
from ppo_teach.exact import find_candidates

FIGURES = Path(__file__).parents[1] / "figures"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_ablations", FIGURES / "make_ablations.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shares(world, kl_coef):
    rows = json.loads((FIGURES / "runs" / f"gain_{world}.json").read_text())
    return [row for row in rows if row["name"] == f"kl_coef {kl_coef}"]


@pytest.mark.parametrize("kl_coef", [0.1, 0.2, 0.3, 0.5, 1.0])
def test_stored_runs_on_chainworld_reach_98_percent(kl_coef):
    rows = shares("chain", kl_coef)
    assert sorted(row["seed"] for row in rows) == [0, 1, 2, 3, 4]
    assert 0.98 <= statistics.mean(row["share"] for row in rows) <= 1.0


@pytest.mark.parametrize("kl_coef", [0.3, 0.5])
def test_stored_runs_on_reviewworld_reach_97_percent_within_30_seconds(kl_coef):
    rows = shares("review", kl_coef)
    assert sorted(row["seed"] for row in rows) == [0, 1, 2, 3, 4]
    assert 0.97 <= statistics.mean(row["share"] for row in rows) <= 1.0
    assert statistics.mean(row["seconds"] for row in rows) <= 30


def test_a_quarter_of_the_recipe_is_well_on_its_way(script):
    world = ChainWorld()
    reference = make_reference(world.policy())
    settings = script.RECIPE | dict(num_updates=16, kl_coef=0.3)
    row = script.measure(world, reference, find_candidates(world, reference), settings, seed=0)
    untrained = script.measure(
        world, reference, find_candidates(world, reference), settings | dict(num_updates=1, learning_rate=1e-9), seed=0
    )
    assert row["share"] > 0.85
    assert abs(untrained["share"]) < 0.01, "the measure gives nothing to the reference"
