"""What a notebook shows around its numbers: source, comparisons, captioned figures, predictions and quizzes.

Every output has a text form that is the same on every machine and in every run, so that the committed
notebook can be compared with a new run. What differs (pixels, order of answers, a guess) is not in that text.
"""

import base64
import html
import inspect
import io
import json
import math
import random
import re
import struct
import sys
import textwrap
from pathlib import Path

import anywidget
import numpy as np
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

_BOX = "border: 1px solid #d9d9d9; border-radius: 8px; background: #fff; color: #1a1a1a; overflow: hidden;"
_ESM = Path(__file__).with_name("choices.js").read_text(encoding="utf-8")
_QUIZ_DATA = Path(__file__).with_name("quiz_data")


class _Shown:
    """Something to display: plain text, HTML, perhaps a picture."""

    def __init__(self, text, page=None, image=None, **metadata):
        self.text, self.data = text, {"text/html": page, "image/png": image}
        self.metadata = {"image/png": metadata} if image else {}

    def __repr__(self):
        return self.text

    def _repr_mimebundle_(self, **kwargs):
        return {"text/plain": self.text} | {k: v for k, v in self.data.items() if v}, self.metadata


def _rich(text: str) -> str:
    """Escaped, with `code` between backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(str(text)))


def show_source(fn) -> None:
    """Show the source of a function, method or class of the package, with its file.

    Errors: ValueError when `fn` has no Python source.
    """
    try:
        fn = inspect.unwrap(fn)
        source = textwrap.dedent(inspect.getsource(fn)).rstrip()
    except (TypeError, OSError) as error:
        raise ValueError(f"show_source needs a function written in Python, got {fn!r}") from error
    package = fn.__module__.startswith("ppo_teach.")
    file = Path(inspect.getsourcefile(fn)).with_suffix("").as_posix()
    where = f"ppo_teach/{file.rpartition('ppo_teach/')[2]}.py" if package else "this notebook"
    # Styles in the tags, not in a style sheet: a viewer that drops style sheets still shows the colours.
    code = highlight(source, PythonLexer(), HtmlFormatter(noclasses=True, nowrap=True))
    head = "padding: 4px 12px; border-bottom: 1px solid #d9d9d9; font-family: sans-serif; font-size: 13px;"
    body = ("margin: 0; padding: 8px 12px; overflow-x: auto; white-space: pre; background: #fff; "
            "color: #1a1a1a; font-size: 12px; line-height: 1.45;")
    page = (f'<div style="{_BOX}"><div style="{head}"><b>{where}</b></div>'
            f'<pre style="{body}">{code}</pre></div>')
    display(_Shown(f"# {where}\n{source}", page))


def _numbers(values):
    if isinstance(values, (list, tuple)):
        return np.array([_numbers(value) for value in values], dtype=float)
    if values is None:
        raise TypeError("None is no number")  # numpy takes it for NaN: two functions without a return would agree
    values = values.detach().cpu().double().numpy() if hasattr(values, "detach") else values
    return np.asarray(values, dtype=float)


def _written(array, digits):
    if array.ndim:
        return f"[{', '.join(_written(part, digits) for part in array)}]"
    return f"{np.round(array, digits) + 0.0:.{digits}f}"  # + 0.0 turns -0.0 into 0.0


class Agreement(int):
    """1 or 0, true or false; a cell that ends on it shows nothing, since its verdict is printed already."""

    def _ipython_display_(self):
        pass


def compare(name: str, by_hand, reference, digits: int = 6) -> Agreement:
    """Print whether two results agree, and the values when they are few. True unless they are DIFFERENT.

    exact: less than 10^-digits apart (no more is claimed: the last bits depend on the processor);
    close: less than 10^-(digits // 2); DIFFERENT: anything else, with the place of the largest difference.
    Errors: ValueError when something is not a number.
    """
    try:
        ours, theirs = _numbers(by_hand), _numbers(reference)
    except (TypeError, ValueError) as error:
        raise ValueError(f"compare({name!r}): numbers, lists or tensors of numbers are needed") from error
    if ours.shape != theirs.shape:
        print(f"{name}: DIFFERENT shapes, {list(ours.shape)} by hand, {list(theirs.shape)} expected")
        return Agreement(False)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.nan_to_num(np.abs(ours - theirs), nan=np.inf))
    worst = float(gap.max(initial=0.0))
    power = next((p for p in range(digits, 0, -1) if worst < 10.0**-p), 0)
    if power >= max(digits // 2, 1):
        print(f"{name}: {'exact' if power == digits else 'close'} (max difference < 1e-{power:02d})")
    else:
        place = list(map(int, np.unravel_index(gap.argmax(), gap.shape)))
        print(f"{name}: DIFFERENT (max difference {worst:.3g}{f' at {place}' if place else ''})")
    if ours.size <= 8:
        print(f"  by hand  {_written(ours, min(digits, 4))}\n  expected {_written(theirs, min(digits, 4))}")
    return Agreement(power >= max(digits // 2, 1))


def check(what: str, value: float, at_least: float = -math.inf, at_most: float = math.inf) -> None:
    """Say that a measured number is within its bounds, without the number: a long run differs from machine to machine.

    Errors: AssertionError with the number when it is outside.
    """
    assert at_least <= value <= at_most, f"{what}: {value:.4g} is not in [{at_least:g}, {at_most:g}]"
    low, high = f"{at_least:g} <= " * (at_least > -math.inf), f" <= {at_most:g}" * (at_most < math.inf)
    print(f"ok: {low}{what}{high}")


def show_figure(fig, caption: str, alt: str) -> None:
    """Show a matplotlib figure with its caption, and close it.

    The picture carries `alt` as its alt text, and the same words fold out under the caption, for viewers that
    drop alt texts. Caption and picture are two outputs: a re-run compares the words, never the pixels.
    Errors: ValueError for an empty caption or alt text, or something that is not a figure.
    """
    for argument, value in (("caption", caption), ("alt", alt)):
        if not str(value or "").strip():
            raise ValueError(f"show_figure: {argument} must be a non-empty text, got {value!r}")
    if not hasattr(fig, "savefig"):
        raise ValueError(f"show_figure: fig must be a matplotlib Figure, got {type(fig).__name__}")
    stream = io.BytesIO()
    look = {"dpi": 144, "bbox_inches": "tight", "facecolor": "white"}
    fig.savefig(stream, format="png", metadata={"Software": None}, **look)
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close(fig)
    png = stream.getvalue()
    width, height = (round(pixels * 2 / 3) for pixels in struct.unpack(">II", png[16:24]))
    image = base64.b64encode(png).decode("ascii")
    display(_Shown(f"Figure: {alt}", image=image, alt=alt, width=width, height=height))
    page = (f'<p style="max-width: 640px; margin: 0 0 2px;"><i>{_rich(caption)}</i></p>'
            f'<details style="max-width: 640px;"><summary>Figure in words</summary>{_rich(alt)}</details>')
    display(_Shown(caption, page))


class _Asked(anywidget.AnyWidget):
    """A question with answers to choose from. Without a front end it is the question as text."""

    _esm = _ESM
    question, given = traitlets.Unicode().tag(sync=True), traitlets.Unicode().tag(sync=True)
    options = traitlets.List(traitlets.Dict()).tag(sync=True)
    _shown_in = None

    def _texts(self):
        """The answers in an order that gives nothing away and never changes."""
        return sorted((option["text"] for option in self.options), key=str.casefold)

    def __repr__(self):
        return "\n".join([self.question, *(f"  ( ) {text}" for text in self._texts())])

    def _ipython_display_(self):
        """Once a cell, whether it is the last expression there or not."""
        shell = get_ipython()
        cell = shell.execution_count if shell else object()
        if self._shown_in == cell:
            return
        self._shown_in = cell
        answers = "".join(f"<li>{_rich(text)}</li>" for text in self._texts())
        data, metadata = self._repr_mimebundle_()
        page = f"<p><b>{_rich(self.question)}</b></p><ul>{answers}</ul>"
        display({**data, "text/plain": repr(self), "text/html": page}, metadata=metadata, raw=True)


class Prediction(_Asked):
    """A guess, made before the cell that settles it. `.guess` is None until there is one."""

    @property
    def guess(self):
        return self.given or None

    def reveal(self, truth) -> None:
        """Show the guess beside the truth. Without a guess the run goes on."""
        truth = truth if isinstance(truth, str) else format(truth)
        verdict = "" if self.guess is None else "  (as you guessed)" if self.guess.strip() == truth else ""
        rows = {"You guessed": self.guess or "no guess recorded", "Answer": truth + verdict}
        text = "\n".join(f"{key + ':':13s}{value}" for key, value in rows.items())
        cell = '<td style="text-align: left; padding: 2px 14px;">'
        rows = [f"<tr>{cell}{key}</td>{cell}<b>{_rich(value)}</b></td></tr>" for key, value in rows.items()]
        display(_Shown(text, f"<table>{''.join(rows)}</table>"))


def predict(question: str, choices=None) -> Prediction:
    """Ask for a guess (one of `choices`, or free text) and show the question: `guess = predict(...)`.

    `guess.reveal(truth)` in a later cell shows both. Errors: ValueError for an empty question or one choice.
    """
    texts = [str(choice) for choice in choices or []]
    if not question.strip() or len(set(texts)) != len(texts) or len(texts) == 1:
        raise ValueError(f"predict: a question, two or more different choices, got {question!r}, {choices!r}")
    prediction = Prediction(question=question, options=[{"text": text} for text in texts])
    display(prediction)
    return prediction


class Quiz(_Asked):
    """A question with one right answer and a reply to each. `.answer(i)` answers from Python."""

    def __init__(self, question, options):
        self.written = [dict(option, right=bool(option.get("right"))) for option in options]
        texts = {option["text"] for option in self.written}
        right = sum(option["right"] for option in self.written)
        if len(texts) < 2 or len(texts) != len(self.written) or right != 1:
            raise ValueError(f"quiz {question!r}: different options, one of them right, got {options}")
        if dumb := [option["text"] for option in self.written if not option.get("feedback", "").strip()]:
            raise ValueError(f"quiz {question!r}: every option needs feedback, missing for {dumb}")
        shuffled = random.SystemRandom().sample(self.written, len(self.written))
        super().__init__(question=question, options=shuffled)

    def answer(self, i: int) -> str:
        """Choose option `i`, in the order they were written in, and return the feedback to it."""
        self.given = self.written[i]["text"]
        return self.written[i]["feedback"]

    @property
    def is_right(self) -> bool:
        return any(option["right"] for option in self.written if option["text"] == self.given)


def quiz(question: str, options=None) -> Quiz:
    """Show a quiz by its id ("04-beta-zero", kept in `quiz_data/04.json`), or from a question and options.

    An option is {"text", "feedback", "right"}. Answers are shuffled on screen, sorted in the text form.
    Errors: ValueError for an unknown id, not exactly one right option, an option without feedback.
    """
    if options is None:
        file = _QUIZ_DATA / f"{question[:2]}.json"
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if question not in known:
            raise ValueError(f"no quiz {question!r} in quiz_data/{file.name}, known: {sorted(known)}")
        question, options = known[question]["question"], known[question]["options"]
    asked = Quiz(question, options)
    display(asked)
    return asked
