"""The lab as a page of its own: its command line, Voila's settings, the notebook behind it."""

import asyncio
import json
import os
import sys
from types import SimpleNamespace

import nbformat
import pytest

from ppo_teach import lab


def test_the_page_is_one_cell_that_makes_a_lab():
    notebook = nbformat.from_dict(lab.page())
    nbformat.validate(notebook)
    (cell,) = notebook.cells
    scope = {}
    body, last = cell.source.rsplit("\n", 1)
    exec(body, scope)
    shown = eval(last, scope)
    assert shown.children == (scope["lab"],) and set(scope["lab"].canvas.actions) >= {"Start", "Pause", "Reset"}
    assert "live lab" in notebook.metadata.title
    scope["lab"].close()


def test_by_default_only_this_machine_is_served_and_needs_no_token():
    config = lab.configured(lab.options([]))
    assert (config.Voila.ip, config.Voila.port, config.Voila.token) == ("127.0.0.1", 8866, "")
    assert config.Voila.open_browser and config.BoundedKernels.limit == 10
    assert not lab.configured(lab.options(["--no-browser"])).Voila.open_browser


@pytest.mark.parametrize("ip", ["0.0.0.0", "192.168.1.7", "::"])
def test_beyond_this_machine_a_token_is_made_up(ip):
    config = lab.configured(lab.options(["--ip", ip]))
    assert config.Voila.auto_token is True and "token" not in config.Voila
    assert config.Voila.open_browser is False


def test_a_token_of_your_own_is_taken():
    for ip in ("127.0.0.1", "0.0.0.0"):
        config = lab.configured(lab.options(["--ip", ip, "--token", "sesame"]))
        assert config.Voila.token == "sesame" and "auto_token" not in config.Voila


def test_the_number_of_kernels_and_their_idle_time_are_bounded():
    config = lab.configured(lab.options(["--visitors", "3", "--idle", "2"]))
    assert config.VoilaConfiguration.multi_kernel_manager_class == "ppo_teach.lab.BoundedKernels"
    kernels = lab.BoundedKernels(config=config)
    assert (kernels.limit, kernels.idle, kernels.cull_idle_timeout) == (3, 2, 120)
    assert 0 < kernels.cull_interval <= 60, "an idle kernel is found within a minute"


@pytest.mark.parametrize("arguments, said", [
    (["--visitors", "0"], "--visitors must be at least 1, got 0"),
    (["--port", "-1"], "--port must be at least 1, got -1"),
    (["--idle", "0"], "--idle must be at least 1, got 0"),
    (["--ip", "0.0.0.0", "--token", ""], "--token must not be empty when --ip is 0.0.0.0"),
])  # fmt: skip
def test_a_wrong_option_is_refused(arguments, said, capsys):
    with pytest.raises(SystemExit) as stop:
        lab.options(arguments)
    assert stop.value.code == 2 and said in capsys.readouterr().err


def test_one_visitor_too_many_is_told_when_to_come_back():
    async def come():
        kernels = lab.BoundedKernels(limit=2, idle=7)
        kernels.list_kernel_ids = lambda: ["a", "b"]
        await kernels.start_kernel()

    with pytest.raises(lab.web.HTTPError) as refused:
        asyncio.run(come())
    assert refused.value.status_code == 503
    assert refused.value.reason == lab.FULL.format(2, 7) and "7 minutes" in refused.value.reason


def test_without_voila_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="needs Voila.*python course.py lab"):
        lab.main([])


def test_it_serves_that_page_with_one_thread_a_kernel(monkeypatch):
    served = {}

    def launch(argv, config):
        served.update(page=json.loads(open(argv[0]).read()), config=config, threads=os.environ["OMP_NUM_THREADS"])

    app = SimpleNamespace(Voila=SimpleNamespace(launch_instance=launch))
    monkeypatch.setitem(sys.modules, "voila.app", app)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    lab.main(["--port", "9000"])
    assert served["page"] == lab.page() and served["config"].Voila.port == 9000 and served["threads"] == "1"
