"""The patients of the bug clinic, for notebook 10 (layer 6)."""

import random

import numpy as np

from ..bugs import BUGS, NEVER, VITALS, reading
from ..canvas import Explorer
from ..marks import Panel, Slider, bars, line

# metric -> (what the panel asks, unit, colour, limits): wilder values are drawn at the edge
CURVES = {
    "true_score": ("Is it better?", "true score", "score", (-5.3, 3.3)),
    "kl_per_response": ("How far has it moved?", "KL, nats a response", "kl", (-3, 15)),
    "entropy": ("How many choices?", "entropy, nats", "policy", (0, 3)),
    "value_loss": ("Does the critic err?", "value loss", "value", (0, 12)),
    "clip_fraction": ("Does the clip act?", "clip fraction", "policy", (-0.01, 0.4)),
    "response_length": ("How many words?", "tokens", "black", (0, 15)),
}
HIGH_LOW = {  # a curve that leaves the healthy band, upwards or downwards, in words
    "true_score": ("score too good to be true", "score too low"),
    "kl_per_response": ("KL too high", "KL below 0, or exactly 0"),
    "entropy": ("entropy too high", "entropy too low"),
    "value_loss": ("value loss too high", None),
    "clip_fraction": ("too much is clipped", "nothing is clipped"),
    "response_length": ("reviews too long", "reviews too short"),
    "explained_variance": ("the critic is too good", "the critic explains nothing"),
    "policy_loss": ("policy loss too high", "policy loss too low"),
}


def patients(runs):
    """The ids of the ill runs in the order of their numbers, which says nothing about them.

    Taught in: notebooks/10_bug_clinic.ipynb
    """
    ids = sorted(run["bug"] for run in runs if run["bug"])
    return random.Random(10).sample(ids, len(ids))


def healthy_band(runs, name):
    """Smallest and largest value over the healthy seeds, an update before and after included: two arrays."""
    seeds = np.array([run["metrics"][name] for run in runs if run["bug"] is None])
    padded = np.pad(seeds, ((0, 0), (1, 1)), mode="edge")
    near = np.concatenate([padded[:, :-2], seeds, padded[:, 2:]])
    return near.min(0), near.max(0)


def range_in_words(number):
    """The healthy range of a number of VITALS: "at 0", "above 0.001", "between -0.12 and 0.12"."""
    low, high = VITALS[number][1]
    if high - low < 0.03:
        return f"at {round((low + high) / 2, 2):g}"
    return f"between {low:g} and {high:g}" if high < NEVER else f"above {low:g}"


def symptoms(runs):
    """What each patient's curves show at the end of the run: dict id -> list of texts, empty if they look healthy.

    A curve is out when its mean over the last five updates leaves the range that the healthy seeds had over the last
    ten by more than a quarter of that range. Taught in: notebooks/10_bug_clinic.ipynb
    """
    found = {}
    for run in runs:
        if run["bug"] is None:
            continue
        found[run["bug"]] = []
        for name, (high, low) in HIGH_LOW.items():
            lows, highs = (edge[-10:] for edge in healthy_band(runs, name))
            least, most, now = lows.min(), highs.max(), reading(run["metrics"], name)
            margin = (most - least) / 4
            text = high if now > most + margin else low if now < least - margin else None
            found[run["bug"]] += [text] if text else []
    return found


def symptom_table(runs):
    """Rows [symptom, likely causes, numbers to check], from the runs as measured; the quiet ones last.

    A cause that shows in few symptoms stands in front of one that shows in many.

    Taught in: notebooks/10_bug_clinic.ipynb
    """
    found = symptoms(runs)
    texts = [text for pair in HIGH_LOW.values() for text in pair if text]
    causes = {text: [bug for bug, seen in found.items() if text in seen] for text in texts}
    causes["every curve looks healthy"] = [bug for bug, seen in found.items() if not seen]
    rows = []
    for text, bugs in causes.items():
        bugs.sort(key=lambda bug: len(found[bug]))
        numbers = dict.fromkeys(f"{BUGS[bug].number} {range_in_words(BUGS[bug].number)}" for bug in bugs)
        rows += [[text, "; ".join(BUGS[bug].title for bug in bugs), "; ".join(numbers)]] if bugs else []
    return rows


def clinic_explorer(runs, *, patient=1):
    """Six curves of a run with one planted line, against the band of the healthy runs; then its name and its repair.

    Args: runs, list of dicts with bug, seed and metrics, as in figures/runs/clinic.json; patient, where the slider
        starts. Returns: Explorer. Taught in: notebooks/10_bug_clinic.ipynb
    """
    ill, sound = {run["bug"]: run for run in runs if run["bug"]}, [run for run in runs if run["bug"] is None]
    order = patients(runs)
    updates, marks, panels = np.arange(len(sound[0]["metrics"]["true_score"])), [], []

    def curve(metrics, name):
        values = np.full(len(updates), np.nan)  # a run that exploded is shorter
        values[: len(metrics[name])] = metrics[name]
        return np.clip(values, *CURVES[name][3])

    def of(name):
        return lambda patient: curve(ill[order[patient - 1]]["metrics"], name)

    def repaired(name):
        same_seed = curve(next(run for run in sound if run["seed"] == 0)["metrics"], name)
        return lambda show: same_seed if show == "repair" else np.full(len(updates), np.nan)

    for place, (name, (title, unit, color, limits)) in enumerate(CURVES.items()):
        low, high = (np.clip(edge, *limits) for edge in healthy_band(runs, name))
        width = (-0.6, len(updates) - 0.4)
        panels.append(Panel(title, "update" if place > 2 else "", unit, width, limits, zero=limits[0] < -1))
        marks += [
            bars(f"healthy_{name}", high, "black", x=updates, base=low, panel=place, width=1, alpha=0.16, hatch="",
                 label="healthy" if place == 1 else ""),
            line(f"repaired_{name}", updates, repaired(name), "black", panel=place, dash=(2, 2), width=1.6,
                 label="repaired" if place == 2 else "", label_at="key"),
            line(name, updates, of(name), color, panel=place, label="patient" if place == 0 else "", label_at="key"),
        ]  # fmt: skip

    def about(bug):
        value = reading(ill[bug.id]["metrics"], bug.number)
        return f"{bug.number} is {value:.3g}, where a healthy run stays {range_in_words(bug.number)}"

    def said(patient, show):
        bug = BUGS[order[patient - 1]]
        return "?" if show == "mystery" else f"{bug.title}. {bug.symptom}"

    return Explorer(
        "clinic_explorer",
        [Slider("patient", "", range(1, len(order) + 1), patient, label="patient"),
         Slider("show", "", ("mystery", "diagnosis", "repair"), "mystery", label="show")],
        panels, marks, height=200, columns=3,
        words="Patient {patient}: {seen} ({meaning}). Diagnosis: {said}",
        readouts={"seen": lambda patient: about(BUGS[order[patient - 1]]), "said": said,
                  "meaning": lambda patient: VITALS[BUGS[order[patient - 1]].number][0]},
        presets={"Name it": {"show": "diagnosis"}, "Repair it": {"show": "repair"},
                 "A wild one": {"patient": order.index("kl_sign") + 1, "show": "mystery"},
                 "A quiet one": {"patient": order.index("clip_fraction_over_pads") + 1, "show": "mystery"}},
        caption="Shipped runs: PPO in ReviewWorld with one line exchanged. Grey: three healthy seeds, from smallest to "
                "largest; a value outside a panel is drawn at its edge. Which patients would you send home by their "
                "curves alone?",
        alt="Six panels over the updates of a run: true score, KL, entropy, value loss, clip fraction, response "
            "length. A grey band shows healthy runs; the patient's line leaves it in some panels, in many cases in "
            "none. With repair, a dashed line from the same seed stays in the band.",
    )  # fmt: skip
