"""Every notebook as a slide show: no empty slide; explorers live in the slides without a kernel."""

import html
import re
from pathlib import Path

import nbformat
import notebook_files
import pytest
from bs4 import BeautifulSoup
from nbconvert import SlidesExporter

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
SHOWN = re.compile(r"<(img|iframe|svg)\b")


def screens(page):
    """The innermost sections of a slide show: what one screen holds."""
    return re.findall(r"<section>((?:(?!</?section>).)*)</section>", page, re.DOTALL)


def empty(page):
    """Numbers of the screens on which nothing is seen."""
    def seen(screen):
        return SHOWN.search(screen) or html.unescape(re.sub(r"<style.*?</style>|<[^>]+>", "", screen, flags=re.DOTALL))

    return [number for number, screen in enumerate(screens(page)) if not str(seen(screen)).strip()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_a_slide_show_without_empty_slides(path):
    page, _ = SlidesExporter().from_filename(str(path))
    cells = nbformat.read(path, as_version=4).cells
    types = [cell.metadata.slideshow.slide_type for cell in cells]
    assert types[0] == "slide" and 5 <= types.count("slide") <= 20
    assert len(screens(page)) == types.count("slide") + types.count("subslide") and empty(page) == []
    assert page.count('class="fragment"') == types.count("fragment")


def test_an_empty_slide_is_found():
    full = "<section><p>Text</p></section><section><img src='x'></section>"
    assert empty(full) == [] and empty(full + "<section>\n<div> </div><style>p {}</style></section>") == [2]


EXPLORER = """
import numpy as np
from ppo_teach.canvas import Explorer
from ppo_teach.marks import Panel, Slider, line

def show(**more):
    panels = [Panel("It rises", "x", "y", (0, 1), (0, 2))]
    return Explorer("rising", [Slider("slope", "a", range(3), 1, "slope")], panels,
                    [line("y", [0, 1], lambda slope: [0 * slope, slope], "policy")],
                    words="Slope {slope}.", caption="Drawn.", alt="A line that rises.", **more)

show()
"""


@pytest.mark.slow
def test_explorers_live_in_the_slides_and_what_trains_stays_a_picture(tmp_path):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_markdown_cell("# Title"), nbformat.v4.new_code_cell(EXPLORER),
                      nbformat.v4.new_code_cell("show(actions={'': {'Start': print}})")]
    nbformat.write(notebook, tmp_path / "03_made.ipynb")
    before = (tmp_path / "03_made.ipynb").read_bytes()
    notebook_files.build_slides([tmp_path / "03_made.ipynb"], tmp_path / "slides")
    page = (tmp_path / "slides" / "03_made.html").read_text(encoding="utf-8")
    assert (tmp_path / "03_made.ipynb").read_bytes() == before
    soup = BeautifulSoup(page, "html.parser")
    (frame,) = soup.find_all("iframe")
    assert frame["title"] == "A line that rises."
    assert "<title>rising</title>" in frame["srcdoc"] and "Slope " in frame["srcdoc"]
    assert len(soup.find_all("img")) == 1 and "canvas._show" not in page and "In [1]" not in page
