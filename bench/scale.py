"""A pool of a thousand nodes on one machine: ``python -m bench.scale --nodes 1000 --json``.

The controller is the production shell and core over a journal in SQLite, with global rounds in their own process. The
nodes are production agent cores in a thread beside it; messages cross as frames. While all nodes send a heartbeat a
second, jobs are submitted at a steady rate; each runs for a while and ends.

Prints one JSON object. ``controller_cores``: CPU of the controller's process less that of the nodes' thread, a second.
``rss_mb``: the process at its largest, nodes included. ``placement_ms_p50`` and ``placement_ms_p99``: from a submission
to the command that launches it, the journal in between. ``heartbeats_per_s``: taken in by the controller.
``solver_cores``: CPU of the rounds' process. ``admitted`` and ``placed`` count jobs; ``heartbeat_late_s_max`` says how
late the nodes' own thread was at worst: on a busy machine it is late because of others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from collections.abc import Container
from pathlib import Path

from bench.progress import end_tidily_on_signals, say
from bench.scale_fleet import FleetEngine, node_specs
from corral.appmaster.core import AppMasterCore
from corral.control.config import ControlConfig
from corral.control.core import ControlCore
from corral.control.inputs import Submit
from corral.control.shell import ControlShell
from corral.model.ask import JobAsk
from corral.runtime.leading.clock import SteadyClock
from corral.runtime.leading.faults import NoFaults
from corral.runtime.solving.solver import SolverProcess
from corral.storage import SqliteStore

DEVICES = 8
SETTLE_S = 5.0
PLACED_S = 30.0
"""So long the last of what was submitted is waited for: ``placed`` is short of ``admitted`` by what was not."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MIX = (
    (0.8, JobAsk(argv=("true",), gpu_milli=1_000)),
    (0.9, JobAsk(argv=("true",), gpu_milli=8_000)),
    (1.0, JobAsk(argv=("true",), gpu_milli=4_000, num_nodes=2)),
)
"""What is submitted, by the share up to which it is: mostly single devices, some whole nodes, some gangs."""


class Load:
    """Submits jobs at a steady rate and notes when."""

    def __init__(self, shell: ControlShell, per_s: float) -> None:
        self.asked: dict[str, float] = {}
        self._shell = shell
        self._per_s = per_s
        self._open: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> None:
        """Submit for so long; return when all are answered."""
        begin = time.monotonic()
        for number in range(int(seconds * self._per_s)):
            await asyncio.sleep(max(0.0, begin + number / self._per_s - time.monotonic()))
            share = number * 0.618_034 % 1.0
            ask = next(ask for up_to, ask in MIX if share < up_to)
            task = asyncio.create_task(self._submit(ask))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        await asyncio.gather(*self._open)

    async def placed(self, launched: Container[str]) -> None:
        """Return when all that was submitted is launched, or after ``PLACED_S``."""
        for _ in range(int(PLACED_S / 0.05)):
            if all(job in launched for job in self.asked):
                return
            await asyncio.sleep(0.05)

    async def _submit(self, ask: JobAsk) -> None:
        asked = time.monotonic()
        answer = await self._shell.ask(Submit((ask,)))
        if not isinstance(answer, tuple):
            raise RuntimeError(f"a job was refused: {answer}")  # noqa: TRY004 - a refusal is a value
        self.asked[answer[0]] = asked


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of all do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1_000 * len(ordered)) // 1_000) - 1)]


def cpu_of(pid: int | None) -> float:
    """Return the CPU seconds that a process has used, 0 for none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


async def measure(nodes: int, seconds: float, per_s: float, task_s: float, directory: Path) -> dict[str, float | int]:
    """Run a pool and return its figures."""
    store = SqliteStore(directory / "corral.db")
    store.open()
    config = ControlConfig(leases=True)
    epoch, recovered = store.acquire_leadership(), store.recover()
    core = ControlCore(recovered, config, AppMasterCore, epoch)
    engine, solver = FleetEngine(node_specs(nodes, DEVICES), task_s), SolverProcess(config.scheduling)
    shell = ControlShell(core, store, engine, SteadyClock(core.book.state.at), NoFaults(), last_seq=0, solver=solver)
    running = asyncio.create_task(shell.run())
    await engine.start(shell.hear)
    await engine.joined.wait()
    say(f"{nodes} nodes are in contact")
    load = Load(shell, per_s)
    await load.run(SETTLE_S)
    known = len(load.asked)
    say(f"measuring for {seconds:g} s")
    begin, cpu, fleet = time.monotonic(), time.process_time(), engine.fleet.cpu_s
    beats, solving = engine.heard, cpu_of(solver.pid)
    await load.run(seconds)
    wall = time.monotonic() - begin
    cores = (time.process_time() - cpu - (engine.fleet.cpu_s - fleet)) / wall
    heard, solved = (engine.heard - beats) / wall, (cpu_of(solver.pid) - solving) / wall
    await load.placed(engine.launched)
    delays = [
        (engine.launched[job] - asked) * 1e3
        for job, asked in list(load.asked.items())[known:]
        if job in engine.launched
    ]
    shell.end()
    await running
    await engine.stop()
    await shell.close()
    store.close()
    return {
        "nodes": nodes,
        "controller_cores": round(cores, 3),
        "rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "placement_ms_p50": round(percentile(delays, 0.5), 1),
        "placement_ms_p99": round(percentile(delays, 0.99), 1),
        "heartbeats_per_s": round(heard, 1),
        "solver_cores": round(solved, 3),
        "admitted": len(load.asked) - known,
        "placed": len(delays),
        "heartbeat_late_s_max": round(engine.fleet.late_s_max, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure a controller of many nodes.")
    parser.add_argument("--json", action="store_true", help="accepted for likeness; the output is JSON anyway")
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure (default 60)")
    parser.add_argument("--per-s", type=float, default=50.0, help="submissions a second (default 50)")
    parser.add_argument("--task-s", type=float, default=20.0, help="how long each task runs (default 20)")
    options = parser.parse_args()
    end_tidily_on_signals()
    with tempfile.TemporaryDirectory(prefix="corral-scale-") as directory:
        figures = asyncio.run(measure(options.nodes, options.seconds, options.per_s, options.task_s, Path(directory)))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
