"""The still picture of a `FrameCanvas`: its current frame drawn with matplotlib, for readers without kernel.

Its own Figure and Agg canvas, no pyplot: drawing it leaves no figure open and touches no global setting.
"""

import textwrap

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ppo_teach.colors import COLORS
from ppo_teach.marks import format_number

_PT = 0.72  # points in a pixel of the canvas: 900 pixels are 9 inches here


def still_figure(canvas) -> Figure:
    """Panels as in the browser; below them the slider values, the sentence and the caption."""
    columns, height = min(canvas.spec["columns"], len(canvas.panels)), canvas.spec["height"]
    rows = -(-len(canvas.panels) // columns)
    pairs = zip(canvas.sliders, canvas.position, strict=True)
    state = "   ·   ".join(f"{s.label} {s.symbol}".strip() + f": {s.texts[place]}" for s, place in pairs)
    caption = canvas.spec["caption"]
    notes = [(state, 12, "policy"), (canvas.sentence(), 15, "black"), (caption, 12, "reference")]
    notes = [(textwrap.fill(text, 1650 // size), size, COLORS[color]) for text, size, color in notes if text]
    steps = [(words.count("\n") + 1) * size * 1.35 + 7 for words, size, _ in notes]
    foot, total = sum(steps) + 8, rows * height + sum(steps) + 8
    figure = Figure(figsize=(9, total / 100), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(rect=(0, foot / total, 1, 1 - foot / total), w_pad=0.06, h_pad=0.06)
    grid = figure.add_gridspec(rows, columns)
    for number, panel in enumerate(canvas.panels):
        row, column = divmod(number, columns)
        last = number == len(canvas.panels) - 1  # takes what is left of its row
        span = columns - column if last else 1
        axes = figure.add_subplot(grid[row, column:column + span])
        marks = [m for m in canvas.marks if m.panel == number]
        _draw_panel(canvas, axes, panel, marks, 900 * span / columns)
    for (words, size, color), step in zip(notes, steps, strict=True):
        figure.text(0.012, (foot - 4) / total, words, fontsize=size * _PT, color=color, va="top")
        foot -= step
    return figure


def _draw_panel(canvas, axes, panel, marks, width):
    """One panel, `width` pixels wide."""
    ends, small = [], 13 * _PT
    for mark in marks:
        now = {f: canvas.at_position(a) for f, a in canvas.arrays[mark.name].items()}
        field, template = mark.texts or (None, "")
        texts = [format_number(template, value) for value in now[field].tolist()] if field else [""] * 10**4
        DRAW[mark.kind](axes, mark, now, texts)
        if mark.label_at == "end" and (real := np.isfinite(now["x"]) & np.isfinite(now["y"])).any():
            last = np.flatnonzero(real)[-1]
            ends.append((now["y"][last], now["x"][last], mark.style))
    axes.set(xlim=panel.xlim, ylim=panel.ylim)
    axes.set_xlabel(panel.xlabel, fontsize=small)
    axes.set_ylabel(panel.ylabel, fontsize=small)
    for axis in (axes.xaxis, axes.yaxis):
        ticks = panel.ticks(axis.axis_name)
        axis.set_ticks([place for place, _ in ticks], [words for _, words in ticks], fontsize=small)
        crowded = axis is axes.xaxis and ticks and max(len(words) for _, words in ticks) * 9 > width / len(ticks)
        axis.set_tick_params(rotation=40 if crowded else 0)
    if panel.zero:
        axes.axhline(0, color=COLORS["black"], linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, len(handles) if sum(map(len, labels)) < width / 9 else 2)
    if handles:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, borderaxespad=0.2,
                    fontsize=small)
    title = textwrap.fill(panel.title, int(width / 9))
    pad = 6 + 15 * -(-len(handles) // columns)
    axes.set_title(title, loc="left", fontsize=15 * _PT, fontweight="bold", pad=pad)
    low, high = min(panel.ylim), max(panel.ylim)
    gap, below = (high - low) * 16 / canvas.spec["height"] / 0.65, -np.inf
    for y, x, style in sorted(ends, key=lambda end: end[0]):
        below = max(min(max(y, low), high), below + gap)
        place = (min(x, max(panel.xlim)), below)
        axes.annotate(style["label"], place, xytext=(6, 0), textcoords="offset points", va="center",
                      fontsize=small, color=style["ink"], annotation_clip=False)


def _dash(style):
    """matplotlib multiplies dashes by the line width; the browser does not."""
    return (0, [length / style["width"] for length in style["dash"]]) if style["dash"] else "-"


def _key(mark):
    return mark.style["label"] if mark.label_at == "key" else None


def _draw_line(axes, mark, now, texts):
    style = mark.style
    axes.plot(now["x"], now["y"], color=style["color"], linewidth=style["width"] * _PT,
              linestyle=_dash(style), marker=style["marker"] or None, markersize=style["size"] * _PT,
              label=_key(mark))


def _draw_points(axes, mark, now, texts):
    style = mark.style
    axes.plot(now["x"], now["y"], linestyle="", marker=style["marker"], markersize=style["size"] * _PT,
              color=style["color"], markeredgecolor="white", markeredgewidth=0.5, label=_key(mark))


def _draw_bars(axes, mark, now, texts):
    style, x, y, base = mark.style, now["x"], now["y"], now["base"]
    up, every = y >= base, np.full(len(y), True)
    parts = [("+", up), ("-", ~up)] if style["hatch"] == "sign" else [(style["hatch"] * 2, every)]
    for number, (hatch, part) in enumerate(parts):
        axes.bar(x[part], (y - base)[part], style["width"], base[part], color=style["color"],
                 alpha=style["alpha"], hatch=hatch, edgecolor="white", linewidth=0,
                 label=None if number else _key(mark))
    for place, top, rises, words in zip(x, y, up, texts, strict=False):  # texts may be longer
        axes.annotate(words, (place, top), xytext=(0, 3 if rises else -3), textcoords="offset points",
                      ha="center", va="bottom" if rises else "top", fontsize=12 * _PT)


def _draw_band(axes, mark, now, texts):
    style, span = mark.style, axes.axvspan if mark.style["axis"] == "x" else axes.axhspan
    for number, (lo, hi) in enumerate(zip(now["lo"], now["hi"], strict=True)):
        span(lo, hi, facecolor=style["color"], alpha=style["alpha"], linewidth=0, hatch=style["hatch"] * 2,
             label=None if number else _key(mark))


def _draw_guide(axes, mark, now, texts):
    style, upright = mark.style, mark.style["axis"] == "x"
    draw = axes.axvline if upright else axes.axhline
    for place in now["at"]:
        draw(place, color=style["color"], linewidth=style["width"] * _PT, linestyle=_dash(style))
        where = {"xy": (place, 1), "xycoords": ("data", "axes fraction"), "xytext": (4, -8)} if upright else {
            "xy": (1, place), "xycoords": ("axes fraction", "data"), "xytext": (-3, 6), "ha": "right"}
        axes.annotate(style["label"], textcoords="offset points", va="center", fontsize=12 * _PT,
                      color=style["ink"], **where)


def _draw_cells(axes, mark, now, texts):
    style = mark.style
    for number, (z, words) in enumerate(zip(now["z"], texts, strict=False)):
        row, column = divmod(number, style["columns"])
        strength = min(abs(z) / style["vmax"], 1) if np.isfinite(z) else 0
        for color, alpha in (("#f2f2f2", 1), (style["color"], strength)):
            place = (column - 0.47, row - 0.47)
            axes.add_patch(Rectangle(place, 0.94, 0.94, facecolor=color, alpha=alpha, linewidth=0))
        axes.text(column, row, words, ha="center", va="center", fontsize=12 * _PT,
                  color="white" if style["light"] and strength > 0.6 else COLORS["black"])


def _draw_text(axes, mark, now, texts):
    for x, y, words in zip(now["x"], now["y"], texts, strict=True):
        axes.text(x, y, words, ha=mark.style["align"], va="center", fontsize=13 * _PT,
                  color=mark.style["ink"])


DRAW = {"line": _draw_line, "points": _draw_points, "bars": _draw_bars, "band": _draw_band,
        "guide": _draw_guide, "cells": _draw_cells, "text": _draw_text}
