"""How many no-op tasks a fork server and its shims start and end per second: ``python -m bench.shim``.

Prints one JSON object: ``noop_tasks_per_s``, ``launch_ms_median`` (request to answer), ``task_ms_median`` (request to
recorded end, flushed to disk), and, where a control group can be made to count it, ``cpu_ms_per_task`` of fork server,
shim and program together.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

from corral.agent.cgroup import probe
from corral.agent.shim.client import ForkClient, start
from corral.agent.shim.handle import TaskHandle
from corral.agent.shim.task_cgroup import remove_group


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--cgroups", action="store_true", help="give each task a memory limit and a freezer")
    parser.add_argument("--json", action="store_true", help="accepted for likeness; the output is JSON anyway")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as directory:
        print(json.dumps(measure(Path(directory), options.tasks, options.in_flight, cgroups=options.cgroups)))


def measure(directory: Path, tasks: int, in_flight: int, *, cgroups: bool) -> dict[str, float | int | None]:
    """Start ``tasks`` no-ops, ``in_flight`` at a time, and return the figures."""
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind(str(directory / "n.sock"))
    heard.settimeout(30)
    handles = [prepare(directory, number, cgroups=cgroups) for number in range(tasks)]
    server = start(directory / "f.sock")
    meter = CpuMeter(server.pid)
    asked: dict[str, float] = {}
    launch_s, task_s = [], []
    try:
        with ForkClient(directory / "f.sock") as client:
            began = time.perf_counter()
            waiting = list(reversed(handles))
            while waiting or asked:
                while waiting and len(asked) < in_flight:
                    handle = waiting.pop()
                    asked[handle.directory.name] = time.perf_counter()
                    reply = client.launch(handle.directory)
                    launch_s.append(time.perf_counter() - asked[handle.directory.name])
                    if reply.pid is None:
                        raise SystemExit(f"{handle.directory.name}: {reply.message}")
                event = json.loads(heard.recv(1 << 16))
                if event["event"] == "exited":
                    task_s.append(time.perf_counter() - asked.pop(f"{event['task']}.{event['incarnation']}"))
            took_s = time.perf_counter() - began
            client.stop()
    finally:
        server.wait()
        heard.close()
    return {
        "tasks": tasks,
        "in_flight": in_flight,
        "noop_tasks_per_s": round(tasks / took_s, 1),
        "launch_ms_median": round(1000 * statistics.median(launch_s), 2),
        "task_ms_median": round(1000 * statistics.median(task_s), 2),
        "cpu_ms_per_task": meter.per_task_ms(tasks),
    }


def prepare(directory: Path, number: int, *, cgroups: bool) -> TaskHandle:
    """Write the specification of one no-op task."""
    handle = TaskHandle(directory / "tasks" / f"{number}.0.0.1")
    spec: dict[str, object] = {
        "task": f"{number}.0.0",
        "incarnation": 1,
        "argv": ["/bin/true"],
        "env": {"PATH": "/usr/bin:/bin"},
        "cwd": str(directory),
        "notify": str(directory / "n.sock"),
    }
    if cgroups:
        spec["memory_mib"] = 512
        spec["cgroup"] = probe().for_task(f"{number}.0.0.1", str(handle.directory), memory=True, freezer=True)
    handle.write_spec(spec)
    return handle


class CpuMeter:
    """Counts the CPU time of a process and all that it forks, by a version 2 control group (they all have cpu.stat)."""

    def __init__(self, pid: int) -> None:
        place = probe().controllers.get("freezer")
        self._group = (
            None if place is None or place.version != 2 else Path(place.parent) / f"corral-bench-{os.getpid()}"
        )
        if self._group is not None:
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(pid))

    def per_task_ms(self, tasks: int) -> float | None:
        """Return the CPU milliseconds per task and forget the group."""
        if self._group is None:
            return None
        words = (self._group / "cpu.stat").read_text().split()
        # The last shims say that they have ended a moment before they have.
        while not remove_group(str(self._group)):
            time.sleep(0.001)
        return round(int(words[words.index("usage_usec") + 1]) / 1000 / tasks, 3)


if __name__ == "__main__":
    main()
