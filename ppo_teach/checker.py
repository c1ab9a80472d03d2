"""Checks a student's answer and says which mistake was made (layer 5). The exercises are in `exercises/`.

An exercise is data: cases to try, the right function, a table of planted mistakes. The answer is run on
every case; when it is wrong, it is held against each planted mistake, and the one that gives the same numbers
is named. A message says what was seen, where, and asks one question. It never gives the answer.
"""

import contextlib
import html
import io
import linecache
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature

import torch

TIME_LIMIT = 5.0  # seconds that one case may take


@dataclass
class Verdict:
    """What a checker found; the last line of a cell displays it.

    `ok`; `attempted`, False for an untouched stub; `mistake`, a short id or None; `message`, in words.
    Taught in: notebooks/01_language_model_as_policy.ipynb
    """

    ok: bool
    attempted: bool
    mistake: str | None
    message: str
    title: str = ""

    def __repr__(self):
        state = "right" if self.ok else "not yet" if self.attempted else "not attempted yet"
        return f"{self.title}: {state}" + (f"\n{self.message}" if self.message else "")

    def _repr_mimebundle_(self, **kwargs):
        color = "#00795A" if self.ok else "#B34F00" if self.attempted else "#595959"
        first, _, rest = repr(self).partition("\n")
        paragraphs = "".join(f'<p style="margin: 4px 0 0;">{_rich(line)}</p>' for line in rest.splitlines())
        style = (f"border-left: 5px solid {color}; padding: 6px 12px; max-width: 640px; "
                 "background: #fff; color: #1a1a1a;")
        page = f'<div style="{style}"><b style="color: {color};">{_rich(first)}</b>{paragraphs}</div>'
        return {"text/plain": repr(self), "text/html": page}, {}


class Hint(Verdict):
    """Words without a judgement."""

    def __repr__(self):
        return f"{self.title}\n{self.message}"


def says(title: str):
    """A maker of verdicts under one title: say(mistake, *lines, ok=False, attempted=True) -> Verdict."""
    def say(mistake, *lines, ok=False, attempted=True):
        return Verdict(ok, attempted, mistake, "\n".join(lines), title)
    return say


@dataclass(frozen=True)
class Mistake:
    """A wrong variant with the same arguments as the answer, and what to say to it.

    `seen` may name {place}, where it differs most, and {yours}, the number there.
    """

    wrong: Callable
    seen: str
    question: str


@dataclass(frozen=True)
class Task:
    """An exercise whose answer is judged by code of its own: a number, a choice, a run."""

    name: str
    hints: tuple  # three of them, each giving away more
    source: tuple = ()  # what `solution` shows


@dataclass(frozen=True)
class Exercise:
    """A function to write: all that `check` needs to know.

    Args: number, "4.1"; solution, the right function; cases, name -> dict of its arguments, in order;
        mistakes, id -> Mistake; place, says in words where an index of the result is; hints, three of
        them, each giving away more; source, what `solution` shows; done, what to say to a right answer.
    """

    number: str
    name: str
    solution: Callable
    cases: Callable
    mistakes: dict
    place: Callable
    hints: tuple
    source: tuple = ()
    done: str = ""
    integers: bool = False  # whether the result may hold integers
    gradient: str = ""  # an argument that requires grad: its gradient is compared too; the result is a scalar
    shapes: str = field(default="")  # the shape of the result in letters, "[T, V]"

    @property
    def title(self):
        return f"Exercise {self.number}"


def seeded(seed: int) -> torch.Generator:
    """A generator for the cases of an exercise."""
    return torch.Generator().manual_seed(seed)


def random_log_probs(*shape, seed, spread=1.0) -> torch.Tensor:
    """Rows of log-probabilities in float64 that sum to 1, for the cases of an exercise."""
    logits = spread * torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)
    return logits.log_softmax(-1)


class OutOfTime(BaseException):
    """Raised inside the student's code, past any `except Exception` of theirs."""


def check(exercise: Exercise, fn) -> Verdict:
    """Run `fn` on every case and say what is right, or which mistake it makes."""
    say = says(exercise.title)
    if fn is None or fn is ...:
        return say(None, attempted=False)
    if not callable(fn):
        given = type(fn).__name__
        return say("not_a_function", f"You gave a {given}. Give the function itself, without calling it.")
    if complaint := _signature_problem(fn, exercise):
        return say("signature", complaint)
    found = []
    for number, (name, arguments) in enumerate(exercise.cases().items()):
        given = {key: _copy(value) for key, value in arguments.items()}
        try:
            with contextlib.redirect_stdout(io.StringIO() if number else sys.stdout):  # prints appear once
                result = call_with_limit(fn, *given.values())
        except NotImplementedError:
            return say(None, attempted=False)
        except OutOfTime:
            line = _line_of(fn, sys.exc_info()[2])
            return say("endless", f"Your function was stopped after {TIME_LIMIT:g} seconds, {line}.",
                       "Which condition should end that loop, and does anything in the loop bring it closer?")
        except Exception as error:
            return say("exception", f"{type(error).__name__}: {_without_paths(error)}",
                       f"It was raised {_line_of(fn, error.__traceback__)}, in the case '{name}'.")
        if number == 0 and _untouched(result):
            return say(None, attempted=False)
        if result is None:
            return say("nothing", f"Your function returns nothing in the case '{name}'.",
                       "Which way through your code meets no `return`?")
        if changed := [key for key, value in arguments.items() if not _same(value, given[key])]:
            return say("in_place", f"Your function changed its argument `{changed[0]}`.",
                       "The caller still needs it. Which of your lines writes into it?")
        right = exercise.solution(*arguments.values())
        tensor, problem = _as_tensor(result, right, exercise)
        tensor = tensor if problem else _outcome(exercise, tensor, arguments)
        if problem:
            return say(*problem)
        found.append((name, arguments, tensor, _outcome(exercise, right, arguments)))
    wrong = [entry for entry in found if not _close(entry[2], entry[3])]
    if not wrong:
        return say(None, exercise.done, ok=True)
    if (known := _known_mistake(exercise, found)) is not None:
        return say(*known)
    return say(*_unknown_mistake(exercise, wrong[0]))


def call_with_limit(fn, *arguments):
    """fn(*arguments), stopped by OutOfTime when its own lines run longer than TIME_LIMIT seconds.

    A trace of the student's lines works in any thread and needs no signal; it does not see inside C code.
    """
    code, end, before = getattr(fn, "__code__", None), time.monotonic() + TIME_LIMIT, sys.gettrace()

    def trace(frame, event, _):
        if code is None or frame.f_code.co_filename != code.co_filename:
            return None  # torch's own Python runs at full speed
        frame.f_trace_opcodes = True  # `while True: pass` never reaches a new line
        if time.monotonic() > end:
            raise OutOfTime
        return trace

    sys.settrace(trace)
    try:
        return fn(*arguments)
    finally:
        sys.settrace(before)


def _signature_problem(fn, exercise):
    first = next(iter(exercise.cases().values()))
    with contextlib.suppress(ValueError, TypeError):  # some callables have no signature
        given = signature(fn)
        try:
            given.bind(*first)
        except TypeError:
            names = f"{len(first)} arguments: {', '.join(first)}"
            return f"Your function takes {given}. It is called with {names}."


def _untouched(result):
    parts = result if isinstance(result, (tuple, list)) else [result]
    return any(part is None or part is ... for part in parts)


def _line_of(fn, traceback):
    """The deepest line that the student wrote, in words."""
    file, at = getattr(getattr(fn, "__code__", None), "co_filename", None), None
    while traceback:
        at = traceback if traceback.tb_frame.f_code.co_filename == file else at
        traceback = traceback.tb_next
    if at is None:
        return "in your function"
    line = linecache.getline(file, at.tb_lineno).strip()
    return f"at your line {at.tb_lineno}" + (f": `{line}`" if line else "")


def _without_paths(error):
    return re.sub(r"(/[\w.-]+){2,}/", "", str(error))


def _as_tensor(result, right, exercise):
    """The result as a tensor like `right`, or (id, lines) of what is wrong with it."""
    want = list(right.shape)
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        if isinstance(result, (list, tuple)):
            result = torch.stack([torch.as_tensor(part) for part in result])
        result = torch.as_tensor(result)
    if not isinstance(result, torch.Tensor):
        return None, ("wrong_type", f"Your function returned a {type(result).__name__}.",
                      f"A tensor of shape {exercise.shapes} is needed. What does your `return` give back?")
    if list(result.shape) != want:
        given = list(result.shape)
        if not want:
            return None, ("wrong_shape", f"Your result has shape {given}; one number is asked for.",
                          "Which of your numbers answers the question?")
        return None, ("wrong_shape", f"Your result has shape {given}; {exercise.shapes} is {want} here.",
                      "Over which axis do you sum or stack, and which one has to stay?")
    if result.requires_grad and not right.requires_grad:
        return None, ("attached", "Your result still carries a gradient.",
                      "Should a later loss be able to change what made these numbers?")
    if right.requires_grad and not result.requires_grad:
        return None, ("detached", "Your result carries no gradient, so that nothing can be learned from it.",
                      "Which of your lines cuts the result off from what is to be trained?")
    if result.is_complex() or not (result.is_floating_point() or exercise.integers):
        lost = "they are not real" if result.is_complex() else "what is after the point is lost"
        return None, ("wrong_dtype", f"Your result holds {result.dtype} numbers: {lost}.",
                      "Where does your code make a tensor without saying which dtype?")
    if result.dtype in (torch.float16, torch.bfloat16) and not _close(result, right):
        if torch.allclose(result.to(right.dtype), right, rtol=0.02, atol=0.02):
            return None, ("wrong_dtype", f"Your result holds {result.dtype} numbers: 2 or 3 digits are left.",
                          "Where does your code make them so short?")
    return result.to(right.dtype), None


def _outcome(exercise, result, arguments):
    """The numbers that are compared: the result, with `exercise.gradient` the gradient behind it, [1 + N]."""
    if not exercise.gradient:
        return result.detach()
    leaf, gradient = arguments[exercise.gradient], None
    if result.requires_grad:
        (gradient,) = torch.autograd.grad(result, leaf, allow_unused=True, retain_graph=True)
    gradient = torch.zeros_like(leaf) if gradient is None else gradient
    return torch.cat([result.detach().view(1), gradient.flatten().to(result.dtype)])


def _known_mistake(exercise, found):
    """(id, lines) of the planted mistake that gives the student's numbers wherever these are finite."""
    finite = [entry for entry in found if bool(entry[2].isfinite().all())]
    for usable in (found, finite):  # an overflow in one case does not hide the mistake in the others
        if all(_close(yours, right) for _, _, yours, right in usable):
            continue
        for key, mistake in exercise.mistakes.items():
            wrong = (_outcome(exercise, mistake.wrong(*a.values()), a) for _, a, _, _ in usable)
            if all(_close(entry[2], numbers) for entry, numbers in zip(usable, wrong)):
                name, _, yours, right = next(entry for entry in usable if not _close(entry[2], entry[3]))
                index = _worst(exercise, yours, right)
                where, number = exercise.place(name, *index), _number(yours[index].item(), exercise)
                return key, mistake.seen.format(place=where, yours=number), mistake.question
    return None


def _unknown_mistake(exercise, entry):
    name, _, yours, right = entry
    if not bool(yours.isfinite().all()):
        index = tuple((~yours.isfinite()).nonzero()[0].tolist())
        where = exercise.place(name, *index)
        where += "" if name in where else f", in the case '{name}'"
        return ("not_finite", f"Your result is {yours[index].item()} {where}.",
                "Which number on the way there is too large, or a 0 whose logarithm you take?")
    index = _worst(exercise, yours, right)
    side = "too high" if yours[index] > right[index] else "too low"
    share = int((~torch.isclose(yours, right, rtol=1e-4, atol=1e-4)).sum())
    where = f"{exercise.place(name, *index)}: {_number(yours[index].item(), exercise)} is {side}"
    many = f"In the case '{name}', {share} of {yours.numel()} numbers are off. The largest difference is"
    return ("unknown", f"{many if yours.numel() > 1 else 'Your number is off'} {where}.",
            "Work that one number out by hand: at which step do you and your code part?")


def _number(value, exercise):
    return f"{value:.0f}" if exercise.integers and value == round(value) else f"{value:.3f}"


def _worst(exercise, yours, right):
    gap = (yours - right).abs().nan_to_num(nan=torch.inf)
    if exercise.gradient and gap[0] > 1e-4:
        return (0,)  # a wrong number explains its gradient
    return tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))


def _close(a, b):
    return a.shape == b.shape and torch.allclose(a.to(b.dtype), b, rtol=1e-4, atol=1e-4, equal_nan=True)


def _copy(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    return type(value)(map(_copy, value)) if isinstance(value, (list, tuple)) else value


def _same(a, b):
    if isinstance(a, torch.Tensor):
        return (isinstance(b, torch.Tensor) and a.shape == b.shape
                and bool(((a == b) | (a.isnan() & b.isnan())).all()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


def _rich(text):
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(str(text)))
