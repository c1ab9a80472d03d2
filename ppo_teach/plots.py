"""The course's static figures (layer 5): arrays in, Figure out; never a model.

Each figure is its own `Figure` with an Agg canvas. pyplot is not used, so nothing stays open and no global setting
changes. Colour and dash come from `colors.py` and mean the same in every figure; the title is the message.
"""

import textwrap

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from .colors import COLORS, DASHES, HATCHES, MARKERS, TEXT_COLORS

SIZE = (6.0, 3.2)  # inches, of a figure with one panel
FONT = 12  # points
SCHEMATIC = "schematic, not measured"

# metric of a TrainingLog -> (short name, unit, what its colour means, zero line?)
METRICS = {
    "mean_reward": ("reward", "score per response", "score", True),
    "true_score": ("true score", "score per response", "score", True),
    "objective": ("objective", "reward - β KL", "policy", True),
    "kl_per_response": ("KL to the reference", "nats per response", "kl", True),
    "mean_kl": ("KL to the reference", "nats per token", "kl", True),
    "kl_coef": ("KL coefficient β", "reward per nat", "kl", False),
    "policy_loss": ("policy loss", "whitened advantage", "policy", True),
    "value_loss": ("value loss", "squared reward", "value", False),
    "explained_variance": ("explained variance", "share of variance", "value", True),
    "entropy": ("entropy", "nats per token", "policy", False),
    "clip_fraction": ("clip fraction", "share of tokens", "policy", False),
    "ratio_outside_fraction": ("ratio outside the band", "share of tokens", "policy", False),
    "approx_kl": ("KL, old to new policy", "nats per token", "policy", False),
    "mean_ratio": ("mean ratio", "new / old", "policy", False),
    "max_ratio": ("largest ratio", "new / old", "policy", False),
    "grad_norm": ("gradient norm", "before the cut", "black", False),
    "response_length": ("response length", "tokens", "black", False),
    "stopped": ("responses that stop", "share", "black", False),
    "num_steps": ("optimizer steps", "per update", "black", False),
    "learning_rate": ("learning rate", "Adam's step", "black", False),
}
_EXTRA_DASHES = ((6, 3), (1.5, 2.5), (9, 2.5, 2, 2.5))  # second to fourth line of one panel


def new_figure(rows=1, columns=1, size=None):
    """A Figure (constrained layout, Agg canvas) and its axes [rows, columns], in the course's form."""
    size = size or (SIZE if rows * columns == 1 else (3.6 * columns, 2.5 * rows))
    figure = Figure(figsize=size, dpi=100, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=FONT)
    return figure, axes


def _title(ax, message, width=58):
    lines = textwrap.fill(message, width)
    ax.set_title(lines, loc="left", fontsize=FONT, fontweight="bold")


def _dashes(pattern, width):
    return (0, [length / width for length in pattern]) if pattern else "-"


def _series(name, values):
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a non-empty list of numbers, got shape {array.shape}")
    return array


def _metric_table(metrics, names):
    """The metrics of a TrainingLog or of a dict, checked."""
    table = getattr(metrics, "metrics", metrics)
    unknown = [name for name in names if name not in table]
    if unknown:
        raise ValueError(f"names must be among {sorted(table)}, got {unknown}")
    return {name: _series(name, table[name]) for name in names}


def draw_metric(ax, name, series, *, levels=None, log_scale=False, joined=True):
    """Draw one metric on given axes: a line for each entry of `series`, labelled at its end if there are several.

    The first line has the colour of what it means; further ones are black, each with a dash of its own.
    """
    label, unit, meaning, zero = METRICS.get(name, (name, "", "black", False))
    inks = [TEXT_COLORS[meaning]] + [TEXT_COLORS["black"]] * 3
    for place, (key, values) in enumerate(series.items()):
        color, dashes = (COLORS["black"], _EXTRA_DASHES[place - 1]) if place else (COLORS[meaning], DASHES[meaning])
        single = MARKERS[meaning] if len(values) == 1 or not joined else ""
        style = dict(linestyle=_dashes(dashes, 2) if joined else "", marker=single, markersize=7, linewidth=2)
        ax.plot(np.arange(len(values)), values, color=color, label=key or label, **style)
    for text, level in (levels or {}).items():
        ax.axhline(level, color=COLORS["black"], linewidth=1, linestyle=(0, (4, 3)))
        where = dict(xycoords=("axes fraction", "data"), xytext=(0, 3), textcoords="offset points", ha="right")
        ax.annotate(text, (1, level), fontsize=FONT - 1, color=COLORS["black"], **where)
    if log_scale:
        ax.set_yscale("log")
    elif zero:
        ax.axhline(0, color=COLORS["black"], linewidth=0.8)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.set_ylabel(unit, fontsize=FONT)
    ax.margins(x=0.02)
    if len(series) > 1:
        _label_ends(ax, series, inks)


def _label_ends(ax, series, inks):
    """Write each line's name at its end, pushed apart where two ends are close."""
    ax.get_ylim()  # settles the limits, which the transform below reads
    to_fraction = ax.transScale + ax.transLimits  # from data to the share of the axes' height
    ends = [(to_fraction.transform((len(v) - 1, v[-1]))[1], key, ink) for (key, v), ink in zip(series.items(), inks)]
    below = -np.inf
    for height, key, ink in sorted(ends):
        below = max(height, below + 0.1)
        ax.annotate(key, (1, below), xycoords="axes fraction", xytext=(4, 0), textcoords="offset points", va="center",
                    color=ink, fontsize=FONT, annotation_clip=False)  # fmt: skip


def plot_metric(series, name, *, title, levels=None, log_scale=False, joined=True, xlabel="PPO update"):
    """One metric over the updates, for up to four runs.

    Args: series, numbers [N] or a dict label -> numbers; name, the metric (for unit and colour); levels, dict
        text -> height of a dashed guide; joined, False for points that do not follow one another. Returns: Figure.
    Raises: ValueError for an empty series or more than four.
    Taught in: notebooks/08_training_run.ipynb
    """
    series = series if isinstance(series, dict) else {"": series}
    if not 1 <= len(series) <= 4:
        raise ValueError(f"series must hold one to four lines, got {len(series)}")
    series = {key: _series(key or name, values) for key, values in series.items()}
    figure, axes = new_figure()
    draw_metric(axes[0, 0], name, series, levels=levels, log_scale=log_scale, joined=joined)
    axes[0, 0].set_xlabel(xlabel, fontsize=FONT)
    _title(axes[0, 0], title)
    return figure


SIX = ("mean_reward", "kl_per_response", "entropy", "explained_variance", "value_loss", "clip_fraction")


def plot_training(metrics, names=SIX, *, title):
    """Small multiples of a run: one panel a metric, updates along x.

    Args: metrics, a TrainingLog or a dict name -> [N]; names, what to draw, in order. Returns: Figure.
    Raises: ValueError naming the metrics that are not there.
    Taught in: notebooks/08_training_run.ipynb
    """
    table = _metric_table(metrics, names)
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, axes = new_figure(rows, columns)
    for ax, (name, values) in zip(axes.flat, table.items()):
        draw_metric(ax, name, {"": values})
        _title(ax, METRICS.get(name, (name,))[0], width=30)
    for ax in axes.flat[len(table) :]:
        ax.set_visible(False)
    for ax in axes.flat[max(0, len(table) - columns) : len(table)]:
        ax.set_xlabel("PPO update", fontsize=FONT)
    figure.suptitle(textwrap.fill(title, 32 * columns), fontsize=FONT + 1, fontweight="bold", x=0.01, ha="left")
    return figure


def plot_run(metrics, samples, *, title):
    """Reward and KL of a run above reviews that it wrote on the way.

    Args: metrics, a TrainingLog or a dict with mean_reward and kl_per_response; samples, list of dicts with update,
        prompt, response, score (as in `TrainingLog.samples`). Returns: Figure.
    """
    table = _metric_table(metrics, ("mean_reward", "kl_per_response"))
    figure, axes = new_figure(1, 2, (9.0, 3.1 + 0.32 * len(samples)))
    foot = (0.45 + 0.3 * len(samples)) / figure.get_figheight()
    figure.get_layout_engine().set(rect=(0, foot, 1, 1 - foot), w_pad=0.08)
    for ax, (name, values) in zip(axes[0], table.items()):
        draw_metric(ax, name, {"": values})
        ax.set_xlabel("PPO update", fontsize=FONT)
        _title(ax, METRICS[name][0], width=30)
        for sample in samples:  # where on the curve the reviews below were written
            ax.plot(sample["update"], values[sample["update"]], "o", color=COLORS["black"], markersize=6)
    for row, sample in enumerate(samples):
        height = foot * (1 - (row + 0.9) / (len(samples) + 0.6))
        words = textwrap.shorten(f"{sample['prompt']} {sample['response']}", 96, placeholder=" …")
        where = dict(fontsize=FONT - 2, va="bottom")
        figure.text(0.02, height, f"update {sample['update']}", fontweight="bold", **where)
        figure.text(0.125, height, words, **where)
        score = f"{sample['score']:+.1f}".replace("-", "\N{MINUS SIGN}")
        figure.text(0.985, height, score, ha="right", color=TEXT_COLORS["score"], fontweight="bold", **where)
    figure.suptitle(title, fontsize=FONT + 2, fontweight="bold", x=0.01, ha="left")
    return figure


def schematic_curves(num_steps=20):
    """The handbook chapter's illustration of a training run: formulas plus noise, measured nowhere.

    policy_loss = 0.05 + 0.18 e^(-s/30) + 0.04 sin(1.3 s) + 0.02 n      mean_kl = 0.12 (1 - e^(-s/6)) + 0.005 n, >= 0
    value_loss = 0.04 + 0.55 e^(-s/8) + 0.01 n, >= 0.03                 mean_ratio = 1 + 0.015 sin(0.8 s) + 0.008 n

    with n standard normal. Returns: dict name -> [num_steps].
    """
    noise = np.random.RandomState(42)  # the chapter's seed, in a generator of its own
    step = np.arange(num_steps)
    curves = {
        "policy_loss": 0.05 + 0.18 * np.exp(-step / 30) + 0.04 * np.sin(1.3 * step) + 0.02 * noise.randn(num_steps),
        "value_loss": np.maximum(0.04 + 0.55 * np.exp(-step / 8) + 0.01 * noise.randn(num_steps), 0.03),
        "mean_kl": np.maximum(0.12 * -np.expm1(-step / 6) + 0.005 * noise.randn(num_steps), 0.0),
        "mean_ratio": 1 + 0.015 * np.sin(0.8 * step) + 0.008 * noise.randn(num_steps),
    }
    return curves


def _draw_schematic(ax, name, values):
    """The same line as a measured one, on hatched ground, so that no one takes it for data."""
    draw_metric(ax, name, {"": values})
    ax.set_facecolor("#F4F4F4")
    ax.patch.set(hatch="//", edgecolor="#DDDDDD")
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.22 * (high - low))  # room for the words
    ax.text(
        0.98, 0.97, SCHEMATIC, transform=ax.transAxes, ha="right", va="top", fontsize=FONT - 1, style="italic",
        bbox=dict(facecolor="white", edgecolor="none", pad=2),
    )  # fmt: skip


def plot_schematic(num_steps=20):
    """The chapter's four schematic curves, labelled as such inside each panel. Returns: Figure."""
    figure, axes = new_figure(2, 2, (9.0, 5.4))
    for ax, (name, values) in zip(axes.flat, schematic_curves(num_steps).items()):
        _draw_schematic(ax, name, values)
        _title(ax, METRICS[name][0], width=30)
    for ax in axes[1]:
        ax.set_xlabel("step", fontsize=FONT)
    figure.suptitle("How the chapter imagines a run", fontsize=FONT + 1, fontweight="bold", x=0.01, ha="left")
    return figure


def plot_compare(metrics, names=("policy_loss", "value_loss", "mean_kl", "mean_ratio"), *, title, num_steps=20):
    """The chapter's schematic curve (left) beside the measured one (right), a row for each metric.

    Args: metrics, a TrainingLog or a dict name -> [N], measured; names, among those of `schematic_curves`.
    Returns: Figure. Raises: ValueError for a name without a schematic or a measured curve.
    Taught in: notebooks/08_training_run.ipynb
    """
    measured, schematic = _metric_table(metrics, names), _metric_table(schematic_curves(num_steps), names)
    size = (7.2, 3.2) if len(names) == 1 else (9.0, 2.2 * len(names) + 0.7)
    figure, axes = new_figure(len(names), 2, size)
    for row, name in zip(axes, names):
        _draw_schematic(row[0], name, schematic[name])
        draw_metric(row[1], name, {"": measured[name]})
        for ax, kind in zip(row, ("schematic", "measured")):
            _title(ax, f"{METRICS[name][0]}, {kind}", width=40)
    axes[-1, 0].set_xlabel("step", fontsize=FONT)
    axes[-1, 1].set_xlabel("PPO update", fontsize=FONT)
    figure.suptitle(textwrap.fill(title, 70), fontsize=FONT + 1, fontweight="bold", x=0.01, ha="left")
    return figure


def plot_plane(lines, points=None, *, title, ylabel="mean reward"):
    """The reward-KL plane: lines over the KL they cost, and single policies as points.

    Args: lines, dict label -> (kl [N], reward [N], meaning); points, the same, with short lists. Meaning is a name
        of `colors.COLORS` and gives colour and dash, or marker. A line's label stands at its right end. Returns: Figure.
    Raises: ValueError for a KL and reward of different lengths.
    Taught in: notebooks/04_how_far.ipynb
    """
    figure, axes = new_figure()
    ax, ends, inks = axes[0, 0], {}, []
    for key, (kl, reward, meaning) in {**lines, **(points or {})}.items():
        kl, reward = _series(key, kl), _series(key, reward)
        if kl.size != reward.size:
            raise ValueError(f"{key}: kl and reward must have the same length, got {kl.size} and {reward.size}")
        style = dict(color=COLORS[meaning], label=key)
        if key in lines:
            ax.plot(kl, reward, linewidth=2, linestyle=_dashes(DASHES[meaning], 2), **style)
            ends[key] = [reward[kl.argmax()]]
            inks.append(TEXT_COLORS[meaning])
        else:
            ax.plot(kl, reward, linestyle="", marker=MARKERS[meaning], markersize=7, **style)
    ax.set_xlabel("KL to the reference, nats per response", fontsize=FONT)
    ax.set_ylabel(ylabel, fontsize=FONT)
    ax.margins(x=0.02)
    if points:
        ax.legend(handles=[line for line in ax.lines if line.get_label() in points], fontsize=FONT - 1, frameon=False)
    _label_ends(ax, ends, inks)
    _title(ax, title)
    return figure


def plot_histograms(groups, *, title, xlabel, bins=30):
    """How often each value occurs, for two groups over the same bins, each with its mean.

    Args: groups, dict label -> (numbers [N], meaning), meaning a key of COLORS. Returns: Figure.
    Raises: ValueError for an empty group.
    Taught in: notebooks/02_rewards.ipynb
    """
    groups = {key: (_series(key, values), meaning) for key, (values, meaning) in groups.items()}
    figure, axes = new_figure()
    ax, edges = axes[0, 0], np.histogram_bin_edges(np.concatenate([v for v, _ in groups.values()]), bins)
    middle = np.mean([values.mean() for values, _ in groups.values()])
    for place, (key, (values, meaning)) in enumerate(groups.items()):
        style = dict(color=COLORS[meaning], linestyle=_dashes(_EXTRA_DASHES[0] if place else DASHES[meaning], 2))
        ax.hist(values, edges, histtype="step", linewidth=2, **style)
        ax.axvline(values.mean(), linewidth=1.2, **style)
        words = f"{key}\nmean {values.mean():.2f}".replace("-", "\N{MINUS SIGN}")
        side = dict(ha="right", xytext=(-5, 0)) if values.mean() < middle else dict(ha="left", xytext=(5, 0))
        ax.annotate(words, (values.mean(), 0.98), xycoords=("data", "axes fraction"), textcoords="offset points",
                    va="top", color=TEXT_COLORS[meaning], fontsize=FONT - 1, **side)  # fmt: skip
    ax.margins(y=0.4)
    ax.set_xlabel(xlabel, fontsize=FONT)
    ax.set_ylabel("count", fontsize=FONT)
    _title(ax, title)
    return figure


def plot_token_strip(tokens, values, meaning, *, title, ylabel, mask=None):
    """One bar a token, with the token written under it.

    Args: tokens, T texts; values [T]; meaning, a key of COLORS ("advantage" bars are hatched + and -); mask [T],
        1 = real token: what is padded is not drawn. Returns: Figure. Raises: ValueError when the lengths differ.
    """
    values = _series("values", values)
    if len(tokens) != len(values):
        raise ValueError(f"tokens must be {len(values)} texts, one for each value, got {len(tokens)}")
    if meaning not in COLORS:
        raise ValueError(f"meaning must be one of {sorted(COLORS)}, got {meaning!r}")
    real = np.ones(len(values), dtype=bool) if mask is None else np.asarray(mask).astype(bool)
    tokens, values = [str(token) for token, keep in zip(tokens, real) if keep], values[real]
    figure, axes = new_figure(size=(max(SIZE[0], 0.75 * len(tokens) + 1), SIZE[1]))
    ax, hatch = axes[0, 0], HATCHES[meaning]
    for place, value in enumerate(values):
        own = ("++" if value >= 0 else "--") if hatch == "sign" else 2 * hatch
        ax.bar(place, value, 0.7, color=COLORS[meaning], hatch=own, edgecolor="white", linewidth=0)
        words = f"{round(value, 2) + 0.0:.2f}".replace("-", "\N{MINUS SIGN}")
        up = value >= 0
        where = dict(xytext=(0, 3 if up else -3), textcoords="offset points", va="bottom" if up else "top")
        ax.annotate(words, (place, value), ha="center", fontsize=FONT - 2, **where)
    ax.axhline(0, color=COLORS["black"], linewidth=0.8)
    ax.set_xticks(np.arange(len(tokens)), tokens, rotation=35, ha="right", rotation_mode="anchor", fontsize=FONT)
    ax.set_ylabel(ylabel, fontsize=FONT)
    ax.margins(y=0.18)
    _title(ax, title, width=int(9.5 * figure.get_figwidth()))
    return figure


def plot_heat_maps(tables, rows, columns, meaning="policy", *, title, xlabel, ylabel):
    """Tables of numbers side by side, as shaded cells with the number in each; white is 0, one scale.

    Args: tables, dict panel title -> numbers [R, C], none below 0; rows, R texts; columns, C texts; meaning,
        a key of COLORS. Returns: Figure. Raises: ValueError when a table does not fit its texts.
    Taught in: notebooks/01_language_model_as_policy.ipynb
    """
    tables = {key: np.asarray(table, dtype=float) for key, table in tables.items()}
    for key, table in tables.items():
        if table.shape != (len(rows), len(columns)):
            want = len(rows), len(columns)
            raise ValueError(f"{key}: rows and columns name {want} cells, got {table.shape}")
    figure, axes = new_figure(1, len(tables), (0.3 + 4.4 * len(tables), 1.6 + 0.42 * len(rows)))
    top = max(table.max() for table in tables.values()) or 1.0
    shades = LinearSegmentedColormap.from_list(meaning, ["white", COLORS[meaning]])
    for ax, (key, table) in zip(axes[0], tables.items()):
        ax.imshow(table, cmap=shades, vmin=0, vmax=top, aspect="auto")
        for (row, column), value in np.ndenumerate(table):
            ink = "white" if value > 0.8 * top else COLORS["black"]
            number = f"{value:.1f}" if value else "0"
            ax.text(column, row, number, ha="center", va="center", fontsize=FONT - 2, color=ink)
        ax.set_xticks(range(len(columns)), columns, rotation=35, ha="right", rotation_mode="anchor")
        ax.set_yticks(range(len(rows)), rows)
        ax.set_xlabel(xlabel, fontsize=FONT)
        ax.set_ylabel(ylabel, fontsize=FONT)
        _title(ax, key, width=40)
    figure.suptitle(textwrap.fill(title, 90), fontsize=FONT + 1, fontweight="bold", x=0.01, ha="left")
    return figure


# stage number of train.py -> (name, what happens, tensors that come out, what its colour means)
STAGES = {
    1: ("sample", "the policy answers\nthe prompts [B, P]", "response_ids [B, T]\nlog_probs_old [B, T]\nvalues_old [B, T]", "old"),
    2: ("score + KL", "the reward reads the text,\nthe reference rereads it", "scores [B]\nlog_probs_ref [B, T]\nkl [B, T]", "score"),
    3: ("shaped rewards", "each token pays for its KL,\nthe last gets the score", "shaped_rewards [B, T]", "kl"),
    4: ("advantages", "better or worse than\nthe critic expected?", "advantages [B, T]\nreturns [B, T]", "advantage"),
    5: ("ratio and losses", "new policy against old,\ncritic against returns", "ratio [B, T]\nclipped loss: a number", "policy"),
    6: ("step", "gradient, then Adam", "new weights", "policy"),
    7: ("log", "what was measured", "one row of numbers", "black"),
}  # fmt: skip


def _draw_stage(ax, number, x, y, width, height):
    name, happens, tensors, meaning = STAGES[number]
    edge = dict(edgecolor=COLORS[meaning], linewidth=2.2, linestyle=_dashes(DASHES[meaning], 2.2))
    shape = dict(boxstyle="round,pad=0,rounding_size=1", facecolor="white")
    ax.add_patch(FancyBboxPatch((x, y), width, height, **shape, **edge))
    top, where = y + height, dict(ha="left", va="top")
    ax.text(x + 1, top - 1.2, f"{number}  {name}", fontsize=FONT + 1, fontweight="bold", **where)
    ax.text(x + 1, top - 4.8, happens, fontsize=FONT - 0.5, linespacing=1.3, **where)
    ax.text(x + 1, y + 0.8, tensors, fontsize=FONT - 1.5, family="monospace", linespacing=1.4, ha="left", va="bottom")


def plot_loop():
    """The whole training loop in one picture: stages 1 to 7 as numbered in `train.py`, with tensor shapes.

    B responses in a batch, P prompt tokens, T response tokens. Returns: Figure.
    Taught in: notebooks/00_start_here.ipynb
    """
    figure, axes = new_figure(size=(11.0, 5.4))
    ax = axes[0, 0]
    ax.set(xlim=(0, 100), ylim=(0, 49))
    ax.axis("off")
    width, height, top, bottom = 21.5, 16.5, 28.5, 4.0
    column = (1.2, 26.9, 52.6, 77.3)
    places = {n: (column[n - 1], top) for n in (1, 2, 3, 4)} | {5: (column[3], bottom), 6: (column[2], bottom)}
    places[7] = (column[1], bottom)

    def arrow(start, end, curve=0.0, color=COLORS["black"]):
        style = dict(arrowstyle="-|>", mutation_scale=18, linewidth=2, color=color, shrinkA=0, shrinkB=0)
        ax.add_patch(FancyArrowPatch(start, end, connectionstyle=f"arc3,rad={curve}", **style))

    ground = dict(facecolor="#F4F4F4", edgecolor=COLORS["reference"], linestyle=(0, (4, 3)), linewidth=1.2)
    ax.add_patch(FancyBboxPatch((0, top - 1.4), 100, height + 2.8, boxstyle="round,pad=0,rounding_size=1.5", **ground))
    note = dict(ha="center", fontsize=FONT - 0.5)
    ax.text(50, 47.3, "one rollout, frozen: nothing in here carries a gradient", color=TEXT_COLORS["reference"], **note)
    for number, (x, y) in places.items():
        _draw_stage(ax, number, x, y, width, height)
    for number in (1, 2, 3):
        arrow((column[number - 1] + width, top + height / 2), (column[number], top + height / 2))
    arrow((column[3] + width / 2, top), (column[3] + width / 2, bottom + height))
    arrow((column[3], bottom + height / 2), (column[2] + width, bottom + height / 2))
    arrow((column[2], bottom + height / 2), (column[1] + width, bottom + height / 2))
    arrow((column[2] + 12, bottom), (column[3] + 8, bottom), curve=0.28, color=COLORS["policy"])
    ax.text(75.6, 0.4, "K epochs × minibatches", color=TEXT_COLORS["policy"], va="center",
            bbox=dict(facecolor="white", edgecolor="none", pad=1.5), **note)  # fmt: skip
    arrow((column[1], bottom + height / 2), (column[0] + 10, top), curve=-0.3)
    ax.text(11, 12, "next update:\nsample again, with\nthe new policy", va="top", **note)
    return figure


def plot_ablations(rows, *, title, baseline="baseline", value="share", xlabel="share of the possible gain"):
    """One change at a time: every seed as a point, the mean and its standard error as a bar, best on top.

    Args: rows, dicts with "name" and `value`, one a run; the mean of `baseline` is the dashed line. Points far below
    the rest are drawn at the left edge, with their number.
    Errors: ValueError when there are no rows, or none of the baseline.
    """
    table = {}
    for row in rows:
        table.setdefault(row["name"], []).append(row[value])
    if baseline not in table:
        raise ValueError(f"rows must hold runs named {baseline!r}, got {sorted(table)}")
    table = {name: np.array(values) for name, values in sorted(table.items(), key=lambda item: np.mean(item[1]))}
    edge = 0.85 * table[baseline].mean()
    fig, axes = new_figure(size=(8.5, 0.9 + 0.27 * len(table)))
    ax = axes[0, 0]
    for y, (name, values) in enumerate(table.items()):
        color = TEXT_COLORS["policy" if name == baseline else "black"]
        ax.plot(np.maximum(values, edge), np.full(len(values), y), "o", markersize=4, color=color, alpha=0.35)
        mean, error = values.mean(), values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
        far = ", ".join(f"{value:.2f}" for value in values[values < edge])
        if mean > edge:
            ax.errorbar(mean, y, xerr=error, fmt="D", markersize=6, color=color, capsize=3)
        else:
            far += f"   mean {mean:.2f}"
        if far:  # on white: the error bar may pass here
            ax.annotate("◂ " + far.replace("-", "−"), (edge, y), xytext=(6, 0), textcoords="offset points", va="center",
                        fontsize=FONT - 2, bbox=dict(facecolor="white", edgecolor="none", pad=0.5))  # fmt: skip
    ax.axvline(table[baseline].mean(), color=TEXT_COLORS["policy"], linewidth=1, linestyle=(0, (4, 3)))
    ax.set_yticks(range(len(table)), table, fontsize=FONT - 1)
    ax.set_xlim(edge - 0.01, 1.005)
    ax.set_xlabel(xlabel, fontsize=FONT)
    _title(ax, title, width=70)
    return fig


def plot_belief_and_truth(run, *, title):
    """Learned and true score over the updates, above the reviews kept on the way, each word shaded by what it adds.

    Args: run, as `hacking.watched_run` gives it, with samples. Returns: Figure.
    Taught in: notebooks/09_reward_hacking.ipynb
    """
    samples = run["samples"]
    figure, axes = new_figure(size=(9.0, 3.2 + 0.32 * len(samples)))
    foot, ax = (0.4 + 0.32 * len(samples)) / figure.get_figheight(), axes[0, 0]
    figure.get_layout_engine().set(rect=(0, foot, 1, 1 - foot))
    curves = {"learned": (run["learned"], "score"), "true": (run["true"], "black")}
    for place, (values, meaning) in enumerate(curves.values()):
        style = dict(linestyle=_dashes(_EXTRA_DASHES[0] if place else (), 2), linewidth=2, color=COLORS[meaning])
        ax.plot(values, **style)
        ax.plot(list(samples), [values[update] for update in samples], MARKERS[meaning], color=COLORS[meaning])
    ax.axhline(0, color=COLORS["black"], linewidth=0.8)
    _label_ends(ax, {key: values for key, (values, _) in curves.items()},
                [TEXT_COLORS[meaning] for _, meaning in curves.values()])  # fmt: skip
    ax.set_xlabel("PPO update", fontsize=FONT)
    ax.set_ylabel("mean score", fontsize=FONT)
    _title(ax, title, width=80)
    renderer, width = figure.canvas.get_renderer(), figure.bbox.width
    rows = [(update, sample["words"], sample["scores"], sample["learned"], sample["true"])
            for update, sample in samples.items()]  # fmt: skip
    for row, (update, words, scores, learned, true) in enumerate([("", (), (), "learned", "true"), *rows]):
        where = dict(y=foot * (1 - (row + 0.75) / (len(rows) + 1.3)), fontsize=FONT - 2)
        figure.text(0.035, s=update, ha="right", fontweight="bold", **where)
        x = 0.055
        for word, value in zip(words, scores):  # full colour at half a unit; italics are the second cue
            box = dict(facecolor=COLORS["score" if value > 0 else "kl"], linewidth=0, pad=1.5)
            drawn = figure.text(x, s=word, bbox=box | dict(alpha=min(abs(value), 0.5) * 1.1), **where,
                                style="normal" if value > 0 else "italic")  # fmt: skip
            x += drawn.get_window_extent(renderer).width / width + 0.009
        for x, end, meaning in ((0.925, learned, "score"), (0.985, true, "black")):
            text = end if row == 0 else f"{end:+.1f}".replace("-", "\N{MINUS SIGN}")
            figure.text(x, s=text, ha="right", color=TEXT_COLORS[meaning], fontweight="bold", **where)
    return figure


def plot_over_distance(panels, *, title, ylabel="score"):
    """Scores over the root of the KL with error bars: one panel a way to get there, on the same axes.

    Args: panels, dict title -> dict label -> (root KL [N], mean [N], standard error [N], meaning).
    Returns: Figure. Raises: ValueError where the lengths differ.
    Source: the axes of Gao et al. 2022, figure 1. Taught in: notebooks/09_reward_hacking.ipynb
    """
    figure, axes = new_figure(1, len(panels), (9.0, 4.2))
    for ax, (name, lines) in zip(axes[0], panels.items()):
        ax.sharex(axes[0, 0])
        ax.sharey(axes[0, 0])
        for place, (key, (x, y, error, meaning)) in enumerate(lines.items()):
            if not len(x) == len(y) == len(error):
                raise ValueError(f"{name}, {key}: x, y and error must have one length, got {len(x)}, {len(y)}")
            every = dict(markevery=max(1, len(x) // 10), errorevery=max(1, len(x) // 10), markersize=5)
            dashes = (0, (5, 2)) if meaning == "black" else _dashes(DASHES[meaning], 2)
            ax.errorbar(x, y, error, color=COLORS[meaning], linestyle=dashes, marker="os^vDP"[place // 2], label=key,
                        linewidth=1.6, elinewidth=1, capsize=2, **every)  # fmt: skip
        ax.axhline(0, color=COLORS["black"], linewidth=0.8)
        ax.set_xlabel("√KL, KL in nats", fontsize=FONT)
        _title(ax, name, width=40)
    axes[0, 0].set_ylabel(ylabel, fontsize=FONT)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=FONT - 2, frameon=False)
    figure.suptitle(title, fontsize=FONT + 1, fontweight="bold", x=0.01, ha="left")
    return figure


def plot_table(rows, header, widths, *, title):
    """Texts in rows and columns, wrapped, as a page to print.

    Args: rows, lists of texts; header, a text a column; widths, letters that fit into each column. Returns: Figure.
    Raises: ValueError when a row does not have a text for each column.
    Taught in: notebooks/10_bug_clinic.ipynb
    """
    if bad := [row for row in rows if not len(row) == len(header) == len(widths)]:
        raise ValueError(f"each row must have {len(header)} texts, got {len(bad[0])}: {bad[0]}")
    wrapped = [[textwrap.wrap(text, width) for text, width in zip(row, widths)] for row in (header, *rows)]
    heights = [max(map(len, row)) + 0.7 for row in wrapped]
    figure, axes = new_figure(size=(0.074 * sum(widths) + 0.4, 0.18 * sum(heights) + 0.5))
    ax, top, left = axes[0, 0], 0.0, np.concatenate([[0], np.cumsum(widths)])
    ax.set(xlim=(0, left[-1]), ylim=(sum(heights), 0))
    ax.axis("off")
    for number, (row, height) in enumerate(zip(wrapped, heights)):
        if number % 2:
            ax.axhspan(top, top + height, color="#F2F2F2", linewidth=0)
        for x, lines in zip(left, row):
            ax.text(x + 0.6, top + 0.3, "\n".join(lines), va="top", fontsize=FONT - 3, linespacing=1.35,
                    fontweight="normal" if number else "bold", color=COLORS["black"])  # fmt: skip
        top += height
    _title(ax, title, width=round(0.7 * left[-1]))
    return figure
