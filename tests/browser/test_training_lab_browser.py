"""The live lab in JupyterLab: start, turn a knob while it learns, stop, reset, run the cell again."""

import re

import pytest
from lab import Lab, browser_page

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CELLS = [
    "from ppo_teach.explorers import training_lab\nlab = training_lab()\nlab",
    "log = await lab.start(400)\nprint(log.stopped_by)",
    "import asyncio\nprint(len([t for t in asyncio.all_tasks() if '_train' in repr(t)]))",
]


class Shown:
    """What the lab on the page says."""

    def __init__(self, page, number=0):
        self.page, self.canvas = page, page.locator(".ppo-canvas").nth(number)

    @property
    def words(self):
        return self.canvas.evaluate("el => el.drawn.words")

    @property
    def updates(self):
        found = re.search(r"Update (\d+)", self.words)
        return int(found[1]) if found else 0

    def last(self, mark):
        return self.canvas.evaluate("(el, mark) => el.drawn.marks[mark].at(-1)", mark)

    def press(self, name):
        self.canvas.get_by_role("button", name=name, exact=True).click()

    def until(self, true, seconds):
        """Wait until `true()`; milliseconds it took, looked at 50 times a second."""
        for waited in range(0, 1000 * seconds, 20):
            if true():
                return waited
            self.page.wait_for_timeout(20)
        raise AssertionError(f"not within {seconds} s; the lab says {self.words!r}")


def opened(lab, page):
    lab.open(page, "lab.ipynb", CELLS)
    lab.run_cell(page, 0)
    page.wait_for_selector(".ppo-canvas canvas")
    shown = Shown(page)
    shown.canvas.scroll_into_view_if_needed()
    return shown


def kl_to(page, shown, key):
    """Move the KL coefficient by keyboard."""
    shown.canvas.locator("input[data-slider=kl_coef]").focus()
    page.keyboard.press(key)


@pytest.mark.parametrize("waiting", [False, True], ids=["by its button", "while a cell waits for it"])
def test_train_turn_stop_reset_and_again(waiting):
    with Lab() as lab, browser_page(width=1300, height=1500) as page:
        shown = opened(lab, page)
        if waiting:
            done = lab.start_cell(page, 1)
        else:
            shown.press("Start")
        shown.until(lambda: shown.updates >= 3, 40)
        shown.until(lambda: shown.last("reward.y") > 1.5, 60)
        kl_to(page, shown, "Home")  # free: it runs away
        shown.until(lambda: shown.last("kl.y") > 6, 60)
        before, at = shown.last("kl.y"), shown.updates
        kl_to(page, shown, "End")
        shown.until(lambda: shown.last("kl.y") < before / 2, 60)
        assert shown.updates <= at + 20, "KL falls within 20 updates"
        assert shown.canvas.evaluate("el => el.drawn.marks['turned_0.at'].length") == 2, "two upright lines"
        shown.press("Pause")
        assert shown.until(lambda: "(paused)" in shown.words, 10) <= 1000
        if waiting:
            done(20)
            assert "should_stop" in page.locator(".jp-OutputArea-output").all_inner_texts()[-1]
        stopped = shown.updates
        page.wait_for_timeout(600)
        assert shown.updates == stopped
        shown.press("Reset")
        shown.until(lambda: "Press Start" in shown.words, 10)
        shown.press("Start")
        shown.until(lambda: shown.updates >= 3, 40)
        shown.press("Pause")
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
