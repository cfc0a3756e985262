"""Faults that can be made from here: a replica through the API, all else on the machine of the state directory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from corral.agent import processes, taskdir
from corral.client import Client
from corral.model.errors import Conflict, FaultElsewhere, Forbidden
from corral.model.service_report import ReplicaReport, ServiceReport
from corral.runtime.fronting.frontfile import load_ready
from corral.runtime.paths import StatePaths

KINDS = ("replica", "node", "frontend", "controller")


class Fault(msgspec.Struct, frozen=True):
    """What will be broken, ready to be; ``back`` tells whether another one is there again.

    ``replicas`` are those that go with it, ``others`` jobs of somebody else.
    """

    what: str
    make: Callable[[], None]
    back: Callable[[], bool] = lambda: True
    replicas: tuple[ReplicaReport, ...] = ()
    others: tuple[str, ...] = ()


class _Identity(msgspec.Struct, frozen=True):
    pid: int
    start_ticks: int
    boot_id: str


def find_fault(kind: str, client: Client, paths: StatePaths, report: ServiceReport) -> Fault:
    """Return the fault of this kind. Raises ``FaultElsewhere``, and ``Conflict`` where nothing is there to break."""
    match kind:
        case "replica":
            return _replica(client, report)
        case "node":
            return _node(paths, report)
        case "frontend":
            return _front_end(paths)
        case _:
            return _controller(paths)


def _ready(report: ServiceReport) -> list[ReplicaReport]:
    return [one for one in report.replicas if one.ready]


def _replica(client: Client, report: ServiceReport) -> Fault:
    ready = _ready(report)
    if not ready:
        raise Conflict(f"service {report.name} has no replica that is ready")
    victim = ready[0]

    def kill() -> None:
        client.drill(report.name, "replica", str(victim.job))

    return Fault(f"replica {victim.ordinal} (job {victim.job}) on {victim.node}", kill, replicas=(victim,))


def _node(paths: StatePaths, report: ServiceReport) -> Fault:
    here = [one for one in _ready(report) if one.node is not None and _agent(paths, one.node) is not None]
    if not here:
        nodes = ", ".join(sorted({str(one.node) for one in _ready(report)})) or "no node"
        raise FaultElsewhere(
            f"service {report.name} runs on {nodes}, of which no agent runs below {paths.root}",
            hint="run it on the machine of the node",
        )
    node = str(here[0].node)
    mine = {str(one.job) for one in report.replicas}
    others = sorted({job for job in _jobs_on(paths.nodes / node) if job not in mine})

    def kill() -> None:
        agent = _agent(paths, node)
        if agent is not None:
            processes.send_signal(agent.pid, agent.start_ticks, signal.SIGKILL)
        for shim in _shims(paths.nodes / node):
            processes.kill_tree(shim.pid, shim.start_ticks)

    gone = tuple(one for one in here if one.node == node)
    return Fault(f"node {node}", kill, replicas=gone, others=tuple(others))


def _agent(paths: StatePaths, node: str) -> _Identity | None:
    try:
        found = msgspec.json.decode((paths.nodes / node / "agent.pid").read_bytes(), type=_Identity)
    except (OSError, msgspec.MsgspecError):
        return None
    living = found.boot_id == processes.boot_id() and processes.is_alive(found.pid, found.start_ticks)
    return found if living else None


def _live_tasks(node: Path) -> list[Path]:
    folders = sorted((node / "tasks").iterdir()) if (node / "tasks").is_dir() else []
    return [one for one in folders if (one / "shim.json").exists() and not (one / "status.json").exists()]


def _jobs_on(node: Path) -> list[str]:
    return [one.name.partition(".")[0] for one in _live_tasks(node)]


def _shims(node: Path) -> list[taskdir.ShimFile]:
    found = [taskdir.read_shim(one) for one in _live_tasks(node)]
    return [one for one in found if one is not None and one.boot_id == processes.boot_id()]


def _front_end(paths: StatePaths) -> Fault:
    ready = load_ready(paths)
    pid = None if ready is None else _of_corral(ready.pid, paths, "corral.runtime.fronting")
    if ready is None or pid is None:
        raise FaultElsewhere(
            f"no front end runs below {paths.root}", hint="run it on a front end: corral frontend lists them"
        )

    def kill() -> None:
        # All of it at once, as when the machine loses its power: what watches, and the proxies.
        for one in (pid, *_proxies(paths)):
            _kill(one)

    def back() -> bool:
        now = load_ready(paths)
        return now is not None and now.pid != pid

    return Fault(f"front end {ready.url} (pid {pid}) with its proxy", kill, back)


def _proxies(paths: StatePaths) -> list[int]:
    folder = os.fsencode(paths.front_folder)
    return [pid for pid, line in _command_lines() if b"haproxy" in line.partition(b"\0")[0] and folder in line]


def _controller(paths: StatePaths) -> Fault:
    pid = _daemon(paths)
    if _of_corral(pid, paths, "corral.runtime.daemon") is None:
        raise FaultElsewhere(f"no controller runs below {paths.root}", hint="run it on a head of the pool")
    return Fault(f"controller (pid {pid})", lambda: _kill(pid), lambda: _daemon(paths) not in (0, pid))


def _daemon(paths: StatePaths) -> int:
    try:
        return int(msgspec.json.decode(paths.daemon.read_bytes())["pid"])
    except (OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return 0


def _of_corral(pid: int, paths: StatePaths, module: str) -> int | None:
    """Return a process if it is what its file says: another one may have its number by now."""
    line = dict(_command_lines()).get(pid, b"")
    words = line.split(b"\0")
    return pid if module.encode() in line and os.fsencode(paths.root) in words else None


def _command_lines() -> list[tuple[int, bytes]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((int(entry.name), (entry / "cmdline").read_bytes()))
            except OSError:
                continue
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError:
        raise Forbidden(f"process {pid} belongs to another user") from None
