"""The checkers find what they are for: each planted violation is named, and what is allowed is not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from corral.model.events import (
    Fact,
    GangEnded,
    GangPlaced,
    JobCancelRequested,
    JobSubmitted,
    NodeJoined,
    TaskEnded,
    TenantSet,
)
from corral.model.ids import DeviceId, GangKey, JobId, NodeId, TaskKey, TenantId
from corral.model.job import Cause, JobSpec, JobState, TaskExit, TaskState
from corral.model.messages import LaunchTask
from corral.model.resources import Demand, DeviceShare, DeviceSpec, GangShape, NodeSpec, Placement
from corral.model.tenant import Quota, Tenant
from corral.ports.store import Batch
from corral.sim.storm.checkers import PAUSE_GRACE_S, JournalChecker, MachineChecker
from corral.sim.storm.clocks import HostClock
from corral.sim.storm.course import Course
from corral.sim.storm.machine import Machine
from corral.sim.storm.network import Network
from corral.sim.storm.relay import Relay
from corral.sim.storm.run import Run, Work

GPU = DeviceId("n1-gpu0")
KEY = TaskKey(JobId("1"), 0, 0)


def spec(name: str) -> NodeSpec:
    devices = (DeviceSpec(DeviceId(f"{name}-gpu0"), "H100", "simulated", 81_559, 0),)
    return NodeSpec(NodeId(name), name, f"10.0.0.{name[1:]}", 8_000, 64_000, devices, incarnation="boot-1")


def place(rank: int = 0, milli: int = 1_000, port: int | None = None, node: str = "n1") -> Placement:
    return Placement(rank, NodeId(node), (DeviceShare(DeviceId(f"{node}-gpu0"), milli),), 1_000, 100, port)


def submitted(job: str, tenant: str = "default", key: str | None = None, ranks: int = 1) -> JobSubmitted:
    shape = GangShape(ranks, Demand(1_000))
    return JobSubmitted(
        at=1.0, job=JobId(job), spec=JobSpec("x", TenantId(tenant), shape, argv=("x",)), user="me", idempotency_key=key
    )


def placed(job: str, incarnation: int = 1, *placements: Placement) -> GangPlaced:
    return GangPlaced(at=1.0, job=JobId(job), gang=0, incarnation=incarnation, placements=placements or (place(),))


def journal(*facts: Fact, runs: dict[tuple[TaskKey, int], Run] | None = None) -> JournalChecker:
    checker = JournalChecker(runs if runs is not None else {})
    checker.appended(1, Batch((NodeJoined(at=1.0, spec=spec("n1")), NodeJoined(at=1.0, spec=spec("n2")), *facts)))
    return checker


LIMITED = TenantSet(at=1.0, tenant=Tenant(TenantId("small"), limit=Quota(gpu_milli=500)), by="me")
ENDED = TaskEnded(
    at=1.0, job=JobId("1"), gang=0, incarnation=1, rank=0, state=TaskState.SUCCEEDED, exit=TaskExit(Cause.EXITED, 0)
)


@pytest.mark.parametrize(
    "facts,words",
    [
        ((submitted("1"), submitted("2"), placed("1"), placed("2")), "a device is leased twice"),
        ((submitted("1"), placed("1", 2)), "incarnation 2 of 1.0 after 0"),
        ((LIMITED, submitted("1", "small"), placed("1")), "small holds 1000 milli-GPUs of 500"),
        ((submitted("1", key="k"), submitted("2", key="k")), "k was submitted twice"),
        ((submitted("1"), replace(placed("1"), at=0.5)), "time runs back"),
        ((submitted("1"), placed("1"), ENDED), "1.0.0#1 ended, says the journal, and never ran"),
        (
            (
                submitted("1"),
                GangEnded(at=1.0, job=JobId("1"), gang=0, incarnation=0, state=JobState.CANCELLED, reason=""),
            ),
            "1.0 is cancelled and nobody asked for it",
        ),
    ],
)
def test_a_journal_that_must_not_be_is_refused(facts: tuple[Fact, ...], words: str) -> None:
    with pytest.raises(AssertionError) as caught:
        journal(*facts)
    assert words in str(caught.value)


def test_ports_are_leased_once_per_address() -> None:
    one, two = placed("1", 1, place(0, 500, port=20_000)), placed("2", 1, place(0, 500, port=20_000))
    with pytest.raises(AssertionError, match="is leased twice"):
        journal(submitted("1"), submitted("2"), one, two)
    elsewhere = placed("2", 1, place(0, 500, port=20_000, node="n2"))
    assert journal(submitted("1"), submitted("2"), one, elsewhere).placed == 2


def test_a_job_that_was_acknowledged_and_is_not_there_is_lost() -> None:
    checker = journal(submitted("1"))
    checker.assert_known(JobId("1"))
    with pytest.raises(AssertionError, match="job 2 was acknowledged and is lost"):
        checker.assert_known(JobId("2"))


# ---- machines -------------------------------------------------------------------------------------------------------


def launch(node: str, incarnation: int, *, lease_s: float | None, key: TaskKey = KEY) -> LaunchTask:
    names = ("script", "setup", "workdir", "max_duration_s", "checkpoint", "array_index")
    unused: dict[str, Any] = dict.fromkeys(names)
    return LaunchTask(
        node=NodeId(node),
        epoch=1,
        task=key,
        incarnation=incarnation,
        placement=place(node=node),
        tenant="default",
        name="x",
        is_gang=False,
        peers=(),
        master_port=0,
        argv=Work.argv(100.0, 0, stubborn=False),
        envs={},
        file_mounts={},
        grace_s=1.0,
        lease_s=lease_s,
        **unused,
    )


class Yard:
    """Two machines without agents, and what the checker thinks of what runs on them."""

    def __init__(self) -> None:
        self.course = Course(1)
        self.checker = MachineChecker(self.course)
        network = Network(self.course)
        self.machines = {
            name: Machine(
                self.course,
                spec(name),
                HostClock(self.course, rate=1.0, boot_s=0.0, ahead_s=0.0),
                Relay(self.course, network, NodeId(name), strict=True),
                self.checker.moved,
            )
            for name in ("n1", "n2")
        }

    def run(self, node: str, incarnation: int, lease_s: float | None = 20.0, key: TaskKey = KEY) -> Run:
        machine = self.machines[node]
        run = Run(self.course, machine, launch(node, incarnation, lease_s=lease_s, key=key), 1e9)
        machine.runs[key, incarnation] = run
        run.fork()
        return run

    def until(self, now: float) -> None:
        while self.course.step(now):
            self.checker.raise_failures()
        self.checker.raise_failures()


def test_two_incarnations_of_an_exclusive_task_at_once_are_found() -> None:
    yard = Yard()
    yard.run("n1", 1)
    yard.run("n2", 2)
    with pytest.raises(AssertionError, match=r"1\.0\.0#[12] and 1\.0\.0#[12] run at once, on n[12] and n[12]"):
        yard.until(1.0)


def test_ranks_of_two_incarnations_of_a_gang_at_once_are_found_too() -> None:
    yard = Yard()
    yard.run("n1", 1)
    yard.run("n2", 2, key=TaskKey(JobId("1"), 0, 1))
    with pytest.raises(AssertionError, match="run at once"):
        yard.until(1.0)


def test_without_fencing_or_frozen_they_may() -> None:
    yard = Yard()
    yard.run("n1", 1, lease_s=None)
    yard.run("n2", 2, lease_s=None)
    other = TaskKey(JobId("2"), 0, 0)
    yard.machines["n1"].runs.clear()
    yard.machines["n2"].runs.clear()
    yard.run("n1", 1, key=other).freeze("test")
    yard.run("n2", 2, key=other)
    yard.until(1.0)
    assert sorted(yard.checker.all_going()) == ["1.0.0#1", "1.0.0#2", "2.0.0#2"]


@pytest.mark.parametrize("late_s,found", [(0.9, False), (1.2, True)])
def test_after_a_pause_of_its_machine_a_task_has_a_second(late_s: float, found: bool) -> None:
    yard = Yard()
    old = yard.run("n1", 1)
    yard.machines["n1"].pause()
    yard.run("n2", 2)
    yard.until(10.0)
    yard.machines["n1"].unpause()
    yard.course.after(late_s, lambda: old.freeze("shim"))
    if found:
        with pytest.raises(AssertionError, match="run at once"):
            yard.until(20.0)
    else:
        yard.until(20.0)
        assert yard.checker.overlaps == 1
    assert 1.0 < PAUSE_GRACE_S < 1.2


def test_a_task_that_is_stopped_for_good_without_a_word_in_the_journal_is_found() -> None:
    yard = Yard()
    run = yard.run("n1", 1)
    checker = journal(submitted("1"), placed("1"))
    run.stopping = Cause.PREEMPTED
    checker.check_stopped(run)
    run.stopping = Cause.CANCELLED
    with pytest.raises(AssertionError, match="#1 is stopped and nobody asked for it"):
        checker.check_stopped(run)
    checker.appended(1, Batch((JobCancelRequested(at=1.0, job=JobId("1"), by="me"),)))
    checker.check_stopped(run)


def test_an_incarnation_that_runs_again_elsewhere_is_found() -> None:
    yard = Yard()
    yard.run("n1", 1).freeze("test")
    yard.run("n2", 1)
    with pytest.raises(AssertionError, match="runs on n2 and has run elsewhere"):
        yard.until(1.0)


def test_a_device_that_carries_more_than_it_has_is_found() -> None:
    yard = Yard()
    yard.run("n1", 1)
    yard.run("n1", 1, key=TaskKey(JobId("2"), 0, 0))
    with pytest.raises(AssertionError, match="n1-gpu0 carries more than it has"):
        yard.until(1.0)
    assert GangKey(JobId("1"), 0) == KEY.gang_key
