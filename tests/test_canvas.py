"""The canvas: the same frame in Python, in the bytes for the browser, and in the still picture."""

import gc
import io
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pytest

from ppo_teach import canvas as canvas_module
from ppo_teach.canvas import Explorer, FrameCanvas, page
from ppo_teach.colors import COLORS, DASHES, HATCHES, MARKERS, TEXT_COLORS
from ppo_teach.marks import Panel, Slider, band, bars, cells, format_number, guide, line, points, sweep, text

REPO = Path(__file__).resolve().parents[1]
X = np.linspace(0, 2, 9)


def kink(clip_epsilon, sign):
    return np.minimum(X * sign, np.clip(X, 1 - clip_epsilon, 1 + clip_epsilon) * sign)


def sliders():
    return [
        Slider("clip_epsilon", "ε", [0.0, 0.1, 0.2, 0.3, 0.5], 0.2, label="clip epsilon"),
        Slider("sign", "A", ["A > 0", "A < 0"], "A > 0", label="advantage"),
        Slider("epochs", "K", [1, 2, 4, 8], 2, label="epochs"),
    ]


def signed(sign):
    return 1 if sign == "A > 0" else -1


def options(**changed):
    return {"caption": "What moves?", "alt": "A kinked line over a band.", **changed}


def make(**changed):
    panels = [
        Panel("The gain stops", "ratio", "objective", (0, 2), (-2, 2), zero=True),
        Panel("Tokens", "token", "advantage", (-0.6, 2.6), (-1, 1), xticks=["the", "soup", "."]),
        Panel("Table", "", "", (-0.5, 2.5), (1.5, -0.5)),
    ]
    marks = [
        band(
            "clip", lambda clip_epsilon: 1 - clip_epsilon, lambda clip_epsilon: 1 + clip_epsilon, "reference"
        ),
        line(
            "objective",
            X,
            lambda clip_epsilon, sign: kink(clip_epsilon, signed(sign)),
            "policy",
            label="clipped",
        ),
        line("plain", X, lambda sign: X * signed(sign), "old", label="unclipped"),
        guide("one", 1.0, label="start"),
        bars(
            "advantage",
            lambda epochs: np.array([0.5, -0.25, 0.001]) / epochs,
            "advantage",
            panel=1,
            values="{:.2f}",
            label="advantage",
        ),
        points(
            "value",
            [0, 1, 2],
            lambda epochs, sign: np.arange(3) * signed(sign) / epochs,
            "value",
            panel=1,
            label="V",
        ),
        text("number", 0.5, 1.5, lambda epochs: 1 / epochs, "kl", format="K = {:.3f}"),
        cells(
            "table",
            lambda epochs: np.arange(6).reshape(2, 3) / epochs,
            "score",
            panel=2,
            vmax=5,
            values="{:.1f}",
        ),
    ]
    given = dict(
        words="At ε = {clip_epsilon} the step is {size:.2f} after {epochs} epochs: {verdict}.",
        readouts={
            "size": lambda clip_epsilon, epochs: clip_epsilon * epochs,
            "verdict": lambda epochs: np.array("large" if epochs > 2 else "small", dtype=object),
        },
        presets={"too large a step": {"clip_epsilon": 0.5, "epochs": 8}},
    )
    return Explorer("clip_explorer", sliders(), panels, marks, **options(**given, **changed))


@pytest.fixture
def explorer():
    made = make()
    yield made
    made.close()


# ---- frames ----------------------------------------------------------------------------------------------
def test_sweep_spends_frames_only_on_the_sliders_it_names():
    assert sweep(sliders(), lambda epochs: np.zeros(7) + epochs).shape == (1, 1, 4, 7)
    assert sweep(sliders(), lambda sign, clip_epsilon: clip_epsilon).shape == (5, 2, 1, 1)
    both = sweep(sliders(), lambda epochs: {"a": np.zeros(3), "b": epochs})
    assert both["a"].shape == (1, 1, 4, 3) and both["b"].ravel().tolist() == [1, 2, 4, 8]
    first, second = sweep(sliders(), lambda sign: (sign, 1.0))
    assert first.ravel().tolist() == ["A > 0", "A < 0"] and second.shape == (1, 2, 1, 1)


def test_sweep_refuses_what_it_cannot_place():
    with pytest.raises(ValueError, match="beta"):
        sweep(sliders(), lambda beta: beta)
    with pytest.raises(ValueError, match="keep its shape"):
        sweep(sliders(), lambda epochs: np.zeros(epochs))


def test_slider_positions():
    odd = Slider("gamma", "γ", np.arange(0, 0.45, 0.1), 0.3)
    assert odd.positions == [0.0, 0.1, 0.2, 0.3, 0.4] and odd.start == 3  # 0.30000000000000004 is cleaned
    assert odd.index(0.26) == 3 and odd.texts[3] == "0.30"
    with pytest.raises(ValueError, match="start must be one of"):
        Slider("gamma", "γ", [0.1, 0.2], 0.15)
    with pytest.raises(ValueError, match="rising"):
        Slider("gamma", "γ", [0.2, 0.1], 0.2)
    with pytest.raises(ValueError, match="k4"):
        Slider("estimator", "", ["k1", "k2"], "k1").index("k4")


def test_drawn_is_the_function_at_every_position(explorer):
    grid = itertools.product(*(s.positions for s in explorer.canvas.sliders))
    for clip_epsilon, sign, epochs in grid:
        for name, value in zip(explorer.sliders, (clip_epsilon, sign, epochs), strict=True):
            explorer.sliders[name].value = value
        drawn = explorer.drawn()
        np.testing.assert_array_equal(drawn["objective"], kink(clip_epsilon, signed(sign)))
        np.testing.assert_array_equal(drawn["clip"], [[1 - clip_epsilon, 1 + clip_epsilon]])
        np.testing.assert_array_equal(drawn["plain"], X * signed(sign))
        np.testing.assert_array_equal(drawn["value"], np.arange(3) * signed(sign) / epochs)
        np.testing.assert_array_equal(drawn["number"], [1 / epochs])
        np.testing.assert_array_equal(drawn["table"], np.arange(6) / epochs)
        np.testing.assert_allclose(drawn["size"], [clip_epsilon * epochs])
        assert drawn["objective_x"] is not X and drawn["one"].tolist() == [1.0]


def test_the_bytes_hold_the_same_frames(explorer):
    """The browser's arithmetic, written down again: row-major over the axes that are not 1."""
    numbers = np.frombuffer(explorer.canvas.frames, "<f4")
    entries = explorer.canvas.index["entries"]
    for place in itertools.product(range(5), range(2), range(4)):
        explorer.canvas.position = list(place)
        drawn = explorer.drawn()
        for key, mark in (("objective.y", "objective"), ("value.y", "value"), ("table.z", "table")):
            entry, start = entries[key], 0
            for size, at in zip(entry["dims"], place, strict=True):
                start = start * size + (0 if size == 1 else at)
            shown = numbers[entry["offset"] + start * entry["n"] :][: entry["n"]]
            np.testing.assert_array_equal(shown, drawn[mark].astype("<f4"))
    assert len(explorer.canvas.frames) < 2500  # not the full grid of 40 positions for every mark


@pytest.mark.parametrize("shape", [(4, 2, 1, 9), (5, 2, 4), (5, 2, 4, 1, 9), (5, 3, 1, 9)])
def test_a_wrong_frame_shape_is_named(shape):
    with pytest.raises(
        ValueError, match=r"mark 'ratio', y: expected shape \[5 or 1 \(clip_epsilon\), 2 or 1"
    ) as caught:
        FrameCanvas(
            "c",
            sliders(),
            [Panel("t", "", "", (0, 1), (0, 1))],
            [line("ratio", X, np.zeros(shape))],
            **options(),
        )
    assert str(list(shape)) in str(caught.value)


def test_other_wrong_arguments_are_named():
    panel = [Panel("t", "", "", (0, 1), (0, 1))]

    def build(*marks, panels=panel, **changed):
        return FrameCanvas("c", sliders(), panels, marks, **options(**changed))

    with pytest.raises(ValueError, match="mark 'ratio', y: expected 9 points, got 8"):
        build(line("ratio", X, np.zeros(8)))
    with pytest.raises(ValueError, match="color is a meaning"):
        line("ratio", X, X, "blue")
    with pytest.raises(ValueError, match="hatch"):
        bars("ratio", X, "kl", hatch="*")
    with pytest.raises(ValueError, match="used twice: .'ratio'"):
        build(line("ratio", X, X), line("ratio", X, X))
    with pytest.raises(ValueError, match="panel must be 0..0"):
        build(line("ratio", X, X, panel=1))
    with pytest.raises(ValueError, match="{kl} is neither"):
        build(words="KL {kl:.2f}")
    with pytest.raises(ValueError, match="no slider .'beta'"):
        build(presets={"no leash": {"beta": 0}})
    for argument, empty in itertools.product(("caption", "alt"), ("", "  ", None)):
        with pytest.raises(ValueError, match=argument):
            build(**{argument: empty})
    with pytest.raises(ValueError, match="ylim"):
        Panel("t", "", "", (0, 1), (2, 2))


def test_a_canvas_without_sliders_can_be_fed(explorer):
    live = FrameCanvas(
        "run",
        [],
        [Panel("t", "update", "reward", (0, 10), (0, 1))],
        [line("reward", [0], [0.5])],
        words="Nothing yet.",
        **options(),
    )
    live.update(reward={"x": [0, 1, 2], "y": [0.1, np.nan, 0.3]}, words="Update 2.")
    np.testing.assert_array_equal(live.drawn()["reward"], [0.1, np.nan, 0.3])
    assert live.sentence() == "Update 2." and live.spec["presets"] == []
    assert np.frombuffer(live.frames, "<f4").shape == (6,)
    with pytest.raises(ValueError, match="no mark 'loss'"):
        live.update(loss={"y": [1]})


# ---- sliders, presets, words -----------------------------------------------------------------------------
def test_values_snap_to_positions_and_presets_jump(explorer):
    assert repr(explorer) == "clip_explorer(clip_epsilon=0.2, sign='A > 0', epochs=2)"
    assert all(isinstance(widget, ipywidgets.Widget) for widget in explorer.sliders.values())
    explorer.sliders["clip_epsilon"].value = 0.27
    explorer.sliders["epochs"].value = 7
    assert explorer.sliders["clip_epsilon"].value == 0.3 and explorer.sliders["epochs"].value == 8
    explorer.sliders["clip_epsilon"].value = 0.31  # the nearest position is the one it has
    assert explorer.sliders["clip_epsilon"].value == 0.3
    explorer.sliders["clip_epsilon"].value = 99
    assert explorer.drawn()["clip"].tolist() == [[0.5, 1.5]]
    explorer.reset()
    explorer.presets["too large a step"].click()
    assert explorer.canvas.position == [4, 0, 3] and explorer.sliders["epochs"].value == 8
    explorer.presets["Reset"].click()
    assert explorer.canvas.position == [2, 0, 1] and explorer.sliders["clip_epsilon"].value == 0.2


def test_words_follow(explorer):
    assert explorer.words == "At ε = 0.20 the step is 0.40 after 2 epochs: small."
    explorer.presets["too large a step"].click()
    assert explorer.words == "At ε = 0.50 the step is 4.00 after 8 epochs: large."


def test_numbers_are_written_with_a_true_minus_and_no_minus_zero():
    assert format_number("{:.2f}", -0.001) == "0.00" and format_number("{:+.1f}", -1.25) == "−1.2"
    assert format_number("{:.1f}", -0.05) == "−0.1" and format_number("{:.3f} to go", -0.0) == "0.000 to go"
    assert format_number("{:g}", -2.5e-07) == "−2.5e-07" and format_number("{}", "best-of-4") == "best-of-4"


def test_ticks_are_round_numbers_or_the_tokens():
    assert [t for _, t in Panel("", "", "", (-2.2, 2.2), (0, 1)).ticks("x")] == ["−2", "−1", "0", "1", "2"]
    assert [t for _, t in Panel("", "", "", (0, 1), (0, 0.3)).ticks("y")] == ["0", "0.1", "0.2", "0.3"]
    assert Panel("", "", "", (0, 1), (0, 1), xticks=["the", "soup"]).ticks("x") == [
        [0.0, "the"],
        [1.0, "soup"],
    ]
    assert Panel("", "", "", (0, 1), (0, 1), yticks=[(0.5, "half")]).ticks("y") == [[0.5, "half"]]


# ---- the browser's side of the contract ------------------------------------------------------------------
def record(explorer, monkeypatch):
    sent = []
    monkeypatch.setattr(explorer.canvas, "_send", lambda message, buffers=None: sent.append(message))
    return sent


def test_a_browser_move_reaches_python_and_is_not_echoed(explorer, monkeypatch):
    sent = record(explorer, monkeypatch)
    explorer.canvas._handle_custom_msg({"position": [4, 1, 3]}, [])
    assert [w.value for w in explorer.sliders.values()] == [0.5, "A < 0", 8]
    assert not any(
        "position" in message.get("state", {}) for message in sent
    )  # it would pull the slider back
    explorer.sliders["epochs"].value = 1
    assert [m["state"]["position"] for m in sent if "position" in m.get("state", {})] == [[4, 1, 0]]


def test_a_failing_observer_is_shown(explorer):
    def broken(change):
        raise ZeroDivisionError("my formula")

    explorer.sliders["epochs"].observe(broken, "value")
    explorer.canvas._handle_custom_msg({"position": [2, 0, 3]}, [])
    assert explorer.canvas.error == "ZeroDivisionError: my formula"
    explorer.sliders["epochs"].unobserve(broken, "value")
    explorer.canvas._handle_custom_msg({"position": [2, 0, 2]}, [])
    assert explorer.canvas.error == ""


@pytest.mark.parametrize("position", [[5, 0, 0], [0, 0], [-1, 0, 0], "no", [0, 0, 0.5]])
def test_a_wrong_position_changes_nothing(explorer, position):
    explorer.canvas._handle_custom_msg({"position": position}, [])
    assert explorer.canvas.position == [2, 0, 1] and explorer.canvas.error


def test_no_formula_in_the_browser():
    assert not re.search(r"Math\.(exp|log|pow|sqrt|tanh)|\*\*", canvas_module._ESM)


# ---- pictures without a kernel ---------------------------------------------------------------------------
def test_the_output_has_a_still_picture_and_a_stable_text(explorer):
    data, metadata = explorer._repr_mimebundle_()
    again, _ = make()._repr_mimebundle_()
    assert (
        data["image/png"] == again["image/png"]
        and data["text/plain"] == repr(explorer) == again["text/plain"]
    )
    assert set(data) == {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"}
    assert metadata["image/png"]["alt"] == "A kinked line over a band."
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    explorer.sliders["epochs"].value = 8
    assert explorer._repr_mimebundle_()[0]["image/png"] != data["image/png"]
    assert plt.get_fignums() == []
    assert "0x" not in repr(explorer.canvas) and explorer.canvas._repr_mimebundle_()[0]["image/png"]


def test_the_picture_is_also_there_in_words(explorer, monkeypatch):
    shown = []
    monkeypatch.setattr(canvas_module, "display", lambda data, metadata=None, raw=False: shown.append(data))
    explorer._ipython_display_()
    picture, words = shown
    assert picture["text/plain"] == repr(explorer) and "image/png" in picture and "text/html" not in picture
    assert words["text/plain"] == "A kinked line over a band.\nWhat moves?"
    assert "<details>" in words["text/html"] and "A kinked line over a band." in words["text/html"]


def test_the_still_picture_draws_the_same_arrays(explorer):
    explorer.presets["too large a step"].click()
    drawn, axes = explorer.drawn(), explorer.canvas.figure().axes
    lines = {line.get_color(): line.get_ydata() for line in axes[0].lines}
    np.testing.assert_array_equal(lines[COLORS["policy"]], drawn["objective"])
    np.testing.assert_array_equal(lines[COLORS["old"]], drawn["plain"])
    heights = sorted(bar.get_height() for bar in axes[1].patches)
    np.testing.assert_allclose(heights, sorted(drawn["advantage"]))
    assert axes[0].get_ylim() == (-2, 2) and [t.get_text() for t in axes[1].get_xticklabels()] == [
        "the",
        "soup",
        ".",
    ]
    written = {t.get_text() for t in axes[2].texts}
    assert {f"{v:.1f}" for v in drawn["table"]} <= written
    stream = io.BytesIO()
    explorer.canvas.figure().savefig(stream, format="png")
    assert stream.getvalue().startswith(b"\x89PNG")


def test_pyplot_is_never_imported():
    code = (
        "import sys\n"
        "from ppo_teach.canvas import Explorer; from ppo_teach.marks import Panel, Slider, line\n"
        "e = Explorer('e', [Slider('a', 'a', [0, 1], 0)], [Panel('t', '', '', (0, 1), (0, 1))],"
        " [line('l', [0, 1], lambda a: [a, a])], caption='c', alt='a')\n"
        "e._repr_mimebundle_(); print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO)
    assert done.stdout.strip() == "False", done.stderr


def test_the_page_stands_alone():
    made = make(caption="A </script> in the caption & more")
    source = page("Sliders <here>", made, make())
    assert "<title>Sliders &lt;here&gt;</title>" in source and source.count("</script>") == 1
    assert not re.search(r"https?://", source)
    states = json.loads(re.search(r"for \(const state of (\[.*\])\)", source).group(1))
    assert len(states) == 2 and states[0]["spec"]["caption"] == "A </script> in the caption & more"


def test_close_leaves_no_widget_behind():
    from ipywidgets.widgets.widget import _instances

    before = set(_instances)
    made = make()
    assert set(_instances) - before
    made.close()
    assert {type(_instances[key]).__name__ for key in set(_instances) - before} <= {"Layout"}


# ---- colours ---------------------------------------------------------------------------------------------
def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_meaning_has_a_colour_a_readable_text_and_a_second_cue():
    assert set(COLORS) == set(TEXT_COLORS) == set(DASHES) == set(HATCHES) == set(MARKERS)
    for meaning, color in TEXT_COLORS.items():
        assert 1.05 / (luminance(color) + 0.05) >= 4.5, meaning
    lines = [(DASHES[m], HATCHES[m], MARKERS[m]) for m in COLORS if m != "black"]
    assert len(set(lines)) == len(lines)


def test_a_panel_without_ticks_has_a_picture():
    panel = Panel("No ticks", "", "", (0, 1), (0, 1), xticks=[], yticks=[])
    canvas = FrameCanvas("bare", [], [panel], [line("l", [0, 1], [0, 1])], caption="c", alt="a")
    assert canvas.figure().axes[0].get_xticks().size == 0


def test_an_explorer_that_could_not_be_made_goes_quietly(monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: ignored.append(event.exc_value))
    with pytest.raises(ValueError, match="alt must be a non-empty text"):
        Explorer("broken", [], [Panel("", "", "", (0, 1), (0, 1))], [], caption="c", alt="")
    gc.collect()
    assert ignored == []
