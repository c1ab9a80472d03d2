"""Notebook 08's exercises: other right answers are accepted, wrong numbers are diagnosed."""

import math

import pytest

from ppo_teach import exercises
from ppo_teach.exercises import check_first_at_90, check_reward_under_budget, check_useless_critic
from ppo_teach.exercises import run as lesson
from ppo_teach.train import TrainingLog


def while_loop(rewards):
    bar, i = rewards[0] + 0.9 * (rewards[-1] - rewards[0]) - 1e-12, 0
    while rewards[i] < bar:
        i += 1
    return i


def from_the_end(rewards):
    return min(i for i, x in enumerate(rewards) if rewards[-1] - x <= 0.1 * (rewards[-1] - rewards[0]) + 1e-12)


@pytest.mark.parametrize("fn", [while_loop, from_the_end, lambda r: float(while_loop(r))])
def test_other_right_readers_are_accepted(fn):
    assert check_first_at_90(fn).ok


@pytest.mark.parametrize(
    ("fn", "said"),
    [(lambda r: [0, 1], "shape [2]; one number is asked for"), (lambda r: 7, "Your number is off in the case"),
     (lambda r: 3 if r[0] == 0 else None, "returns nothing in the case 'from -2'")],
)  # fmt: skip
def test_a_wrong_reader_is_told_what_is_wrong_with_its_one_number(fn, said):
    assert said in check_first_at_90(fn).message


@pytest.mark.parametrize(
    ("values", "mistake"),
    [([4, 4, 4], "constant"), ([2, 4, 6], "not_zero"), ([6, 4, 2], "not_zero"), ([4, 8], "not_three"),
     ("abc", "not_numbers"), ([4, 8, 13], "not_zero")],
)  # fmt: skip
def test_a_critic_that_is_not_useless_is_diagnosed(values, mistake):
    verdict = check_useless_critic(values)
    assert (verdict.ok, verdict.attempted, verdict.mistake) == (False, True, mistake)


@pytest.mark.parametrize("values", [[4, 8, 12], (0.0, 4.0, 8.0), [2, 6, 10.0]])
def test_a_useless_critic_is_accepted(values):
    assert check_useless_critic(values).ok


@pytest.fixture
def runs(monkeypatch):
    """A run in a blink, with the reward and the KL a test asks for."""
    result = {}

    def train(world, config, **options):
        log = TrainingLog()
        for _ in range(options["num_updates"]):
            log.append({"mean_reward": result["reward"], "kl_per_response": result["kl"]})
        return None, log

    monkeypatch.setattr(lesson, "train_ppo", train)
    return result


@pytest.mark.parametrize(
    ("reward", "kl", "mistake"), [(2.6, 2.5, "over_budget"), (2.2, 1.5, "too_low"), (2.4, 1.9, None)]
)
def test_a_run_is_judged_by_its_budget_first(runs, reward, kl, mistake):
    runs.update(reward=reward, kl=kl)
    verdict = check_reward_under_budget(0.3)
    assert verdict.mistake == mistake and verdict.ok == (mistake is None) and f"reward {reward:.2f}" in verdict.message


@pytest.mark.parametrize("price", [-0.1, math.nan, math.inf, "0.3", True])
def test_what_is_no_price_is_not_trained_with(runs, price):
    assert check_reward_under_budget(price).mistake == "not_a_price"


def test_untouched():
    for checker in (check_first_at_90, check_reward_under_budget, check_useless_critic):
        assert not checker(...).attempted and not checker(None).attempted
    assert {"first_at_90", "reward_under_budget", "useless_critic"} <= set(exercises.TASKS)
