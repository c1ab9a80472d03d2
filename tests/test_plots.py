"""The static figures show exactly the arrays given, leave nothing behind, and say what is measured and what is not."""

import ast
import dataclasses
import importlib.util
import io
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from ppo_teach import PPOConfig, ReviewWorld, TrainingLog, plots, train_ppo
from ppo_teach.colors import COLORS

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = [
    {"update": 0, "prompt": "the soup was", "response": "poor .", "score": -1.03},
    {"update": 5, "prompt": "the chef was", "response": "great .", "score": 1.42},
]


@pytest.fixture
def metrics():
    """Numbers that no formula would give by accident."""
    draw = np.random.default_rng(0)
    return {name: draw.normal(size=6) for name in plots.METRICS}


def drawn(ax):
    """The lines that carry data (guides and zero lines span the axes: two points)."""
    return [line for line in ax.get_lines() if len(line.get_xdata()) > 2]


LABELS = dict(title="Title", xlabel="x", ylabel="y")


def every_figure(metrics):
    """One figure of each kind."""
    return {
        "plot_metric": plots.plot_metric({"clip on": [1, 2, 3], "clip off": [3, 2, 1]}, "max_ratio", title="Title"),
        "plot_training": plots.plot_training(metrics, title="Title"),
        "plot_run": plots.plot_run(metrics, SAMPLES, title="Title"),
        "plot_schematic": plots.plot_schematic(),
        "plot_compare": plots.plot_compare(metrics, title="Title"),
        "plot_token_strip": plots.plot_token_strip(["a", "b"], [0.5, -1.0], "advantage", title="Title", ylabel="nats"),
        "plot_loop": plots.plot_loop(),
        "plot_heat_maps": plots.plot_heat_maps({"a": [[0.0, 1.0]]}, ["r"], ["c", "d"], **LABELS),
    }


def png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


# ---------------------------------------------------------------- the data drawn are the data given


def test_plot_metric_draws_each_series_as_given():
    figure = plots.plot_metric({"clip on": [1.0, 2.5, 3.0], "clip off": [4.0, 9.0, 2.0]}, "max_ratio", title="T")
    lines = drawn(figure.axes[0])
    assert [line.get_ydata().tolist() for line in lines] == [[1.0, 2.5, 3.0], [4.0, 9.0, 2.0]]
    assert lines[0].get_xdata().tolist() == [0, 1, 2]


def test_two_lines_differ_in_colour_and_in_dash_and_carry_their_labels():
    figure = plots.plot_metric({"clip on": [1, 2, 3], "clip off": [3, 2, 1]}, "max_ratio", title="T")
    first, second = drawn(figure.axes[0])
    assert first.get_color() != second.get_color()
    assert first.is_dashed() != second.is_dashed()
    assert {"clip on", "clip off"} <= {text.get_text() for text in figure.axes[0].texts}


def test_plot_training_draws_every_metric_asked_for(metrics):
    names = ["mean_reward", "entropy", "value_loss", "clip_fraction"]
    figure = plots.plot_training(metrics, names, title="T")
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert len(shown) == 4
    for ax, name in zip(shown, names):
        assert drawn(ax)[0].get_ydata() == pytest.approx(metrics[name])
        assert ax.get_ylabel() == plots.METRICS[name][1]


def test_plot_training_takes_a_training_log(metrics):
    log = TrainingLog()
    for i in range(6):
        log.append({name: values[i] for name, values in metrics.items()})
    figure = plots.plot_training(log, ["entropy"], title="T")
    assert drawn(figure.axes[0])[0].get_ydata() == pytest.approx(metrics["entropy"])


def test_plot_run_marks_the_updates_whose_reviews_it_prints(metrics):
    figure = plots.plot_run(metrics, SAMPLES, title="T")
    reward = figure.axes[0]
    assert drawn(reward)[0].get_ydata() == pytest.approx(metrics["mean_reward"])
    dots = [line for line in reward.get_lines() if line.get_marker() == "o"]
    assert [(d.get_xdata()[0], d.get_ydata()[0]) for d in dots] == [(u, metrics["mean_reward"][u]) for u in (0, 5)]
    words = " ".join(text.get_text() for text in figure.texts)
    assert "the soup was poor ." in words and "the chef was great ." in words and "\N{MINUS SIGN}1.0" in words


def test_plot_compare_puts_the_schematic_left_and_the_measured_right(metrics):
    names = ("policy_loss", "mean_ratio")
    figure = plots.plot_compare(metrics, names, title="T")
    schematic = plots.schematic_curves()
    for row, name in enumerate(names):
        left, right = figure.axes[2 * row : 2 * row + 2]
        assert drawn(left)[0].get_ydata() == pytest.approx(schematic[name])
        assert drawn(right)[0].get_ydata() == pytest.approx(metrics[name])


def test_plot_token_strip_draws_the_real_tokens_only():
    figure = plots.plot_token_strip(
        ["very", "good", "pad"], [0.25, -0.5, 9.0], "advantage", title="T", ylabel="u", mask=[1, 1, 0]
    )
    ax = figure.axes[0]
    assert [bar.get_height() for bar in ax.patches] == [0.25, -0.5]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["very", "good"]
    assert [bar.get_hatch() for bar in ax.patches] == ["++", "--"]  # the sign is visible without colour


# ---------------------------------------------------------------- schematic or measured


def test_schematic_curves_are_the_chapters_formulas():
    """Checked against the plain form of each formula with the noise of the chapter's seed."""
    noise, step = np.random.RandomState(42).randn(4, 20), np.arange(20)
    curves = plots.schematic_curves()
    assert curves["policy_loss"] == pytest.approx(
        0.18 * np.exp(-step / 30) + 0.05 + 0.04 * np.sin(step * 1.3) + 0.02 * noise[0]
    )
    assert curves["value_loss"] == pytest.approx(
        np.clip(0.55 * np.exp(-step / 8) + 0.04 + 0.01 * noise[1], 0.03, None)
    )
    assert curves["mean_kl"] == pytest.approx(np.clip(0.12 * (1 - np.exp(-step / 6)) + 0.005 * noise[2], 0, None))
    assert curves["mean_ratio"] == pytest.approx(1.0 + 0.015 * np.sin(step * 0.8) + 0.008 * noise[3])


def test_schematic_curves_leave_the_global_generator_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    plots.schematic_curves()
    assert (np.random.get_state()[1] == before).all()


def test_every_schematic_panel_says_so_and_no_measured_one_does(metrics):
    def says_so(ax):
        return any(text.get_text() == "schematic, not measured" for text in ax.texts)

    assert all(says_so(ax) for ax in plots.plot_schematic().axes)
    kinds = [says_so(ax) for ax in plots.plot_compare(metrics, title="T").axes]
    assert kinds == [True, False] * 4


# ---------------------------------------------------------------- the loop


def test_loop_numbers_its_stages_as_the_training_module_does():
    from ppo_teach import train

    stages = dict(re.findall(r"(\d) ([a-z]+)", train.__doc__))
    assert sorted(map(int, stages)) == sorted(plots.STAGES)
    for number, word in stages.items():
        assert plots.STAGES[int(number)][0].startswith(word), (number, word)


def test_loop_shows_every_stage_with_the_shapes_of_its_tensors():
    words = [text.get_text() for text in plots.plot_loop().axes[0].texts]
    for number, (name, _, tensors, _) in plots.STAGES.items():
        assert f"{number}  {name}" in words and tensors in words
    assert any("response_ids [B, T]" in text for text in words)


def test_loop_names_only_tensors_of_the_notation():
    from ppo_teach import NOTATION

    for _, _, tensors, _ in plots.STAGES.values():
        for name, shape in re.findall(r"(\w+) (\[B.*?\])", tensors):
            known = name if name in NOTATION else name.removesuffix("_old")
            assert known in NOTATION, f"{name} is not in NOTATION"
            assert NOTATION[known][1] == shape


def test_loop_texts_stay_inside_their_boxes():
    figure = plots.plot_loop()
    figure.draw_without_rendering()
    ax = figure.axes[0]
    boxes = [patch.get_window_extent() for patch in ax.patches if getattr(patch, "get_width", float)() == 21.5]
    assert len(boxes) == 7
    for text in ax.texts:
        extent = text.get_window_extent()
        for box in boxes:
            if box.contains(extent.x0 + 1, (extent.y0 + extent.y1) / 2):
                assert extent.x1 < box.x1 and extent.y0 > box.y0 and extent.y1 < box.y1, text.get_text()


# ---------------------------------------------------------------- form


def test_no_figure_is_left_in_pyplot_and_no_setting_changes(metrics):
    import matplotlib.pyplot as plt

    settings = dict(matplotlib.rcParams)
    before = plt.get_fignums()
    every_figure(metrics)
    assert plt.get_fignums() == before
    assert dict(matplotlib.rcParams) == settings


def test_plots_do_not_import_pyplot():
    tree = ast.parse((ROOT / "ppo_teach" / "plots.py").read_text(encoding="utf-8"))
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not any("pyplot" in (name or "") for name in imported)


@pytest.mark.filterwarnings("error")  # a layout that does not fit is a warning
def test_the_same_arrays_give_the_same_picture(metrics):
    first, second = every_figure(metrics), every_figure(metrics)
    for name in first:
        assert png(first[name]) == png(second[name]), name


def test_another_array_gives_another_picture(metrics):
    """The comparison above can fail."""
    assert png(plots.plot_metric([1, 2, 3], "entropy", title="T")) != png(
        plots.plot_metric([1, 2, 4], "entropy", title="T")
    )


def test_every_panel_has_units_and_no_box(metrics):
    for name, figure in every_figure(metrics).items():
        if name == "plot_loop":
            continue
        for ax in figure.axes:
            assert ax.get_ylabel(), name
            assert not ax.spines["top"].get_visible() and not ax.spines["right"].get_visible(), name
        assert any(ax.get_xlabel() for ax in figure.axes) or name == "plot_token_strip"


def test_every_figure_carries_a_message(metrics):
    for name, figure in every_figure(metrics).items():
        titles = [figure.get_suptitle(), *(ax.get_title(loc="left") for ax in figure.axes)]
        assert any(titles) or name == "plot_loop", name


def test_single_figures_have_the_courses_size(metrics):
    figure = plots.plot_metric([1, 2], "entropy", title="T")
    assert tuple(figure.get_size_inches()) == (6.0, 3.2)


def test_a_metric_with_a_sign_gets_a_zero_line():
    def has_zero_line(name):
        lines = plots.plot_metric([1.0, 2.0, 3.0], name, title="T").axes[0].get_lines()
        return any(list(line.get_ydata()) == [0, 0] for line in lines)

    assert has_zero_line("policy_loss") and not has_zero_line("mean_ratio")


def test_colours_are_those_of_their_meaning():
    for name, (_, _, meaning, _) in plots.METRICS.items():
        line = drawn(plots.plot_metric([1, 2, 3], name, title="T").axes[0])[0]
        assert line.get_color() == COLORS[meaning]


def test_every_metric_of_the_glossary_can_be_drawn():
    assert set(plots.METRICS) == {*TrainingLog.GLOSSARY, "objective"}


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda m: plots.plot_training(m, ["reward"], title="T"), "names must be among"),
        (lambda m: plots.plot_compare(m, ("entropy",), title="T"), "names must be among"),
        (lambda m: plots.plot_metric([], "entropy", title="T"), "entropy must be a non-empty list"),
        (lambda m: plots.plot_metric({str(i): [1.0] for i in range(5)}, "entropy", title="T"), "one to four lines"),
        (lambda m: plots.plot_token_strip(["a"], [1, 2], "kl", title="T", ylabel="u"), "tokens must be 2 texts"),
        (lambda m: plots.plot_token_strip(["a"], [1], "red", title="T", ylabel="u"), "meaning must be one of"),
    ],
)
def test_bad_input_is_named(metrics, call, words):
    with pytest.raises(ValueError, match=words):
        call(metrics)


def test_one_update_is_visible():
    """A line of one point would be invisible without a marker."""
    line = plots.plot_metric([2.0], "entropy", title="T").axes[0].get_lines()[0]
    assert line.get_marker() not in ("", "None", None)


def test_labels_of_close_ends_do_not_overlap():
    figure = plots.plot_metric({"clip on": [1, 2, 8.0], "clip off": [9, 200, 8.1]}, "max_ratio", title="T", log_scale=True)
    figure.draw_without_rendering()
    first, second = (text.get_window_extent() for text in figure.axes[0].texts)
    assert not first.overlaps(second)


def test_a_label_stands_at_the_height_of_its_line():
    figure = plots.plot_metric({"up": [0.0, 0.0, 4.0], "down": [0.0, 0.0, -4.0]}, "entropy", title="T")
    figure.draw_without_rendering()
    ax = figure.axes[0]
    for text, value in zip(sorted(ax.texts, key=lambda t: t.get_text()), (-4.0, 4.0)):
        extent = text.get_window_extent()
        assert extent.y0 <= ax.transData.transform((0, value))[1] <= extent.y1


def test_independent_estimates_are_points_without_a_line():
    line = plots.plot_metric([0.1, -0.2, 0.3], "mean_kl", title="T", joined=False).axes[0].get_lines()[0]
    assert line.get_linestyle() == "None" and line.get_marker() not in ("", "None")


def test_updates_are_counted_in_whole_numbers():
    ax = plots.plot_metric(np.arange(20.0), "mean_kl", title="T").axes[0]
    assert all(float(tick).is_integer() for tick in ax.get_xticks())


def test_a_bar_of_almost_nothing_is_not_labelled_minus_zero():
    ax = plots.plot_token_strip(["a"], [-0.001], "kl", title="T", ylabel="nats").axes[0]
    assert [text.get_text() for text in ax.texts] == ["0.00"]


# ---------------------------------------------------------------- the README's pictures, links and code

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def make_figures():
    spec = importlib.util.spec_from_file_location("make_figures", ROOT / "figures" / "make_figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shipped_run_is_a_whole_default_run(make_figures):
    log = TrainingLog.load(make_figures.RUN)
    defaults = dataclasses.asdict(PPOConfig())
    assert len(log) == 60 and log.stopped_by == "finished"
    assert {name: log.info["config"][name] for name in defaults} == defaults
    assert log.info["world"] == "review" and log.info["reward"] == "true" and log.info["seed"] == 0
    assert log.info["command"] == "python figures/make_figures.py --train"


def test_the_shipped_run_is_what_the_code_does_today(make_figures):
    """Two updates are repeated: enough to see that weights, reward or step have changed since the log was made."""
    shipped = TrainingLog.load(make_figures.RUN)
    _, log = train_ppo(ReviewWorld(), PPOConfig(), num_updates=2, seed=0)
    for name in ("mean_reward", "kl_per_response", "entropy", "value_loss"):
        assert log.metrics[name] == pytest.approx(shipped.metrics[name][:2], abs=0.02), name
    first = [sample["response"] for sample in log.samples if sample["update"] == 0]
    assert first == [sample["response"] for sample in shipped.samples if sample["update"] == 0]


def test_the_hero_shows_the_shipped_run(make_figures):
    log = TrainingLog.load(make_figures.RUN)
    hero = make_figures.figures(log)["hero.png"]
    assert drawn(hero.axes[0])[0].get_ydata() == pytest.approx(log.metrics["mean_reward"])
    assert drawn(hero.axes[1])[0].get_ydata() == pytest.approx(log.metrics["kl_per_response"])


def test_reviews_are_chosen_by_rule_not_by_taste(make_figures):
    log = TrainingLog()
    log.samples = [{"update": 0, "score": score} for score in (2.9, 0.8, -1.0, 2.0)]
    assert make_figures.typical_samples(log, [0]) == [{"update": 0, "score": 0.8}]


def test_the_pictures_are_small(make_figures, tmp_path):
    make_figures.main(["--out", str(tmp_path)])
    made = {path.name: path.stat().st_size for path in tmp_path.glob("*.png")}
    committed = {path.name: path.stat().st_size for path in (ROOT / "figures").glob("*.png")}
    assert set(made) == {"hero.png", "loop.png", "schematic_vs_measured.png"} <= set(committed)
    assert max(made.values()) < 200_000 and max(committed.values()) < 200_000


def test_every_picture_and_link_of_the_readme_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links and all((ROOT / link).exists() for link in links), links
    pictures = re.findall(r"!\[([^\]]*)\]", README)
    assert len(pictures) >= 2 and all(len(alt) > 20 for alt in pictures)


def test_the_readme_names_every_notebook_that_is_there():
    there = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert there == set(re.findall(r"\(notebooks/([^)]+\.ipynb)\)", README))
    rows = re.findall(r"^\| (\d\d) \|.*\| (\d+) \| (.+) \|$", README, flags=re.MULTILINE)
    assert [row[0] for row in rows] == [f"{i:02d}" for i in range(12)]
    for number, _, today in rows:
        assert (today == "in preparation") != any(name.startswith(number) for name in there), (number, today)


def test_readme_and_first_notebook_agree_on_minutes():
    text = (ROOT / "notebooks" / "00_start_here.ipynb").read_text(encoding="utf-8")
    in_notebook = dict(re.findall(r"\| (\d\d) \|[^|]*\| (\d+) \|", text))
    assert in_notebook == dict(re.findall(r"^\| (\d\d) \|.*\| (\d+) \| .+ \|$", README, flags=re.MULTILINE))


def test_the_code_of_the_readme_runs(capsys):
    blocks, names = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL), {}
    assert len(blocks) == 2
    for code in blocks:
        assert len([line for line in code.splitlines() if line.strip()]) <= 5
        exec(compile(code.replace("num_updates=60", "num_updates=1"), "README.md", "exec"), names)
        assert capsys.readouterr().out.strip()


# ---------------------------------------------------------------- one change at a time
def ablations():
    shares = {"baseline": [0.97, 0.98, 0.99], "better": [0.99, 1.0], "broken": [0.98, -1.0], "worse": [0.9, 0.92]}
    return [{"name": name, "share": share} for name, values in shares.items() for share in values]


def test_ablations_are_ordered_by_their_mean_and_show_every_run():
    ax = plots.plot_ablations(ablations(), title="T").axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["broken", "worse", "baseline", "better"]
    runs = [line.get_xdata() for line in ax.lines if line.get_marker() == "o"]
    edge = 0.85 * 0.98
    np.testing.assert_allclose(np.concatenate(runs), [0.98, edge, 0.9, 0.92, 0.97, 0.98, 0.99, 0.99, 1.0])
    means = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "D"]
    np.testing.assert_allclose(means, [0.91, 0.98, 0.995])
    bars = [np.ptp(segment[:, 0]) / 2 for part in ax.collections for segment in part.get_segments()]
    errors = [np.std(v, ddof=1) / len(v) ** 0.5 for v in ([0.9, 0.92], [0.97, 0.98, 0.99], [0.99, 1.0])]
    np.testing.assert_allclose(sorted(bars), sorted(errors))
    assert "◂ −1.00   mean −0.01" in {text.get_text() for text in ax.texts}, "one text, so that they cannot collide"


def test_ablations_need_a_baseline():
    with pytest.raises(ValueError, match="rows must hold runs named 'baseline', got \\['x'\\]"):
        plots.plot_ablations([{"name": "x", "share": 1.0}], title="T")
