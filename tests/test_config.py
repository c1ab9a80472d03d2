"""Every field of PPOConfig: what it takes, what it refuses, and the names of the course."""

import math
from dataclasses import fields

import pytest

import ppo_teach as pt

NUMBERS = {  # field: (lowest allowed, highest allowed, below or above)
    "clip_epsilon": ([1e-6, 0.2, 5], [0, -0.1]),
    "kl_coef": ([0, 0.1, 10], [-0.1]),
    "value_coef": ([0, 0.5], [-0.5]),
    "gamma": ([0, 0.99, 1], [-0.01, 1.01]),
    "lam": ([0, 0.95, 1], [-0.01, 1.01]),
    "learning_rate": ([1e-9, 1], [0, -1e-3]),
    "adam_eps": ([0, 1e-5], [-1e-8]),
    "max_grad_norm": ([None, 0.5], [0, -1.0]),
    "entropy_coef": ([0, 0.01], [-0.01]),
    "value_clip_epsilon": ([None, 0.2], [0, -0.2]),
    "kl_target": ([None, 6.0], [0, -6.0]),
    "target_kl": ([None, 0.01], [0, -0.01]),
    "missing_eos_penalty": ([0, 1.0], [-1.0]),
    "temperature": ([0.1, 2], [0, -1.0]),
}
INTEGERS = {
    "num_epochs": 1,
    "num_minibatches": 1,
    "kl_horizon": 1,
    "value_warmup": 0,
    "eos_id": 0,
    "pad_id": 0,
}
CHOICES = {
    "lr_schedule": ("constant", "linear"),
    "whiten_advantages": ("batch", "minibatch", "none"),
    "kl_estimator": ("k1", "k2", "k3"),
}
WRONG_KINDS = [math.nan, math.inf, -math.inf, True, False, "0.5", [0.5], 1j]


def refused(name, value):
    with pytest.raises(ValueError) as caught:
        pt.PPOConfig(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} must be ") and repr(value) in message, message


def test_the_lists_above_name_every_field():
    listed = [*NUMBERS, *INTEGERS, *CHOICES, "bootstrap_truncated"]
    assert sorted(listed) == sorted(field.name for field in fields(pt.PPOConfig))


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    good, bad = NUMBERS[name]
    for value in good:
        assert getattr(pt.PPOConfig(**{name: value}), name) == value
    optional = None in good
    for value in [*bad, *WRONG_KINDS, *([] if optional else [None])]:
        refused(name, value)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name):
    lowest = INTEGERS[name]
    for value in (lowest, lowest + 1, 1000):
        assert getattr(pt.PPOConfig(**{name: value}), name) == value
    for value in (lowest - 1, -5, 1.0, 2.5, *WRONG_KINDS, *([] if name.endswith("_id") else [None])):
        refused(name, value)


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name):
    for value in CHOICES[name]:
        assert getattr(pt.PPOConfig(**{name: value}), name) == value
    for value in ("other", None, 1, True, CHOICES[name][0].upper(), [CHOICES[name][0]]):
        refused(name, value)


def test_the_switch():
    assert pt.PPOConfig(bootstrap_truncated=True).bootstrap_truncated
    for value in (1, 0, None, "yes"):
        refused("bootstrap_truncated", value)


def test_changed_names_what_differs_from_the_defaults():
    assert pt.PPOConfig().changed() == {}
    assert pt.PPOConfig(kl_coef=0.3, kl_target=6.0).changed() == {"kl_coef": 0.3, "kl_target": 6.0}


def test_equal_settings_are_equal():
    assert pt.PPOConfig() == pt.PPOConfig() != pt.PPOConfig(gamma=0.9)


# ---------------------------------------------------------------- notation


def test_notation_gives_every_quantity_one_symbol_a_shape_and_a_meaning():
    for name, entry in pt.NOTATION.items():
        assert name.isidentifier() and len(entry) == 3 and all(entry), name
        assert entry[1] in ("[B]", "[B, P]", "[B, T]", "number"), name
    symbols = [symbol for symbol, _, _ in pt.NOTATION.values()]
    assert len(set(symbols)) == len(symbols), "no symbol means two things"


def test_notation_has_the_names_the_functions_use():
    wanted = {
        "prompt_ids", "response_ids", "mask", "scores", "log_probs_new", "log_probs_old", "log_probs_ref",
        "kl", "kl_coef", "shaped_rewards", "values", "td_errors", "advantages", "returns", "ratio",
        "clip_epsilon", "gamma", "lam",
    }  # fmt: skip
    assert wanted <= set(pt.NOTATION)
    assert "ρ" in pt.NOTATION["ratio"][0] and "r_t" in pt.NOTATION["shaped_rewards"][0], (
        "r is the reward, ρ the ratio"
    )
