"""Each notebook again with its exercises solved, with them wrong, and with every cell run twice in a row."""

import copy
import re
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


def filled(notebook, answers):
    """The notebook with each stub's `...` replaced; the cells that were changed."""
    changed = []
    for start, answer in answers.items():
        (cell,) = [c for c in notebook.cells if c.cell_type == "code" and start in c.source]
        before = cell.source
        if answer.startswith("    "):
            cell.source = re.sub(rf"(?s)({re.escape(start)}.*?\n)    \.\.\.(?=\n)", rf"\1{answer}", before)
        else:
            cell.source = before.replace(f"{start}...", answer)
        assert cell.source != before, f"no stub in {start}"
        changed.append(cell)
    return changed


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
def test_with_the_solutions_every_verdict_is_right(name):
    notebook = read(name)
    cells = filled(notebook, {start: solution for start, (solution, _, _) in ANSWERS[name].items()})
    run(notebook)
    assert all(verdict_of(cell).split("\n")[0].endswith(": right") for cell in cells)


@by_notebook
def test_with_wrong_answers_each_mistake_is_named_and_the_run_goes_on(name):
    notebook = read(name)
    cells = filled(notebook, {start: wrong for start, (_, wrong, _) in ANSWERS[name].items()})
    run(notebook)
    for cell, (_, _, said) in zip(cells, ANSWERS[name].values(), strict=True):
        assert "not yet" in verdict_of(cell).split("\n")[0] and said in verdict_of(cell)


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
