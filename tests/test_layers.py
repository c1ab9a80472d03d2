"""The house rules of the package, read from its source: layers, imports, size, docstrings, exports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ppo_teach

PACKAGE = Path(ppo_teach.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = {path: ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in FILES}
MODULES = [
    path for path in FILES if path.name != "__init__.py"
]  # those re-export, and import from everywhere

LESSONS = (
    "policy", "rewards", "kl", "how_far", "gae", "clipping", "step", "run", "hacking", "clinic", "onward",
)  # fmt: skip

# A module imports only from a lower layer.
LAYERS = {
    "config": 0, "tensor_ops": 0, "colors": 0, "worlds.lexicon": 0,
    "models": 1, "worlds.grammar": 1, "worlds.reward_model": 1,
    "worlds.chain": 2, "worlds.review": 2, "rollout": 2, "rewards": 2, "advantages": 2, "losses": 2,
    "exact": 2,
    "ppo": 3, "worlds.build": 3, "marks": 3,
    "train": 4, "alternatives": 4, "bugs": 4, "still": 4,
    "plots": 5, "notebook": 5, "canvas": 5, "checker": 5, "checkup": 5,
    "live": 5, "hacking": 5, "lab": 7,
    **{f"explorers.{lesson}": 6 for lesson in LESSONS}, **{f"exercises.{lesson}": 6 for lesson in LESSONS},
}  # fmt: skip
HEAVY = (
    "matplotlib",
    "ipywidgets",
    "IPython",
    "tqdm",
    "anywidget",
    "ipykernel",
    "traitlets",
    "scipy",
    "pandas",
)

by_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: NAMES[path])


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path):
    """Names of the package's modules that this one imports, anywhere in it: "models", "worlds.grammar"."""
    here = NAMES[path].split(".")[:-1]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (
            node.level or (node.module or "").split(".")[0] == "ppo_teach"
        ):
            base = here[: len(here) + 1 - node.level] if node.level else []
            target = [*base, *(node.module or "").removeprefix("ppo_teach").strip(".").split(".")]
            target = [part for part in target if part]
            for alias in node.names:  # "from . import losses" names modules
                inner = ".".join([*target, alias.name])
                yield inner if inner in NAMES.values() else ".".join(target)
        elif isinstance(node, ast.Import):
            yield from (
                a.name.removeprefix("ppo_teach.") for a in node.names if a.name.startswith("ppo_teach.")
            )


def layer_of(name):
    """The layer of a module, or for a package (its re-exports) the highest inside it."""
    inside = [layer for module, layer in LAYERS.items() if module == name or module.startswith(f"{name}.")]
    return max(inside, default=None)


@by_module
def test_every_module_has_a_layer(path):
    assert NAMES[path] in LAYERS, f"give {NAMES[path]} a place in the table"


@by_module
def test_imports_go_down_only(path):
    own = layer_of(NAMES[path])
    for name in imported(path):
        assert layer_of(name) is not None and layer_of(name) < own, (
            f"{NAMES[path]} ({own}) imports {name} ({layer_of(name)})"
        )


def test_imports_are_found_in_every_form(tmp_path, monkeypatch):
    file = tmp_path / "module.py"
    file.write_text(
        "from .losses import gae\nfrom . import train\n"
        "from ppo_teach.models import TinyLM\nimport ppo_teach.bugs\n"
        "def f():\n    from .worlds.chain import ChainWorld\n    from .worlds import ReviewWorld\n"
    )
    monkeypatch.setitem(NAMES, file, "module")
    assert {"losses", "train", "models", "worlds.chain", "worlds"} <= set(imported(file))
    inner = tmp_path / "inner.py"
    inner.write_text("from ..models import TinyLM\nfrom .grammar import WORDS\n")
    monkeypatch.setitem(NAMES, inner, "worlds.inner")
    assert set(imported(inner)) == {"models", "worlds.grammar"}


def test_there_is_no_drawer_for_everything():
    assert not [
        name for name in NAMES.values() if name.split(".")[-1] in ("utils", "helpers", "common", "misc")
    ]


def test_importing_the_package_needs_torch_and_numpy_only():
    code = (  # torch itself may bring tqdm
        "import sys, torch, numpy\nbefore = set(sys.modules)\nimport ppo_teach\n"
        f"print([name for name in {HEAVY} if name in set(sys.modules) - before])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def code_lines(path):
    """Lines that hold code: no blank lines, comments or docstrings."""
    source = path.read_text(encoding="utf-8")
    skipped = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and ast.get_docstring(node) is not None
        ):
            skipped |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and n not in skipped for n, line in lines
    )


# What a student reads to understand PPO is small; what shows it, and the planted mistakes, take the rest.
LIMITS = {"engine": 2600, "tools": 2000, "explorers": 1300, "exercises": 2300}


def part_of(name):
    """engine (layers 0 to 4: formulas, models, worlds, training), tools, or a lesson's explorers and exercises."""
    first = name.split(".")[0]
    if first in ("explorers", "exercises"):
        return first
    return "engine" if LAYERS.get(name, 0) <= 4 and name not in ("marks", "still") else "tools"


def test_the_package_stays_small():
    sizes = {NAMES[path]: code_lines(path) for path in FILES}
    for part, limit in LIMITS.items():
        assert sum(size for name, size in sizes.items() if part_of(name) == part) <= limit, part
    assert max(sizes.values()) <= 500, "a module fits in one reading"


# ---------------------------------------------------------------- docstrings and the public list


def public_definitions(path):
    """(qualified name, node) of public functions, classes and their public methods."""
    for node in tree_of(path).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                yield from (
                    (f"{node.name}.{inner.name}", inner)
                    for inner in node.body
                    if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_")
                )


@by_module
def test_everything_public_says_what_it_does(path):
    assert ast.get_docstring(tree_of(path)), "the module itself"
    silent = [
        name for name, node in public_definitions(path)
        if not ast.get_docstring(node) and "." not in name and name != "main"
    ]  # fmt: skip
    assert silent == []


def test_what_the_package_exports_is_listed_completely():
    tree = tree_of(PACKAGE / "__init__.py")
    names = [
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(names) == sorted(ppo_teach.__all__) and len(set(names)) == len(names)
    assert all(hasattr(ppo_teach, name) for name in ppo_teach.__all__)


def test_the_names_of_the_course_are_exported():
    wanted = """
        PPOConfig NOTATION masked_mean masked_whiten response_mask response_log_probs response_values entropy
        MockLanguageModel MockValueHead MockRewardModel TinyLM make_reference ChainWorld ReviewWorld
        Rollout generate collect_rollout
        place_scores kl_estimate shape_rewards missing_eos_penalty AdaptiveKLController RunningMoments
        discounted_returns td_errors gae
        probability_ratio clipped_policy_loss value_loss clip_fraction ratio_outside_fraction approx_kl
        explained_variance LanguageModelPPO run_ppo_training_step train_ppo TrainingLog
    """.split()
    assert set(wanted) <= set(ppo_teach.__all__)


@pytest.mark.parametrize("name", [name for name in ppo_teach.__all__ if name not in ("NOTATION", "BUGS")])
def test_an_exported_name_says_where_it_is_taught(name):
    assert "Taught in: notebooks/" in getattr(ppo_teach, name).__doc__


@pytest.mark.parametrize("module", ["tensor_ops", "rewards", "advantages", "losses", "ppo", "rollout"])
def test_a_formula_fits_on_a_slide(module):
    """What a notebook shows is at most 40 lines, docstring included."""
    for name, node in public_definitions(PACKAGE / f"{module}.py"):
        if isinstance(node, ast.FunctionDef):
            length = node.end_lineno - min([node.lineno, *(d.lineno for d in node.decorator_list)]) + 1
            assert length <= 40 or name in ("freeze_rollout",), f"{name}: {length} lines"
