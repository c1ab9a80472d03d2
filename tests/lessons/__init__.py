"""What the tests know about each lesson, one module a notebook; the module has the notebook's name behind "lesson_".

ANSWERS: start of a stub's cell -> (solution, known wrong answer, words of the mistake to be named).
EXPLORERS: name -> Case. BROWSER: the sliders of the first explorer, and a mark that must follow the first slider.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One explorer under test.

    build() -> Explorer; moves, slider -> what must differ between any two of seven positions of it;
    fixed, what no slider moves; changes, slider -> what must differ between its two ends at least; gaps, what may
    hold NaN, which is not drawn.
    """

    build: Callable
    moves: dict
    fixed: tuple = ()
    changes: dict = field(default_factory=dict)
    gaps: tuple = ()


LESSONS = {
    path.stem.removeprefix("lesson_"): importlib.import_module(f"lessons.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("lesson_*.py"))
}
EXPLORERS = {name: case for lesson in LESSONS.values() for name, case in lesson.EXPLORERS.items()}
