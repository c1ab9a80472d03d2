"""What `course.py notebooks` and `course.py site` do with notebook files; run by the Python of .venv."""
import html
import json
import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter

SITE = Path(__file__).resolve().parent.parent / "site"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {"codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py", "name": "python",
            "mimetype": "text/x-python", "nbconvert_exporter": "python", "pygments_lexer": "ipython3"}
KEPT_METADATA = ("tags", "jupyter", "editable", "deletable", "slideshow")
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


def title_of(notebook, default):
    """The text of the first heading."""
    prose = "\n".join(join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    heading = re.search(r"^# (.+)$", prose, re.MULTILINE)
    return heading.group(1) if heading else default


def build_site(paths, folder=SITE):
    """A page for each notebook with the outputs it holds, and an index. Nothing is executed or downloaded."""
    folder.mkdir(parents=True, exist_ok=True)
    exporter = HTMLExporter(embed_images=True)
    entries = []
    for path in map(Path, paths):
        page, _ = exporter.from_filename(str(path))
        page = re.sub(r'href="([^":]+)\.ipynb\b', r'href="\1.html', page)
        (folder / f"{path.stem}.html").write_text(page, encoding="utf-8")
        title = html.escape(title_of(read(path), path.stem))
        entries.append(f'<li><a href="{path.stem}.html">{title}</a></li>')
    index = folder / "index.html"
    index.write_text(INDEX.format("\n".join(entries)), encoding="utf-8")
    print(f"Open {index}")
    return 0


INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>PPO for Language Models</title>
<style>body {{ font: 18px/1.6 sans-serif; max-width: 40em; margin: 3em auto; padding: 0 1em }}</style></head>
<body><h1>PPO for Language Models</h1><ol start="0">
{}
</ol></body></html>
"""

if __name__ == "__main__":
    sys.exit({"execute": execute_all, "site": build_site}[sys.argv[1]](sys.argv[2:]))
