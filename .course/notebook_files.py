"""What `course.py notebooks`, `site` and `slides` do with notebook files; run by the Python of .venv."""
import html
import json
import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter, SlidesExporter

SITE = Path(__file__).resolve().parent.parent / "site"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {"codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py", "name": "python",
            "mimetype": "text/x-python", "nbconvert_exporter": "python", "pygments_lexer": "ipython3"}
KEPT_METADATA = ("tags", "jupyter", "editable", "deletable")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def join(lines):
    return lines if isinstance(lines, str) else "".join(lines)


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def normalise_outputs(outputs, count):
    """Drop what differs from run to run; pieces of one stream that follow each other become one output."""
    kept = []
    for output in outputs:
        output = dict(output)
        if output["output_type"] == "stream":
            if kept and kept[-1].get("name") == output["name"]:
                kept[-1]["text"] = join(kept[-1]["text"]) + join(output["text"])
                continue
        elif output["output_type"] == "error":  # frames hold paths and addresses of this machine
            output["traceback"] = ["{ename}: {evalue}".format(**output)]
        else:
            for part in ("data", "metadata"):
                output[part] = {key: value for key, value in output[part].items() if key != WIDGET_VIEW}
            if output["output_type"] == "execute_result":
                output["execution_count"] = count
            if not output["data"]:
                continue
        kept.append(output)
    for output in kept:
        if "text" in output:
            output["text"] = join(output["text"]).splitlines(True)
        for kind, value in output.get("data", {}).items():
            if not kind.endswith("json"):
                value = join(value).rstrip("\n") if kind.startswith("image/") else join(value)
                output["data"][kind] = value if kind.startswith("image/") else value.splitlines(True)
    return kept


def slide_type(cell, source):
    """Where a cell stands in a slide show: a heading opens a slide, prose or a picture goes below it on a screen of
    its own, an answer waits for a key, other code stays on the screen of the prose before it.
    """
    if cell["cell_type"] == "markdown":
        return "slide" if re.search("^#{1,2} ", source, re.MULTILINE) else "subslide"
    if any(kind.startswith("image/") for output in cell["outputs"] for kind in output.get("data", ())):
        return "subslide"
    return "fragment" if ".reveal(" in source else "-"


def normalise(notebook, name):
    """The notebook in the form that is committed: fixed cell ids, counts and metadata, no widget state."""
    number = re.match(r"\d*", name).group() or re.sub(r"\W", "-", name)[:40]
    cells, count = [], 0
    for cell in notebook["cells"]:
        source = join(cell["source"]).strip("\n")
        if not source.strip():
            continue
        new = {key: cell[key] for key in ("cell_type", "attachments") if key in cell}
        new.update(id=f"{number}-{len(cells):03d}", source=source.splitlines(True),
                   metadata={key: cell["metadata"][key] for key in KEPT_METADATA if key in cell["metadata"]})
        if cell["cell_type"] == "code":
            count += 1
            new.update(execution_count=count, outputs=normalise_outputs(cell["outputs"], count))
        new["metadata"]["slideshow"] = {"slide_type": slide_type(new, source)}
        cells.append(new)
    metadata = {key: value for key, value in notebook["metadata"].items() if key != "widgets"}
    metadata.update(kernelspec=KERNELSPEC, language_info=LANGUAGE)
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def dump(notebook):
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def execute(path):
    """Run one notebook in a fresh kernel and save it normalised. On an error the file stays as it was."""
    path = Path(path)
    notebook = nbformat.reads(dump(normalise(read(path), path.stem)), as_version=4)
    folder = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder, store_widget_state=False,
                   record_timing=False).execute()
    for cell in notebook.cells:
        if "raises-exception" in cell.metadata.get("tags", ()) and not any(
                output.output_type == "error" for output in cell.outputs):
            raise RuntimeError(f"cell {cell.id} is tagged raises-exception, but raised nothing")
    path.write_text(dump(normalise(notebook, path.stem)), encoding="utf-8", newline="\n")


def execute_all(paths):
    """Execute every notebook named, also after one has failed. The number of failures."""
    failed = 0
    for path in paths:
        start = time.monotonic()
        try:
            execute(path)
            print(f"{Path(path).name}: {time.monotonic() - start:.0f} s", flush=True)
        except Exception as error:
            failed += 1
            print(f"{Path(path).name}: NOT SAVED\n{error}", flush=True)
    return failed


def build_slides(paths, folder=SITE / "slides"):
    """A slide show for each notebook, executed anew; its explorers work in the slides, without a kernel."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in map(Path, paths):
        notebook = nbformat.reads(dump(normalise(read(path), path.stem)), as_version=4)
        notebook.cells.insert(0, nbformat.v4.new_code_cell(LIVE_EXPLORERS))
        place = {"metadata": {"path": str(path.parent), "name": path.stem}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place,
                       store_widget_state=False).execute()
        del notebook.cells[0]
        notebook = nbformat.reads(dump(normalise(notebook, path.stem)), as_version=4)
        for cell in notebook.cells:  # a picture says it without the code that draws it
            if cell.cell_type == "code" and cell.metadata.slideshow.slide_type == "subslide":
                cell.metadata.transient = {"remove_source": True}
        exporter = SlidesExporter(embed_images=True, reveal_scroll=True, reveal_transition="none",
                                  reveal_width="1400", reveal_height="900")  # a line of code fits
        page, _ = exporter.from_notebook_node(notebook, resources=place)
        (folder / f"{path.stem}.html").write_text(page, encoding="utf-8")
        print(f"Open {folder / path.stem}.html", flush=True)
    return 0


# Run before a notebook's first cell: an explorer shows itself as a page within the page instead of as its picture.
# A lab that trains needs its kernel, so it stays a picture.
LIVE_EXPLORERS = """
def _live_explorers():
    from html import escape
    from IPython.display import display
    from ppo_teach import canvas

    def show(explorer, spec, picture=canvas._show):
        if spec["actions"] or not isinstance(explorer, canvas.Explorer):
            return picture(explorer, spec)
        fit = ("const { body, documentElement } = document; new ResizeObserver(() => {"
               "body.style.zoom = Math.min(1.3, 780 / body.offsetHeight);"  # as large as the slide allows
               "frameElement.height = documentElement.getBoundingClientRect().height + 5; }).observe(body);")
        page = canvas.page(spec["name"], explorer).replace("<h1>", "<h1 hidden>")
        page = escape(page.replace("</body>", f"<script>{fit}</script></body>"))
        frame = f'<iframe title="{escape(spec["alt"])}" srcdoc="{page}" style="width: 100%; border: 0"></iframe>'
        display(explorer.canvas._repr_mimebundle_()[0] | {"text/html": frame}, raw=True)

    canvas._show = show

_live_explorers()
"""


def title_of(notebook, default):
    """The text of the first heading."""
    prose = "\n".join(join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    heading = re.search(r"^# (.+)$", prose, re.MULTILINE)
    return heading.group(1) if heading else default


def build_site(paths, folder=SITE):
    """A page for each notebook with the outputs it holds, one with all explorers, an index. No notebook is executed."""
    folder.mkdir(parents=True, exist_ok=True)
    exporter = HTMLExporter(embed_images=True)
    entries = []
    for path in map(Path, paths):
        page, _ = exporter.from_filename(str(path))
        page = re.sub(r'href="([^":]+)\.ipynb\b', r'href="\1.html', page)
        (folder / f"{path.stem}.html").write_text(page, encoding="utf-8")
        title = html.escape(title_of(read(path), path.stem))
        entries.append(f'<li><a href="{path.stem}.html">{title}</a></li>')
    (folder / "explorers.html").write_text(explorers_page(), encoding="utf-8")
    index = folder / "index.html"
    index.write_text(INDEX.format("\n".join(entries)), encoding="utf-8")
    print(f"Open {index}")
    return 0


INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>PPO for Language Models</title>
<style>body {{ font: 18px/1.6 sans-serif; max-width: 40em; margin: 3em auto; padding: 0 1em }}</style></head>
<body><h1>PPO for Language Models</h1><ol start="0">
{}
</ol><p><a href="explorers.html">All figures with sliders</a>, on one page</p></body></html>
"""

# explorers of long runs -> the file of these runs
STORED_RUNS = {"reward_model_explorer": "reward_models", "hacking_explorer": "hacking", "clinic_explorer": "clinic"}


def explorers_page(only=""):
    """Every figure with sliders, on one page that needs no kernel, server or network."""
    from ppo_teach import canvas, explorers

    made = []
    for name in sorted(name for name in vars(explorers) if name.endswith("_explorer") and only in name):
        runs = []
        if name in STORED_RUNS:
            runs = [read(SITE.parent / "figures" / "runs" / f"{STORED_RUNS[name]}.json")]
            runs = [runs[0]["runs"]] if name == "clinic_explorer" else runs
        made.append(getattr(explorers, name)(*runs))
    page = canvas.page("PPO for Language Models: figures with sliders", *made)
    for explorer in made:
        explorer.close()
    return page

if __name__ == "__main__":
    sys.exit({"execute": execute_all, "site": build_site, "slides": build_slides}[sys.argv[1]](sys.argv[2:]))
