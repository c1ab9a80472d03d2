"""The vocabulary of an interactive figure: sliders, panels, marks, and `sweep`, which computes their frames.

Nothing here draws: `canvas.FrameCanvas` shows these in the browser, and as a matplotlib picture elsewhere.
"""

import inspect
import itertools
import math
import re
from dataclasses import dataclass

import numpy as np

from ppo_teach.colors import COLORS, DASHES, HATCHES, MARKERS, TEXT_COLORS


def format_number(template: str, value) -> str:
    """`template.format(value)` with a true minus sign and never "-0.00"; a text value stays as it is."""
    text = template.format(value)
    if isinstance(value, str):
        return text
    text = re.sub(r"-(0(?:\.0*)?)(?![\d.e])", r"\1", text)
    return re.sub(r"(?<![\w.])-(?=[\d.])", "−", text)


class Slider:
    """A named list of positions: rising numbers, or strings (shown as a choice). `start` is one of them.

    Errors: ValueError when the positions are empty or do not rise, or `start` is not among them.
    """

    def __init__(self, name: str, symbol: str, positions, start, label: str = "", format: str | None = None):
        self.name, self.symbol, self.label = name, symbol, label
        self.positions = [self._clean(value) for value in positions]
        self.choice = all(isinstance(value, str) for value in self.positions)
        rising = self.choice or all(a < b for a, b in itertools.pairwise(self.positions))
        if not self.positions or not rising:
            raise ValueError(f"slider {name!r}: positions must be rising numbers or strings, got {positions}")
        self.start = self.index(start)
        if not self.choice and abs(self.positions[self.start] - start) > 1e-9:
            raise ValueError(f"slider {name!r}: start must be one of {self.positions}, got {start!r}")
        whole = all(isinstance(value, (int, str)) for value in self.positions)
        self.texts = [format_number(format or ("{}" if whole else "{:.2f}"), v) for v in self.positions]

    @staticmethod
    def _clean(value):
        if isinstance(value, (str, int, np.integer)):
            return value if isinstance(value, str) else int(value)
        return float(f"{float(value):.10g}")  # 0.30000000000000004 -> 0.3, so that `.value = 0.3` finds it

    def index(self, value) -> int:
        """The position nearest to `value` (numbers), or equal to it (strings)."""
        if not self.choice:
            return int(np.abs(np.array(self.positions, dtype=float) - float(value)).argmin())
        if value not in self.positions:
            raise ValueError(f"slider {self.name!r} must be one of {self.positions}, got {value!r}")
        return self.positions.index(value)


def sweep(sliders, function):
    """Evaluate `function` at every position of the sliders that its parameters name: the frames of a mark.

    Shapes: a result [data...] gets one leading axis a slider, of size 1 where the function does not name that
    slider; a scalar becomes data of length 1. A dict or tuple of results gives a dict or tuple of arrays.
    Errors: ValueError when a parameter is no slider, or a result changes its shape.
    """
    wanted, known = list(inspect.signature(function).parameters), [s.name for s in sliders]
    if unknown := set(wanted) - set(known):
        raise ValueError(f"a frame function may name the sliders {known}, got {sorted(unknown)}")
    own = [s for s in sliders if s.name in wanted]
    grid = tuple(len(s.positions) if s in own else 1 for s in sliders)
    names, values = [s.name for s in own], itertools.product(*(s.positions for s in own))
    results = [function(**dict(zip(names, place, strict=True))) for place in values]

    def pack(parts):
        parts = [np.atleast_1d(np.asarray(part)) for part in parts]
        if len(shapes := {part.shape for part in parts}) > 1:
            raise ValueError(f"a frame must keep its shape over the grid, got {sorted(shapes)}")
        return np.stack(parts).reshape(grid + parts[0].shape)

    if isinstance(results[0], dict):
        return {key: pack([result[key] for result in results]) for key in results[0]}
    if isinstance(results[0], tuple):
        return tuple(pack(parts) for parts in zip(*results, strict=True))
    return pack(results)


@dataclass(frozen=True)
class Panel:
    """One pair of axes with fixed limits; the title says what the panel shows, in a sentence.

    `xticks`, `yticks`: None (numbers), texts for the places 0, 1, ... (tokens), or (place, text) pairs.
    """

    title: str
    xlabel: str
    ylabel: str
    xlim: tuple
    ylim: tuple
    zero: bool = False
    xticks: list | None = None
    yticks: list | None = None

    def __post_init__(self):
        for name, (low, high) in (("xlim", self.xlim), ("ylim", self.ylim)):
            if not (math.isfinite(low) and math.isfinite(high) and low != high):
                raise ValueError(f"panel {self.title!r}: {name} must be two numbers, got {(low, high)}")

    def ticks(self, axis: str) -> list:
        """[place, text] for every tick of "x" or "y"."""
        given, (low, high) = (self.xticks, self.xlim) if axis == "x" else (self.yticks, self.ylim)
        if given is not None:
            pairs = [t if isinstance(t, (tuple, list)) else (i, t) for i, t in enumerate(given)]
            return [[float(place), str(text)] for place, text in pairs]
        rough = abs(high - low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
        first, last = math.ceil(min(low, high) / step - 1e-9), math.floor(max(low, high) / step + 1e-9)
        places = [float(f"{i * step:.6g}") for i in range(first, last + 1)]
        return [[place, format_number("{:g}", place)] for place in places]


@dataclass(frozen=True)
class Mark:
    """What is drawn: `arrays` (field -> frames), `style`, `texts` = (field, template) for written numbers."""

    kind: str
    name: str
    panel: int
    arrays: dict
    style: dict
    texts: tuple | None = None
    label_at: str = ""


def _mark(kind, name, color, panel, arrays, label="", label_at="key", texts=None, **style) -> Mark:
    if color not in COLORS:
        raise ValueError(f"mark {name!r}: color is a meaning, one of {sorted(COLORS)}, got {color!r}")
    for cue, known in (("hatch", {*HATCHES.values(), "+", "-"}), ("marker", {"", *MARKERS.values()})):
        if style.get(cue, "") not in known:
            raise ValueError(f"mark {name!r}: {cue} must be one of {sorted(known)}, got {style[cue]!r}")
    defaults = {"dash": (), "hatch": "", "marker": "", "alpha": 1.0, "width": 1.5, "size": 8, "label": label,
                "color": COLORS[color], "ink": TEXT_COLORS[color],
                "light": color in ("policy", "reference", "black")}  # light text is readable on it
    return Mark(kind, name, panel, arrays, defaults | style, texts, label_at if label else "")


def line(name, x, y, color="black", *, panel=0, label="", dash=None, marker="", width=2.4, label_at="end"):
    """A line; its label stands at its end, or with `label_at="key"` under the title."""
    dash = DASHES.get(color, ()) if dash is None else dash
    style = {"dash": dash, "marker": marker, "width": width, "size": 7}
    return _mark("line", name, color, panel, {"x": x, "y": y}, label, label_at, **style)


def points(name, x, y, color="black", *, panel=0, label="", marker=None, size=9):
    """Unconnected points. Markers: o s D ^ v X P."""
    style = {"marker": MARKERS.get(color, "o") if marker is None else marker, "size": size}
    return _mark("points", name, color, panel, {"x": x, "y": y}, label, **style)


def bars(name, y, color="black", *, x=None, base=0.0, panel=0, label="", hatch=None, width=0.7, values="",
         alpha=1.0):
    """Bars from `base` to `y`, at 0, 1, ... without `x`; `values="{:.2f}"` writes each number at its bar."""
    style = {"hatch": HATCHES.get(color, "") if hatch is None else hatch, "width": width, "alpha": alpha}
    texts = ("y", values) if values else None
    return _mark("bars", name, color, panel, {"x": x, "y": y, "base": base}, label, texts=texts, **style)


def band(name, lo, hi, color="black", *, axis="x", panel=0, label="", hatch="", alpha=0.16):
    """A shaded range from `lo` to `hi` along one axis, over the full length of the other."""
    style = {"axis": axis, "hatch": hatch, "alpha": alpha}
    return _mark("band", name, color, panel, {"lo": lo, "hi": hi}, label, **style)


def guide(name, at, color="black", *, axis="x", panel=0, label="", dash=(4, 3), width=1.2):
    """A thin straight line at `at`, with its label on it."""
    return _mark("guide", name, color, panel, {"at": at}, label, "on", axis=axis, dash=dash, width=width)


def text(name, x, y, value, color="black", *, panel=0, format="{}", align="left"):
    """Words or numbers written at a place: `format` applied to `value` (strings or numbers)."""
    arrays = {"x": x, "y": y, "value": value}
    return _mark("text", name, color, panel, arrays, texts=("value", format), align=align)


def cells(name, z, color="black", *, panel=0, vmax=1.0, values=""):
    """Numbers as shaded cells: z[r, c] is centred at x = c, y = r; the full colour stands for |z| = vmax."""
    return _mark("cells", name, color, panel, {"z": z}, texts=("z", values) if values else None, vmax=vmax)
