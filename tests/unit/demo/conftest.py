from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
Start = Callable[..., "subprocess.Popen[str]"]
Finish = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(given: dict[str, object]) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "OPENBLAS_NUM_THREADS": "1",
        **{name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_CORETYPE")},
        **{name: str(value) for name, value in given.items()},
    }


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program of the demo as a task is started; what still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(name: str, **given: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"demo.{name}"],
            cwd=ROOT,
            env=environment(given),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def finish(start: Start) -> Finish:
    """Run a program of the demo to its end."""

    def complete(name: str, **given: object) -> subprocess.CompletedProcess[str]:
        process = start(name, **given)
        output, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    return complete


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
