"""Each notebook again: its exercises wrong and then solved, and every cell run twice in a row."""

import copy
import re
import uuid
from pathlib import Path

import nbformat
import pytest
from lessons import LESSONS
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
pytestmark = pytest.mark.slow

# notebook -> start of the stub's cell -> (solution, known wrong answer, the mistake to be named)
ANSWERS = {name: lesson.ANSWERS for name, lesson in LESSONS.items() if lesson.ANSWERS}
by_notebook = pytest.mark.parametrize("name", ANSWERS)


def read(name):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def run(notebook, **options):
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    NotebookClient(notebook, timeout=180, kernel_name="python3", resources=resources, **options).execute()
    return notebook


def place_of(notebook, start):
    (found,) = [(i, c) for i, c in enumerate(notebook.cells) if c.cell_type == "code" and start in c.source]
    return found


def filled(cell, start, answer):
    """A copy of an exercise's cell with the stub's `...` replaced."""
    copied = copy.deepcopy(cell)
    copied.id = uuid.uuid4().hex[:8]
    if answer.startswith("    "):
        copied.source = re.sub(rf"(?s)({re.escape(start)}.*?\n)    \.\.\.(?=\n)", rf"\1{answer}", cell.source)
    else:
        copied.source = cell.source.replace(f"{start}...", answer)
    assert copied.source != cell.source, f"no stub in {start}"
    return copied


def verdict_of(cell):
    texts = [o.data.get("text/plain", "") for o in cell.outputs if o.output_type != "stream"]
    (verdict,) = [text for text in texts if text.startswith("Exercise ")]
    return verdict


@by_notebook
def test_every_exercise_is_answered_here(name):
    stubs = [c.source for c in read(name).cells if re.search(r"^check_\w+\(", c.source, re.MULTILINE)]
    assert len(stubs) == len(ANSWERS[name]) and 2 <= len(stubs) <= 4
    assert all(sum(start in source for source in stubs) == 1 for start in ANSWERS[name])


@by_notebook
def test_the_notebook_as_it_is_attempts_nothing(name):
    verdicts = [verdict_of(c) for c in read(name).cells if re.search(r"^check_\w+\(", c.source, re.MULTILINE)]
    assert len(verdicts) == len(ANSWERS[name])
    assert all(verdict.endswith(": not attempted yet") for verdict in verdicts)


@by_notebook
def test_wrong_answers_are_named_and_right_ones_accepted(name):
    """One run: each exercise's cell with the wrong answer, and again with the solution. The run goes on in both cases."""
    notebook, pairs = read(name), []
    for start, (solution, wrong, said) in ANSWERS[name].items():
        place, cell = place_of(notebook, start)
        pairs.append((filled(cell, start, wrong), filled(cell, start, solution), said))
        notebook.cells[place : place + 1] = pairs[-1][:2]
    run(notebook)
    for wrong, right, said in pairs:
        assert "not yet" in verdict_of(wrong).split("\n")[0] and said in verdict_of(wrong)
        assert verdict_of(right).split("\n")[0].endswith(": right")


def words_of(cell):
    """What a cell says in text form, without what it marks as different from run to run."""
    if "nbval-ignore-output" in cell.metadata.get("tags", ()):
        return ""
    texts, kind = [], None
    for output in cell.outputs:
        text = output.get("text", "") or output.get("data", {}).get("text/plain", "")
        if kind == output.output_type == "stream":  # a stream may arrive in several pieces
            texts[-1] += text
        else:
            texts.append(text)
        kind = output.output_type
    return "\n".join(text.strip("\n") for text in texts)


@by_notebook
def test_running_each_cell_twice_changes_nothing(name):
    """A student runs a cell again; the second time must say the same as the first."""
    notebook = read(name)
    doubled = []
    for cell in notebook.cells:
        doubled.append(cell)
        if cell.cell_type == "code":
            again = copy.deepcopy(cell)
            again.id = f"{cell.id}-again"
            doubled.append(again)
    notebook.cells = doubled
    run(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for first, second in zip(code[::2], code[1::2], strict=True):
        assert words_of(first) == words_of(second), first.id
