"""A real fork server with real tasks, and what tests ask of them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from corral.agent import processes
from corral.agent.shim.client import ForkClient, start
from corral.agent.shim.handle import TaskHandle
from tests.waiting import wait_until

PATH = "/usr/local/bin:/usr/bin:/bin"


class ShimWorld:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket_path = directory / "f.sock"
        self.server = start(self.socket_path, log=directory / "f.log")
        self.client = ForkClient(self.socket_path)
        self.notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notices.bind(str(directory / "n.sock"))
        self.notices.settimeout(20)
        self.handles: list[TaskHandle] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            finish(handle)
        self.stop_server()
        self.notices.close()
        assert (self.directory / "f.log").read_text() == ""
        for handle in self.handles:
            assert self.processes_of(handle) == [], "a process of an ended task is left"

    def stop_server(self) -> None:
        if self.server.poll() is None:
            self.client.stop()
            assert self.server.wait(20) == 0
        self.client.close()

    def restart_server(self) -> None:
        self.server = start(self.socket_path, log=self.directory / "f.log")
        self.client = ForkClient(self.socket_path)

    def prepare(self, number: int = 0, **fields: Any) -> TaskHandle:
        """Write the specification of a task; ``fields`` override what a plain one has."""
        handle = TaskHandle(self.directory / "tasks" / f"{number}.0.0.1")
        env = {"PATH": PATH, **fields.pop("env", {})}
        handle.write_spec(
            {
                "task": f"{number}.0.0",
                "incarnation": 1,
                "env": env,
                "cwd": str(self.directory),
                "notify": str(self.directory / "n.sock"),
                **fields,
            }
        )
        self.handles.append(handle)
        return handle

    def launch(self, number: int = 0, **fields: Any) -> TaskHandle:
        handle = self.prepare(number, **fields)
        reply = self.client.launch(handle.directory)
        assert reply.pid is not None, reply
        return handle

    def run(self, number: int = 0, **fields: Any) -> dict[str, Any]:
        """Run a task to its end and return its status."""
        return self.end(self.launch(number, **fields))

    def end(self, handle: TaskHandle, timeout_s: float = 30.0) -> dict[str, Any]:
        status = wait_until(handle.status, timeout_s, what=f"the end of {handle.directory.name}")
        assert status is not None
        return status

    def python(self, number: int = 0, *, code: str, arguments: tuple[str, ...] = (), **fields: Any) -> TaskHandle:
        """Launch a Python program."""
        return self.launch(number, argv=[sys.executable, "-S", "-c", code, *arguments], **fields)

    def said(self, handle: TaskHandle, text: str) -> None:
        """Wait until the log holds a text."""
        wait_until(lambda: text.encode() in log_of(handle), 20, what=f"{text!r} in the log")

    def event(self) -> dict[str, Any]:
        return json.loads(self.notices.recv(1 << 16))

    def wait_event(self, name: str) -> dict[str, Any]:
        while (event := self.event())["event"] != name:
            pass
        return event

    def processes_of(self, handle: TaskHandle) -> list[int]:
        found = processes.with_environment({"CORRAL_TASK_DIR": str(handle.directory)})
        return [stat.pid for stat in found]


def finish(handle: TaskHandle) -> None:
    """Stop a task that still runs, and wait until its shim is gone."""
    if handle.shim_lives():
        wait_until(lambda: handle.stop("cancelled", 0) or not handle.shim_lives(), what="a stop")
    wait_until(lambda: not handle.shim_lives(), what=f"the end of the shim of {handle.directory}")


def log_of(handle: TaskHandle) -> bytes:
    """Return the newest file of the log."""
    with contextlib.suppress(FileNotFoundError):
        return (handle.directory / "log").read_bytes()
    return b""


def child_of(handle: TaskHandle) -> int:
    """Wait for the main child and return its pid."""
    return int(wait_until(lambda: (handle.shim() or {}).get("child_pid"), what="a main child") or 0)


def shim_of(handle: TaskHandle) -> int:
    """Return the pid of the shim."""
    shim = handle.shim()
    assert shim is not None
    return int(shim["pid"])


def state_of(pid: int) -> str:
    """Return the state letter of a process, "" when it is gone."""
    stat = processes.read_stat(pid)
    return "" if stat is None else stat.state


def pid_in(path: Path) -> int:
    """Wait for a file with a pid and return it."""
    return int(wait_until(lambda: path.exists() and path.read_text().strip(), what=f"a pid in {path}"))


def gone(pid: int) -> bool:
    return state_of(pid) in ("", "Z", "X")


def rss_mib(pid: int) -> float:
    stat = processes.read_stat(pid)
    assert stat is not None
    return stat.rss_pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
