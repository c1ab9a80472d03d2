#!/usr/bin/env python3
"""One command for everything; it needs nothing but Python.

    python course.py                     set up on the first run, then open the course in JupyterLab
    python course.py test                run the whole test suite: unit, notebooks, browser
    python course.py notebooks [NAME..]  execute notebooks in place (all, or e.g. 00 08) and normalise them
    python course.py lab                 serve the live lab as a page of its own; --help lists its options
    python course.py site                write the notebooks as web pages to site/
    python course.py slides [NAME..]     execute notebooks and write them as slides with live sliders to site/slides/
    python course.py setup [EXTRA..]     only set up; extras: test, bridge, sweeps, lab, docs

Everything is installed into .venv beside this file. Options after `start` go to JupyterLab,
for example: python course.py start --no-browser
"""
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

OLDEST_PYTHON = (3, 11)  # what the pinned numpy, matplotlib and ipykernel need
ROOT = Path(__file__).resolve().parent
NOTEBOOKS = ROOT / "notebooks"
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "course-stamp.txt"
EXTRAS = ("test", "bridge", "sweeps", "lab", "docs")  # of pyproject.toml
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# What pip or venv printed (pattern) -> what to do about it.
ADVICE = (
    (r"No space left|Errno 28|not enough space",
     "The disk is full. The course needs about 1.5 GB where this folder is: make room and run this again."),
    (r"ensurepip is not|No module named '?(venv|ensurepip)",
     "This Python cannot make virtual environments. On Debian or Ubuntu: sudo apt install python3-venv"),
    (r"NewConnectionError|NameResolution|name resolution|getaddrinfo|[Nn]etwork is unreachable"
     r"|Connection ?Refused|timed out|ProxyError|SSLError|Max retries",
     "The package index did not answer. Check the network (or the proxy, HTTPS_PROXY) and run this again."),
    (r"No matching distribution found for torch",
     "There is no torch for this Python version. Run this file with Python 3.11 to 3.14."),
)


def check_version(version):
    """Stop in plain words on a Python that is too old. (Python 3.6 can still read this file.)"""
    if tuple(version[:2]) < OLDEST_PYTHON:
        sys.exit("This course needs Python {}.{} or newer; this is Python {}.{}. Install a newer one "
                 "and run this file with it.".format(*(OLDEST_PYTHON + tuple(version[:2]))))


def course_env(**extra):
    """The environment of everything that runs notebooks or tests."""
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUTF8="1")  # these models are slower on two threads
    env.pop("MPLBACKEND", None)  # a backend set by hand would take the figures out of the notebooks
    paths = [str(ROOT / ".course"), os.environ.get("JUPYTER_CONFIG_PATH")]
    env["JUPYTER_CONFIG_PATH"] = os.pathsep.join(path for path in paths if path)
    env.update(extra)
    return env


def fingerprint():
    """Changes when the environment has to be installed again: other pins, or the folder was moved."""
    parts = [(ROOT / name).read_bytes() for name in ("requirements.txt", "pyproject.toml")]
    return hashlib.sha256(b"\0".join(parts + [str(ROOT).encode()])).hexdigest()


def installed_extras():
    """The extras that the stamp vouches for, or None when the environment is missing or out of date."""
    words = STAMP.read_text().split() if STAMP.exists() and PYTHON.exists() else [None]
    return set(words[1:]) if words[0] == fingerprint() else None


def wants_cpu_torch(platform=sys.platform):
    """On Linux the default torch carries several GB of CUDA, of no use without an NVIDIA card."""
    return platform.startswith("linux") and not (
        shutil.which("nvidia-smi") or os.path.exists("/proc/driver/nvidia/version"))


def install_commands(extras, cpu_torch):
    """Pip's steps as (command, required). The CPU index is asked briefly, then patiently, then not at all."""
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    torch = next(line for line in lines if line.startswith("torch=="))
    from_cpu_index = pip + [torch, "--extra-index-url", TORCH_CPU_INDEX]
    package = ".[{}]".format(",".join(sorted(extras))) if extras else "."
    everything = pip + ["-r", "requirements.txt", "-e", package]
    optional = [from_cpu_index + ["--retries", "0", "--timeout", "5"], from_cpu_index] if cpu_torch else []
    return optional, everything


def run_quietly(command, doing):
    """Run a command, showing only the seconds that pass. Returns (succeeded, what it printed)."""
    start, live = time.monotonic(), sys.stdout.isatty()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=ROOT, **pipes)
        print(doing, end=" ", flush=True)
        while process.poll() is None:
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                if live:
                    print(f"\r{doing} {time.monotonic() - start:.0f} s ", end="", flush=True)
        print("" if live else f"{time.monotonic() - start:.0f} s", flush=True)
        log.seek(0)
        return process.returncode == 0, log.read()


def require(result):
    """Print in full what a failed command said, then what to do about it, and stop."""
    succeeded, output = result
    if not succeeded:
        advice = [sentence for pattern, sentence in ADVICE if re.search(pattern, output)]
        sys.exit("\n\n".join([output.rstrip()] + advice[:1]))


def setup(*extras):
    """Make .venv and install the course into it; returns at once when that is already done."""
    if not set(extras).issubset(EXTRAS):
        sys.exit("The extras are {}; not {}.".format(", ".join(EXTRAS), ", ".join(set(extras) - set(EXTRAS))))
    done = installed_extras()
    if done is not None and done.issuperset(extras):
        return
    print("Setting up in .venv (needed once; about a minute and 1.5 GB).")
    if not PYTHON.exists() or subprocess.call([str(PYTHON), "-c", "import pip"], stderr=subprocess.DEVNULL):
        make = [sys.executable, "-m", "venv", "--clear", str(VENV)]
        require(run_quietly(make, "Making the environment ..."))
    extras = (done or set()).union(extras)
    optional, everything = install_commands(extras, done is None and wants_cpu_torch())
    for command in optional:
        if run_quietly(command, "Installing torch ...")[0]:
            break
    require(run_quietly(everything, "Installing the course ..."))
    STAMP.write_text(" ".join([fingerprint()] + sorted(extras)))


def run(command, **env):
    """Run a command to its end. Ctrl-C reaches it as well, and it is left the time to close down."""
    process = subprocess.Popen(command, env=course_env(**env), cwd=ROOT)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise


def start(*options):
    """Open the course in JupyterLab; Ctrl-C ends it."""
    setup()
    command = [str(PYTHON), "-m", "jupyterlab", "-y", "--log-level=WARN", f"--ServerApp.root_dir={ROOT}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    print("Opening JupyterLab. Leave this window open while you work; Ctrl-C here ends it.", flush=True)
    return run([*command, *options, *map(str, NOTEBOOKS.glob("00_start_here.ipynb"))])


def test_parts(notebooks, browser):
    """The parts of the suite as (name, pytest options, extra environment)."""
    # a notebook's cells stay on one worker; so does what tests/conftest.py groups
    nbval = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout", "120", "-n", "2", "--dist", "loadscope", "notebooks"]
    parts = [("unit tests", ["-m", "not browser", "-n", "2", "--dist", "loadgroup", "tests"], {})]
    if notebooks:
        parts += [("notebooks", nbval, {}),
                  ("notebooks, as on an old CPU", nbval, {"ATEN_CPU_CAPABILITY": "default"})]
    if browser:
        parts += [("browser tests", ["-m", "browser", "tests"], {})]
    return parts


def junit_counts(path):
    """Failed, passed, skipped and errors that one pytest run reported."""
    if not path.exists():
        return [0, 0, 0, 0]
    suite = xml.etree.ElementTree.parse(path).getroot().find("testsuite")
    total, failed, skipped, errors = (int(suite.get(k)) for k in ("tests", "failures", "skipped", "errors"))
    return [failed, total - failed - skipped - errors, skipped, errors]


def summary_line(counts, seconds):
    """One closing line for all parts, in the words of pytest."""
    names = ("failed", "passed", "skipped", "error" if counts[3] == 1 else "errors")
    said = ", ".join(f"{count} {name}" for count, name in zip(counts, names) if count) or "no tests ran"
    return f" {said} in {seconds:.2f}s ".center(80, "=")


def test():
    """Run every part, also after a failure, and close with one summary line. 0 when all passed."""
    setup("test")
    start, totals = time.monotonic(), [0, 0, 0, 0]
    browser = shutil.which("chromium") is not None
    for name, options, extra in test_parts(any(NOTEBOOKS.glob("*.ipynb")), browser):
        print(f"\n---- {name}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            code = run([str(PYTHON), "-m", "pytest", "-q", f"--junitxml={report}", *options], **extra)
            counts = junit_counts(report)
        if code not in ((0, 5) if name == "browser tests" else (0,)) and not counts[0]:  # 5: no test matched
            counts[3] = max(counts[3], 1)  # it stopped before it could report a failure
        totals = [a + b for a, b in zip(totals, counts)]
    if not browser:
        print("\n---- browser tests: not run, there is no chromium on the PATH")
        totals[3] += os.environ.get("CI") == "true"
    print("\n" + summary_line(totals, time.monotonic() - start))
    return 1 if totals[0] or totals[3] else 0


def choose(names):
    """The notebooks whose file names start with one of the names given; all of them when none is."""
    starts = tuple(Path(name).name for name in names)
    found = sorted(NOTEBOOKS.glob("*.ipynb"))
    for start in starts:
        if not any(path.name.startswith(start) for path in found):
            sys.exit(f"No notebook is called {start}. There are: " + " ".join(path.stem for path in found))
    return [str(path) for path in found if path.name.startswith(starts or "")]


def notebooks(*names):
    """Execute notebooks in place and save them in the form that is committed."""
    setup()
    return run([str(PYTHON), ".course/notebook_files.py", "execute", *choose(names)])


def site():
    """Write the notebooks, with the outputs they hold, as web pages to site/."""
    setup()
    return run([str(PYTHON), ".course/notebook_files.py", "site", *choose(())])


def slides(*names):
    """Write notebooks as slide shows to site/slides/."""
    setup()
    return run([str(PYTHON), ".course/notebook_files.py", "slides", *choose(names)])


def lab(*options):
    """Serve the live lab as a page of its own; Ctrl-C ends it."""
    setup("lab")
    return run([str(PYTHON), "-m", "ppo_teach.lab", *options])


VERBS = {"start": start, "test": test, "notebooks": notebooks, "site": site, "slides": slides, "lab": lab, "setup": setup}


def main(arguments):
    check_version(sys.version_info)
    verb, options = (arguments[0], arguments[1:]) if arguments else ("start", [])
    if verb not in VERBS or (options and verb in ("test", "site")):
        print(__doc__)
        return 0 if verb in ("-h", "--help") else 2
    try:
        return VERBS[verb](*options)
    except KeyboardInterrupt:
        print("\nStopped.")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
