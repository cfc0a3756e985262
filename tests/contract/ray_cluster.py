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
from corral.runtime.lineage import end_with_parent
from corral.runtime.machines.cluster import ClusterFile, save_cluster
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, save_pool
from corral.runtime.ray.node import answers
from tests.waiting import wait_until

NODE = "node-1"
# Imports of Python programs by the dozen: on a busy machine they take their time.
START_S = 90.0
TOKEN = "5f" * 32


class RayGround:
    """The machine: its state directory, the GCS and the raylet to which bridges attach."""

    def __init__(self, root: Path) -> None:
        self.paths = StatePaths(root)
        self.gcs: subprocess.Popen[bytes] | None = None
        self.raylet: subprocess.Popen[bytes] | None = None
        for folder in (self.paths.logs, self.paths.nodes, self.paths.run, self.paths.gcs_store):
            folder.mkdir(parents=True, exist_ok=True)
        self.paths.ray_token.write_text(TOKEN)
        self.paths.ray_token.chmod(0o600)
        self.pool = PoolFile(
            host="127.0.0.1",
            fork_socket=str(self.paths.fork_socket),
            agents={},
            role="head",
            engine="ray",
            gcs_port=_free_port(),
        )
        self.gcs_address = f"127.0.0.1:{self.pool.gcs_port}"
        save_cluster(self.paths.cluster, ClusterFile(gcs=self.gcs_address, node=NODE))
        save_pool(self.paths.pool, self.pool)

    def start(self) -> None:
        self.start_gcs()
        wait_until(self.gcs_answers, timeout_s=START_S, what="the GCS")
        self.start_raylet()
        wait_until(self.raylet_is_up, timeout_s=START_S, what="the raylet")

    def start_gcs(self) -> None:
        self.gcs = self._part("gcs")

    def start_raylet(self) -> None:
        self.raylet = self._part("raylet")

    def gcs_answers(self) -> bool:
        return answers(self.gcs_address)

    def raylet_is_up(self) -> bool:
        return "Ray runtime started" in (self.paths.logs / "raylet.log").read_text()

    def stop_gcs(self) -> None:
        """Have the GCS answer no more."""
        os.kill(self.gcs_pid, signal.SIGSTOP)

    def kill_gcs(self) -> None:
        """Kill the GCS; what `ray start` began with it ends too."""
        os.kill(self.gcs_pid, signal.SIGKILL)
        assert self.gcs is not None
        self.gcs.wait(START_S)
        end_with_descendants(self.gcs)

    def kill_raylet(self) -> None:
        """Kill the raylet; its workers notice and end."""
        [raylet] = [pid for pid in self.ray_pids if program_of(pid) == "raylet"]
        os.kill(raylet, signal.SIGKILL)
        assert self.raylet is not None
        self.raylet.wait(START_S)

    @property
    def gcs_pid(self) -> int:
        assert self.gcs is not None
        [pid] = [found.pid for found in processes.descendants(self.gcs.pid) if program_of(found.pid) == "gcs_server"]
        return pid

    @property
    def relay_pids(self) -> list[int]:
        return [pid for pid in self.ray_pids if "RelayActor" in command_line(pid)]

    @property
    def ray_pids(self) -> list[int]:
        """Return the processes of this machine's raylet."""
        assert self.raylet is not None
        return [self.raylet.pid, *(found.pid for found in processes.descendants(self.raylet.pid))]

    def _part(self, name: str) -> subprocess.Popen[bytes]:
        """Start what the supervisor of a head starts."""
        with (self.paths.logs / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "corral.runtime.ray.node", name, str(self.paths.root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: end_with_parent(signal.SIGTERM),  # noqa: PLW1509 - the main thread outlives it
            )

    def clear(self) -> None:
        """Remove what a test left of nodes and jobs."""
        for folder in (self.paths.nodes, self.paths.jobs):
            shutil.rmtree(folder, ignore_errors=True)
        self.paths.nodes.mkdir()
        for log in (*self.paths.root.glob("agent-*.log"), self.paths.logs / "bridge.log"):
            log.unlink(missing_ok=True)

    def close(self) -> None:
        for process in (self.raylet, self.gcs):
            if process is not None:
                end_with_descendants(process)


def end_with_descendants(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it started, what it has left behind in its session included."""
    tree = {process.pid, *(found.pid for found in processes.descendants(process.pid))}
    tree |= {found.pid for found in processes.all_processes() if found.session in tree}
    for pid in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def program_of(pid: int) -> str:
    return Path(command_line(pid).split(" ", 1)[0]).name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
