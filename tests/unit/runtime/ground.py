"""A state directory as ``corral up`` leaves it, and the real processes that run on it; nothing outlives a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from corral.client import Client
from corral.runtime.options import PoolOptions
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import load_pool, save_pool
from corral.runtime.settings import load_settings
from corral.runtime.starting.configuring import write_pool
from corral.runtime.starting.launcher import prepare
from tests.waiting import wait_until


class Ground:
    """One state directory and what was started on it."""

    def __init__(self, root: Path) -> None:
        self.paths = StatePaths(root)
        self.started: list[subprocess.Popen[bytes]] = []
        prepare(self.paths)

    def write(self, *, agents: bool = False, **changes: Any) -> None:
        """Write what ``corral up`` writes; without ``agents`` the supervisor starts none."""
        shape: dict[str, Any] = {"port": 0, "nodes": 1, "gpus_per_node": 1, "simulated": "h100"} | changes
        options = PoolOptions(state_dir=self.paths.root, **shape)
        write_pool(self.paths, options, load_settings(self.paths.root))
        if not agents:
            pool = load_pool(self.paths.pool)
            pool.agents.clear()
            save_pool(self.paths.pool, pool)

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", f"corral.runtime.{module}", *arguments]
        with (self.paths.logs / f"{module}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.started.append(process)
        return process

    def daemon(self) -> subprocess.Popen[bytes]:
        return self.start("daemon", "--state-dir", str(self.paths.root))

    def supervisor(self) -> subprocess.Popen[bytes]:
        return self.start("supervisor", str(self.paths.root))

    def announced(self, other_than: int = 0) -> int:
        """Wait for a daemon to announce itself; return its pid."""

        def look() -> int:
            try:
                pid = int(json.loads(self.paths.daemon.read_text())["pid"])
            except (OSError, ValueError, KeyError):
                return 0
            return pid if pid != other_than else 0

        return wait_until(look, 30.0, what="a daemon to announce itself")

    def port(self) -> int:
        return int(json.loads(self.paths.daemon.read_text())["port"])

    def client(self, token: str | None = None) -> Client:
        if token is None:
            return Client(state_dir=self.paths.root, retry_s=0.0)
        return Client(url=json.loads(self.paths.daemon.read_text())["url"], token=token, retry_s=0.0)

    def code(self, process: subprocess.Popen[bytes]) -> int:
        """Return the exit code of a process that ends by itself or was told to."""
        return process.wait(30.0)

    def end(self, process: subprocess.Popen[bytes]) -> int:
        process.terminate()
        return self.code(process)

    def failure(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.paths.failure.read_text())
        return found

    def log(self, name: str) -> str:
        return (self.paths.logs / f"{name}.log").read_text()

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(15.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """Return the pids of the living children of a process."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in listed]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
