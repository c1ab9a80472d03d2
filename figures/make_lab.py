"""Run the lab's own page once with each preset, in a real browser, and keep a screenshot: python figures/make_lab.py

Writes figures/lab_NAME.png and prints what the lab says at the end. Needs chromium and the extra `test`; about ten
seconds of one CPU thread a preset.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "browser"))
from lab import ServedLab, Shown, browser_page  # noqa: E402

from ppo_teach.explorers.run import PRESETS  # noqa: E402

FILES = dict(zip(PRESETS, ("healthy", "no_leash", "huge_steps", "gamma", "no_critic"), strict=True))


def main():
    with ServedLab() as served, browser_page(width=1000, height=1300) as page:
        page.goto(served.url, timeout=120_000)
        page.wait_for_selector(".ppo-canvas canvas", timeout=120_000)
        shown = Shown(page)
        for preset, name in FILES.items():
            shown.press(preset)
            shown.until(lambda preset=preset: preset in shown.words, 60)
            shown.press("Start")
            shown.until(lambda: "(finished)" in shown.words, 120)
            page.mouse.move(0, 0)
            page.screenshot(path=HERE / f"lab_{name}.png", full_page=True)
            print(f"{preset:12s} {shown.words}", flush=True)
        assert page.problems == []


if __name__ == "__main__":
    main()
