"""Notebook 09's exercises: right answers of other kinds are accepted, each wrong one is told what it did."""

import numpy as np
import pytest
import torch
from lessons.lesson_09_reward_hacking import STORED

from ppo_teach import ReviewWorld, exercises, hacking
from ppo_teach.exercises import check_leash_and_stop, check_own_reward, check_stop_by_signs
from ppo_teach.exercises import hacking as lesson

WORLD = ReviewWorld()
GREAT = WORLD.encode("great").item()


# ---- 9.1 -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("choice", [(0.1, 30), (0.1, 39), [0.1, 25], (0.1, np.int64(30)), (0.05, 12), (0.0, 8)])
def test_good_choices_are_accepted(choice):
    assert check_leash_and_stop(choice, STORED).ok


@pytest.mark.parametrize(
    ("choice", "mistake"),
    [((0, 39), "too_late"), ((0, 20), "too_late"), ((0.05, 39), "too_late"), ((0.1, 2), "too_early"),
     ((0, 1), "too_early"), ((1, 30), "too_tight"), ((0.3, 30), "too_tight"),
     ((0.2, 10), "not_measured"), ((0.1, 40), "not_an_update"), (([0.1], 4), "not_measured"),
     (("a", 4), "not_measured"), ((0.1, 1.5), "not_an_update"),
     ((0.1, True), "not_an_update"), (0.1, "not_a_pair"), ((0.1,), "not_a_pair"), ("0.1, 30", "not_a_pair")],
)  # fmt: skip
def test_each_wrong_choice_is_told_which_way(choice, mistake):
    verdict = check_leash_and_stop(choice, STORED)
    assert (verdict.ok, verdict.attempted, verdict.mistake) == (False, True, mistake)
    assert verdict.message.count("?") <= 2


def toy(curves):
    """A stored file with one run a beta."""
    rows = [{"place": ["grid", beta, 1000, 0.3, 0], "true": true} for beta, true in curves.items()]
    return {"updates": 4, "rows": rows}


def test_a_looser_leash_than_the_best_is_told():
    measured = toy({0.0: [1.0, 1.0, 1.0, 0.0, -3.0], 0.1: [0.0, 1.0, 2.0, 2.0, 2.0]})
    assert check_leash_and_stop((0.0, 1), measured).mistake == "too_loose"
    assert "1.00 below the best" in check_leash_and_stop((0.0, 1), measured).message
    assert check_leash_and_stop((0.1, 3), measured).ok and not check_leash_and_stop((0.1, 0), measured).ok


# ---- 9.2 -------------------------------------------------------------------------------------------------
def in_a_loop(signs):
    for update in range(len(signs["outside"])):
        if signs["outside"][update] > 0.6:
            return update
    return len(signs["outside"]) - 1


def by_kl_and_words(signs):
    return next((t for t, (k, d) in enumerate(zip(signs["kl"], signs["distinct"])) if k > 15 and d < 0.85), None)


@pytest.mark.parametrize("fn", [hacking.stop_by_signs, in_a_loop, by_kl_and_words])
def test_watchdogs_of_several_kinds_are_accepted(fn):
    verdict = check_stop_by_signs(fn, STORED)
    assert verdict.ok, verdict.message
    assert "8 logs" in verdict.message


def raises(signs):
    return signs["kl"][100]


WRONG = {
    "reads_the_truth": (lambda signs: signs["true"].index(max(signs["true"])), "not_a_sign"),
    "at_the_highest_learned": (lambda signs: signs["learned"].index(max(signs["learned"])), "late"),
    "when_words_are_gone": (lambda signs: next((t for t, d in enumerate(signs["distinct"]) if d < 0.3), None), "late"),
    "outside_all": (lambda signs: next((t for t, s in enumerate(signs["outside"]) if s == 1), None), "late"),
    "half_way": (lambda signs: 20, "late"),
    "at_once": (lambda signs: 0, "early"),
    "any_kl": (lambda signs: next(t for t, k in enumerate(signs["kl"]) if k > 0.1), "early"),
    "always_eight": (lambda signs: 8, "false_alarm"),
    "any_longer": (lambda signs: next((t for t, n in enumerate(signs["length"]) if n > 6 and t > 2), 6), None),
    "a_list": (lambda signs: signs["outside"], "not_an_update"),
    "a_float": (lambda signs: 8.0, "not_an_update"),
    "beyond": (lambda signs: 40, "not_an_update"),
    "negative": (lambda signs: -1, "not_an_update"),
    "raises": (raises, "exception"),
    "a_number": (7, "not_a_function"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_watchdog_is_told_what_it_did(name):
    fn, mistake = WRONG[name]
    verdict = check_stop_by_signs(fn, STORED)
    assert (verdict.ok, verdict.attempted) == (False, True)
    assert verdict.mistake == mistake or mistake is None


def test_an_endless_watchdog_is_cut_off(monkeypatch):
    monkeypatch.setattr("ppo_teach.checker.TIME_LIMIT", 0.1)

    def endless(signs):
        while True:
            signs = dict(signs)

    assert check_stop_by_signs(endless, STORED).mistake == "endless"


def test_the_watchdog_cannot_spoil_the_stored_runs():
    def vandal(signs):
        signs["outside"].clear()
        return 8

    check_stop_by_signs(vandal, STORED)
    assert check_stop_by_signs(hacking.stop_by_signs, STORED).ok


def test_the_logs_hold_hacked_and_healthy_runs():
    grid, healthy = hacking.grid_runs(STORED), []
    for *place, seed in lesson.LOGS:
        true = lesson.smoothed(grid[tuple(place)][seed]["true"])
        healthy.append(bool(true[-1] > true.max() - lesson.HEALTHY))
    assert 3 <= sum(healthy) <= 5 and len(healthy) == 8


def test_smoothing_keeps_a_line_and_the_length():
    assert lesson.smoothed([0.0, 3.0, 0.0]).tolist() == pytest.approx([1, 1, 1])
    assert lesson.smoothed([2.0] * 5).tolist() == pytest.approx([2] * 5)


# ---- 9.3 -------------------------------------------------------------------------------------------------
def counts_great(prompt_ids, response_ids):
    return (response_ids == GREAT).sum(1)  # integers are fine


def in_python(prompt_ids, response_ids):
    return [float(GREAT in row) - 0.1 * len(row) for row in response_ids.tolist()]


@pytest.mark.parametrize("prediction", ["repetition", "longer"])
def test_a_hack_that_was_foreseen(prediction):
    verdict = check_own_reward(counts_great, prediction, num_updates=15)
    assert verdict.ok and f"As you predicted: {prediction}" in verdict.message


def test_a_surprise_names_what_happened():
    verdict = check_own_reward(lambda x, y: -(y != WORLD.pad_id).sum(1).float(), "longer", num_updates=10)
    assert verdict.mistake == "surprised" and "it became: shorter" in verdict.message
    assert "length 7." in verdict.message and "The last review" in verdict.message


def test_a_list_of_numbers_is_a_reward_too():
    assert check_own_reward(in_python, "shorter", num_updates=2).mistake in ("surprised", "not_learned")


@pytest.mark.parametrize(
    ("reward", "mistake"),
    [(lambda x, y: torch.zeros(len(x)), "not_learned"), (lambda x, y: y.float(), "not_scores"),
     (lambda x, y: torch.full((len(x),), float("nan")), "not_scores"), (lambda x: x, "exception"),
     (3, "exception"), (lambda x, y: "good", "exception")],
)  # fmt: skip
def test_what_is_no_reward_is_told(reward, mistake):
    assert check_own_reward(reward, "longer", num_updates=2).mistake == mistake


def test_a_reward_that_fails_in_training_is_told():
    verdict = check_own_reward(lambda x, y: torch.zeros(8), "longer", num_updates=2)
    assert verdict.mistake == "exception" and "in update 0, on 64 reviews" in verdict.message


@pytest.mark.parametrize("prediction", ["boredom", ["longer"], None])
def test_an_unknown_prediction_lists_the_known_ones(prediction):
    verdict = check_own_reward(counts_great, prediction)
    assert verdict.mistake == "not_a_prediction" and "repetition" in verdict.message


# ---- all three -------------------------------------------------------------------------------------------
def stub(*arguments): ...


def test_untouched():
    for nothing in (..., None):
        assert not check_leash_and_stop(nothing, STORED).attempted
        assert not check_stop_by_signs(nothing, STORED).attempted
        assert not check_own_reward(nothing, "longer").attempted
    assert not check_stop_by_signs(stub, STORED).attempted and not check_own_reward(stub, "longer").attempted
    assert {"leash_and_stop", "stop_by_signs", "own_reward"} <= set(exercises.TASKS)
