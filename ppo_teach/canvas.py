"""Sliders over frames computed ahead: Python computes every picture, the browser only draws.

An explorer is a list of sliders, a list of panels and a list of marks. Each array of a mark is given for the
whole grid of slider positions (size 1 along a slider it does not depend on), or as a function of the sliders
it depends on::

    sliders = [Slider("clip_epsilon", "ε", np.linspace(0, 0.5, 51), start=0.2, label="clip epsilon")]
    Explorer("clip_explorer", sliders, [Panel("The gain is capped", "ratio", "objective", (0, 2), (0, 2))],
             [line("objective", x, lambda clip_epsilon: np.minimum(x, 1 + clip_epsilon), "policy")],
             words="The gain is capped at 1 + {clip_epsilon}.", caption="...", alt="...")

A slider move picks the frame in the browser, without a kernel call; `.drawn()` picks the same one in Python.
"""

import base64
import html
import io
import itertools
import json
import string
from dataclasses import replace
from pathlib import Path

import anywidget
import ipywidgets
import numpy as np
import traitlets
from IPython.display import display

from ppo_teach.marks import Slider, format_number, sweep
from ppo_teach.still import still_figure

_ESM = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


class FrameCanvas(anywidget.AnyWidget):
    """The generic canvas: holds all frames and shows the one at `position`, one index a slider.

    `words` is the sentence under the figure, with values of sliders and `readouts` in it ("{kl:.2f} nats");
    `presets` is title -> {slider: value}; `actions` is title of a group -> {button: what to call}. Panels are
    `height` pixels high, `columns` of them side by side.
    Errors: ValueError for a wrong frame shape (names the mark, the expected and the given shape), an unknown
    panel or slider, a name used twice, an unknown name in `words`, an empty caption or alt text.
    """

    _esm = _ESM
    spec = traitlets.Dict().tag(sync=True)      # panels, styles, sliders: fixed
    index = traitlets.Dict().tag(sync=True)     # where each array starts in `frames`, and every text
    frames = traitlets.Bytes().tag(sync=True)   # all numbers of all marks, float32
    error = traitlets.Unicode().tag(sync=True)  # shown in the widget
    # The browser moves before it tells us: an echo would pull the slider back under the reader's hand.
    position = traitlets.List(traitlets.Int()).tag(sync=True, echo_update=False)

    def __init__(self, name, sliders, panels, marks, *, caption, alt, words="", readouts=None, presets=None,
                 actions=None, height=300, columns=2):
        for argument, value in (("caption", caption), ("alt", alt)):
            if not str(value or "").strip():
                raise ValueError(f"{argument} must be a non-empty text, got {value!r}")
        self.sliders, self.panels, self.moved = list(sliders), list(panels), set()
        self.marks = [replace(m, arrays=dict(m.arrays), style=dict(m.style)) for m in marks]
        names = [item.name for item in self.sliders + self.marks] + list(readouts or {})
        if repeated := {n for n in names if names.count(n) > 1}:
            raise ValueError(f"names must differ, used twice: {sorted(repeated)}")
        if lost := [m.name for m in self.marks if not 0 <= m.panel < len(self.panels)]:
            raise ValueError(f"marks {lost}: panel must be 0..{len(self.panels) - 1}")
        self.presets = {title: self._places(title, values) for title, values in (presets or {}).items()}
        self.presets["Reset"] = [s.start for s in self.sliders]
        self.words, self.arrays = words, {mark.name: self._fill(mark) for mark in self.marks}
        self.readouts = {key: self._frames(f"readout {key!r}", v, 1) for key, v in (readouts or {}).items()}
        self.actions = {title: call for group in (actions or {}).values() for title, call in group.items()}
        index, frames = self._pack()
        fixed = {"name": name, "caption": caption, "alt": alt, "height": height, "columns": columns,
                 "actions": [[title, list(group)] for title, group in (actions or {}).items()]}
        start = [s.start for s in self.sliders]
        super().__init__(spec=fixed | self._spec(), index=index, frames=frames, position=start)
        self.on_msg(self._receive)

    def _places(self, title, values):
        """A preset as positions; None leaves a slider where it is."""
        if unknown := set(values) - {s.name for s in self.sliders}:
            raise ValueError(f"preset {title!r}: no slider {sorted(unknown)}")
        return [s.index(values[s.name]) if s.name in values else None for s in self.sliders]

    def _spec(self):
        """What the browser needs to know once."""
        def fields(mark):
            numbers = [f for f, a in self.arrays[mark.name].items() if a.dtype != object]
            return numbers + ["values"] * bool(mark.texts)

        panels = [{"title": p.title, "xlabel": p.xlabel, "ylabel": p.ylabel, **self._axes(p)} for p in self.panels]
        marks = [{"kind": m.kind, "name": m.name, "panel": m.panel, "style": m.style, "label_at": m.label_at,
                  "fields": fields(m)} for m in self.marks]
        sliders = [{key: getattr(s, key) for key in ("name", "symbol", "label", "choice", "texts")}
                   for s in self.sliders]
        presets = [{"name": title, "position": p} for title, p in self.presets.items()] if sliders else []
        return {"panels": panels, "marks": marks, "sliders": sliders, "presets": presets}

    def _frames(self, where, value, data_axes):
        """One array with an axis for every slider; text stays text."""
        array = np.asarray(sweep(self.sliders, value) if callable(value) else value)
        array = array.astype(float if array.dtype.kind in "biuf" else object)
        sizes = [len(s.positions) for s in self.sliders]
        if array.ndim <= data_axes:
            array = array.reshape((1,) * (len(sizes) + data_axes - array.ndim) + array.shape)
        fits = all(given in (1, size) for given, size in zip(array.shape, sizes, strict=False))
        if array.ndim != len(sizes) + data_axes or not fits:
            axes = [f"{n} or 1 ({s.name})" for s, n in zip(self.sliders, sizes, strict=True)]
            axes += ["rows", "columns"] if data_axes == 2 else ["points"]
            raise ValueError(f"{where}: expected shape [{', '.join(axes)}], got {list(array.shape)}")
        return array

    def _fill(self, mark):
        """All arrays of a mark, with the same number of points in each."""
        axes = 2 if mark.kind == "cells" else 1
        arrays = {f: self._frames(f"mark {mark.name!r}, {f}", value, axes)
                  for f, value in mark.arrays.items() if value is not None}
        if mark.kind == "cells":
            mark.style["columns"] = arrays["z"].shape[-1]
            return {"z": arrays["z"].reshape(*arrays["z"].shape[:-2], -1)}
        count = max(a.shape[-1] for a in arrays.values())
        if mark.kind == "bars" and mark.arrays["x"] is None:
            arrays["x"] = self._frames("x", np.arange(count), 1)
        for f, array in arrays.items():
            if array.shape[-1] not in (1, count):
                raise ValueError(f"mark {mark.name!r}, {f}: expected {count} points, got {array.shape[-1]}")
            arrays[f] = np.broadcast_to(array, array.shape[:-1] + (count,))
        return arrays

    def _pack(self):
        """What the browser gets: one block of float32 numbers, and the index of what lies where."""
        entries, blocks, offset = {}, [np.zeros(0, "<f4")], 0
        for mark in self.marks:
            for f, array in self.arrays[mark.name].items():
                if array.dtype != object:
                    size = {"dims": array.shape[:-1], "n": array.shape[-1]}
                    entries[f"{mark.name}.{f}"] = {**size, "offset": offset}
                    blocks.append(array.astype("<f4").ravel())
                    offset += array.size
            if mark.texts:
                entries[f"{mark.name}.values"] = _texts(self.arrays[mark.name][mark.texts[0]], mark.texts[1])
        index = {"entries": entries, "words": self._sentence()}
        if self.moved:
            index["axes"] = {str(i): self._axes(self.panels[i]) for i in sorted(self.moved)}
        return index, np.concatenate(blocks).tobytes()

    @staticmethod
    def _axes(p):
        """Limits and ticks of a panel, as the browser needs them."""
        return {"xlim": [float(v) for v in p.xlim], "ylim": [float(v) for v in p.ylim],
                "zero": p.zero and min(p.ylim) <= 0 <= max(p.ylim), "xticks": p.ticks("x"), "yticks": p.ticks("y")}

    def _sentence(self):
        """The words in parts: literal text, the value of a slider, or a readout's text at every position."""
        parts, order = [], [s.name for s in self.sliders]
        for literal, key, form, _ in string.Formatter().parse(self.words):
            parts += [literal] if literal else []
            if key in order:
                parts.append({"slider": order.index(key)})
            elif key in self.readouts:
                parts.append(_texts(self.readouts[key], "{:" + form + "}"))
            elif key is not None:
                known = order + list(self.readouts)
                raise ValueError(f"words: {{{key}}} is neither a slider nor a readout, known: {known}")
        return parts

    @traitlets.validate("position")
    def _inside(self, proposal):
        return self._checked(proposal["value"])

    def _checked(self, place):
        sizes = [len(s.positions) for s in self.sliders]
        inside = len(place) == len(sizes) and all(p in range(n) for p, n in zip(place, sizes, strict=True))
        if not inside:
            raise ValueError(f"position must hold one index a slider, below {sizes}, got {place}")
        return [int(p) for p in place]

    def _receive(self, _, content, buffers):
        try:
            if "action" in content:
                self.actions[content["action"]]()
            else:
                self.set_state({"position": self._checked(content["position"])})
            self.error = ""
        except Exception as error:  # an observer of a slider failed: the reader sees it, no log swallows it
            self.error = f"{type(error).__name__}: {error}"

    def update(self, words=None, panels=None, **marks):
        """Replace arrays of marks while the widget is shown: `update(reward={"x": steps, "y": rewards})`.

        panels: number -> new values of its fields, such as {0: {"xlim": (0, 120)}}.
        """
        for name, arrays in marks.items():
            mark = next((m for m in self.marks if m.name == name), None)
            if mark is None:
                raise ValueError(f"update: no mark {name!r}, have {[m.name for m in self.marks]}")
            mark.arrays.update(arrays)
            self.arrays[name] = self._fill(mark)
        for number, fields in (panels or {}).items():
            self.panels[number] = replace(self.panels[number], **fields)
            self.moved.add(number)
        self.words = self.words if words is None else words
        with self.hold_sync():
            self.index, self.frames = self._pack()

    def at_position(self, array):
        """The frame of `array` that belongs to the slider positions."""
        sizes = array.shape[:len(self.position)]
        return array[tuple(0 if n == 1 else p for n, p in zip(sizes, self.position, strict=True))]

    def drawn(self) -> dict:
        """Name -> array now on screen, for every mark and readout.

        A mark's y (and its x as `name_x`), a band's [lo, hi], a guide's place, a text's number, a cell's z.
        """
        shown = {}
        for mark in self.marks:
            numbers = {f: a for f, a in self.arrays[mark.name].items() if a.dtype != object}
            now = {f: self.at_position(a) for f, a in numbers.items()}
            main = next((f for f in ("value", "y", "at", "z") if f in now), None)
            shown[mark.name] = np.array(now[main]) if main else np.stack([now["lo"], now["hi"]], axis=-1)
            if "x" in now:
                shown[f"{mark.name}_x"] = np.array(now["x"])
        numbers = {key: a for key, a in self.readouts.items() if a.dtype != object}
        return shown | {key: np.array(self.at_position(a)) for key, a in numbers.items()}

    def sentence(self) -> str:
        """The words now under the figure."""
        def show(part):
            if isinstance(part, str):
                return part
            if "slider" in part:
                return self.sliders[part["slider"]].texts[self.position[part["slider"]]]
            return str(self.at_position(np.array(part["texts"], dtype=object).reshape(*part["dims"], 1))[0])
        return "".join(show(part) for part in self.index["words"])

    def figure(self):
        """The current frame as a matplotlib Figure of its own (no pyplot), words and caption below."""
        return still_figure(self)

    def __repr__(self):
        pairs = zip(self.sliders, self.position, strict=True)
        return f"{self.spec['name']}({', '.join(f'{s.name}={s.positions[p]!r}' for s, p in pairs)})"

    def _repr_mimebundle_(self, **kwargs):
        """Live: the widget. Elsewhere: the picture of this moment, with its alt text."""
        view, stream, figure = super()._repr_mimebundle_(**kwargs)[0], io.BytesIO(), self.figure()
        figure.savefig(stream, format="png", metadata={"Software": None})
        image = base64.b64encode(stream.getvalue()).decode("ascii")
        size = {"width": 900, "height": round(figure.get_figheight() * 100)}
        return {**view, "image/png": image}, {"image/png": {**size, "alt": self.spec["alt"]}}

    def _ipython_display_(self):
        _show(self, self.spec)


def _show(widget, spec):
    """The widget or its picture, and the picture in words: most viewers drop the alt text of an output."""
    data, metadata = widget._repr_mimebundle_()
    display(data, metadata=metadata, raw=True)
    caption, alt = html.escape(spec["caption"]), html.escape(spec["alt"])
    words = f"<details><summary>Figure in words</summary><p>{alt}</p><p><i>{caption}</i></p></details>"
    display({"text/html": words, "text/plain": f"{spec['alt']}\n{spec['caption']}"}, raw=True)


def _texts(array, template):
    texts = [format_number(template, value) for value in array.ravel().tolist()]
    return {"dims": array.shape[:-1], "n": array.shape[-1], "texts": texts}


def close_all(*widgets):
    """Close widgets with the layout and the style that ipywidgets makes for each."""
    for widget in widgets:
        for part in (getattr(widget, "style", None), getattr(widget, "layout", None), widget):
            if part is not None:
                part.close()


class Explorer(ipywidgets.VBox):
    """Sliders over a `FrameCanvas`: what every explorer of the course returns. Arguments: as `FrameCanvas`.

    `.sliders` name -> ipywidgets slider: setting its `.value` takes the nearest position and changes
    `.drawn()` at once. `.presets` name -> button, "Reset" among them. `.words` is the sentence shown.
    """

    def __init__(self, name, sliders, panels, marks, **options):
        self.canvas = FrameCanvas(name, sliders, panels, marks, **options)
        self.sliders = {s.name: _slider_widget(s) for s in self.canvas.sliders}
        self.presets = {title: ipywidgets.Button(description=title) for title in self.canvas.presets}
        super().__init__([self.canvas], layout=ipywidgets.Layout(width="100%", max_width="920px"))
        for number, widget in enumerate(self.sliders.values()):
            widget.observe(lambda change, number=number: self._slide(number, change), "value")
        for title, button in self.presets.items():
            button.on_click(lambda _, title=title: self._jump(self.canvas.presets[title]))
        self.canvas.observe(self._follow, "position")

    def _slide(self, number, change):
        slider = self.canvas.sliders[number]
        place = slider.index(change["new"])
        change["owner"].value = slider.positions[place]  # what is shown is a position, so the value says so
        self._jump([place if i == number else None for i in range(len(self.sliders))])

    def _jump(self, places):
        pairs = zip(self.canvas.position, places, strict=True)
        self.canvas.position = [old if new is None else new for old, new in pairs]

    def _follow(self, change):
        places = zip(self.canvas.sliders, self.sliders.values(), change["new"], strict=True)
        for slider, widget, place in places:
            widget.value = slider.positions[place]

    def reset(self):
        """All sliders back to where they started."""
        self._jump(self.canvas.presets["Reset"])

    def drawn(self) -> dict:
        """Name -> numpy array now on screen (see `FrameCanvas.drawn`)."""
        return self.canvas.drawn()

    @property
    def words(self) -> str:
        return self.canvas.sentence()

    def close(self):
        """Close every widget this explorer made."""
        made = vars(self).get("presets")  # None when the constructor failed: ipywidgets closes what is left of it
        if made is not None:
            close_all(*self.sliders.values(), *made.values(), self.canvas, self.layout)
        super().close()

    def __repr__(self):
        return repr(self.canvas)

    def _repr_mimebundle_(self, **kwargs):
        data, metadata = self.canvas._repr_mimebundle_(**kwargs)
        return {**data, **(super()._repr_mimebundle_(**kwargs) or {}), "text/plain": repr(self)}, metadata

    def _ipython_display_(self):
        _show(self, self.canvas.spec)


def _slider_widget(slider: Slider):
    """The slider that carries the value in Python; the canvas draws its own."""
    values, value = slider.positions, slider.positions[slider.start]
    if slider.choice:
        return ipywidgets.SelectionSlider(options=values, value=value, description=slider.symbol)
    kind = ipywidgets.IntSlider if all(isinstance(v, int) for v in values) else ipywidgets.FloatSlider
    step = min((b - a for a, b in itertools.pairwise(values)), default=1)
    return kind(value=value, min=values[0], max=values[-1], step=step, description=slider.symbol)


def page(title: str, *explorers: Explorer) -> str:
    """An HTML page with working sliders, no kernel, server or network: the same drawing code and frames."""
    states = [{"spec": e.canvas.spec, "index": e.canvas.index, "position": e.canvas.position, "error": "",
               "frames": base64.b64encode(e.canvas.frames).decode("ascii")} for e in explorers]
    code = base64.b64encode(_ESM.encode()).decode("ascii")
    data = json.dumps(states, ensure_ascii=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title>
<body style="max-width: 900px; margin: 2em auto; padding: 0 1em; font-family: system-ui, sans-serif">
<h1>{html.escape(title)}</h1>
<script type="module">
import widget from "data:text/javascript;base64,{code}";
for (const state of {data}) {{
  state.frames = new DataView(Uint8Array.from(atob(state.frames), (c) => c.charCodeAt(0)).buffer);
  const model = {{ get: (key) => state[key], set: (key, value) => {{ state[key] = value; }},
                  on() {{}}, off() {{}}, send() {{}} }};
  const el = document.body.appendChild(document.createElement("div"));
  el.style.margin = "1.5em 0";
  widget.render({{ model, el }});
}}
</script></body></html>
"""
