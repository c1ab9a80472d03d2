"""Slides without a network: the explorer in them moves, by keyboard, without a kernel."""

import re

import nbformat
import notebook_files
import pytest
from lab import browser_page
from test_slides import EXPLORER

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_an_explorer_moves_in_the_slides(tmp_path):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_markdown_cell("# Title"), nbformat.v4.new_code_cell(EXPLORER)]
    nbformat.write(notebook, tmp_path / "03_made.ipynb")
    notebook_files.build_slides([tmp_path / "03_made.ipynb"], tmp_path)
    with browser_page(width=1400, height=900) as page:
        page.route(re.compile("^https?:"), lambda route: route.abort())
        page.goto((tmp_path / "03_made.html").as_uri())
        explorer = page.frame_locator("iframe").locator(".ppo-canvas")
        words = explorer.locator(".ppo-words")
        assert words.inner_text() == "Slope 1."
        explorer.locator("input[type=range]").focus()
        page.keyboard.press("End")
        assert words.inner_text() == "Slope 2."
        box, frame = explorer.bounding_box(), page.locator("iframe").bounding_box()
        assert frame["height"] >= box["height"] > 300, "the frame holds all of it"
