"""The lab as a page of its own, served by Voila: visitors apart from each other, bounded in number, token."""

import urllib.error
import urllib.request

import pytest
from lab import ServedLab, Shown, browser_page

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def visit(served, page):
    """Open the page and wait for its lab."""
    page.goto(served.url, timeout=120_000)
    page.wait_for_selector(".ppo-canvas canvas", timeout=120_000)
    return Shown(page)


def status(url):
    """HTTP status and body of a visit without a browser."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_visitor_trains_turns_stops_and_starts_again():
    with ServedLab() as served, browser_page(width=1920, height=1080) as page:
        shown = visit(served, page)
        assert page.title() == "PPO, the live lab"
        box = shown.canvas.bounding_box()
        assert abs(box["x"] + box["width"] / 2 - 960) < 30, "in the middle"
        shown.press("Large type")
        page.wait_for_function("() => document.querySelector('.ppo-canvas').getBoundingClientRect().width > 1700")
        knob = shown.canvas.locator("input[data-slider=learning_rate]").bounding_box()
        assert knob["y"] + knob["height"] < 1080, "curves and knobs are on the projector's screen together"
        shown.learns_and_obeys(lambda: shown.press("Start"))
        assert page.problems == []


def test_visitors_are_apart_and_one_too_many_is_told_so():
    with ServedLab("--visitors=2", "--idle=5") as served, browser_page(width=1300, height=1100) as page:
        first, other = visit(served, page), page.context.browser.new_context().new_page()
        second = visit(served, other)
        code, said = status(served.url)
        assert code == 503 and "All 2 places are taken." in said and "away for 5 minutes" in said
        second.kl_to("End")
        first.press("Start")
        first.until(lambda: first.updates >= 3, 60)
        assert "β = 0.1." in first.words and second.words == "Press Start.", "the other lab did not move"
        second.press("Start")
        second.until(lambda: second.updates >= 3, 60)
        at = first.updates
        first.until(lambda: first.updates > at, 60)
        assert "β = 0.1." in first.words and "β = 2." in second.words
        second.press("Reset")
        second.until(lambda: second.words == "Press Start.", 20)
        assert first.updates > at, "a Reset next door takes nothing away"
        other.goto("about:blank")
        first.until(lambda: status(served.url)[0] == 200, 30)  # who leaves makes room


def test_without_the_token_there_is_no_lab():
    with ServedLab("--token=sesame") as served:
        code, said = status(served.url)
        assert "training_lab" not in said and "ppo" not in said.lower(), code
        code, said = status(f"{served.url}/?token=sesame")
        assert code == 200 and "PPO, the live lab" in said
