"""The live lab in JupyterLab: start, turn a knob while it learns, stop, reset, run the cell again."""

import pytest
from lab import Lab, Shown, browser_page

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CELLS = [
    "from ppo_teach.explorers import training_lab\nlab = training_lab()\nlab",
    "log = await lab.start(400)\nprint(log.stopped_by)",
    "import asyncio\nprint(len([t for t in asyncio.all_tasks() if '_train' in repr(t)]))",
]


def opened(lab, page):
    lab.open(page, "lab.ipynb", CELLS)
    lab.run_cell(page, 0)
    page.wait_for_selector(".ppo-canvas canvas")
    shown = Shown(page)
    shown.canvas.scroll_into_view_if_needed()
    return shown


@pytest.mark.parametrize("waiting", [False, True], ids=["by its button", "while a cell waits for it"])
def test_train_turn_stop_reset_and_again(waiting):
    with Lab() as lab, browser_page(width=1300, height=1500) as page:
        shown, done = opened(lab, page), []
        if waiting:
            shown.learns_and_obeys(lambda: done.append(lab.start_cell(page, 1)))
            done[0](20)
            assert "should_stop" in page.locator(".jp-OutputArea-output").all_inner_texts()[-1]
        else:
            shown.learns_and_obeys(lambda: shown.press("Start"))
        assert page.problems == []


def test_running_the_cell_again_stops_the_old_run():
    with Lab() as lab, browser_page(width=1300, height=1500) as page:
        shown = opened(lab, page)
        shown.press("Start")
        shown.until(lambda: shown.updates >= 3, 40)
        lab.run_cell(page, 0)
        page.wait_for_function("() => document.querySelector('.ppo-canvas').drawn.words === 'Press Start.'")
        shown = Shown(page)
        page.wait_for_timeout(500)
        assert shown.updates == 0, "the new lab shows nothing of the old run"
        lab.run_cell(page, 2)
        assert page.locator(".jp-OutputArea-output").all_inner_texts()[-1].strip() == "0"
        page.keyboard.press("Escape")
        shown.canvas.get_by_role("button", name="Step", exact=True).focus()
        page.keyboard.press("Enter")  # by keyboard alone
        shown.until(lambda: shown.updates == 1, 20)
        page.keyboard.press("Space")
        shown.until(lambda: shown.updates == 2, 20)
        assert page.problems == []


def test_an_interrupt_leaves_the_lab_usable():
    with Lab() as lab, browser_page(width=1300, height=1500) as page:
        shown = opened(lab, page)
        done = lab.start_cell(page, 1)
        shown.until(lambda: shown.updates >= 2, 40)
        lab.command(page, "notebook:interrupt-kernel")
        done(20)
        assert "interrupt" in page.locator(".jp-OutputArea-output").all_inner_texts()[-1]
        at = shown.updates
        shown.press("Step")
        shown.until(lambda: shown.updates == at + 1, 20)
        assert [kernel["execution_state"] for kernel in lab.kernels()] == ["idle"]
