"""The bug clinic: each planted line is real, shows in one number, is caught by its invariant, and leaves no trace."""

import json
import sys
from pathlib import Path

import pytest
import torch

import ppo_teach as pt
from ppo_teach import bugs
from ppo_teach.bugs import BUGS, ORGANS, VITALS, Bug, Patient, examine, private_modules, reading

sys.path.insert(0, str(Path(__file__).parents[1] / "figures"))
import make_clinic  # noqa: E402

CHAIN = pt.ChainWorld()
by_bug = pytest.mark.parametrize("bug", BUGS.values(), ids=list(BUGS))


@pytest.fixture(scope="module")
def healthy():
    """Readings of three healthy runs, under the config of each patient."""
    logs = {}
    for config in {json.dumps(bug.config) for bug in BUGS.values()}:
        options = dict(world=CHAIN, num_updates=3, **json.loads(config))
        logs[config] = [Patient(**options, seed=seed).run() for seed in (0, 1, 2)]
    return logs


def test_the_list_is_as_long_as_promised():
    assert len(BUGS) >= 20 and all(bug.id == key for key, bug in BUGS.items())
    assert len({bug.title for bug in BUGS.values()}) == len({bug.diff for bug in BUGS.values()}) == len(BUGS)
    assert {bug.module for bug in BUGS.values()} <= set(ORGANS)
    for bug in BUGS.values():
        minus, plus = bug.diff.split("\n")
        assert minus == f"- {bug.right}" and plus == f"+ {bug.wrong}" and bug.symptom.endswith(".")


@by_bug
def test_the_number_exposes_the_bug_and_no_healthy_run(bug, healthy):
    log = bug.train(world=CHAIN, num_updates=4, seed=0)
    assert not bug.is_healthy(bug.reading(log)), f"{bug.number} = {bug.reading(log)}"
    for sound in healthy[json.dumps(bug.config)]:
        assert bug.is_healthy(bug.reading(sound)), f"{bug.number} = {bug.reading(sound)}"


@pytest.fixture(scope="module")
def sound():
    return examine().log.rows[0]


@by_bug
def test_the_invariant_passes_on_the_package_and_stops_the_bug(bug, sound):
    assert bug.is_healthy(sound[bug.number]) and not bug.invariant(bug)


def test_the_vital_signs_of_the_package_are_all_healthy(sound):
    assert [name for name, (_, (low, high)) in VITALS.items() if not low <= sound[name] <= high] == []
    assert BUGS["kl_sign"].invariant()


def test_a_healthy_patient_is_the_package_itself():
    """The private copy adds nothing of its own: same seed, same run as train_ppo."""
    size = dict(num_updates=3, batch_size=16, seed=4)
    _, theirs = pt.train_ppo(CHAIN, pt.PPOConfig(kl_coef=0.3), **size, progress=False)
    ours = Patient(world=CHAIN, **size).run()
    for name, values in theirs.metrics.items():
        assert ours.metrics[name] == pytest.approx(values, rel=1e-6, abs=1e-8), name
    assert ours.stopped_by == "finished" and isinstance(ours, pt.TrainingLog)


def test_nothing_stays_patched_also_after_an_error():
    names = {name: dict(vars(sys.modules[f"ppo_teach.{name}"])) for name in ORGANS}
    patients = [Patient(BUGS[bug], CHAIN, num_updates=2, batch_size=8) for bug in ("loss_sign", "values_late")]
    for _ in range(2):  # side by side
        for patient in patients:
            patient.step()
    alone = BUGS["loss_sign"].train(CHAIN, num_updates=2, batch_size=8)
    assert patients[0].log.metrics == alone.metrics, "neighbours do not disturb one another"
    broken = Bug("raises", "", "losses", BUGS["loss_sign"].right, "raise RuntimeError('on purpose')", "", "ascent")
    with pytest.raises(RuntimeError, match="on purpose"):
        broken.train(CHAIN, num_updates=1, batch_size=8)
    for name in ORGANS:
        now = vars(sys.modules[f"ppo_teach.{name}"])
        assert {k for k in now if now[k] is not names[name].get(k)} <= {"__warningregistry__"}
    first = torch.rand(1, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    BUGS["dropout_on"].train(CHAIN, num_updates=1, batch_size=8)
    assert torch.rand(1) == first, "the global generator is where it was"


def test_a_line_that_is_not_there_is_refused():
    for right in ("no such line", "import torch\n", ""):
        with pytest.raises(ValueError, match="right must stand once in losses.py"):
            private_modules(Bug("x", "", "losses", right, "pass", "", "ascent"))


def test_an_exploding_run_ends_with_its_log():
    wrong = "return masked_mean(ratio, mask) * float('nan')"
    nan = Bug("nan", "", "losses", BUGS["loss_sign"].right, wrong, "", "ascent")
    log = nan.train(CHAIN, num_updates=3, batch_size=8)
    assert len(log) == 0 and "nan" in log.stopped_by


def test_a_patient_may_go_on_without_the_fault():
    ill = Patient(BUGS["loss_sign"], CHAIN, num_updates=3, batch_size=32)
    before = ill.run().metrics["true_score"]
    well = Patient(None, CHAIN, num_updates=6, batch_size=32, policy=ill.trainer.policy, reference=CHAIN.policy())
    after = well.run().metrics["true_score"]
    assert before[-1] < before[0] and after[-1] > after[0]
    assert well.log.metrics["kl_per_response"][0] > 0, "the reference is the old one"


def test_the_left_padding_and_the_separate_critic_do_not_disturb_the_copy():
    log = Patient(world=CHAIN, num_updates=1, batch_size=8, policy=CHAIN.policy("separate")).run()
    assert log.metrics["ascent"][0] == pytest.approx(1, abs=1e-3)


# ---------------------------------------------------------------- the shipped runs


def test_the_shipped_runs_are_complete_and_show_what_is_claimed():
    data = json.loads(make_clinic.FILE.read_text())
    ran = {run["bug"]: run["metrics"] for run in data["runs"]}
    assert [run["seed"] for run in data["runs"] if run["bug"] is None] == list(make_clinic.HEALTHY_SEEDS)
    assert set(ran) == {None, *BUGS} and make_clinic.FILE.stat().st_size < 400_000
    for bug in BUGS.values():
        assert len(ran[bug.id][bug.number]) == data["num_updates"]
        assert not bug.is_healthy(reading(ran[bug.id], bug.number)), bug.id
        if not bug.config:
            sound = [run["metrics"] for run in data["runs"] if run["bug"] is None]
            assert all(bug.is_healthy(reading(metrics, bug.number)) for metrics in sound)


def test_the_runs_rebuild_in_reduced_form_and_go_on_where_they_stopped(tmp_path, capsys):
    size = dict(file=tmp_path / "clinic.json", num_updates=1, batch_size=4)
    first = make_clinic.main(**size, bugs=("kl_sign",))
    assert len(first["runs"]) == 4 and json.loads(size["file"].read_text()) == first
    capsys.readouterr()
    again = make_clinic.main(**size, bugs=("kl_sign", "loss_sign"))
    assert again["runs"][:4] == first["runs"] and capsys.readouterr().out == "loss_sign 0: finished\n"
    assert set(first["runs"][0]["metrics"]) == {*make_clinic.CURVES, *VITALS}
    assert bugs.CONFIG["kl_coef"] == 0.3


def test_the_checkup_is_found_from_here_too():
    from ppo_teach.bugs import Finding, checkup

    assert (checkup, Finding) == (pt.checkup, pt.Finding)
    with pytest.raises(AttributeError, match="no attribute 'chekup'"):
        _ = bugs.chekup
