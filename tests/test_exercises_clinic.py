"""The exercises of notebook 10: other right forms are accepted, wrong ones are told what they miss."""

import pytest
import torch
from lessons.lesson_10_bug_clinic import RUNS

from ppo_teach.bugs import BUGS
from ppo_teach.checkup import checkup
from ppo_teach.exercises import check_broken_lines, check_patients, check_reward_gap
from ppo_teach.exercises.clinic import BROKEN, SOUND, WARD, broken_step
from ppo_teach.explorers.clinic import patients, symptoms

RIGHT = {number: bug for number, (bug, _) in WARD.items()}


# ---- 10.1 ------------------------------------------------------------------------------------------------
def test_the_ward_is_that_of_the_explorer():
    assert all(patients(RUNS)[number - 1] == bug for number, bug in RIGHT.items())
    assert sum("score too low" in symptoms(RUNS)[bug] for bug in RIGHT.values()) == 1, "as the praise says"


def test_the_five_names_are_accepted_and_more_do_no_harm():
    assert check_patients(RIGHT).ok and check_patients(RIGHT | {1: "no_causal_mask"}).ok


@pytest.mark.parametrize("number", WARD)
@pytest.mark.parametrize("claimed", BUGS)
def test_every_wrong_name_gets_an_answer_that_does_not_give_it_away(number, claimed):
    verdict = check_patients(RIGHT | {number: claimed})
    if claimed == RIGHT[number]:
        return
    assert not verdict.ok and verdict.mistake == f"patient_{number}" and "4 of 5" in verdict.message
    assert BUGS[claimed].title in verdict.message and verdict.message.endswith("?")
    assert BUGS[RIGHT[number]].title not in verdict.message and RIGHT[number] not in verdict.message


@pytest.mark.parametrize(("answer", "mistake"), [
    ("kl_sign", "not_a_dict"), ({}, "missing"), (RIGHT | {13: ...}, "missing"), (RIGHT | {13: "measles"}, "unknown_id"),
    (RIGHT | {13: ["values_late"]}, "unknown_id"),
])  # fmt: skip
def test_other_forms_are_told_what_is_needed(answer, mistake):
    verdict = check_patients(answer)
    assert verdict.mistake == mistake and verdict.attempted and not verdict.ok


# ---- 10.2 ------------------------------------------------------------------------------------------------
def loop(rewards, scores, kl, kl_coef, mask):
    gaps = []
    for b in range(len(scores)):
        real = [t for t in range(mask.shape[1]) if mask[b, t]]
        paid = sum(float(rewards[b, t]) for t in real)
        gaps.append(abs(paid - float(scores[b]) + kl_coef * sum(float(kl[b, t]) for t in real)))
    return gaps


def multiplied(rewards, scores, kl, kl_coef, mask):
    return torch.abs(((rewards + kl_coef * kl) * mask).sum(-1) - scores).float()


def in_numpy(rewards, scores, kl, kl_coef, mask):
    import numpy as np

    r, k, m = rewards.numpy(), kl.numpy(), mask.numpy()
    return np.abs(r.sum(1, where=m) - scores.numpy() + kl_coef * k.sum(1, where=m))


@pytest.mark.parametrize("fn", [loop, multiplied, in_numpy])
def test_other_right_forms_are_accepted(fn):
    assert check_reward_gap(fn).ok


def test_a_batch_mean_is_told_its_shape():
    assert check_reward_gap(lambda *a: multiplied(*a).mean()).mistake == "wrong_shape"


# ---- 10.3 ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", [list, tuple, set, frozenset])
def test_the_four_lines_are_accepted_in_any_order(form):
    assert check_broken_lines(form([7, 3, 2, 6])).ok


def test_each_missing_line_and_each_sound_one_has_its_words():
    said = set()
    for line in BROKEN:
        verdict = check_broken_lines(set(BROKEN) - {line})
        assert verdict.mistake == f"line_{line}_missing" and "3 of the four" in verdict.message
        said.add(verdict.message)
    for line in SOUND:
        verdict = check_broken_lines({*BROKEN, line})
        assert verdict.mistake == f"line_{line}_is_sound" and "4 of the four" in verdict.message
        said.add(verdict.message)
    assert len(said) == len(BROKEN) + len(SOUND) == 7 and all(words.endswith("?") for words in said)
    assert check_broken_lines([2, [3]]).mistake == check_broken_lines([2, 8]).mistake == "no_such_line"
    assert check_broken_lines("2367").mistake == "not_a_list"


@pytest.mark.parametrize("check", [check_patients, check_broken_lines, check_reward_gap])
def test_an_untouched_stub_is_not_attempted(check):
    for answer in (None, ...):
        assert not check(answer).attempted


def test_the_broken_step_shows_exactly_its_four_faults():
    from ppo_teach import ChainWorld, PPOConfig
    from ppo_teach.bugs import Patient

    patient = Patient(world=ChainWorld(), num_updates=3)
    patient.run()
    b = patient.evidence()[0]
    batch = broken_step(b["scores"], b["responses"], b["log_probs_old"], b["log_probs_ref"], b["values"], b["eos_id"],
                        PPOConfig(kl_coef=0.3))  # fmt: skip
    seen = {bug for finding in checkup(batch) for bug in finding.resembles}
    assert seen == {"mask_drops_eos", "kl_sign", "whitened_over_pads", "returns_whitened"}
