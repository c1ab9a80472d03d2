"""The one command: versions, stamp, what it runs, and what it does to notebook files."""
import ast
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import course
import nbformat
import notebook_files
import pytest

ROOT = Path(course.__file__).parent


# ---------------------------------------------------------------- set-up

@pytest.mark.parametrize("version", [(3, 6, 15), (3, 10, 13)])
def test_an_old_python_is_refused_in_one_sentence(version):
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer; this is Python 3\.\d+"):
        course.check_version(version)


def test_the_oldest_python_is_the_one_of_the_package():
    course.check_version((*course.OLDEST_PYTHON, 0))
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert required == ">={}.{}".format(*course.OLDEST_PYTHON)


def test_an_old_python_can_read_the_file_far_enough_to_refuse():
    ast.parse((ROOT / "course.py").read_text(), feature_version=(3, 7))


def test_course_needs_only_the_standard_library():
    tree = ast.parse((ROOT / "course.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {name.name for node in imports for name in node.names if isinstance(node, ast.Import)}
    names |= {node.module for node in imports if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


def test_requirements_are_exact_pins_and_name_no_index():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    assert len(lines) >= 9
    for line in lines:
        assert line.count("==") == 1 and "://" not in line and not line.startswith("-"), line


def test_extras_are_those_of_the_package_and_pinned():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) == set(course.EXTRAS)
    assert all("==" in requirement for extra in extras.values() for requirement in extra)
    with pytest.raises(SystemExit, match="extras are test, bridge.*; not tests"):
        course.setup("tests")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that course.py takes for its own, with an environment that has nothing in it."""
    for name in ("requirements.txt", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    for name, value in {"ROOT": tmp_path, "PYTHON": python, "STAMP": tmp_path / ".venv" / "stamp"}.items():
        monkeypatch.setattr(course, name, value)
    return tmp_path


def test_the_stamp_spares_a_second_set_up(checkout, monkeypatch):
    assert course.installed_extras() is None
    course.STAMP.write_text(course.fingerprint() + " test")
    assert course.installed_extras() == {"test"}
    monkeypatch.setattr(course, "run_quietly", lambda *_: pytest.fail("installs again"))
    course.setup()
    course.setup("test")


def test_an_extra_is_added_to_a_finished_set_up_without_touching_torch(checkout, monkeypatch):
    course.STAMP.write_text(course.fingerprint() + " sweeps")
    ran = []
    monkeypatch.setattr(course, "run_quietly", lambda command, doing: ran.append(command) or (True, ""))
    monkeypatch.setattr(course.subprocess, "call", lambda *_, **__: 0)
    course.setup("test")
    assert [command[-1] for command in ran] == [".[sweeps,test]"]
    assert course.installed_extras() == {"sweeps", "test"}


@pytest.mark.parametrize("changed", ["requirements.txt", "pyproject.toml"])
def test_a_changed_pin_asks_for_a_new_set_up(checkout, changed):
    course.STAMP.write_text(course.fingerprint())
    (checkout / changed).write_text("torch==9.9.9\n")
    assert course.installed_extras() is None


def test_a_moved_folder_or_a_lost_python_asks_for_a_new_set_up(checkout, monkeypatch):
    course.STAMP.write_text(course.fingerprint())
    course.PYTHON.unlink()
    assert course.installed_extras() is None
    before = course.fingerprint()
    (checkout / "moved").mkdir()
    for name in ("requirements.txt", "pyproject.toml"):
        (checkout / "moved" / name).write_text((checkout / name).read_text())
    monkeypatch.setattr(course, "ROOT", checkout / "moved")
    assert course.fingerprint() != before


def test_set_up_runs_pip_once_the_cpu_torch_is_there_and_writes_the_stamp(checkout, monkeypatch):
    ran = []
    monkeypatch.setattr(course, "run_quietly", lambda command, doing: ran.append(command) or (True, ""))
    monkeypatch.setattr(course.subprocess, "call", lambda *_, **__: 0)
    monkeypatch.setattr(course, "wants_cpu_torch", lambda: True)
    course.setup("test")
    assert [course.TORCH_CPU_INDEX in command for command in ran] == [True, False]
    assert ran[1][-4:] == ["-r", "requirements.txt", "-e", ".[test]"]
    assert course.installed_extras() == {"test"}


def test_set_up_goes_on_when_the_cpu_index_fails_and_stops_when_pip_does(checkout, monkeypatch):
    ran = []

    def fail(command, doing):
        ran.append(command)
        return False, "ERROR: [Errno 28] No space left on device"

    monkeypatch.setattr(course, "run_quietly", fail)
    monkeypatch.setattr(course.subprocess, "call", lambda *_, **__: 0)
    monkeypatch.setattr(course, "wants_cpu_torch", lambda: True)
    with pytest.raises(SystemExit, match=r"(?s)Errno 28.*The disk is full"):
        course.setup()
    assert [course.TORCH_CPU_INDEX in command for command in ran] == [True, True, False]
    assert "--retries" in ran[0] and "--retries" not in ran[1]
    assert not course.STAMP.exists()


def test_the_cpu_index_is_for_linux_without_an_nvidia_card(monkeypatch):
    monkeypatch.setattr(course.os.path, "exists", lambda path: False)
    monkeypatch.setattr(course.shutil, "which", lambda name: None)
    assert course.wants_cpu_torch("linux")
    assert not course.wants_cpu_torch("darwin") and not course.wants_cpu_torch("win32")
    monkeypatch.setattr(course.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert not course.wants_cpu_torch("linux")
    optional, everything = course.install_commands([], cpu_torch=False)
    assert optional == [] and not any("://" in word for word in everything)


@pytest.mark.parametrize("said, advice", [
    ("The virtual environment was not created because ensurepip is not available.", "python3-venv"),
    ("/usr/bin/python3: No module named venv", "python3-venv"),
    ("connection broken by 'NewConnectionError('<...>: [Errno -2] Name or service not known')'", "network"),
    ("OSError: [Errno 28] No space left on device", "disk is full"),
    ("ERROR: No matching distribution found for torch==2.13.0", "3.11 to 3.14"),
])
def test_a_failed_step_is_shown_in_full_with_advice(said, advice):
    with pytest.raises(SystemExit) as stop:
        course.require((False, "first line\n" + said))
    assert str(stop.value).startswith("first line\n" + said) and advice in str(stop.value).split(said)[1]


def test_run_quietly_hides_output_and_hands_it_over(capfd):
    assert course.run_quietly([sys.executable, "-c", "print('inner')"], "Working ...") == (True, "inner\n")
    failing = [sys.executable, "-c", "raise SystemExit('reason')"]
    succeeded, output = course.run_quietly(failing, "Working ...")
    assert (succeeded, output.strip()) == (False, "reason")
    assert "inner" not in capfd.readouterr().out


# ---------------------------------------------------------------- what it runs

def test_the_environment_of_kernels(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "mine")
    env = course.course_env(ATEN_CPU_CAPABILITY="default")
    assert env["OMP_NUM_THREADS"] == "1" and env["ATEN_CPU_CAPABILITY"] == "default"
    assert "MPLBACKEND" not in env
    assert env["JUPYTER_CONFIG_PATH"] == os.pathsep.join([str(ROOT / ".course"), "mine"])


def test_jupyterlab_knows_every_setting_that_is_overridden():
    """Lab drops an override it does not know without a word, so each is looked up in Lab's own schema."""
    schemas = Path(sys.prefix, "share", "jupyter", "lab", "schemas")
    overrides = json.loads((ROOT / ".course/labconfig/default_setting_overrides.json").read_text())
    assert overrides["@jupyterlab/apputils-extension:kernels-settings"]["commsOverSubshells"] == "disabled"
    for plugin, settings in overrides.items():
        package, _, name = plugin.partition(":")
        properties = json.loads((schemas / package / f"{name}.json").read_text())["properties"]
        for key, value in settings.items():
            allowed = [option["const"] for option in properties[key].get("oneOf", [])] or [True, False]
            assert value in allowed and value != properties[key]["default"], (plugin, key)


SLOW_TO_CLOSE = """
import sys, time
try:
    print("open", flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    time.sleep(1)
    print("closed", flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="sends the interrupt to a process group")
def test_ctrl_c_waits_for_the_program_to_close_down():
    program = ("import course, sys; course.VERBS['go'] = lambda *command: course.run(command);"
               "sys.exit(course.main(['go', sys.executable, '-c', sys.argv[1]]))")
    process = subprocess.Popen([sys.executable, "-c", program, SLOW_TO_CLOSE], stdout=subprocess.PIPE,
                               text=True, cwd=ROOT, start_new_session=True)
    assert process.stdout.readline() == "open\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=20)[0] == "closed\n\nStopped.\n"
    assert process.returncode == 130


def test_parts_of_the_suite():
    parts = {name: (options, extra) for name, options, extra in course.test_parts(True, True)}
    assert list(parts) == ["unit tests", "notebooks", "notebooks, as on an old CPU", "browser tests"]
    assert "not browser" in parts["unit tests"][0] and "browser" in parts["browser tests"][0]
    for name in ("notebooks", "notebooks, as on an old CPU"):
        options = parts[name][0]
        assert {"--nbval", "--nbval-current-env", "notebooks"} <= set(options)
        assert options[options.index("--dist") + 1] == "loadscope"  # else a notebook's cells are split up
        assert options[options.index("--nbval-cell-timeout") + 1] == "120"
    assert parts["notebooks"][1] == {}
    assert parts["notebooks, as on an old CPU"][1] == {"ATEN_CPU_CAPABILITY": "default"}
    assert [part[0] for part in course.test_parts(notebooks=False, browser=False)] == ["unit tests"]


SUITE = """
import pytest
def test_passes(): pass
def test_fails(): assert False
@pytest.fixture
def broken(): raise RuntimeError
def test_error(broken): pass
def test_skipped(): pytest.skip()
@pytest.mark.xfail
def test_expected(): assert False
"""


def run_test_verb(monkeypatch, parts, ci="", browser=True):
    monkeypatch.setattr(course, "setup", lambda *extras: None)
    monkeypatch.setattr(course, "PYTHON", sys.executable)
    monkeypatch.setattr(course.shutil, "which", lambda name: "chromium" if browser else None)
    fast = ["-p", "no:nbval", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]
    parts = [(name, fast + options, {}) for name, options in parts]
    monkeypatch.setattr(course, "test_parts", lambda *_: parts)
    monkeypatch.setenv("CI", ci)
    return course.test()


def test_every_part_runs_and_one_line_sums_them_up(tmp_path, monkeypatch, capfd):
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE)
    parts = [("a", [str(suite)]), ("b", [str(tmp_path / "missing")]), ("c", [str(suite), "-k", "passes"])]
    assert run_test_verb(monkeypatch, parts) == 1
    last = capfd.readouterr().out.splitlines()[-1]
    assert "= 1 failed, 2 passed, 2 skipped, 2 errors in " in last and last.startswith("==")


def test_success_and_its_exceptions(tmp_path, monkeypatch, capfd):
    suite = tmp_path / "test_suite.py"
    suite.write_text("def test_passes(): pass")
    passing, nothing = [str(suite)], [str(suite), "-k", "nothing"]
    assert run_test_verb(monkeypatch, [("unit tests", passing), ("browser tests", nothing)]) == 0
    assert run_test_verb(monkeypatch, [("unit tests", nothing)]) == 1
    assert run_test_verb(monkeypatch, [("unit tests", passing)], browser=False) == 0
    assert "no chromium" in capfd.readouterr().out
    assert run_test_verb(monkeypatch, [("unit tests", passing)], browser=False, ci="true") == 1
    assert " 1 passed, 1 error in " in capfd.readouterr().out


def test_choosing_notebooks(tmp_path, monkeypatch):
    for name in ("00_start_here", "08_training_run"):
        (tmp_path / f"{name}.ipynb").write_text("")
    monkeypatch.setattr(course, "NOTEBOOKS", tmp_path)
    first, last = str(tmp_path / "00_start_here.ipynb"), str(tmp_path / "08_training_run.ipynb")
    assert course.choose([]) == [first, last]
    assert course.choose(["notebooks/08_training_run.ipynb"]) == course.choose(["08"]) == [last]
    with pytest.raises(SystemExit, match="notebook is called 09. There are: 00_start_here 08_training_run"):
        course.choose(["08", "09"])


def test_unknown_verbs_print_the_help(capsys):
    assert course.main(["tset"]) == 2 and course.main(["--help"]) == 0
    assert "python course.py test" in capsys.readouterr().out


def test_the_lab_is_served_with_its_own_options(monkeypatch):
    done = []
    monkeypatch.setattr(course, "setup", lambda *extras: done.append(extras))
    monkeypatch.setattr(course, "run", lambda command, **_: done.append(command[1:]) or 0)
    assert course.main(["lab", "--visitors", "3"]) == 0
    assert done == [("lab",), ["-m", "ppo_teach.lab", "--visitors", "3"]]


def test_ci_runs_the_test_command_and_is_executable():
    script = ROOT / ".ci" / "run"
    assert script.read_text().splitlines()[-1] == "python3 course.py test"
    assert os.name == "nt" or os.access(script, os.X_OK)


STUB = "#!/bin/sh\necho \"$(basename $0) $*\" >> \"$LOG\"\n"


@pytest.mark.skipif(os.name == "nt", reason="runs in a Linux image")
def test_an_image_for_a_hub_installs_what_course_py_would(tmp_path):
    (tmp_path / "pip").write_text(STUB)
    (tmp_path / "pip").chmod(0o755)
    env = dict(os.environ, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}", LOG=str(tmp_path / "log"))
    subprocess.run([ROOT / ".binder" / "postBuild"], cwd=ROOT, env=env, check=True)
    torch, everything = (tmp_path / "log").read_text().splitlines()
    pin = next(line for line in (ROOT / "requirements.txt").read_text().splitlines() if line.startswith("torch=="))
    assert torch.split()[3:] == [pin, "--extra-index-url", course.TORCH_CPU_INDEX]
    assert everything.split()[3:] == ["-r", "requirements.txt", "-e", "."]
    version = (ROOT / ".binder" / "runtime.txt").read_text().strip()
    assert version == "python-{}.{}".format(*course.OLDEST_PYTHON)


@pytest.mark.skipif(os.name == "nt", reason="runs in a Linux image")
def test_a_hub_starts_servers_with_the_settings_of_course_py():
    env = {"PATH": os.environ["PATH"], "REPO_DIR": str(ROOT), "JUPYTER_CONFIG_PATH": "theirs"}
    done = subprocess.run([ROOT / ".binder" / "start", "env"], env=env, capture_output=True, text=True, check=True)
    assert {"OMP_NUM_THREADS=1", f"JUPYTER_CONFIG_PATH={ROOT}/.course:theirs"} <= set(done.stdout.splitlines())


# ---------------------------------------------------------------- notebook files

def cell(source, *outputs, **metadata):
    return {"cell_type": "code", "id": "random", "source": source, "metadata": metadata, "execution_count": 7,
            "outputs": list(outputs)}


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


MESSY = {
    "nbformat": 4, "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "other", "display_name": "My venv"}, "widgets": {"state": {"a": 1}},
                 "language_info": {"name": "python", "version": "3.11.7"}},
    "cells": [
        {"cell_type": "markdown", "id": "x", "source": "# Title", "metadata": {}},
        cell("print(1); print(2)\n", stream(["1\n"]), stream("2\n"), stream("3\n", "stderr"),
             execution={"iopub.status.busy": "2026-01-01T00:00:00"}, tags=["keep"], scrolled=True),
        cell("   \n"),
        cell("slider", {"output_type": "execute_result", "execution_count": 7, "metadata": {}, "data": {
            notebook_files.WIDGET_VIEW: {"model_id": "f00d"}, "text/plain": "IntSlider(value=1)",
            "image/png": "iVBORw0KGgo=\n"}}),
        cell("bare", {"output_type": "display_data", "metadata": {},
                      "data": {notebook_files.WIDGET_VIEW: {"model_id": "f00d"}}}),
        cell("1 / 0", {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "division by zero",
                       "traceback": ["File /home/someone/x.py", "0x7f"]}),
    ],
}


def test_normalise_fixes_ids_counts_and_metadata():
    notebook = notebook_files.normalise(MESSY, "03_kl_leash")
    assert [cell["id"] for cell in notebook["cells"]] == ["03-000", "03-001", "03-002", "03-003", "03-004"]
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == [1, 2, 3, 4]
    assert notebook["cells"][1]["metadata"] == {"tags": ["keep"], "slideshow": {"slide_type": "-"}}
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert notebook["metadata"]["kernelspec"]["display_name"] == "Python 3 (ipykernel)"
    assert "version" not in notebook["metadata"]["language_info"]


def test_normalise_cleans_outputs():
    cells = notebook_files.normalise(MESSY, "03_kl_leash")["cells"]
    assert cells[1]["outputs"] == [stream(["1\n", "2\n"]), stream(["3\n"], "stderr")]
    data = {"text/plain": ["IntSlider(value=1)"], "image/png": "iVBORw0KGgo="}
    assert cells[2]["outputs"] == [
        {"output_type": "execute_result", "execution_count": 2, "metadata": {}, "data": data}]
    assert cells[3]["outputs"] == []
    assert cells[4]["outputs"][0]["traceback"] == ["ZeroDivisionError: division by zero"]


def test_every_cell_has_its_place_in_the_slides():
    def markdown(source):
        return {"cell_type": "markdown", "id": "x", "source": source, "metadata": {"slideshow": {"slide_type": "skip"}}}

    picture = {"output_type": "display_data", "metadata": {}, "data": {"image/png": "iVBORw0KGgo="}}
    cells = [markdown("# Title"), markdown("Prose.\n### Small"), cell("gae(x)", stream("1")), cell("draw()", picture),
             cell("guess.reveal(2)", stream("2")), markdown("An end.\n\n## 3.2 A start")]
    notebook = notebook_files.normalise({"cells": cells, "metadata": {}}, "03_kl_leash")
    types = [cell["metadata"]["slideshow"]["slide_type"] for cell in notebook["cells"]]
    assert types == ["slide", "subslide", "-", "subslide", "fragment", "slide"]


def test_normalise_changes_nothing_the_second_time_and_leaves_its_input_alone():
    before = json.dumps(MESSY)
    once = notebook_files.normalise(MESSY, "03_kl_leash")
    text = notebook_files.dump(once)
    assert notebook_files.dump(notebook_files.normalise(json.loads(text), "03_kl_leash")) == text
    assert json.dumps(MESSY) == before
    assert text.endswith("}\n") and text.startswith('{\n "cells"')
    nbformat.validate(json.loads(text))


def test_the_form_is_the_one_that_nbformat_writes():
    """So that saving an unchanged notebook in JupyterLab changes no line."""
    text = notebook_files.dump(notebook_files.normalise(MESSY, "03_kl_leash"))
    assert nbformat.writes(nbformat.reads(text, as_version=4)) + "\n" == text


WIDGETS = """import ipywidgets
slider = ipywidgets.IntSlider(value=3)
display({"text/plain": "a picture", "image/png": "iVBORw0KGgo="}, raw=True)
slider"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a notebook, executed."""
    folder = tmp_path_factory.mktemp("notebooks")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_markdown_cell("# A title & more\n\nSee [the next](08_next.ipynb#part)."),
        nbformat.v4.new_code_cell("print(6 * 7)\nprint('end')"),
        nbformat.v4.new_code_cell(WIDGETS),
        nbformat.v4.new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]}),
    ]
    nbformat.write(notebook, folder / "07_made.ipynb")
    notebook_files.execute(folder / "07_made.ipynb")
    return folder


def test_executing_again_gives_the_same_bytes(folder):
    path = folder / "07_made.ipynb"
    before = path.read_bytes()
    text = before.decode()
    assert '"42\\n"' in text and "IntSlider(value=3)" in text and "widget-view" not in text
    assert "iVBORw0KGgo=" in text and "Traceback" not in text and str(folder) not in text
    notebook_files.execute(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("tags, source, said", [
    (["raises-exception"], "1 + 1", "raised nothing"),
    ([], "1 / 0", "ZeroDivisionError"),
])
def test_a_cell_that_does_not_do_as_tagged_stops_the_saving(tmp_path, capsys, tags, source, said):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source, metadata={"tags": tags})]
    path = tmp_path / "02_bad.ipynb"
    nbformat.write(notebook, path)
    before = path.read_bytes()
    assert notebook_files.execute_all([path]) == 1
    assert path.read_bytes() == before
    output = capsys.readouterr().out
    assert "02_bad.ipynb: NOT SAVED" in output and said in output


def test_nbval_accepts_the_saved_notebook_and_refuses_one_changed_number(folder, tmp_path):
    saved = (folder / "07_made.ipynb").read_text()
    (tmp_path / "right.ipynb").write_text(saved)
    (tmp_path / "wrong.ipynb").write_text(saved.replace('"42\\n"', '"43\\n"'))
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--nbval", "--nbval-current-env", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=course.course_env())
    assert run.returncode == 1 and "1 failed, 5 passed" in run.stdout, run.stdout
    assert "FAILED wrong.ipynb::Cell 0" in run.stdout and "PASSED wrong.ipynb::Cell 1" in run.stdout


def test_site_shows_the_saved_outputs(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(notebook_files, "explorers_page", lambda: "<p>sliders</p>")
    notebook_files.build_site([folder / "07_made.ipynb"], tmp_path / "site")
    assert (tmp_path / "site" / "explorers.html").read_text() == "<p>sliders</p>"
    assert '<a href="07_made.html">A title &amp; more</a>' in (tmp_path / "site" / "index.html").read_text()
    page = (tmp_path / "site" / "07_made.html").read_text()
    assert "42\n" in page and 'href="08_next.html#part"' in page


@pytest.mark.parametrize("name", ["sampling_explorer", "clinic_explorer", "reward_model_explorer", "hacking_explorer"])
def test_an_explorer_is_on_the_page_without_a_kernel(name):
    page = notebook_files.explorers_page(only=name)
    assert f'"name": "{name}"' in page and '"frames": "' in page
