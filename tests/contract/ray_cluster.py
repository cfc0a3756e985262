"""A Ray head and a raylet on loopback, for all tests of a session that want one; started on first use."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from corral.agent import processes
from corral.runtime.cluster import ClusterFile, save_cluster
from corral.runtime.lineage import end_with_parent
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, save_pool
from corral.runtime.rayenv import NODE_LABEL, ray_environment
from tests.waiting import wait_until

NODE = "node-1"
# Imports of Python programs by the dozen: on a busy machine they take their time.
START_S = 90.0
TOKEN = "5f" * 32
_COMMON = (
    "--block",
    "--num-cpus=0",
    "--num-gpus=0",
    "--disable-usage-stats",
    "--include-log-monitor=false",
    "--node-ip-address=127.0.0.1",
    "--object-store-memory=78643200",
)


class RayGround:
    """The machine: its state directory, the GCS and the raylet to which bridges attach."""

    def __init__(self, root: Path) -> None:
        self.paths = StatePaths(root)
        self.gcs: subprocess.Popen[bytes] | None = None
        self.raylet: subprocess.Popen[bytes] | None = None
        for folder in (self.paths.logs, self.paths.nodes, self.paths.run, self.paths.ray_token.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.paths.ray_token.write_text(TOKEN)
        self.paths.ray_token.chmod(0o600)
        self.port = _free_port()
        save_cluster(self.paths.cluster, ClusterFile(gcs=f"127.0.0.1:{self.port}"))
        save_pool(
            self.paths.pool,
            PoolFile(host="127.0.0.1", fork_socket=str(self.paths.fork_socket), agents={}, role="head", engine="ray"),
        )

    def start(self) -> None:
        self.start_gcs()
        self.start_raylet()

    def start_gcs(self) -> None:
        self.gcs = self._ray(
            "gcs", "--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self.paths.ray_temp}/gcs"
        )
        wait_until(lambda: _listens(self.port), timeout_s=START_S, what="the GCS")

    def start_raylet(self) -> None:
        self.raylet = self._ray(
            "raylet",
            f"--address=127.0.0.1:{self.port}",
            f"--labels={NODE_LABEL}={NODE}",
            f"--temp-dir={self.paths.ray_temp}",
        )
        log = self.paths.logs / "raylet.log"
        wait_until(lambda: "Ray runtime started" in log.read_text(), timeout_s=START_S, what="the raylet")

    def _ray(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.paths.logs / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", *_COMMON, *words],
                env=ray_environment(self.paths),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: end_with_parent(signal.SIGTERM),  # noqa: PLW1509 - nothing else runs meanwhile
            )

    def processes(self, word: str) -> list[int]:
        """Return the pids of this ground's processes of Ray whose command line has the word."""
        mark = str(self.paths.ray_temp)
        return [
            pid
            for pid, line in _command_lines().items()
            if word in line and (mark in line or mark in _environment(pid))
        ]

    def clear(self) -> None:
        """Remove what a test left of nodes and jobs."""
        for folder in (self.paths.nodes, self.paths.jobs):
            shutil.rmtree(folder, ignore_errors=True)
        self.paths.nodes.mkdir()
        for log in self.paths.root.glob("agent-*.log"):
            log.unlink()

    def stop(self) -> None:
        for process in (self.raylet, self.gcs):
            if process is not None:
                end_session(process)


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it started."""
    tree = [found.pid for found in processes.descendants(process.pid)]
    for pid in (process.pid, *tree):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _command_lines() -> dict[int, str]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
    return found


def _environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""
