"""A real pool of a test: its own state directory, started and stopped by the product, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from bench.processes import carriers, kill_carriers
from corral.client import Client
from corral.client.handle import JobHandle
from corral.devices.simulated import edit_state
from corral.model.errors import Conflict, CorralError
from corral.model.job import Task, TaskState
from corral.model.report import JobSummary
from corral.runtime.options import PoolInfo, PoolOptions, StopReport
from corral.runtime.paths import StatePaths
from corral.runtime.starting.launcher import running_supervisor, start_pool
from corral.runtime.starting.stopping import stop_pool
from tests.waiting import wait_until

END_S = 30.0
"""How long a quick job may take on a busy machine."""


class LivePool:
    """One state directory. ``up`` and ``down`` may be called as often as a test likes."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.paths = StatePaths(state_dir)
        self.client = Client(state_dir=state_dir)

    def up(self, *, nodes: int = 2, gpus: int = 2, **changes: Any) -> PoolInfo:
        shape: dict[str, Any] = {"nodes": nodes, "gpus_per_node": gpus, "simulated": "h100"}
        return start_pool(PoolOptions(state_dir=self.state_dir, **({"port": 0} | shape | changes)))

    def down(self, *, force: bool = False, leave_tasks: bool = False) -> StopReport:
        return stop_pool(self.state_dir, force=force, leave_tasks=leave_tasks)

    def end(self) -> None:
        """Stop whatever still runs, the gentle way first."""
        with contextlib.suppress(CorralError):
            self.down(force=True)
        self.client.close()
        kill_carriers(self.state_dir)

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def submit(self, run: str | list[str], **fields: Any) -> JobHandle:
        fields.setdefault("workdir", None)
        return self.client.submit(run=run, **fields)

    def result(self, job: JobHandle) -> JobSummary:
        """Return a job that has to end soon."""
        found = job.wait(END_S)
        assert found.state.ended, f"job {job.id} is still {found.state}: {job.why().verdict}"
        return found

    def cancel_all(self) -> None:
        """End what a test left."""
        left = [JobHandle(self.client, job.id, job.name) for job in self.client.jobs(limit=1_000).jobs]
        for job in left:
            with contextlib.suppress(Conflict):
                job.cancel()
        for job in left:
            self.result(job)

    def log(self, job: JobHandle, *, element: int | None = None, rank: int | None = None) -> bytes:
        return b"".join(chunk.data for chunk in job.logs(element=element, rank=rank))

    def output(self, run: str | list[str], **fields: Any) -> str:
        """Run a job that has to succeed and return what it printed."""
        job = self.submit(run, **fields)
        found = self.result(job)
        assert found.exit_code == 0, f"{found.message}\n{self.log(job).decode(errors='replace')}"
        return self.log(job).decode()

    def started(self, job: JobHandle, *, gang: int = 0, rank: int = 0, incarnation: int = 1) -> Task:
        """Wait until a task's process runs, in this or a later incarnation, and the pool knows."""

        def look() -> Task | None:
            found = job.details().gangs[gang]
            task = found.tasks[rank]
            assert not found.state.ended, f"job {job.id} has ended as {found.state}"
            return task if found.incarnation >= incarnation and task.state is TaskState.RUNNING else None

        found = wait_until(look, END_S, 0.02, what=f"job {job.id} to run as incarnation {incarnation}")
        assert found is not None
        return found

    def said(self, job: JobHandle, word: bytes, **where: Any) -> bytes:
        """Wait until a job has printed something and return its log."""
        wait_until(lambda: word in self.log(job, **where), END_S, 0.02, what=f"job {job.id} to print {word!r}")
        return self.log(job, **where)

    # ---- processes -------------------------------------------------------------------------------------------------

    def task_dir(self, job: JobHandle, *, gang: int = 0, rank: int = 0, incarnation: int = 1) -> Path:
        (found,) = self.paths.nodes.glob(f"*/tasks/{job.id}.{gang}.{rank}.{incarnation}")
        return found

    def shim(self, job: JobHandle, **which: int) -> dict[str, Any]:
        """Return the pids of a running task: ``pid`` of the shim, ``child_pid`` of the user's process."""
        self.started(job, **which)
        return json.loads((self.task_dir(job, **which) / "shim.json").read_text())

    def agent(self, node: str) -> int:
        return int(json.loads((self.paths.nodes / node / "agent.pid").read_text())["pid"])

    def daemon(self) -> int:
        return int(json.loads(self.paths.daemon.read_text())["pid"])

    def fork_server(self) -> int:
        return self._only(b"corral.agent.forkserver")

    def supervisor(self) -> int:
        return running_supervisor(self.paths) or 0

    def _only(self, word: bytes) -> int:
        """Return the process of this pool whose command names a module. Shims look like the fork server's children."""
        supervisor = self.supervisor()
        (found,) = [pid for pid in carriers(self.state_dir) if word in command_of(pid) and parent_of(pid) == supervisor]
        return found

    def processes(self) -> list[int]:
        return carriers(self.state_dir)

    def nothing_left(self) -> None:
        """Wait until no process of this pool is left: `down` returns in the last moment of its supervisor."""
        wait_until(lambda: not self.processes(), what="everything to end")

    def fail_device(self, node: str, uuid: str, **changes: Any) -> None:
        """Let a simulated device say something; without changes, mend it."""
        edit_state(self.paths.nodes / node / "devices.json", uuid, **changes)


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parent_of(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that nobody has waited for yet does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def kill(pid: int) -> None:
    """SIGKILL a process and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), what=f"process {pid} to die")


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
