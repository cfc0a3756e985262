"""Ray's processes on one machine: the GCS of a head, and the raylet that every machine has.

``python -m corral.runtime.ray.node gcs|raylet STATE_DIR``, a child of the supervisor. It ends when Ray's processes end,
and is started again by the supervisor: so every start finds out anew where the GCS is. While the GCS is away, a raylet
lives on; this process asks the heads meanwhile whether there is another one now, and if so ends the raylet.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from corral.model.errors import CorralError, StateUnusable
from corral.runtime.lineage import end_with_parent
from corral.runtime.machines.cluster import load_cluster
from corral.runtime.machines.rejoining import REFUSALS, rejoin
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, load_pool
from corral.runtime.ray.environment import NODE_LABEL, ray_environment

OBJECT_STORE_BYTES = 80 << 20
"""Nothing travels through Ray's object store; this is little more than the least that Ray takes."""

RAYLET_PORTS = ("node-manager-port", "object-manager-port", "runtime-env-agent-port", "dashboard-agent-listen-port")
WORKER_PORTS = 24
PORTS = len(RAYLET_PORTS) + WORKER_PORTS
"""How many ports a raylet has when they are fixed."""

CONNECT_S = 2.0
LOOK_S = 2.0
AGAIN_S = 0.5
REFUSED_S = 2.0
REFRESH_S = 30.0
STOP_S = 3.0
log = logging.getLogger("corral.raynode")


def ray_command() -> list[str]:
    """Return how Ray's own command is started with this Python."""
    return [sys.executable, "-P", "-c", "from ray.scripts.scripts import main; main()", "start", "--block"]


def gcs_command(pool: PoolFile, paths: StatePaths) -> list[str]:
    """Return the command of the GCS; with it come a raylet without resources and Ray's own helpers."""
    return [
        *ray_command(),
        "--head",
        f"--port={pool.gcs_port}",
        "--include-dashboard=false",
        f"--temp-dir={paths.gcs_temp}",
        *_common(pool),
    ]


def raylet_command(pool: PoolFile, paths: StatePaths, gcs: str, node: str) -> list[str]:
    """Return the command of this machine's raylet. A head that runs no jobs has no ``node``."""
    return [
        *ray_command(),
        f"--address={gcs}",
        *([f"--labels={NODE_LABEL}={node}"] if node else []),
        f"--temp-dir={paths.ray_temp}",
        *ports(pool.ray_port_first),
        *_common(pool),
    ]


def ports(first: int | None) -> list[str]:
    """Return the options that fix a raylet's ports from ``first`` on; none of it when any will do."""
    if first is None:
        return []
    fixed = [f"--{name}={first + index}" for index, name in enumerate(RAYLET_PORTS)]
    lowest = first + len(RAYLET_PORTS)
    return [*fixed, f"--min-worker-port={lowest}", f"--max-worker-port={lowest + WORKER_PORTS - 1}"]


def _common(pool: PoolFile) -> list[str]:
    return [
        f"--node-ip-address={pool.address}",
        "--num-cpus=0",
        "--num-gpus=0",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--include-log-monitor=false",
        "--disable-usage-stats",
    ]


class RayProcess:
    """One ``ray start --block`` and this process around it."""

    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths
        self._pool = load_pool(paths.pool)
        self._asked_to_end = False
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_at = float("-inf")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)

    def _end(self, _number: int, _frame: object) -> None:
        self._asked_to_end = True
        if self._process is not None:
            self._process.terminate()

    def run_gcs(self) -> int:
        """Run the GCS, if it is to be on this machine, until it ends or is to be elsewhere; return the exit code."""
        own = f"{bracketed(self._pool.address)}:{self._pool.gcs_port}"
        while self._gcs_place() != own:
            if self._asked_to_end:
                return 0
            time.sleep(AGAIN_S)
        self._paths.gcs_store.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Ray takes the raylet beside it for a cluster that runs where the last start says, and would not start another.
        (self._paths.gcs_temp / "ray_current_cluster").unlink(missing_ok=True)
        process = self._spawn(gcs_command(self._pool, self._paths), self._paths.gcs_temp)
        return self._watch(process, own)

    def run_raylet(self) -> int:
        """Run the raylet until it ends, or until the GCS is another one; return the exit code."""
        gcs = self._reachable_gcs()
        if gcs is None:
            return 0
        node = load_cluster(self._paths.cluster).node
        process = self._spawn(raylet_command(self._pool, self._paths, gcs, node), self._paths.ray_temp)
        return self._watch(process, gcs)

    def _spawn(self, command: list[str], temp: Path) -> subprocess.Popen[bytes]:
        temp.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            command,
            env=ray_environment(self._paths),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            preexec_fn=end_with_parent,  # noqa: PLW1509 - this process has one thread
        )
        return self._process

    def _watch(self, process: subprocess.Popen[bytes], gcs: str) -> int:
        self._asked_at = time.monotonic()
        while not self._asked_to_end and not self._moved(gcs):
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(LOOK_S)
                end_session(process.pid)
                return code
        return _stop(process)

    def _moved(self, gcs: str) -> bool:
        """Return whether the pool's GCS is another one than that to which the raylet belongs."""
        # Heads that came later are known in time: before the one that is known is lost.
        if not answers(gcs) or time.monotonic() - self._asked_at > REFRESH_S:
            self._ask()
        now = self._gcs_place()
        if now and now != gcs:
            log.warning("the GCS is to be at %s now, no more at %s", now, gcs)
            return True
        return False

    def _gcs_place(self) -> str:
        """Return where the GCS is to be, empty while that is not known."""
        try:
            return load_cluster(self._paths.cluster).gcs
        except StateUnusable:
            return ""

    def _reachable_gcs(self) -> str | None:
        """Return the address of a GCS that answers, however long it takes; ``None`` when asked to end.

        A machine whose name another one has got meanwhile, or whose token was revoked, is not to come back with what it
        knew: where a head answers, it has to let this one in.
        """
        silent = False
        while not self._asked_to_end:
            if not self._ask():
                time.sleep(REFUSED_S)
                continue
            gcs = self._gcs_place()
            if gcs and answers(gcs):
                return gcs
            if not silent:
                log.warning("no GCS answers at %s; asking the heads", gcs or "any address yet")
                silent = True
            time.sleep(AGAIN_S)
        return None

    def _ask(self) -> bool:
        """Ask the heads where the GCS is; False when they refuse this node. Who is a head knows it from its daemon."""
        self._asked_at = time.monotonic()
        if self._pool.role != "node":
            return True
        try:
            rejoin(self._paths)
        except REFUSALS as error:
            log.error("this machine is no node of the pool any more: %s", error)  # noqa: TRY400 - expected
            return False
        except (CorralError, OSError) as error:
            # A disk that is full is no reason to end the raylet.
            log.info("no head tells where the GCS is: %s", error)
        return True


def bracketed(host: str) -> str:
    """Return a host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def answers(address: str) -> bool:
    """Return whether somebody accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
            return True
    except (OSError, ValueError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> int:
    """End Ray's processes: its own command does so on SIGTERM; what is left of its session is killed."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    end_session(process.pid)
    return 0


def end_session(session: int) -> None:
    """Kill what is left of a session whose first process has ended: Ray's helpers outlive a raylet that died.

    Its number is not given to another as long as one of them lives.
    """
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            process = os.pidfd_open(int(place.name))
            try:
                # Read when it is held: then it is not another one's.
                if session_of(place) == session:
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)


def session_of(process: Path) -> int:
    """Return the session of a process, by its folder in ``/proc`` (proc_pid_stat(5)). Raises ``OSError``."""
    # The second field, in parentheses, may hold anything.
    return int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[3])


def main(arguments: list[str]) -> int:
    """Entry point: ``python -m corral.runtime.ray.node gcs|raylet STATE_DIR``."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    what, root = arguments
    try:
        process = RayProcess(StatePaths(Path(root)))
        return process.run_gcs() if what == "gcs" else process.run_raylet()
    except (CorralError, OSError, json.JSONDecodeError) as error:
        log.error("%s", error)  # noqa: TRY400 - expected: one line, no traceback
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
