"""Many visitors of the lab's own page at once, and what a student's kernel needs in JupyterLab.

    python -m tests.benchmarks.visitors [--visitors 10]

Starts `python -m ppo_teach.lab` and as many browser windows, all on this machine, and prints the seconds to the first
picture, the memory of a visitor's kernel, and the updates a second when 1, 2, 5 and all of them train. The windows
share the processors with the kernels, which in a lecture hall they do not. Then it runs notebooks, one by one, and
prints the CPU seconds and the peak memory of each kernel. Takes about four minutes.
"""

import argparse
import asyncio
import os
import re
import statistics
import sys
import time
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient
from playwright.async_api import async_playwright

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "browser"))
from lab import CHROMIUM, FLAGS, ServedLab  # noqa: E402

BUTTON = """name => [...document.querySelectorAll('.ppo-canvas button')].find(b => b.textContent === name).click()"""
WORDS = "() => document.querySelector('.ppo-canvas').drawn.words"


async def visit(page, url):
    """Seconds from the address to the picture."""
    start = time.monotonic()
    await page.goto(url, timeout=240_000)
    await page.wait_for_selector(".ppo-canvas canvas", timeout=240_000)
    return time.monotonic() - start


async def updates(page):
    """Updates that the page shows."""
    found = re.search(r"Update (\d+)", await page.evaluate(WORDS))
    return int(found[1]) if found else 0


async def speed(pages, seconds):
    """Updates a second of each page while all of them train."""
    for name in ("Reset", "Start"):
        await asyncio.gather(*(page.evaluate(BUTTON, name) for page in pages))
    while min(await asyncio.gather(*map(updates, pages))) < 2:
        await asyncio.sleep(0.1)
    start, before = time.monotonic(), await asyncio.gather(*map(updates, pages))
    await asyncio.sleep(seconds)
    after, took = await asyncio.gather(*map(updates, pages)), time.monotonic() - start
    await asyncio.gather(*(page.evaluate(BUTTON, "Pause") for page in pages))
    await asyncio.sleep(2)
    return [(b - a) / took for a, b in zip(before, after, strict=True)]


def memory(server):
    """MB of each kernel: all that is mapped (RSS), and with shared pages divided among those who share them (PSS)."""
    kernels = [p for p in psutil.Process(server.pid).children() if "ipykernel_launcher" in " ".join(p.cmdline())]
    rss = [p.memory_info().rss / 2**20 for p in kernels]
    pss = [int(re.search(r"Pss:\s+(\d+)", path.read_text())[1]) / 2**10
           for p in kernels if (path := Path(f"/proc/{p.pid}/smaps_rollup")).exists()]  # fmt: skip
    return rss, pss


def show(title, values, unit):
    """One line: median, least and most."""
    if values:
        median, low, high = statistics.median(values), min(values), max(values)
        print(f"{title:42s} median {median:7.2f}  {low:7.2f} to {high:7.2f} {unit}", flush=True)


async def student(title, cells):
    """Run cells in a kernel of their own; print its CPU seconds and its memory at the end and at the peak."""
    made = nbformat.v4.new_notebook(cells=cells)
    place = {"metadata": {"path": REPO / "notebooks"}}
    client = NotebookClient(made, timeout=300, kernel_name="python3", resources=place)
    async with client.async_setup_kernel():
        for number, cell in enumerate(cells):
            if cell.cell_type == "code":
                await client.async_execute_cell(cell, number)
        kernel = psutil.Process(client.km.provisioner.pid)
        cpu, peak = kernel.cpu_times(), re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{kernel.pid}/status").read_text())
        print(f"{title:42s} CPU {cpu.user + cpu.system:6.1f} s   RSS {kernel.memory_info().rss / 2**20:5.0f} MB   "
              f"peak {int(peak[1]) / 2**10:5.0f} MB", flush=True)  # fmt: skip


async def students():
    """An empty kernel, the package, the lab, and two notebooks."""
    lab = "from ppo_teach.explorers import training_lab\nlab = training_lab()\nlab"
    for title, code in {"empty kernel": "1", "import ppo_teach": "import ppo_teach", "lab": lab,
                        "lab, 60 updates": f"{lab}\nlog = await lab.start()"}.items():  # fmt: skip
        await student(title, [nbformat.v4.new_code_cell(code)])
    for name in ("04_how_far", "08_training_run"):
        await student(f"notebook {name}", nbformat.read(REPO / "notebooks" / f"{name}.ipynb", as_version=4).cells)


async def measure(count):
    """All of it, with one server and one browser."""
    print(f"{count} visitors, {os.cpu_count()} processors, load before {os.getloadavg()[0]:.1f}", flush=True)
    with ServedLab(f"--visitors={count}") as served:
        async with async_playwright() as play:
            browser = await play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            pages = [await (await browser.new_context()).new_page() for _ in range(count)]
            show("first paint, one visitor", [await visit(pages[0], served.url)], "s")
            await pages[0].goto("about:blank")  # its kernel goes
            await asyncio.sleep(2)
            show("first paint, all at once", await asyncio.gather(*(visit(page, served.url) for page in pages)), "s")
            for title in ("shown", "after training"):
                rss, pss = memory(served.server)
                show(f"memory of a kernel, {title}: RSS", rss, "MB")
                show(f"memory of a kernel, {title}: PSS", pss, "MB")
                if title == "shown":
                    for training in sorted({n for n in (1, 2, 5, count) if n <= count}):
                        rates = await speed(pages[:training], 4 if training < 3 else 10)
                        show(f"updates a second of each, {training} training", rates, "")
            server = psutil.Process(served.server.pid).memory_info().rss / 2**20
            show("memory of the server", [server], "MB")
            await browser.close()
    print(f"load after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--visitors", type=int, default=10)
    options = parser.parse_args()
    asyncio.run(measure(options.visitors))
    asyncio.run(students())
