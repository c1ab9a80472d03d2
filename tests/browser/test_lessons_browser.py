"""The lessons in JupyterLab: run from top to bottom, sliders by mouse and keyboard."""

import json
import shutil
from pathlib import Path

import pytest
from lab import Lab, browser_page
from lessons import LESSONS

pytestmark = [pytest.mark.browser, pytest.mark.slow]
REPO = Path(__file__).resolve().parents[2]

# notebook -> (sliders of its first explorer, a mark that must follow the first of them)
BROWSER = {name: lesson.BROWSER for name, lesson in LESSONS.items() if lesson.BROWSER}


def opened(lab, page, name):
    """The notebook without its outputs, in a folder like the repository's, run from top to bottom."""
    notebook = json.loads((REPO / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    work = lab.folder / "work"
    shutil.copytree(REPO / "figures" / "runs", work / "figures" / "runs", dirs_exist_ok=True)
    (work / "notebooks").mkdir(exist_ok=True)
    lab.write(f"notebooks/{name}.ipynb", notebook)
    lab.open(page, f"notebooks/{name}.ipynb")
    lab.run_all(page, timeout=180)


def state(explorer, key):
    """What is drawn, the sentence under it, and the pixels."""
    explorer.page.wait_for_timeout(200)
    shown = explorer.evaluate("el => el.drawn")
    return shown["marks"][key], shown["words"], explorer.locator("canvas").evaluate("el => el.toDataURL()")


@pytest.mark.parametrize("name", BROWSER)
def test_a_lesson_runs_and_its_slider_moves_the_picture(name):
    sliders, key = BROWSER[name]
    with Lab() as lab, browser_page(width=1300, height=1400) as page:
        opened(lab, page, name)
        assert page.locator(".jp-OutputArea-output[data-mime-type*=stderr]").count() == 0
        explorer = page.locator(".ppo-canvas").filter(has=page.locator("canvas")).first
        explorer.scroll_into_view_if_needed()
        inputs = explorer.locator("input[type=range]")
        assert inputs.count() == len(sliders)
        seen = [state(explorer, key)]
        inputs.first.focus()
        at_end = inputs.first.evaluate("el => el.value === el.max")
        arrow = "ArrowLeft" if at_end else "ArrowRight"
        for press in (arrow, arrow, "Home", "End"):
            page.keyboard.press(press)
            seen.append(state(explorer, key))
        box = inputs.first.bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + 0.95 * box["width"], middle)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.4 * box["width"], middle, steps=5)
        page.mouse.up()
        seen.append(state(explorer, key))
        for before, after in zip(seen, seen[1:], strict=False):
            assert all(a != b for a, b in zip(before, after, strict=True)), "number, sentence, pixels"
        explorer.get_by_role("button", name="Reset").click()
        assert state(explorer, key)[:2] == seen[0][:2]
        assert page.problems == []
        assert [kernel["execution_state"] for kernel in lab.kernels()] == ["idle"]
