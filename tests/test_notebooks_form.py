"""Every committed notebook keeps the form of the course; the outputs themselves are checked by nbval.

The rules stand in `problems`, one sentence each; `test_each_rule_can_fail` breaks them one by one.
"""
import ast
import copy
import inspect
import re
import statistics
from pathlib import Path

import nbformat
import notebook_files
import pytest

import ppo_teach

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PLANNED = (
    "00_start_here", "01_language_model_as_policy", "02_rewards", "03_kl_leash", "04_how_far", "05_gae",
    "06_clipping", "07_training_step", "08_training_run", "09_reward_hacking", "10_bug_clinic", "11_onward",
)
# Notebooks whose text is still growing: too short is allowed, too long is not. Empty in the finished course.
FIRST_FORM = ("00_start_here",)

MAGICS = ("%matplotlib inline", "%config InlineBackend.")
BANNED_CALLS = re.compile(r"\b(interact|interactive_output|interactive|Output)\(|\bjupyterquiz\b|\bNBVAL_")
BANNED_TAGS = {"nbval-skip"}
ADDRESS_OR_PATH = re.compile(r"\b0x[0-9a-f]{6,}|/(?:home|root|Users|tmp)/|site-packages|\bC:\\")
IMAGES = ("image/png", "image/jpeg", "image/svg+xml")


# ---------------------------------------------------------------- the rules

def words_of_prose(notebook):
    """Words in markdown cells, without code blocks, displayed formulas, tags and link targets."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    text = re.sub(r"```.*?```|\$\$.*?\$\$|<[^>]+>|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def size_problems(notebook, first_form=False):
    """Cells, words, and lines of code, against the limits of a finished notebook."""
    lines = [len(cell.source.splitlines()) for cell in notebook.cells if cell.cell_type == "code"]
    cells, words = len(notebook.cells), words_of_prose(notebook)
    if not (first_form or cells >= 35) or cells > 60:
        yield f"{cells} cells; 35 to 60 are wanted"
    if not (first_form or words >= 1200) or words > 2200:
        yield f"{words} words of prose; 1,200 to 2,200 are wanted"
    if lines and statistics.median(lines) > 6:
        yield f"the median code cell has {statistics.median(lines)} lines; the limit is 6"


def names_bound(tree):
    """Names that code defines or assigns, wherever it does so."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def names_imported(tree):
    """Names that code imports from the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ppo_teach":
            yield from (alias.asname or alias.name for alias in node.names)


def code_problems(notebook):
    """What a code cell must not do."""
    imported = set(ppo_teach.__all__)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        lines = cell.source.splitlines()
        if not cell.source.strip():
            yield f"{cell.id}: an empty code cell"
        if len(lines) > 20:
            yield f"{cell.id}: {len(lines)} lines of code; the limit is 20"
        for line in lines:
            if line.startswith(("%", "!")) and not line.startswith(MAGICS):
                yield f"{cell.id}: a magic that is not portable or not reproducible: {line}"
        if BANNED_CALLS.search(cell.source):
            yield f"{cell.id}: strict nbval or a reader cannot take {BANNED_CALLS.search(cell.source)[0]}"
        if BANNED_TAGS.intersection(cell.metadata.get("tags", ())):
            yield f"{cell.id}: tagged {BANNED_TAGS}, so nothing checks it"
        tree = ast.parse("\n".join(line for line in lines if not line.startswith(("%", "!"))))
        imported.update(names_imported(tree))
        for name in sorted(imported.intersection(names_bound(tree))):
            yield f"{cell.id}: redefines {name} of ppo_teach"


def has_alt(html):
    """Whether every image in a piece of HTML comes with a text for those who cannot see it."""
    images = re.findall(r"<img\b[^>]*>", html)
    return all(re.search(r"""\balt=("[^"]*\w[^"]*"|'[^']*\w[^']*')""", image) for image in images)


def described(output):
    """Whether the picture in an output has a description: in its metadata, or as the alt of an <img>."""
    metadata = [output.metadata, *(output.metadata.get(kind, {}) for kind in IMAGES)]
    html = output.data.get("text/html", "")
    return any(entry.get("alt", "").strip() for entry in metadata) or ("<img" in html and has_alt(html))


def output_problems(notebook):
    """What a stored output must and must not hold."""
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    if counts != list(range(1, len(counts) + 1)):
        yield f"not executed from top to bottom in one go: execution counts {counts}"
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", ()):
                yield f"{cell.id}: an error is stored: {output.ename}"
            texts = [output.get("text", ""), *(text for kind, text in output.get("data", {}).items()
                                               if kind.startswith("text/"))]
            for text in texts:
                found = ADDRESS_OR_PATH.search(re.sub(r"base64,[\w+/=]*", "", text))
                if found:
                    yield f"{cell.id}: an address or path of one machine in an output: {found[0]}"
            if any(kind in output.get("data", {}) for kind in IMAGES) and not described(output):
                yield f"{cell.id}: a picture without alt text"
            if not has_alt(output.get("data", {}).get("text/html", "")):
                yield f"{cell.id}: an <img> without alt text in an output"
            if notebook_files.WIDGET_VIEW in output.get("data", {}):
                yield f"{cell.id}: a widget view is stored"


def notebook_problems(notebook):
    """Metadata, and the prose's pictures."""
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "the kernelspec is not python3"
    if "widgets" in notebook.metadata:
        yield "widget state is stored in metadata.widgets"
    for cell in notebook.cells:
        undescribed = re.search(r"!\[\s*\]\(", cell.source) or not has_alt(cell.source)
        if cell.cell_type == "markdown" and undescribed:
            yield f"{cell.id}: a picture without alt text in the prose"


def problems(notebook, first_form=False):
    return [*size_problems(notebook, first_form), *code_problems(notebook), *output_problems(notebook),
            *notebook_problems(notebook)]


# ---------------------------------------------------------------- the committed notebooks

def read(path):
    return nbformat.read(path, as_version=4)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_keeps_the_form(path):
    assert path.stem in PLANNED
    assert problems(read(path), first_form=path.stem in FIRST_FORM) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_saved_normalised(path):
    normalised = notebook_files.dump(notebook_files.normalise(notebook_files.read(path), path.stem))
    assert path.read_text(encoding="utf-8") == normalised, f"python course.py notebooks {path.stem}"
    nbformat.validate(read(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_to_files_resolve(path):
    """Links in the prose lead to files of the repository, or to notebooks that are planned."""
    prose = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose)
    targets += re.findall(r"""\b(?:src|href)=["']([^"'#]+)""", prose)
    for target in (target for target in targets if "://" not in target):
        planned = target.endswith(".ipynb") and Path(target).stem in PLANNED
        assert planned or (path.parent / target).exists(), target


# ---------------------------------------------------------------- where each name is taught

EXPORTS = {name: getattr(ppo_teach, name) for name in ppo_teach.__all__}
PUBLIC = {name: item for name, item in EXPORTS.items() if inspect.isclass(item) or inspect.isfunction(item)}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_says_where_it_is_taught(name):
    last = inspect.getdoc(PUBLIC[name]).splitlines()[-1]
    link = re.search(r"Taught in: notebooks/\w+\.ipynb(, notebooks/\w+\.ipynb)*$", last)
    assert link, f"the docstring of {name} ends: {last}"
    for stem in re.findall(r"notebooks/(\w+)\.ipynb", link[0]):
        path = ROOT / "notebooks" / f"{stem}.ipynb"
        if path.exists() and stem not in FIRST_FORM:
            assert re.search(rf"\b{name}\b", "\n".join(cell.source for cell in read(path).cells)), stem


def test_every_taught_in_link_is_a_planned_notebook():
    links = [link for path in sorted((ROOT / "ppo_teach").rglob("*.py"))
             for link in re.findall(r"Taught in: *(.*)", path.read_text(encoding="utf-8"))]
    assert links
    for link in links:
        stems = re.findall(r"notebooks/(\w+)\.ipynb", link)
        assert stems and set(stems) <= set(PLANNED), link


# ---------------------------------------------------------------- the rules can fail

def picture(**changes):
    output = {"output_type": "display_data", "metadata": {"image/png": {"alt": "A rising line."}},
              "data": {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure size 600x320 with 1 Axes>"}}
    output.update(changes)
    return nbformat.from_dict(output)


@pytest.fixture
def good():
    """A notebook without problems."""
    v4 = nbformat.v4
    cells = []
    for index in range(20):
        cells.append(v4.new_markdown_cell("You read a line of prose. " * 13, id=f"m{index}"))
        executed = {"execution_count": index + 1, "outputs": [v4.new_output("stream", text="0.25\n")]}
        cells.append(v4.new_code_cell("print(0.25)", id=f"c{index}", **executed))
    cells[3].outputs = [picture()]
    cells[5].source = "%matplotlib inline\nfrom ppo_teach.losses import value_loss as critic_loss\nawait run"
    kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernelspec})


def strip(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)


def set_source(text, index=1):
    return lambda notebook: notebook.cells[index].update(source=text)


def set_output(output):
    return lambda notebook: notebook.cells[1].update(outputs=[nbformat.from_dict(output)])


def html_output(html):
    return set_output({"output_type": "display_data", "metadata": {}, "data": {"text/html": html}})


def printed(text):
    return set_output({"output_type": "stream", "name": "stdout", "text": text})


ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "", "traceback": []}
BREAKS = {
    "stripped outputs": (strip, "not executed from top to bottom"),
    "a cell run again": (lambda nb: nb.cells[1].update(execution_count=7), "not executed from top to bottom"),
    "a stored error": (set_output(ERROR), "an error is stored: ValueError"),
    "interact": (set_source("interact(draw, x=(0, 1))"), "interact("),
    "Output": (set_source("with widgets.Output(): pass"), "Output("),
    "a marker that students see": (set_source("# NBVAL_IGNORE_OUTPUT"), "NBVAL_"),
    "a skipped cell": (lambda nb: nb.cells[1].metadata.update(tags=["nbval-skip"]), "nothing checks"),
    "a long cell": (set_source("a = 1\n" * 21), "21 lines of code"),
    "long cells": (lambda nb: [set_source("a = 1\n" * 7, index)(nb) for index in range(1, 40, 2)], "median"),
    "an empty cell": (set_source(" "), "empty code cell"),
    "too few cells": (lambda nb: nb.cells.__delitem__(slice(34, None)), "34 cells"),
    "too many cells": (lambda nb: nb.cells.extend(22 * [nbformat.v4.new_markdown_cell("Hm.")]), "62 cells"),
    "too little prose": (lambda nb: [set_source("Hm.", index)(nb) for index in range(0, 40, 2)], "words of"),
    "too much prose": (set_source("word " * 1100, 0), "words of prose"),
    "an unknown magic": (set_source("%%time\nprint(1)"), "a magic"),
    "a shell command": (set_source("!ls"), "a magic"),
    "another kernel": (lambda nb: nb.metadata.kernelspec.update(name="venv"), "kernelspec"),
    "widget state": (lambda nb: nb.metadata.update(widgets={"state": {}}), "metadata.widgets"),
    "a widget view": (set_output(picture(data={notebook_files.WIDGET_VIEW: {}, "text/plain": "IntSlider()"})),
                      "a widget view"),
    "an address": (printed("<Line2D at 0x7f3a5c0e2d10>"), "address or path"),
    "a path": (printed("/home/someone/course/x.py:3: UserWarning"), "address or path"),
    "a picture without alt": (set_output(picture(metadata={})), "a picture without alt"),
    "an empty alt": (set_output(picture(metadata={"image/png": {"alt": " "}})), "a picture without alt"),
    "an img without alt": (html_output('<img src="data:image/png;base64,AA">'), "an <img> without alt"),
    "an img with an empty alt": (html_output('<img alt="" src="x.png">'), "an <img> without alt"),
    "a prose picture without alt": (set_source("![](x.png)", 0), "in the prose"),
    "a redefined function": (set_source("def gae(rewards): return rewards"), "redefines gae"),
    "a shadowed function": (set_source("for value_loss in [1.0]: pass"), "redefines value_loss"),
    "a shadowed import": (set_source("critic_loss = 0.1", 7), "redefines critic_loss"),
}


def test_a_good_notebook_has_no_problems(good):
    assert problems(good) == []


@pytest.mark.parametrize("name", BREAKS)
def test_each_rule_can_fail(good, name):
    breaking, said = BREAKS[name]
    broken = copy.deepcopy(good)
    breaking(broken)
    found = problems(broken)
    assert found and all(said in problem for problem in found), found


def test_what_the_rules_allow(good):
    good.cells[1].update(outputs=[nbformat.from_dict(ERROR)], metadata={"tags": ["raises-exception"]})
    html_output('<img alt="It rises." src="data:image/png;base64,a/0x7f3a5c0e2d10/tmp/">')(good)
    assert problems(good) == []
    del good.cells[20:]
    assert problems(good, first_form=True) == [] and len(problems(good)) == 2


# ---------------------------------------------------------------- each formula is shown once

def shown_in():
    """Name in `show_source(...)` -> the notebooks that show it."""
    shown = {}
    for path in NOTEBOOKS:
        for cell in read(path).cells:
            if cell.cell_type == "code":
                for name in re.findall(r"\bshow_source\(([\w.]+)\)", cell.source):
                    shown.setdefault(name, []).append(path.stem)
    return shown


def test_no_source_is_shown_twice():
    assert {name: stems for name, stems in shown_in().items() if len(stems) > 1} == {}


@pytest.mark.parametrize("module", ["tensor_ops", "rewards", "advantages", "losses"])
def test_each_formula_is_shown_where_its_docstring_says(module):
    shown = shown_in()
    formulas = [name for name, item in PUBLIC.items() if item.__module__ == f"ppo_teach.{module}"]
    assert len(formulas) > 2
    for name in formulas:
        (stem,) = shown[name]
        assert f"notebooks/{stem}.ipynb" in inspect.getdoc(PUBLIC[name]).splitlines()[-1], name
