"""The ward of notebook 10: what is drawn is what was stored, and the words name the right number."""

import numpy as np
import pytest
from lessons.lesson_10_bug_clinic import RUNS

from ppo_teach import explorers
from ppo_teach.bugs import BUGS, VITALS, reading
from ppo_teach.explorers import clinic


@pytest.fixture(scope="module")
def explorer():
    made = explorers.clinic_explorer(RUNS)
    yield made
    made.close()


def run_of(bug, seed=0):
    return next(run["metrics"] for run in RUNS if run["bug"] == bug and run["seed"] == seed)


@pytest.mark.parametrize("number", [1, 2, 19, 31])
def test_the_patient_is_drawn_as_stored_and_at_the_edge_where_wild(explorer, number):
    explorer.sliders["patient"].value = number
    drawn, metrics = explorer.drawn(), run_of(clinic.patients(RUNS)[number - 1])
    for name, (_, _, _, limits) in clinic.CURVES.items():
        np.testing.assert_allclose(drawn[name], np.clip(metrics[name], *limits), rtol=1e-6)


def test_the_band_holds_every_healthy_run_and_the_repair_is_one_of_them(explorer):
    explorer.sliders["show"].value = "repair"
    drawn = explorer.drawn()
    for name, (_, _, _, limits) in clinic.CURVES.items():
        low, high = clinic.healthy_band(RUNS, name)
        for seed in (0, 1, 2):
            values = np.array(run_of(None, seed)[name])
            assert (low <= values).all() and (values <= high).all()
        np.testing.assert_allclose(drawn[f"repaired_{name}"], np.clip(run_of(None)[name], *limits), rtol=1e-6)
    explorer.sliders["show"].value = "diagnosis"
    assert np.isnan(explorer.drawn()["repaired_entropy"]).all()


def test_the_words_hide_the_name_until_they_are_asked(explorer):
    for number, name in enumerate(clinic.patients(RUNS), start=1):
        bug, metrics = BUGS[name], run_of(name)
        explorer.sliders["patient"].value, explorer.sliders["show"].value = number, "mystery"
        seen = f"{reading(metrics, bug.number):.3g}".replace("-", "−")
        assert f"Patient {number}: {bug.number} is {seen}, where" in explorer.words.replace("-", "−")
        assert explorer.words.endswith("Diagnosis: ?") and bug.title not in explorer.words
        explorer.sliders["show"].value = "diagnosis"
        assert explorer.words.endswith(f"Diagnosis: {bug.title}. {bug.symptom}")


def test_the_numbers_of_the_patients_say_nothing_and_never_change():
    order = clinic.patients(RUNS)
    assert sorted(order) == sorted(BUGS) and order != sorted(order) and order != list(BUGS)
    assert order == clinic.patients(RUNS[::-1])


def test_symptoms_follow_the_curves():
    seen = clinic.symptoms(RUNS)
    assert "KL below 0, or exactly 0" in seen["reference_is_policy"] and "score too low" in seen["loss_sign"]
    assert seen["clip_fraction_over_pads"] == [], "only a log is wrong"
    for name, bug in BUGS.items():
        if "score is fine" in bug.symptom or "curve is fine" in bug.symptom:
            assert "score too low" not in seen[name], name
    fake = [run | {"metrics": run_of(None)} for run in RUNS if run["bug"] in (None, "kl_sign")]
    assert clinic.symptoms(fake) == {"kl_sign": []}, "a healthy run shows nothing"


def test_the_table_names_each_patient_and_its_check():
    rows = clinic.symptom_table(RUNS)
    for bug in BUGS.values():
        own = [row for row in rows if bug.title in row[1].split("; ")]
        assert own and all(f"{bug.number} {clinic.range_in_words(bug.number)}" in row[2] for row in own)
    assert rows[-1][0] == "every curve looks healthy"


def test_ranges_read_well():
    words = {name: clinic.range_in_words(name) for name in VITALS}
    assert words["parity"] == words["reward_gap"] == "at 0" and words["ascent"] == words["clears"] == "at 1"
    assert words["surprise"] == "between -0.12 and 0.12" and words["max_ratio"] == "above 1.001"


def test_plot_table_wraps_and_refuses_ragged_rows():
    from ppo_teach.plots import plot_table

    figure = plot_table([["one two three", "x"]], ("head", "er"), (8, 6), title="T")
    assert [text.get_text() for text in figure.axes[0].texts] == ["head", "er", "one two\nthree", "x"]
    with pytest.raises(ValueError, match="each row must have 2 texts, got 1"):
        plot_table([["one"]], ("head", "er"), (8, 6), title="T")
