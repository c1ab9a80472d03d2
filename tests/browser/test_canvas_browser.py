"""The canvas in a real browser: it draws `.drawn()`, by mouse and keyboard, with a kernel and without."""

import json

import numpy as np
import pytest
from lab import Lab, browser_page

from ppo_teach.canvas import Explorer, page
from ppo_teach.marks import Panel, Slider, band, bars, cells, guide, line, points, text

pytestmark = [pytest.mark.browser, pytest.mark.slow]
RANGE = ".ppo-canvas input[type=range]"


def build(name="clip_explorer"):
    """Every kind of mark, three sliders. Also sent to the notebooks below as source."""
    x = np.linspace(0, 2, 41)

    def objective(clip_epsilon, sign):
        side = 1 if sign == "A > 0" else -1
        return np.minimum(x * side, np.clip(x, 1 - clip_epsilon, 1 + clip_epsilon) * side)

    sliders = [
        Slider("clip_epsilon", "ε", [round(0.01 * i, 2) for i in range(51)], 0.2, label="clip epsilon"),
        Slider("sign", "A", ["A > 0", "A < 0"], "A > 0", label="advantage"),
        Slider("epochs", "K", [1, 2, 4, 8], 2, label="epochs"),
    ]
    panels = [
        Panel("Past the clip the gain stops", "ratio", "objective", (0, 2), (-2, 2), zero=True),
        Panel(
            "Tokens", "", "advantage", (-0.6, 2.6), (-1, 1), zero=True, xticks=["the", "delicious", "soup"]
        ),
        Panel("A table", "column", "row", (-0.5, 2.5), (1.5, -0.5)),
    ]
    marks = [
        band(
            "clip", lambda clip_epsilon: 1 - clip_epsilon, lambda clip_epsilon: 1 + clip_epsilon, label="clip"
        ),
        line("objective", x, objective, "policy", label="clipped"),
        guide("one", 1.0, label="start"),
        guide("level", lambda epochs: 1 / epochs, "reference", axis="y"),
        text("number", 0.1, 1.6, lambda epochs: 1 / epochs, "kl", format="1/K = {:.3f}"),
        bars(
            "advantage",
            lambda epochs: np.array([0.8, -0.5, 0.02]) / epochs,
            "advantage",
            panel=1,
            values="{:+.2f}",
        ),
        points("value", [0, 1, 2], lambda epochs, sign: np.arange(3) / epochs, "value", panel=1, label="V"),
        cells(
            "table",
            lambda epochs: np.arange(6).reshape(2, 3) / epochs,
            "score",
            panel=2,
            vmax=5,
            values="{:.1f}",
        ),
    ]
    return Explorer(
        name,
        sliders,
        panels,
        marks,
        words="At ε = {clip_epsilon} the size is {size:.2f}.",
        readouts={"size": lambda clip_epsilon, epochs: clip_epsilon * epochs},
        presets={"too large": {"clip_epsilon": 0.5, "epochs": 8}},
        caption="What moves?",
        alt="A kinked line over a band.",
    )


def source():
    import inspect

    return (
        "import json, numpy as np\nfrom ppo_teach.canvas import Explorer\n"
        "from ppo_teach.marks import Panel, Slider, band, bars, cells, guide, line, points, text\n"
        + inspect.getsource(build)
    )


SAVE = """
state = {"position": list(explorer.canvas.position), "words": explorer.words,
         "drawn": {k: v.tolist() for k, v in explorer.drawn().items()},
         "values": [w.value for w in explorer.sliders.values()]}
open("state.json", "w").write(json.dumps(state))
"""


def look(tab, number=0):
    """What the browser says it drew, and the pixels themselves."""
    tab.wait_for_timeout(150)  # two frames and the message to the kernel
    root = tab.locator(".ppo-canvas").nth(number)
    return root.evaluate("el => el.drawn"), root.locator("canvas").evaluate("el => el.toDataURL()")


def assert_same(shown, drawn, words):
    """The browser's float32 arrays against `.drawn()`."""
    marks = shown["marks"]
    for key, field in (
        ("objective", "y"),
        ("objective_x", "x"),
        ("advantage", "y"),
        ("value", "y"),
        ("table", "z"),
    ):
        given = marks[f"{key.removesuffix('_x')}.{field}"]
        np.testing.assert_array_equal(np.array(given), np.asarray(drawn[key], dtype="<f4"))
    for i, field in enumerate(("lo", "hi")):
        np.testing.assert_array_equal(marks[f"clip.{field}"], np.asarray(drawn["clip"], dtype="<f4")[:, i])
    np.testing.assert_array_equal(marks["level.at"], np.asarray(drawn["level"], dtype="<f4"))
    assert marks["number.values"] == [f"1/K = {np.asarray(drawn['number'])[0]:.3f}"]
    assert shown["words"] == words


# ---- a saved page, no kernel -----------------------------------------------------------------------------
@pytest.fixture
def explorer():
    made = build()
    yield made
    made.close()


@pytest.fixture
def tab(tmp_path, explorer):
    file = tmp_path / "sliders.html"
    file.write_text(page("Sliders", explorer, build("second")), encoding="utf-8")
    with browser_page(width=1000, height=1400) as opened:
        opened.requests = []
        opened.on("request", lambda request: opened.requests.append(request.url))
        opened.goto(file.as_uri())
        opened.wait_for_selector(".ppo-canvas[data-frame]")
        yield opened
        assert opened.problems == []
        assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []


def test_keyboard_moves_every_slider_of_a_saved_page(tab, explorer):
    moves = [
        (0, "ArrowRight"),
        (0, "Home"),
        (0, "End"),
        (0, "PageDown"),
        (1, "ArrowRight"),
        (1, "ArrowRight"),
        (1, "Home"),
        (0, "ArrowLeft"),
    ]
    _, before = look(tab)
    for slider, key in moves:
        tab.locator(RANGE).nth(slider).focus()
        tab.keyboard.press(key)
        shown, pixels = look(tab)
        explorer.canvas.position = shown["position"]
        assert_same(shown, explorer.drawn(), explorer.words)
        assert pixels != before, key
        before = pixels
    tab.locator(".ppo-choice input").first.focus()
    tab.keyboard.press("ArrowRight")
    shown, pixels = look(tab)
    explorer.canvas.position = shown["position"]
    assert shown["position"][1] == 1 and pixels != before
    assert_same(shown, explorer.drawn(), explorer.words)


def test_mouse_moves_presets_and_reset(tab, explorer):
    start, first = look(tab)
    box = tab.locator(RANGE).first.bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] / 2)
    tab.mouse.down()
    for share in (0.5, 0.7, 0.9):
        tab.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
        shown, pixels = look(tab)
        assert abs(shown["position"][0] - 50 * share) <= 2 and pixels != first
    tab.mouse.up()
    tab.get_by_role("button", name="too large").first.click()
    assert look(tab)[0]["position"] == [50, 0, 3]
    tab.get_by_role("button", name="Reset").first.click()
    shown, pixels = look(tab)
    assert shown == start and pixels == first
    assert look(tab, 1)[0]["position"] == start["position"]  # the second explorer was left alone


def test_it_can_be_used_without_seeing_the_picture(tab):
    root = tab.locator(".ppo-canvas").first
    assert root.locator("canvas").get_attribute("aria-label") == "A kinked line over a band."
    slider = tab.get_by_role("slider", name="clip epsilon ε").first
    assert slider.get_attribute("aria-valuetext") == "0.20"
    assert (
        tab.get_by_role("radiogroup", name="advantage").first.get_by_role("radio", name="A < 0").count() == 1
    )
    status = root.get_by_role("status")
    assert status.get_attribute("aria-live") == "polite"
    slider.focus()
    tab.keyboard.press("ArrowRight")
    look(tab)
    assert slider.get_attribute("aria-valuetext") == "0.21"
    assert status.inner_text() == "At ε = 0.21 the size is 0.42."
    outline = slider.evaluate("el => getComputedStyle(el).outlineStyle + getComputedStyle(el).outlineWidth")
    assert outline == "solid3px"
    for name in ("too large", "Reset"):
        button = tab.get_by_role("button", name=name).first
        button.focus()
        tab.keyboard.press("Enter")
    assert look(tab)[0]["position"] == [20, 0, 1]


def test_the_picture_follows_the_width(tab):
    widths = []
    for width in (1000, 420, 760):
        tab.set_viewport_size({"width": width, "height": 1400})
        tab.wait_for_timeout(200)
        box, frame = (tab.locator(s).first.bounding_box() for s in (".ppo-canvas canvas", ".ppo-canvas"))
        assert frame["width"] <= min(width, 900) and box["width"] < frame["width"]
        drawn = tab.locator("canvas").first.evaluate("el => el.width / window.devicePixelRatio")
        assert abs(drawn - box["width"]) < 2, "sharp: one canvas pixel is one screen pixel"
        widths.append(box["height"])
    assert widths[1] == 3 * 300 and widths[0] == 2 * 300  # narrow: one panel below the other


def test_sliders_stay_where_they_are_when_the_sentence_gets_shorter(tmp_path):
    lengths = ["Short.", "A much longer sentence, which needs a second line in a column this narrow. " * 2]
    made = Explorer(
        "e",
        [Slider("a", "a", [0, 1], 0)],
        [Panel("t", "x", "y", (0, 1), (0, 1))],
        [line("l", [0, 1], lambda a: [a, a])],
        words="{say}",
        readouts={"say": lambda a: np.array(lengths[a], dtype=object)},
        caption="c",
        alt="a",
    )
    (tmp_path / "e.html").write_text(page("e", made), encoding="utf-8")
    with browser_page(width=500, height=900) as opened:
        opened.goto((tmp_path / "e.html").as_uri())
        opened.locator(RANGE).focus()
        places = []
        for key in ("ArrowRight", "ArrowLeft", "ArrowRight"):
            opened.keyboard.press(key)
            look(opened)
            places.append(opened.locator(RANGE).bounding_box()["y"])
        assert len(set(places)) == 1
        opened.set_viewport_size({"width": 900, "height": 900})
        look(opened)
        opened.keyboard.press("ArrowLeft")
        look(opened)
        assert opened.locator(".ppo-words").bounding_box()["height"] < 80


# ---- JupyterLab ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def lab():
    with Lab() as started:  # JupyterLab's own defaults: widget messages go to a second kernel thread
        yield started


@pytest.fixture
def screen():
    with browser_page(width=1200, height=1500) as opened:
        yield opened


def state(lab):
    return json.loads((lab.folder / "work" / "state.json").read_text())


def test_browser_and_kernel_hold_the_same_state(lab, screen):
    cells = [
        source() + "\nexplorer = build()\nexplorer",
        "explorer.sliders['clip_epsilon'].value = 0.4\nexplorer.canvas.update(table={'z': np.ones((2, 3))})",
        SAVE,
    ]
    lab.open(screen, "state.ipynb", cells)
    lab.run_cell(screen, 0)
    screen.wait_for_selector(".ppo-canvas[data-frame]")
    _, first = look(screen)
    for key, slider in (("ArrowRight", 0), ("End", 1), ("ArrowLeft", 1)):
        screen.locator(RANGE).nth(slider).focus()
        for _ in range(5):
            screen.keyboard.press(key)
    box = screen.locator(RANGE).first.bounding_box()
    screen.mouse.click(box["x"] + box["width"] * 0.1, box["y"] + box["height"] / 2)
    screen.locator(".ppo-choice input").nth(1).click()
    shown, pixels = look(screen)
    assert pixels != first and 3 <= shown["position"][0] <= 7 and shown["position"][1:] == [1, 0]
    lab.run_cell(screen, 2)
    saved = state(lab)
    assert saved["position"] == shown["position"] and saved["values"][1:] == ["A < 0", 1]
    assert_same(shown, saved["drawn"], saved["words"])
    lab.run_cell(screen, 1)  # now from Python
    shown, _ = look(screen)
    assert shown["position"] == [40, 1, 0] and screen.locator(RANGE).first.input_value() == "40"
    lab.run_cell(screen, 2)
    assert_same(shown, state(lab)["drawn"], state(lab)["words"])
    assert screen.problems == []


def test_a_fast_drag_is_never_pulled_back(lab, screen):
    lab.open(screen, "drag.ipynb", [source() + "\nexplorer = build()\nexplorer", SAVE])
    lab.run_cell(screen, 0)
    slider = screen.locator(RANGE).first
    slider.focus()
    screen.keyboard.press("Home")
    seen = []
    for _ in range(40):
        screen.keyboard.press("ArrowRight")
        screen.wait_for_timeout(25)
        seen.append(int(slider.input_value()))
    assert seen == list(range(1, 41))
    screen.wait_for_timeout(1000)
    assert slider.input_value() == "40"
    lab.run_cell(screen, 1)
    assert state(lab)["position"][0] == 40


def test_errors_are_shown_in_the_widget(lab, screen):
    cells = [
        source() + "\nexplorer = build()\nexplorer",
        "explorer.sliders['epochs'].observe(lambda change: 1 / 0, 'value')",
        "explorer.canvas.index = {}",
    ]
    lab.open(screen, "errors.ipynb", cells)
    lab.run_cell(screen, 0)
    trouble = screen.locator(".ppo-error")
    assert not trouble.is_visible()
    lab.run_cell(screen, 1)
    screen.locator(RANGE).nth(1).focus()
    screen.keyboard.press("ArrowRight")
    trouble.wait_for(state="visible", timeout=5000)
    assert "ZeroDivisionError" in trouble.inner_text() and look(screen)[0]["position"][2] == 2
    lab.run_cell(screen, 2)
    screen.wait_for_timeout(500)
    assert "could not be drawn" in trouble.inner_text()


def test_sliders_moved_while_another_cell_draws_do_not_kill_the_kernel(lab, screen):
    drawing = """
import io
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
for i in range(80):
    fig, axes = plt.subplots(1, 2)
    axes[0].plot(range(i + 2)); axes[1].set_title("$\\\\alpha_{%d}$" % i)
    fig.savefig(io.BytesIO(), format="png"); plt.close(fig)
figures = i + 1
"""
    last = "open('state.json', 'w').write(json.dumps([figures, explorer.sliders['clip_epsilon'].value]))"
    lab.open(screen, "race.ipynb", [source() + "\nexplorer = build()\nexplorer", drawing, last])
    lab.run_cell(screen, 0)
    screen.wait_for_selector(".ppo-canvas[data-frame]")
    finished = lab.start_cell(screen, 1)
    busy = ".jp-Notebook-ExecutionIndicator[data-status=busy]"
    screen.wait_for_selector(busy, timeout=10000, state="attached")
    slider = screen.locator(RANGE).first
    slider.focus()
    moved = 0
    pictures = set()
    while screen.locator(busy).count() and moved < 600:
        screen.keyboard.press("ArrowRight" if moved // 40 % 2 == 0 else "ArrowLeft")
        screen.wait_for_timeout(30)
        pictures.add(slider.get_attribute("aria-valuetext"))
        moved += 1
    finished(120)
    assert moved > 20 and len(pictures) > 15, "the picture moved while the kernel was at work"
    screen.keyboard.press("End")
    screen.wait_for_timeout(500)
    lab.run_cell(screen, 2)
    assert state(lab) == [80, 0.5]
    assert [
        kernel["execution_state"] for kernel in lab.kernels() if kernel["execution_state"] == "dead"
    ] == []
    assert screen.locator(".jp-RenderedText[data-mime-type*=stderr]").count() == 0


def test_sliders_outlive_the_kernel(lab, screen):
    lab.open(screen, "dead.ipynb", [source() + "\nexplorer = build()\nexplorer"])
    lab.run_cell(screen, 0)
    screen.wait_for_selector(".ppo-canvas[data-frame]")
    _, before = look(screen)
    screen.evaluate("() => { window.jupyterapp.shell.currentWidget.sessionContext.shutdown(); }")
    screen.wait_for_timeout(1500)
    screen.locator(RANGE).first.focus()
    screen.keyboard.press("End")
    shown, pixels = look(screen)
    assert shown["position"][0] == 50 and pixels != before
    assert not screen.locator(".ppo-error").is_visible()


def test_questions_are_answered_by_keyboard(lab, screen):
    cells = [
        "from ppo_teach.notebook import predict, quiz\nguess = predict('Ratio?', ['0', '<b>1</b>'])",
        "asked = quiz('00-frames')",
        "free = predict('How many nats?')",
        "import json\nguess.reveal('<b>1</b>')\n"
        "open('state.json', 'w').write(json.dumps([guess.guess, asked.given, free.guess]))",
    ]
    lab.open(screen, "ask.ipynb", cells)
    for number in range(3):
        lab.run_cell(screen, number)
    asked = screen.locator(".ppo-ask")
    assert asked.nth(0).locator("button").nth(1).inner_text() == "<b>1</b>"
    asked.nth(0).locator("button").nth(1).focus()
    screen.keyboard.press("Enter")
    button = asked.nth(1).locator("button").nth(2)
    button.focus()
    screen.keyboard.press("Space")
    asked.nth(2).locator("input").press_sequentially("0.25")
    screen.keyboard.press("Enter")
    screen.wait_for_timeout(500)
    assert button.get_attribute("aria-pressed") == "true"
    reply = asked.nth(1).get_by_role("status").inner_text()
    assert reply.startswith("✓ Right." if button.get_attribute("data-right") == "true" else "✗ Not quite.")
    lab.run_cell(screen, 3)
    assert state(lab) == ["<b>1</b>", button.inner_text(), "0.25"]
    assert "(as you guessed)" in screen.locator(".jp-OutputArea table").inner_text()
