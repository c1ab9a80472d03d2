"""The live lab as a page of its own: python course.py lab [--port 8866] [--visitors 10] (layer 7)

Served by Voila, which `course.py` installs; where it is there already: python -m ppo_teach.lab. Each visitor has a
kernel of their own, which goes with the page, or when nobody has looked at it for a while. Only this machine can reach
the page; with --ip 0.0.0.0 others can, with the token that is printed.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

LOOPBACK = ("127.0.0.1", "localhost", "::1")
CELL = """from ipywidgets import Box
from ppo_teach.explorers import training_lab

lab = training_lab()
Box([lab], layout={"justify_content": "center"})"""
FULL = "All {} places are taken. One becomes free when a visitor closes the page or has been away for {} minutes."


def page():
    """The notebook behind the page, as a dict."""
    cell = {"cell_type": "code", "id": "lab", "metadata": {}, "execution_count": None, "outputs": [], "source": CELL}
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    metadata = {"kernelspec": kernel, "title": "PPO, the live lab"}  # the title of the browser's tab
    return {"cells": [cell], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def options(arguments=None):
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="python -m ppo_teach.lab", description=__doc__.split("\n\n")[0])
    parser.add_argument("--ip", default="127.0.0.1", help="address to listen on (%(default)s); 0.0.0.0: all")
    parser.add_argument("--port", type=int, default=8866)
    parser.add_argument("--visitors", type=int, default=10, help="kernels at once at most; 1 CPU trains about 1")
    parser.add_argument("--idle", type=int, default=10, help="minutes after which an unwatched kernel goes")
    parser.add_argument("--token", help="what a visitor has to know; default: none on this machine, else a new one")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page here")
    given = parser.parse_args(arguments)
    for name in ("port", "visitors", "idle"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(given, name)}")
    if given.token == "" and given.ip not in LOOPBACK:
        parser.error(f"--token must not be empty when --ip is {given.ip}: anyone could run code on this machine")
    return given


def _set_cookie(handler, **_):
    """A page that is closed says so, and its kernel goes; without this cookie the server does not listen."""
    _ = handler.xsrf_token  # read is set


def configured(given):
    """Voila's settings for these options."""
    from traitlets.config import Config

    config = Config()
    config.ServerApp.token = config.Voila.token = given.token or ""
    config.Voila.update(ip=given.ip, port=given.port, open_browser=given.ip in LOOPBACK and not given.no_browser)
    if given.token is None and given.ip not in LOOPBACK:
        del config.Voila["token"]
        config.Voila.auto_token = True
    config.VoilaConfiguration.update(
        strip_sources=True, multi_kernel_manager_class="ppo_teach.lab.BoundedKernels", show_tracebacks=True,
        prelaunch_hook=_set_cookie,
    )  # fmt: skip
    config.BoundedKernels.update(
        limit=given.visitors, idle=given.idle, cull_idle_timeout=60 * given.idle, cull_interval=60,
    )  # fmt: skip
    return config


if importlib.util.find_spec("jupyter_server"):
    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
    from tornado import web
    from traitlets import Integer

    class BoundedKernels(AsyncMappingKernelManager):
        """At most `limit` kernels; the next visitor is told so instead of slowing everybody down."""

        limit, idle = Integer(10).tag(config=True), Integer(10).tag(config=True)

        async def _async_start_kernel(self, *args, **kwargs):
            if len(self.list_kernel_ids()) >= self.limit:
                raise web.HTTPError(503, reason=FULL.format(self.limit, self.idle))
            return await super()._async_start_kernel(*args, **kwargs)

        start_kernel = _async_start_kernel


def main(arguments=None):
    """Serve the lab until Ctrl-C."""
    given = options(arguments)
    if not importlib.util.find_spec("voila"):
        sys.exit("The lab as a page needs Voila. Install it with: pip install voila, or start the page with: python course.py lab")
    from voila.app import Voila

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the kernels inherit it; visitors share the processors
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        path = Path(folder, "PPO_live_lab.ipynb")
        path.write_text(json.dumps(page()), encoding="utf-8")
        Voila.launch_instance(argv=[str(path)], config=configured(given))


if __name__ == "__main__":
    main()
