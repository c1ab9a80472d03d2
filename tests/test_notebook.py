"""What the notebooks show: the same words in every run, and nothing of the answers in advance."""

import base64
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import notebook_files
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from ppo_teach import notebook as notebook_module
from ppo_teach.advantages import gae
from ppo_teach.notebook import compare, predict, quiz, show_figure, show_source

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture
def shown(monkeypatch):
    """Everything that was displayed, as (data, metadata)."""
    outputs = []

    def keep(item, metadata=None, raw=False):
        outputs.append(
            (item, metadata) if raw else item._repr_mimebundle_() if not hasattr(item, "given") else None
        )
        if hasattr(item, "given"):
            outputs.pop()
            item._ipython_display_()

    monkeypatch.setattr(notebook_module, "display", keep)
    return outputs


# ---- show_source -----------------------------------------------------------------------------------------
def test_source_is_shown_with_its_file_and_without_a_style_sheet(shown):
    show_source(gae)
    ((data, _),) = shown
    assert data["text/plain"].startswith("# ppo_teach/advantages.py\n@torch.no_grad()\ndef gae(")
    page = data["text/html"]
    assert "<b>ppo_teach/advantages.py</b>" in page and "<style" not in page and 'style="color:' in page
    assert str(REPO) not in page and not re.search(r"line \d|0x[0-9a-f]{6}", data["text/plain"])
    words = re.sub(r"<[^>]+>", "", page)
    assert "def gae(rewards" in words.replace("\n", "")


def test_source_is_escaped_and_dedented(shown):
    class Local:
        def method(self):
            return "<script>" < "&amp;"

    show_source(Local.method)
    data = shown[0][0]
    assert data["text/plain"].startswith("# this notebook\ndef method(self):")
    assert "<script>" not in data["text/html"] and "&lt;script&gt;" in data["text/html"]


@pytest.mark.parametrize("thing", [len, 3, "gae"])
def test_source_of_something_else_is_refused(thing):
    with pytest.raises(ValueError, match="show_source"):
        show_source(thing)


# ---- compare ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "ours, theirs, verdict, agrees",
    [
        (0.1 + 0.2, 0.3, "exact (max difference < 1e-06)", True),
        (
            [1.0, 2.0],
            torch.tensor([1.0, 2.0 + 3e-7], requires_grad=True),
            "exact (max difference < 1e-06)",
            True,
        ),
        ([torch.tensor(1.0), 2], np.array([1.0, 2.00005]), "close (max difference < 1e-04)", True),
        ([[1.0, 2.0]], [[1.0, 2.25]], "DIFFERENT (max difference 0.25 at [0, 1])", False),
        (1.0, 1.5, "DIFFERENT (max difference 0.5)", False),
        ([1.0, float("nan")], [1.0, float("nan")], "exact (max difference < 1e-06)", True),
        ([float("-inf")], [float("-inf")], "exact (max difference < 1e-06)", True),
        ([1.0, float("nan")], [1.0, 2.0], "DIFFERENT (max difference inf at [1])", False),
        ([True, False], torch.tensor([1, 0]), "exact (max difference < 1e-06)", True),
        ([], [], "exact (max difference < 1e-06)", True),
    ],
)
def test_verdicts(capsys, ours, theirs, verdict, agrees):
    assert compare("gae", ours, theirs) == agrees
    assert capsys.readouterr().out.splitlines()[0] == f"gae: {verdict}"


def test_the_text_of_compare_does_not_depend_on_the_last_bits(capsys):
    compare("loss", [0.0, 1.25], torch.tensor([-0.0, 1.25]))
    first = capsys.readouterr().out
    compare("loss", [-1e-9, 1.25], torch.tensor([2e-8, 1.25 + 1e-7]))
    assert capsys.readouterr().out == first
    assert first == (
        "loss: exact (max difference < 1e-06)\n  by hand  [0.0000, 1.2500]\n  expected [0.0000, 1.2500]\n"
    )


@pytest.mark.parametrize("nothing", [None, [None], (1.0, None)])
def test_compare_takes_nothing_for_a_mistake(nothing):
    with pytest.raises(ValueError, match=r"compare\('x'\): numbers, lists or tensors of numbers are needed"):
        compare("x", nothing, nothing)


def test_compare_takes_short_floats(capsys):
    assert compare("x", torch.ones(2, dtype=torch.bfloat16), [1.0, 1.0]) and "exact" in capsys.readouterr().out


def test_compare_says_what_does_not_fit(capsys):
    assert not compare("values", [1.0, 2.0], torch.zeros(2, 1))
    assert capsys.readouterr().out == "values: DIFFERENT shapes, [2] by hand, [2, 1] expected\n"
    compare("many", np.zeros(100), np.zeros(100))
    assert capsys.readouterr().out.count("\n") == 1
    with pytest.raises(ValueError, match="compare.'words'"):
        compare("words", "a", "b")
    assert compare("loose", 1.0, 1.004, digits=2) and "1e-02" in capsys.readouterr().out


# ---- show_figure -----------------------------------------------------------------------------------------
def test_a_figure_carries_its_alt_text_and_is_closed(shown):
    other, (fig, axes) = plt.figure(), plt.subplots(figsize=(6, 3.2))
    axes.plot([1, 2])
    show_figure(fig, "It rises & <b>ends</b>. Where does `x` stop?", "A line from 1 to 2.")
    (picture, metadata), (words, _) = shown
    assert plt.get_fignums() == [other.number]
    plt.close(other)
    assert (
        set(picture) == {"text/plain", "image/png"} and picture["text/plain"] == "Figure: A line from 1 to 2."
    )
    assert (
        metadata["image/png"]["alt"] == "A line from 1 to 2." and 450 < metadata["image/png"]["width"] < 700
    )
    assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG")
    assert "&lt;b&gt;ends" in words["text/html"] and "<code>x</code>" in words["text/html"]
    assert "A line from 1 to 2." in words["text/html"] and "image/png" not in words


def test_a_figure_without_pyplot_gives_the_same_bytes_twice(shown):
    for _ in range(2):
        fig = Figure(figsize=(6, 3.2))
        fig.subplots().plot([1, 2])
        show_figure(fig, "c", "a")
    assert shown[0] == shown[2]


@pytest.mark.parametrize(
    "caption, alt, name", [("", "a", "caption"), ("c", " ", "alt"), (None, "a", "caption")]
)
def test_a_figure_needs_words(caption, alt, name):
    with pytest.raises(ValueError, match=name):
        show_figure(Figure(), caption, alt)
    with pytest.raises(ValueError, match="matplotlib Figure"):
        show_figure([1, 2], "c", "a")


# ---- predict ---------------------------------------------------------------------------------------------
def test_a_guess_is_shown_beside_the_truth(shown):
    guess = predict("What is the ratio?", [0, 1, "<i>depends</i>"])
    data = shown[0][0]
    assert data["text/plain"] == "What is the ratio?\n  ( ) 0\n  ( ) 1\n  ( ) <i>depends</i>"
    assert "&lt;i&gt;depends" in data["text/html"] and "<i>" not in data["text/html"]
    assert guess.guess is None
    guess.reveal(1)
    assert shown[1][0]["text/plain"] == "You guessed: no guess recorded\nAnswer:      1"
    guess.given = "1"
    guess.reveal(1)
    guess.given = "<i>depends</i>"
    guess.reveal(1)
    assert shown[2][0]["text/plain"].endswith("1  (as you guessed)")
    assert "<i>" not in shown[3][0]["text/html"] and "&lt;i&gt;depends" in shown[3][0]["text/html"]


def test_predictions_need_a_question_and_a_choice():
    for question, choices in (("", ["a", "b"]), ("q", ["a"]), ("q", ["a", "a"])):
        with pytest.raises(ValueError, match="predict"):
            predict(question, choices)


# ---- quiz ------------------------------------------------------------------------------------------------
OPTIONS = [
    {"text": "the right one", "right": True, "feedback": "Yes, because."},
    {"text": "another", "feedback": "What about the mask?"},
    {"text": "a third", "feedback": "Look at the sign."},
]


def test_every_answer_has_its_feedback(shown):
    asked = quiz("Which?", OPTIONS)
    assert asked.answer(1) == "What about the mask?" and not asked.is_right
    assert asked.answer(0) == "Yes, because." and asked.is_right
    assert sorted(o["text"] for o in asked.options) == ["a third", "another", "the right one"]


def test_the_output_of_a_quiz_gives_nothing_away_and_never_changes(shown):
    orders = set()
    for _ in range(40):
        asked = quiz("Which?", OPTIONS)
        asked.answer(0)
        orders.add(tuple(option["text"] for option in asked.options))
    assert len(orders) > 1  # shuffled on screen
    texts = {(data["text/plain"], data["text/html"]) for data, _ in shown}
    assert len(texts) == 1
    words = "".join(texts.pop())
    assert words.startswith("Which?\n  ( ) a third\n  ( ) another\n  ( ) the right one")
    assert "because" not in words and "mask" not in words and "true" not in words.lower()


def test_the_global_random_state_is_left_alone():
    before, numpy_before = random.getstate(), np.random.get_state()[1].tolist()
    quiz("Which?", OPTIONS)
    assert random.getstate() == before and np.random.get_state()[1].tolist() == numpy_before


def test_wrong_quizzes_are_refused():
    with pytest.raises(ValueError, match="no quiz '00-nothing' in quiz_data/00.json, known: .'00-frames'"):
        quiz("00-nothing")
    with pytest.raises(ValueError, match="one of them right"):
        quiz("Which?", [dict(option, right=True) for option in OPTIONS])
    with pytest.raises(ValueError, match="feedback, missing for .'a third'"):
        quiz("Which?", [*OPTIONS[:2], {"text": "a third"}])


FILES = sorted((REPO / "ppo_teach" / "quiz_data").glob("*.json"))


@pytest.mark.parametrize(
    "number, key", [(f.stem, key) for f in FILES for key in json.loads(f.read_text("utf-8"))]
)
def test_every_quiz_on_file_is_sound(number, key):
    assert key.startswith(f"{number}-")
    asked = quiz(key)
    replies = [asked.answer(i) for i in range(len(asked.written))]
    assert len(set(replies)) == len(replies) >= 2


# ---- one notebook with all of it, executed, committed, compared ------------------------------------------
CELLS = [
    "import numpy as np\nimport torch\n"
    "from ppo_teach.notebook import compare, predict, quiz, show_figure, show_source\n"
    "from ppo_teach.canvas import Explorer, FrameCanvas\nfrom ppo_teach.marks import Panel, Slider, line\n"
    "from ppo_teach.advantages import gae",
    "show_source(gae)",
    "compare('a sum', [-0.0, 0.3], torch.tensor([0.0, 0.1 + 0.2], dtype=torch.float64))",
    "guess = predict('Where is the kink?', ['at 1', 'at 1 + epsilon'])",
    "guess.reveal('at 1 + epsilon')",
    "predict('How many nats?')",
    "quiz('00-frames')",
    "import matplotlib.pyplot as plt\nfig, axes = plt.subplots(figsize=(6, 3.2))\naxes.plot([1, 2])\n"
    "show_figure(fig, 'It rises. Why?', 'A line.')",
    "explorer = Explorer('e', [Slider('a', 'a', [0.0, 0.5, 1.0], 0.5)], [Panel('t', 'x', 'y', (0, 1), (0, 1))],\n"
    "                    [line('l', [0, 1], lambda a: [a, a], 'policy')], words='a is {a}.', caption='c', alt='a')\n"
    "explorer",
    "explorer.sliders['a'].value = 1.0\nprint(explorer.drawn()['l'], explorer.words)\nexplorer",
    "quiz('00-frames')\nquiz('00-frames')",
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The executed and normalised notebook, as it would be committed."""
    path = tmp_path_factory.mktemp("course") / "00_all.ipynb"
    cells = [
        {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": source}
        for source in CELLS
    ]
    empty = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(empty), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPO))
        patch.delenv("MPLBACKEND", raising=False)
        notebook_files.execute(path)
        first = path.read_text(encoding="utf-8")
        notebook_files.execute(path)
    assert path.read_text(encoding="utf-8") == first  # byte-identical when re-run
    return path


def strict_nbval(path, **env):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbval",
        "--nbval-current-env",
        "--nbval-cell-timeout",
        "60",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(path.parent),
        "-c",
        "/dev/null",
        str(path),
    ]
    clean = {k: v for k, v in os.environ.items() if k != "MPLBACKEND" and not k.startswith("PYTEST")}
    return subprocess.run(
        command, capture_output=True, text=True, env={**clean, "PYTHONPATH": str(REPO), **env}
    )


def outputs_of(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [output for cell in cells for output in cell["outputs"]]


@pytest.mark.slow
def test_the_committed_outputs_are_clean(executed):
    words = executed.read_text(encoding="utf-8")
    assert "widget-view" not in words and "model_id" not in words and not re.search(r"0x[0-9a-f]{8}", words)
    assert str(REPO) not in words and "Try it: drag" not in words  # no path, no feedback of a quiz
    outputs = outputs_of(executed)
    assert not any(output.get("name") == "stderr" or output["output_type"] == "error" for output in outputs)
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 3 and all(output["metadata"]["image/png"]["alt"] for output in pictures)
    texts = ["".join(output.get("data", {}).get("text/plain", output.get("text", ""))) for output in outputs]
    assert "e(a=0.5)" in texts and "e(a=1.0)" in texts and "[1. 1.] a is 1.00.\n" in texts
    assert sum(text.startswith("How many nats?") for text in texts) == 1  # shown once, last expression or not


@pytest.mark.slow
def test_strict_nbval_accepts_it(executed):
    done = strict_nbval(executed)
    assert done.returncode == 0 and f"{len(CELLS)} passed" in done.stdout, done.stdout[-3000:]


@pytest.mark.slow
def test_another_processor_may_draw_other_pixels(executed, tmp_path):
    committed = json.loads(executed.read_text(encoding="utf-8"))
    for cell in committed["cells"]:
        for output in cell["outputs"]:
            if "image/png" in output.get("data", {}):
                output["data"]["image/png"] = base64.b64encode(b"other pixels").decode()
    other = tmp_path / "00_pixels.ipynb"
    other.write_text(json.dumps(committed), encoding="utf-8")
    done = strict_nbval(other, ATEN_CPU_CAPABILITY="default")
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_strict_nbval_notices_other_words(executed, tmp_path):
    other = tmp_path / "00_words.ipynb"
    words = executed.read_text(encoding="utf-8")
    other.write_text(words.replace("exact (max", "close (max"), encoding="utf-8")
    done = strict_nbval(other)
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout[-3000:]


# ---- a bound instead of a number ---------------------------------------------------------------------------
def test_check_says_the_bounds_and_never_the_number(capsys):
    notebook_module.check("reward", 2.345, at_least=2, at_most=3)
    notebook_module.check("loss", -1.5, at_most=0.5)
    assert capsys.readouterr().out == "ok: 2 <= reward <= 3\nok: loss <= 0.5\n"


@pytest.mark.parametrize("value", [1.99, 3.01, float("nan")])
def test_check_raises_with_the_number(value):
    with pytest.raises(AssertionError, match=rf"reward: {value:.4g} is not in \[2, 3\]"):
        notebook_module.check("reward", value, at_least=2, at_most=3)
