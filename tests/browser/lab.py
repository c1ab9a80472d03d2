"""A JupyterLab (or the lab's own page) in a temporary folder, driven with Playwright, for tests and benchmarks.

with Lab() as lab, browser_page() as page:
    lab.open(page, {"demo.ipynb": ["1 + 1"]}, "demo.ipynb")
    lab.run_all(page)
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
CHROMIUM = next(
    (p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None
)

# A click on a prompt is sometimes taken back by the widget that had the focus; this is not.
ACTIVATE = """(number) => {
  const { content } = window.jupyterapp.shell.currentWidget;
  const code = content.widgets.filter((cell) => cell.model.type === 'code');
  content.activeCellIndex = content.widgets.indexOf(code[number]);
}"""


def notebook(cells) -> dict:
    """A notebook of code cells; a cell that starts with "#md " is markdown."""
    made = [
        {"cell_type": "markdown", "id": f"c{i}", "metadata": {}, "source": source[4:]}
        if source.startswith("#md ")
        else {
            "cell_type": "code",
            "id": f"c{i}",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": source,
        }
        for i, source in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


@contextlib.contextmanager
def browser_page(width=1200, height=1000, scale=1.0, **options):
    """A page of a headless Chromium. Its console errors are kept in `page.problems`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(
            viewport={"width": width, "height": height}, device_scale_factor=scale, **options
        )
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        try:
            yield page
        finally:
            browser.close()


class Lab:
    """JupyterLab on the loopback address, with its own port and token; everything it writes is temporary."""

    def __init__(self, subshells: bool = True, env: dict | None = None):
        self.folder = Path(tempfile.mkdtemp(prefix="lab-"))
        self.token = secrets.token_hex(16)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        settings = {
            "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}
        }
        if not subshells:
            settings["@jupyterlab/apputils-extension:kernels-settings"] = {"commsOverSubshells": "disabled"}
        config = self.folder / "config" / "labconfig"
        config.mkdir(parents=True)
        (config / "default_setting_overrides.json").write_text(json.dumps(settings))
        self.env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "JUPYTER_CONFIG_PATH": str(self.folder / "config"),
            "PYTHONPATH": os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            **{
                f"JUPYTER_{kind}_DIR": str(self.folder / kind.lower())
                for kind in ("CONFIG", "DATA", "RUNTIME")
            },
            "IPYTHONDIR": str(self.folder / "ipython"),
            **(env or {}),
        }
        self.env.pop("MPLBACKEND", None)

    alive = "/api"

    def arguments(self):
        """What Python is started with."""
        return [
            *("-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={self.port}", "--allow-root"),
            *(f"--IdentityProvider.token={self.token}", "--ServerApp.port_retries=0"),
            *("--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None"),
            f"--ServerApp.root_dir={self.folder / 'work'}",
        ]

    def __enter__(self):
        work = self.folder / "work"
        work.mkdir()
        self.log = open(self.folder / "lab.log", "w")
        self.server = subprocess.Popen(
            [sys.executable, *self.arguments()], env=self.env, cwd=work, stdout=self.log, stderr=subprocess.STDOUT
        )
        for _ in range(300):
            if self.server.poll() is not None:
                break
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}{self.alive}?token={self.token}", timeout=2).read()
                return self
            time.sleep(0.1)
        self.__exit__()
        raise RuntimeError(f"the server did not start:\n{(self.folder / 'lab.log').read_text()[-2000:]}")

    def __exit__(self, *_):
        self.server.terminate()
        try:
            self.server.wait(10)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, name, cells):
        """Put a notebook of these code cells (or a ready notebook dict) into the folder."""
        made = cells if isinstance(cells, dict) else notebook(cells)
        (self.folder / "work" / name).write_text(json.dumps(made), encoding="utf-8")

    def open(self, page, name, cells=None, timeout=60):
        """Open a notebook and wait until its kernel is idle."""
        if cells is not None:
            self.write(name, cells)
        page.goto(f"{self.url}/lab/tree/{name}?reset&token={self.token}")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=timeout * 1000)
        self.wait(
            page,
            "document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'",
            timeout,
        )
        time.sleep(2)  # commands sent earlier are lost now and then

    def command(self, page, name):
        """Start a Lab command; its promise is not awaited, it may outlive the cell."""
        page.evaluate("name => { window.jupyterapp.commands.execute(name); }", name)

    def run_all(self, page, timeout=120):
        """Run all cells and wait until every code cell has a number and none is running."""
        prompts = page.locator(".jp-Notebook .jp-CodeCell .jp-InputPrompt")
        for _ in range(5):  # on a busy machine a command is lost, or the page asks for a kernel first
            if (button := page.locator(".jp-Dialog .jp-mod-accept")).count():
                button.first.click()
            self.command(page, "notebook:run-all-cells")
            for _ in range(50):
                page.wait_for_timeout(100)
                # a star or a number: text alone also changes when the page scrolls and shows other cells
                if any(re.search(r"\[(\*|\d+)\]", text) for text in prompts.all_text_contents()):
                    break
            else:
                continue
            break
        try:
            self.wait_done(page, timeout)
        except Exception as error:  # say where it hangs: an error in a cell stops the cells after it
            told = page.locator(".jp-OutputArea-output[data-mime-type*=error], .jp-Dialog").all_inner_texts()
            raise TimeoutError(f"cells are at {prompts.all_inner_texts()}; the page says {told}") from error

    def wait_done(self, page, timeout=120):
        done = """[...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputPrompt')]
                  .every(p => /\\[\\d+\\]/.test(p.textContent))"""
        self.wait(page, done, timeout)

    def start_cell(self, page, number):
        """Run code cell `number`; returns a function that waits until it is done."""
        prompt = page.locator(".jp-Notebook .jp-CodeCell").nth(number).locator(".jp-InputPrompt")
        before = prompt.inner_text()
        for _ in range(5):  # a busy page loses a command now and then
            page.evaluate(ACTIVATE, number)
            self.command(page, "notebook:run-cell")
            for _ in range(50):
                page.wait_for_timeout(100)
                if prompt.inner_text() != before:
                    break
            else:
                continue
            break

        def wait(timeout=60):
            end = time.monotonic() + timeout
            while (text := prompt.inner_text()) == before or not re.search(r"\d", text):
                if time.monotonic() > end:
                    raise TimeoutError(f"cell {number} not done after {timeout} s, its prompt is {text!r}")
                page.wait_for_timeout(50)

        return wait

    def run_cell(self, page, number, timeout=60):
        """Run code cell `number` and wait until it is done."""
        self.start_cell(page, number)(timeout)

    @staticmethod
    def wait(page, expression, timeout=60):
        page.wait_for_function(f"() => {{ return {expression}; }}", timeout=timeout * 1000)

    def kernels(self) -> list:
        """The kernels as the server sees them (`execution_state` is "dead" or "restarting" after a crash)."""
        with urllib.request.urlopen(f"{self.url}/api/kernels?token={self.token}", timeout=10) as answer:
            return json.load(answer)


class ServedLab(Lab):
    """The training lab as a page of its own: `python -m ppo_teach.lab` with these options."""

    alive = "/voila/static/voila.js"

    def __init__(self, *options):
        super().__init__()
        self.options = options

    def arguments(self):
        return ["-m", "ppo_teach.lab", f"--port={self.port}", "--no-browser", *self.options]


class Shown:
    """What the training lab on the page says, and its buttons."""

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

    def kl_to(self, key):
        """Move the KL coefficient by keyboard."""
        self.canvas.locator("input[data-slider=kl_coef]").focus()
        self.page.keyboard.press(key)

    def until(self, true, seconds):
        """Wait until `true()`; milliseconds it took, looked at 50 times a second."""
        for waited in range(0, 1000 * seconds, 20):
            if true():
                return waited
            self.page.wait_for_timeout(20)
        raise AssertionError(f"not within {seconds} s; the lab says {self.words!r}")

    def learns_and_obeys(self, start):
        """Start, learn, KL up without a leash and down with the tightest, Pause, Reset, again."""
        start()
        self.until(lambda: self.updates >= 3, 40)
        self.until(lambda: self.last("reward.y") > 1.5, 60)
        self.kl_to("Home")  # free: it runs away
        self.until(lambda: self.last("kl.y") > 6, 60)
        before, at = self.last("kl.y"), self.updates
        self.kl_to("End")
        self.until(lambda: self.last("kl.y") < before / 2, 60)
        assert self.updates <= at + 20, "KL falls within 20 updates"
        assert self.canvas.evaluate("el => el.drawn.marks['turned_0.at'].length") == 2, "two upright lines"
        self.press("Pause")
        assert self.until(lambda: "(paused)" in self.words, 10) <= 1000
        stopped = self.updates
        self.page.wait_for_timeout(600)
        assert self.updates == stopped
        self.press("Reset")
        self.until(lambda: "Press Start" in self.words, 10)
        self.press("Start")
        self.until(lambda: self.updates >= 3, 40)
        self.press("Pause")
