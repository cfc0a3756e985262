"""The demo's accidents and arithmetic: shares from facts by hand, a node that really dies, the small job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.devices.simulated import SimulatedProbe
from corral.model.events import DeviceFailed, Fact, GangPlaced, JobSubmitted, TaskEnded
from corral.model.ids import DeviceId, JobId, NodeId, TenantId
from corral.model.job import Cause, JobSpec, TaskExit, TaskState
from corral.model.resources import Demand, DeviceShare, GangShape, Health, Placement
from demo.faults import fail_device, kill_node
from demo.run import accepted
from demo.shares import measured_shares
from tests.unit.demo.conftest import Finish
from tests.waiting import wait_until

N = NodeId("n")


def submitted(job: str, tenant: str) -> Fact:
    spec = JobSpec(name="j", tenant=TenantId(tenant), shape=GangShape(1, Demand()), argv=("x",))
    return JobSubmitted(at=0.0, job=JobId(job), spec=spec)


def placed(job: str, at: float, *milli: int, incarnation: int = 1) -> Fact:
    places = tuple(Placement(rank, N, (DeviceShare(DeviceId("d"), m),), 1, 1) for rank, m in enumerate(milli))
    return GangPlaced(at=at, job=JobId(job), gang=0, incarnation=incarnation, placements=places)


def ended(job: str, at: float, rank: int = 0) -> Fact:
    exit_ = TaskExit(Cause.EXITED, exit_code=0)
    return TaskEnded(at=at, job=JobId(job), gang=0, incarnation=1, rank=rank, state=TaskState.SUCCEEDED, exit=exit_)


def test_shares_are_what_was_held_within_the_window() -> None:
    facts = [
        submitted("1", "a"),
        submitted("2", "b"),
        placed("1", 90.0, 1000, 500),
        placed("2", 110.0, 2000),
        ended("1", 105.0, rank=1),
        ended("1", 150.0),
        DeviceFailed(at=160.0, node=N, device=DeviceId("d"), reason="drill"),
        placed("1", 180.0, 1000, incarnation=2),
        ended("2", 300.0),
    ]
    # Of 4 devices from 100 to 200 s one is gone for the last 40 s. a: 50 s of one, 5 s of a half, 20 s of one again.
    capacity = 4 * 100.0 - 40.0
    assert measured_shares(facts, 100.0, 200.0, 4) == pytest.approx(
        {"a": (50.0 + 2.5 + 20.0) / capacity, "b": 2 * 90.0 / capacity}
    )
    assert measured_shares([], 100.0, 200.0, 4) == {}


GOOD: dict[str, Any] = {
    "shares": {"a": {"measured": 0.30, "due": 0.33}},
    "best_accuracy": 0.97,
    "failed_jobs": 0,
    "restarts": 2,
}


@pytest.mark.parametrize(
    "changes, fine",
    [
        ({}, True),
        ({"shares": {"a": {"measured": 0.27, "due": 0.33}}}, False),
        ({"best_accuracy": 0.96}, False),
        ({"failed_jobs": 1}, False),
        ({"restarts": 0}, False),
    ],
)
def test_the_demo_accepts_only_what_it_promises(changes: dict[str, Any], fine: bool) -> None:
    assert accepted(GOOD | changes) is fine


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


def test_a_dying_node_takes_its_agent_shims_and_tasks_along_and_nobody_else(
    tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    def sleeper() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        sleepers.append(process)
        return process

    agent, shim, task, ended_shim, reused = (sleeper() for _ in range(5))
    home = tmp_path / "nodes" / "n"
    for name in ("1.0.0.1", "2.0.0.1", "3.0.0.1", "4.0.0.1"):
        (home / "tasks" / name).mkdir(parents=True)

    def write(place: Path, **fields: Any) -> None:
        place.write_text(json.dumps(fields))

    write(home / "agent.pid", pid=agent.pid, start_ticks=start_ticks(agent.pid))
    write(
        home / "tasks" / "1.0.0.1" / "shim.json",
        pid=shim.pid,
        start_ticks=start_ticks(shim.pid),
        child_pid=task.pid,
        child_start_ticks=start_ticks(task.pid),
    )
    write(home / "tasks" / "2.0.0.1" / "shim.json", pid=ended_shim.pid, start_ticks=start_ticks(ended_shim.pid))
    write(home / "tasks" / "2.0.0.1" / "status.json")
    # A number that another process has by now.
    write(home / "tasks" / "3.0.0.1" / "shim.json", pid=reused.pid, start_ticks=start_ticks(reused.pid) - 1)
    (home / "tasks" / "4.0.0.1" / "shim.json").write_text("{")
    assert kill_node(tmp_path, "n") == 3
    for process in (agent, shim, task):
        assert process.wait(10.0) == -9
    assert (ended_shim.poll(), reused.poll()) == (None, None)
    assert kill_node(tmp_path, "n") == 0


def test_a_failed_device_is_seen_by_its_probe(tmp_path: Path) -> None:
    place = tmp_path / "nodes" / "n" / "devices.json"
    place.parent.mkdir(parents=True)
    probe = SimulatedProbe(place, "H100", 2, "n")
    devices = probe.discover()
    fail_device(tmp_path, "n", devices[1].uuid)

    def healths() -> list[Health]:
        return [state.health for state in probe.sample(())]

    wait_until(lambda: healths() == [Health.HEALTHY, Health.FAILED])


def test_the_small_job_names_digits_and_holds_its_device(finish: Finish) -> None:
    done = finish("filler", QUERIES=4, FOLD=1, HOLD_SECONDS="0.2")
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first.startswith("fold 1 of 10: ")
    # Nearest neighbours of scikit-learn's digits are right in 98.8 of 100 cases (leave-one-out).
    assert int(first.split()[4]) >= 3
    assert float(last.split()[3]) >= 0.2
    refused = finish("filler", QUERIES="many")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].endswith("is not a whole number")
