"""Reward hacking, measured: the stored runs, the explorer's arrays, the signs, and the script that made them."""

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from lessons.lesson_09_reward_hacking import STORED

from ppo_teach import ReviewWorld, hacking, plots, response_mask
from ppo_teach.exact import Candidates, best_of_n_kl_bound
from ppo_teach.explorers import hacking_explorer
from ppo_teach.worlds.reward_model import LearnedRewardModel

FIGURES = Path(__file__).resolve().parents[1] / "figures"
BETAS, PAIRS = (0, 0.05, 0.1, 0.3, 1), (300, 1000, 3000)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_hacking", FIGURES / "make_hacking.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def explorer():
    made = hacking_explorer(STORED)
    yield made
    made.close()


@pytest.fixture(scope="module")
def world():
    return ReviewWorld()


@pytest.fixture(scope="module")
def model(world):
    return world.train_reward_model(300, 0.1, 0)


# ---- what is stored --------------------------------------------------------------------------------------
def test_every_place_was_measured_once_and_the_file_is_small(script):
    assert [tuple(row["place"]) for row in STORED["rows"]] == list(script.places())
    assert (FIGURES / "runs/hacking.json").stat().st_size < 600_000
    for row in STORED["rows"]:
        assert len(row["true"]) == (len(script.SIZES) if row["place"][0] == "best of n" else 40)


def end_and_best(runs):
    true = np.array([run["true"] for run in runs])
    return true[:, -1].mean(), true.mean(0).max()


@pytest.mark.parametrize("pairs", PAIRS)
def test_without_a_leash_the_truth_collapses_and_with_one_it_holds(pairs):
    grid = hacking.grid_runs(STORED)
    end, best = end_and_best(grid[0, pairs, 0.1])
    assert end < -3 and best > 1.8
    for run in grid[0, pairs, 0.1]:
        assert run["learned"][-1] > 4 and run["kl"][-1] > 80
        assert run["outside"][-1] > 0.95 and run["distinct"][-1] < 0.35
    end, best = end_and_best(grid[0.3, pairs, 0.1])
    assert best - end < 0.3 and end > 1.5


def test_best_of_n_does_not_get_far_enough_to_be_hacked():
    for row in STORED["rows"]:
        if row["place"][0] == "best of n":
            assert all(np.diff(row["learned"]) > 0) and row["true"][-1] > 2.5
            assert row["kl"][-1] == pytest.approx(math.log(512) - 511 / 512, abs=0.01)


def test_a_measurement_goes_on_where_it_was_and_repeats(script, tmp_path, capsys):
    out, bench = tmp_path / "hacking.json", script.Bench(updates=3, batch=16, samples=8)
    first, wanted = ("grid", 0.0, 300, 0.1, 0), [("grid", 0.0, 300, 0.1, 0), ("remedy", "fresh pairs", 0)]
    script.main(["--out", str(out)], [first], bench)
    before = json.loads(out.read_text())["rows"][0]
    script.main(["--out", str(out)], [*wanted, ("best of n", 8, 0), ("size", 8, 0), ("remedy", "lowest of three", 0)],
                script.Bench(updates=3, batch=16, samples=8))  # fmt: skip
    made = json.loads(out.read_text())["rows"]
    assert len(capsys.readouterr().out.splitlines()) == 5, "the first row was not measured again"
    assert made[0] == before and set(before) == set(STORED["rows"][0])
    assert sorted(before["samples"]) == ["0", "2"] and [len(row["true"]) for row in made] == [3, 3, 10, 3, 3]
    (again,) = (script.rounded(bench.measure(*first)),)
    assert json.loads(json.dumps({"place": list(first)} | again)) == before


# ---- what the explorer draws -----------------------------------------------------------------------------
def test_curves_are_the_means_of_the_seeds(explorer):
    explorer.reset()
    runs = hacking.grid_runs(STORED)[0, 3000, 0.1]
    true = np.array([run["true"] for run in runs])
    drawn = explorer.drawn()
    np.testing.assert_allclose(drawn["true"], true.mean(0))
    np.testing.assert_allclose(drawn["true_high"] - drawn["true"], true.std(0, ddof=1) / len(runs) ** 0.5, atol=1e-9)
    np.testing.assert_allclose(drawn["path_x"] ** 2, np.maximum(np.mean([run["kl"] for run in runs], axis=0), 0))
    assert len(runs) == 5 and len(hacking.grid_runs(STORED)[0, 3000, 0.3]) == 3


def test_the_stop_reads_the_curves_and_the_review(explorer):
    explorer.presets["Stopped in time"].click()
    drawn = explorer.drawn()
    assert drawn["true_at_stop"][0] == drawn["true"][6] and drawn["believed_at_stop"][0] == drawn["learned"][6]
    sample = hacking.grid_runs(STORED)[0, 3000, 0.1][0]["samples"]["6"]
    written = explorer.canvas.at_position(explorer.canvas.arrays["words"]["value"])
    assert [word for word in written if word] == sample["words"]
    np.testing.assert_allclose(drawn["adds_x"][:7], sample["scores"][:7])  # the second column has its own zero
    assert drawn["nothing"].tolist() == [0, 3.6] and len(sample["scores"]) == 7
    assert np.isnan(drawn["adds_x"][len(sample["words"]) :]).all()
    in_time = drawn["true_at_stop"][0]
    explorer.presets["No leash"].click()
    assert explorer.drawn()["true_at_stop"][0] < in_time - 4
    assert "the truth is −" in explorer.words


def test_a_tighter_leash_spends_less(explorer):
    explorer.reset()
    spent = []
    for beta in BETAS:
        explorer.sliders["kl_coef"].value = beta
        spent.append(explorer.drawn()["path_x"][-1])
    assert spent == sorted(spent, reverse=True)


def test_a_hole_in_the_grid_is_named():
    rows = [row for row in STORED["rows"] if row["place"][1:4] != [0.3, 300, 0.3]]
    with pytest.raises(ValueError, match=r"missing \(kl_coef, num_pairs, noise\): \[\(0.3, 300, 0.3\)\]"):
        hacking_explorer({**STORED, "rows": rows})


# ---- the signs, by other means ---------------------------------------------------------------------------
def test_distinct_share_counts_words_before_the_pads():
    ids = torch.tensor([[5, 5, 5, 5], [5, 6, 5, 9], [1, 2, 9, 0], [9, 0, 0, 0], [5, 5, 6, 9]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0], [0, 1, 1, 1]])
    rows = zip(ids.tolist(), mask.tolist())
    loop = [len({w for w, m in zip(row, real) if m}) / max(sum(real), 1) for row, real in rows]
    assert hacking.distinct_share(ids, mask).tolist() == pytest.approx(loop)
    with pytest.raises(ValueError, match="mask"):
        hacking.distinct_share(ids, mask[:2])


def test_word_scores_sum_to_the_score_and_are_zero_at_pads(world, model):
    x, y, _, _ = world.sample_pairs(50, seed=1)
    words, mask = model.word_scores(x, y), response_mask(y, world.eos_id, world.pad_id)
    assert torch.allclose(words.sum(1) - model.mean / model.std, model(x, y), atol=1e-5)
    assert (words[~mask] == 0).all() and (words[mask] != 0).any()


def test_a_word_is_judged_with_the_two_before_it_only(world):
    model = LearnedRewardModel(world.vocab_size, world.eos_id, world.pad_id, d_model=8, seed=1)
    x, y = world.prompts[:1], world.encode("good and great and fresh and lovely .")[None]
    other = y.clone()
    other[0, 0] = world.encode("rotten")
    same = (model.word_scores(x, y) == model.word_scores(x, other))[0].tolist()
    assert same == [False, False, False, True, True, True, True, True]


def test_signs_of_a_run(world, model, monkeypatch):
    seen = []
    monkeypatch.setattr(model, "score_range", (-0.3, 0.3))  # so narrow that scores lie on both sides of it
    run = hacking.watched_run(world, model, 0.1, num_updates=3, batch_size=32, read=(0, 2),
                              before=lambda update, trainer: seen.append((update, trainer)))  # fmt: skip
    trainer = seen[-1][1]
    assert [update for update, _ in seen] == [0, 1, 2] and sorted(run["samples"]) == [0, 2]
    assert run["kl"][0] == pytest.approx(0, abs=1e-4) and run["paid"] == pytest.approx(run["learned"], abs=1e-5)
    logged = {"kl": "kl_per_response", "length": "response_length", "entropy": "entropy", "true": "true_score"}
    for name, metric in logged.items():
        assert run[name] == pytest.approx(trainer.log.metrics[metric], abs=1e-5), name
    scores, (low, high) = trainer.rollout.scores, model.score_range
    below, above = (scores < low).sum().item(), (scores > high).sum().item()
    assert below > 0 < above and run["outside"][-1] == pytest.approx((below + above) / 32)
    review = run["samples"][2]
    assert sum(review["scores"]) - (model.mean / model.std).item() == pytest.approx(review["learned"], abs=1e-5)


def test_best_of_n_is_what_drawing_gives(world, model):
    draw = torch.Generator().manual_seed(0)
    x, stop = world.prompts[:1].repeat(40, 1), dict(eos_id=world.eos_id, pad_id=world.pad_id)
    y = world.policy().generate(x, 14, generator=draw, **stop)
    uniform = torch.full((1, 40), 1 / 40).double().log()
    got = hacking.best_of_n_scores(world, model, Candidates(x[:1], y[None], None, uniform, None), (1, 8))
    learned, true = model(x, y), world.true_score(x, y)
    picks = torch.randint(40, (20_000, 8), generator=draw)
    best = picks.gather(1, learned[picks].argmax(1, keepdim=True)).squeeze(1)
    assert got["true"] == pytest.approx([true.mean().item(), true[best].mean().item()], abs=0.04)
    assert got["learned"][1] == pytest.approx(learned[best].mean().item(), abs=0.04)
    assert got["kl"] == [0, best_of_n_kl_bound(8)]


# ---- remedies --------------------------------------------------------------------------------------------
def test_remedies_by_hand(world, model, monkeypatch):
    x, y, _, _ = world.sample_pairs(30, seed=2)
    models = [lambda x, y: y[:, 0].float(), lambda x, y: y[:, 1].float(), lambda x, y: y[:, 2].float()]
    assert torch.equal(hacking.least_of(models)(x, y), y[:, :3].float().min(1).values)
    assert torch.allclose(hacking.mean_of(models)(x, y), y[:, :3].float().mean(1))
    length = (y != world.pad_id).sum(1)
    assert torch.allclose(hacking.length_penalised(model, world, 0.5)(x, y), model(x, y) - 0.5 * length)
    monkeypatch.setattr(model, "score_range", (-0.5, 0.5))
    cut = hacking.clipped(model)(x, y)
    assert cut.min() == -0.5 and cut.max() == 0.5 and torch.equal(cut, model(x, y).clamp(-0.5, 0.5))


def test_the_stop_is_the_first_update_above_the_limit():
    assert hacking.stop_by_signs({"outside": [0.0, 0.5, 0.6, 0.1, 0.9]}) == 2
    assert hacking.stop_by_signs({"outside": [0.0, 0.5]}) is None
    assert hacking.stop_by_signs({"outside": [0.0, 0.2]}, limit=0.1) == 1


# ---- pictures --------------------------------------------------------------------------------------------
def test_belief_and_truth_writes_each_word_and_marks_its_update():
    sample = {"words": ["very", "good"], "scores": [-0.2, 0.4], "learned": 1.0, "true": -2.0}
    figure = plots.plot_belief_and_truth({"learned": [0, 1, 2], "true": [0, 1, -2], "samples": {0: sample, 2: sample}},
                                         title="T")  # fmt: skip
    texts = [text.get_text() for text in figure.texts]
    assert [t for t in texts if t in ("0", "2")] == ["0", "2"] and texts.count("very") == 2 and texts.count("−2.0") == 2
    styles = {text.get_text(): text.get_style() for text in figure.texts}
    assert styles["very"] == "italic" and styles["good"] == "normal"


def test_over_distance_has_an_error_bar_a_point_and_refuses_other_lengths():
    line = ([0, 1, 2], [0, 1, -1], [0.1, 0.2, 0.3], "black")
    figure = plots.plot_over_distance({"A": {"true": line}, "B": {"true": ([0, 9], [0, 5], [0, 1], "score")}}, title="T")
    bars = figure.axes[0].containers[0]
    heights = [segment[1, 1] - segment[0, 1] for segment in bars[2][0].get_segments()]
    assert heights == pytest.approx([0.2, 0.4, 0.6]) and figure.axes[0].axis() == figure.axes[1].axis()
    with pytest.raises(ValueError, match="A, true: x, y and error must have one length"):
        plots.plot_over_distance({"A": {"true": ([0], [0, 1], [0, 1], "black")}}, title="T")
