"""The house stays tidy: short files, short functions, no default drawers, imports without effects."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
DRAWERS = {"utils", "util", "common", "helpers", "helper", "misc", "shared", "stuff"}
# Alembic runs these by path, inside its own context; nobody imports them.
LOADED_BY_PATH = ("corral.storage.migrations",)

# Runs in a fresh interpreter. Watches through an audit hook what importing every module does, prints one JSON object.
PROBE = r"""
import importlib, json, logging, os, signal, sys, threading

names = json.loads(sys.argv[1])
effects, current = [], "?"
WATCHED = {
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.chown", "os.truncate",
    "os.putenv", "os.unsetenv", "os.fork", "os.forkpty", "os.kill", "os.system", "os.exec", "os.posix_spawn",
    "os.chdir", "subprocess.Popen", "socket.__new__", "socket.bind", "socket.connect", "socket.getaddrinfo",
    "sqlite3.connect", "signal.pthread_kill", "shutil.rmtree", "tempfile.mkstemp", "tempfile.mkdtemp",
    "_thread.start_new_thread", "fcntl.flock", "fcntl.lockf",
}


def watch(event, args):
    if event == "open":
        path, mode, flags = args
        writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
        if writes or (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            effects.append(f"{current}: opens {path!r} for writing")
    elif event in WATCHED:
        effects.append(f"{current}: {event} {args!r:.120}")


def state():
    found = {
        "root logger": [logging.root.level, [repr(h) for h in logging.root.handlers]],
        "threads": [t.name for t in threading.enumerate()],
        "descriptors": sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else [],
        "search path": list(sys.path),
        "directory": os.getcwd(),
        "umask": (lambda mask: (os.umask(mask), mask)[1])(os.umask(0o077)),
        "standard streams": [id(sys.stdin), id(sys.stdout), id(sys.stderr), repr(sys.excepthook)],
    }
    found.update({f"variable {name}": value for name, value in os.environ.items()})
    found.update({f"handler of signal {int(s)}": repr(signal.getsignal(s)) for s in signal.valid_signals()})
    return found


def start(thread, start=threading.Thread.start):
    effects.append(f"{current}: starts the thread {thread.name}")
    start(thread)


threading.Thread.start = start
# It sets a variable for its linear algebra and takes it away again while it is imported: its doing, not ours.
import numpy
before = state()
sys.addaudithook(watch)
for current in names:
    try:
        importlib.import_module(current)
    except Exception as error:
        effects.append(f"{current}: cannot be imported: {error!r}")
current = "afterwards"
after = state()
for what in sorted({*before, *after}):
    if before.get(what) != after.get(what):
        effects.append(f"changes the {what}: {before.get(what)!r} -> {after.get(what)!r}")
print(json.dumps(effects))
"""


def python_files(*tops: str) -> Iterator[Path]:
    for top in tops:
        yield from sorted(path for path in (ROOT / top).rglob("*.py") if "__pycache__" not in path.parts)


def module_names() -> list[str]:
    names = []
    for path in python_files("src/corral"):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if not name.startswith(LOADED_BY_PATH)]


def test_files_are_short() -> None:
    lengths = {
        path: len(path.read_text().splitlines()) for path in python_files("src", "tests", "bench", "demo", "scripts")
    }
    too_long = [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in lengths.items() if lines > FILE_LINES_MAX]
    assert too_long == []


def test_functions_are_short() -> None:
    too_long = []
    for path in python_files("src"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    too_long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines")
    assert too_long == []


def imports_of(name: str, names: set[str]) -> set[str]:
    """Return the modules of ``names`` that a module imports anywhere: at its top, for types alone, or in a function."""
    found = set()
    path = ROOT / "src" / Path(*name.split("."))
    for node in ast.walk(ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & names
            found |= inner or {node.module}
    return found & names - {name}


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = set(module_names())
    graph = {name: imports_of(name, names) for name in names}
    # The package loads its client when `corral.Client` is asked for, and is imported by nobody for that.
    graph["corral"].discard("corral.client")
    assert graph["corral.client.client"] >= {"corral.client.handle", "corral.model.report"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_there_is_no_default_drawer() -> None:
    tops = ("src", "tests", "bench", "demo", "scripts")
    drawers = [
        str(path.relative_to(ROOT))
        for path in python_files(*tops)
        if DRAWERS & {part.removesuffix(".py").strip("_") for part in path.relative_to(ROOT).parts}
    ]
    assert drawers == []


def effects_of_importing(names: list[str], directory: Path) -> tuple[str, list[str]]:
    """Import the modules in a fresh interpreter; return what it printed and the effects it had."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(directory),
        "PYTHONPATH": str(directory),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE, json.dumps(names)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    printed, _, report = ended.stdout.rstrip("\n").rpartition("\n")
    return printed + ended.stderr, json.loads(report)


def test_importing_any_module_has_no_effects(tmp_path: Path) -> None:
    names = module_names()
    assert {"corral", "corral.model", "corral.cli"} <= set(names)
    assert effects_of_importing(names, tmp_path) == ("", [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "effect,seen",
    [
        ("import os; os.environ['COLOUR'] = 'red'", "changes the variable COLOUR: None -> 'red'"),
        ("import os; os.umask(0o077)", "changes the umask"),
        ("import threading; threading.Thread(target=int, name='weaver').start()", "planted: starts the thread weaver"),
        ("import socket; socket.socket().close()", "planted: socket.__new__"),
        ("open('planted.txt', 'w').close()", "planted: opens 'planted.txt' for writing"),
        ("import logging; logging.basicConfig()", "changes the root logger"),
        ("import signal; signal.signal(signal.SIGUSR1, print)", f"changes the handler of signal {signal.SIGUSR1:d}"),
        ("import subprocess; subprocess.run(['true'])", "planted: subprocess.Popen"),
        ("import no_such_module", "planted: cannot be imported: ModuleNotFoundError"),
    ],
)
def test_an_effect_of_importing_is_seen(tmp_path: Path, effect: str, seen: str) -> None:
    (tmp_path / "planted.py").write_text(effect)
    _, effects = effects_of_importing(["planted"], tmp_path)
    assert [line for line in effects if line.startswith(seen)] != [], effects


def test_what_an_import_prints_is_seen(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("print('hello')")
    assert effects_of_importing(["planted"], tmp_path) == ("hello", [])
