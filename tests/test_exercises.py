"""The checkers: each planted mistake gets its own message, every right variant passes, nothing hangs."""

import math
import re
import sys
import time

import numpy as np
import pytest
import torch

from ppo_teach import checker, exercises
from ppo_teach.checker import Exercise, Mistake, Verdict, check
from ppo_teach.exercises import TASKS, check_optimal_policy, check_soft_values, hint, solution

EXERCISES = {name: task for name, task in TASKS.items() if isinstance(task, Exercise)}

PLANTED = [(name, key) for name, exercise in EXERCISES.items() for key in exercise.mistakes]
EACH = pytest.mark.parametrize("name", EXERCISES)


# ---- every planted mistake -------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "key"), PLANTED, ids=[f"{n}-{k}" for n, k in PLANTED])
def test_a_planted_mistake_is_named_and_no_other(name, key):
    exercise = EXERCISES[name]
    verdict = check(exercise, exercise.mistakes[key].wrong)
    assert (verdict.ok, verdict.attempted, verdict.mistake) == (False, True, key)
    assert verdict.message.splitlines()[1] == exercise.mistakes[key].question
    assert re.search(r"-?\d+\.\d{3}|-inf" + r"|\d" * exercise.integers, verdict.message), "the number that was seen"


@EACH
def test_messages_differ_and_ask_one_question_without_the_answer(name):
    mistakes = EXERCISES[name].mistakes.values()
    assert len({mistake.seen for mistake in mistakes}) == len(EXERCISES[name].mistakes) >= 10
    for mistake in mistakes:
        assert mistake.question.count("?") in (1, 2) and mistake.question.endswith("?")
        assert "{place}" in mistake.seen and "{yours}" in mistake.seen
        assert not re.search(r"logsumexp|log_softmax|keepdim", mistake.seen + mistake.question)


@EACH
def test_the_solution_is_accepted(name):
    verdict = check(EXERCISES[name], EXERCISES[name].solution)
    assert verdict.ok and verdict.mistake is None and "right" in repr(verdict)


# ---- answers that are no tensor of the right form --------------------------------------------------------
def untouched(log_probs_ref, scores, beta):
    ...


def half_done(log_probs_ref, scores, beta):
    tilted = ...
    return tilted


def not_implemented(log_probs_ref, scores, beta):
    raise NotImplementedError


@pytest.mark.parametrize("fn", [..., None, untouched, half_done, not_implemented])
def test_an_untouched_stub_is_not_an_error(fn):
    verdict = check_optimal_policy(fn)
    assert (verdict.ok, verdict.attempted, verdict.mistake) == (False, False, None)
    assert repr(verdict) == "Exercise 4.1: not attempted yet"


def naive(log_probs_ref, scores, beta):
    weights = log_probs_ref.exp() * (scores / beta).exp()
    return (weights / weights.sum(-1, keepdim=True)).log()


def in_place(log_probs_ref, scores, beta):
    scores /= beta
    return (log_probs_ref + scores).log_softmax(-1)


def raises(log_probs_ref, scores, beta):
    tilted = log_probs_ref + scores / beta
    return torch.cat(tilted, tilted)  # the student's own line


def endless(log_probs_ref, scores, beta):
    while True:
        try:
            scores = scores + 0
        except Exception:
            pass


def endless_on_one_line(log_probs_ref, scores, beta):
    while True: pass  # noqa: E701


FORMS = {
    "not_a_function": (0.5, "float"),
    "signature": (lambda log_probs_ref, scores: scores, "3 arguments: log_probs_ref, scores, beta"),
    "wrong_type": (lambda ref, R, b: "later", "a str"),
    "wrong_shape": (lambda ref, R, b: (ref + R / b).logsumexp(-1), "shape [1]"),
    "wrong_dtype": (lambda ref, R, b: (ref + R / b).log_softmax(-1).long(), "torch.int64"),
    "nothing": (lambda ref, R, b: (ref + R / b).log_softmax(-1) if len(R) == 1 else None, "'two prompts'"),
    "not_finite": (naive, "scores of 900"),
    "in_place": (in_place, "`scores`"),
    "exception": (raises, "`return torch.cat(tilted, tilted)  # the student's own line`"),
    "unknown": (lambda ref, R, b: (ref + R / b).log_softmax(-1) + 0.01 * R**2, "too high"),
}


@pytest.mark.parametrize("key", FORMS)
def test_each_form_of_trouble_has_its_message(key):
    fn, said = FORMS[key]
    verdict = check_optimal_policy(fn)
    assert (verdict.ok, verdict.attempted, verdict.mistake) == (False, True, key)
    assert said in verdict.message
    assert "checker" not in verdict.message and not re.search(r"/\w+/", verdict.message)


def test_an_overflow_does_not_hide_a_known_mistake():
    """Not in log space and without its normaliser: the second is what to say first."""
    verdict = check_optimal_policy(lambda ref, R, b: (ref.exp() * (R / b).exp()).log())
    assert verdict.mistake == "not_normalised"


def test_a_gradient_left_on_the_result_is_seen():
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    verdict = check_optimal_policy(lambda ref, R, b: (ref + R / b).log_softmax(-1) * weight)
    assert verdict.mistake == "attached"


@pytest.mark.parametrize("endless", [endless, endless_on_one_line])
def test_an_endless_loop_is_cut_off(endless, monkeypatch):
    monkeypatch.setattr(checker, "TIME_LIMIT", 0.2)
    start, trace = time.monotonic(), sys.gettrace()
    verdict = check_optimal_policy(endless)
    assert verdict.mistake == "endless"
    assert "0.2 seconds" in verdict.message and "your line" in verdict.message
    assert time.monotonic() - start < 3 and sys.gettrace() is trace


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.int64])
def test_a_dtype_that_loses_the_numbers_is_named(dtype):
    verdict = check_optimal_policy(lambda ref, R, b: (ref + R / b).log_softmax(-1).to(dtype))
    assert verdict.mistake == "wrong_dtype" and str(dtype) in verdict.message


def test_what_the_student_prints_appears_once(capsys):
    def talking(log_probs_ref, scores, beta):
        print("shape", list(scores.shape))
        return (log_probs_ref + scores / beta).log_softmax(-1)

    assert check_optimal_policy(talking).ok
    assert capsys.readouterr().out == "shape [1, 3]\n"


def test_an_interrupt_is_not_swallowed():
    def interrupted(log_probs_ref, scores, beta):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_optimal_policy(interrupted)


# ---- what is displayed -----------------------------------------------------------------------------------
def test_student_text_is_escaped():
    def attack(log_probs_ref, scores, beta):
        raise ValueError("<img src=x onerror=alert(1)>")

    data, _ = check_optimal_policy(attack)._repr_mimebundle_()
    assert "<img" not in data["text/html"] and "&lt;img" in data["text/html"] and "<img" in data["text/plain"]


def test_a_verdict_reads_the_same_in_every_run():
    wrong = EXERCISES["soft_values"].mistakes["max"].wrong
    first, second = (check_soft_values(wrong)._repr_mimebundle_()[0] for _ in range(2))
    assert first == second and "0x" not in repr(first)


@EACH
def test_the_arguments_of_every_case_stay_as_they_are(name):
    exercise = EXERCISES[name]
    first, second = exercise.cases(), exercise.cases()
    check(exercise, exercise.solution)
    for key in first:
        assert checker._same(list(first[key].values()), list(second[key].values()))


# ---- hints and solutions ---------------------------------------------------------------------------------
@pytest.fixture
def shown(monkeypatch):
    outputs = []
    monkeypatch.setattr(exercises, "display", lambda item: outputs.append(repr(item)))
    monkeypatch.setattr(exercises, "show_source", lambda fn: outputs.append(fn))
    return outputs


@pytest.mark.parametrize("name", TASKS)
def test_three_hints_a_step_at_a_time(name, shown):
    for level in (1, 2, 3):
        hint(name, level)
    assert len(set(shown)) == 3 and shown[0].startswith("Hint 1 of 3\n") and len(TASKS[name].hints) == 3


def test_the_solution_is_the_function_of_the_package(shown):
    for name in TASKS:
        solution(name)
    assert shown and all(fn.__module__.startswith("ppo_teach.") for fn in shown)
    assert all(task.source for task in TASKS.values())


@pytest.mark.parametrize("given", [(hint, "gea"), (hint, ["gae"]), (hint, "soft_values", 4),
                                   (hint, "soft_values", 1.0), (solution, "gea"), (solution, ["gae"])])
def test_unknown_hints_say_what_there_is(given):
    call, *arguments = given
    with pytest.raises(ValueError, match="must be"):
        call(*arguments)


def test_a_new_exercise_is_a_few_lines():
    """The pattern for the other notebooks."""
    double = Exercise(
        number="9.9", name="double", solution=lambda x: 2 * x,
        cases=lambda: {"two": {"x": torch.tensor([1.0, 3.0])}},
        mistakes={"square": Mistake(lambda x: x**2, "You square: {yours} {place}.", "Is 1 doubled 1?")},
        place=lambda case, i: f"at {i}", hints=("", "", ""), shapes="[N]",
    )  # fmt: skip
    assert check(double, lambda x: x + x).ok
    assert check(double, lambda x: x * x) == Verdict(
        False, True, "square", "You square: 9.000 at 1.\nIs 1 doubled 1?", "Exercise 9.9"
    )


def test_an_argument_with_nan_that_stays_as_it_is_was_not_changed():
    """Garbage under a mask is NaN in some cases; NaN is not equal to itself."""
    assert checker._same(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]))
    assert not checker._same(torch.tensor([1.0, torch.nan]), torch.tensor([2.0, torch.nan]))
