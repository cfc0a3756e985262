"""One incarnation of a task on a virtual machine: its processes, its shim, and what the disk says of it."""

from __future__ import annotations

import random
from typing import Protocol

from corral.agent.shim.lease import Act, LeaseWatch
from corral.agent.shim.spec import LeaseSpec
from corral.model.ids import TaskKey
from corral.model.job import Cause, TaskExit
from corral.model.messages import LaunchTask
from corral.sim.storm.clocks import HostClock
from corral.sim.storm.course import Course
from corral.sim.storm.gate import Gate

LEASE_EVERY_S = 1.0
LATE_S = 1.2
"""So long after the end of a lease a shim may have frozen its task: it looks up to a second late, and freezing takes
its time (``policy.fencing``)."""
FREEZE_MAX_S = 60.0
CHECKPOINT_MARGIN_S = 10.0


class Ground(Protocol):
    """What a run stands on: its machine."""

    clock: HostClock
    name: str

    @property
    def paused(self) -> bool:
        """Return whether the whole machine is stopped."""

    def noticed(self, run: Run) -> None:
        """Hear that something of a run changed that its agent would see."""

    def moved(self, run: Run) -> None:
        """Hear that a run is there, or has begun or ceased to make progress."""


class Work:
    """What a task does: run for so long, then exit with a code. The first ``failures`` incarnations exit with 1."""

    def __init__(self, argv: tuple[str, ...]) -> None:
        self.seconds = float(argv[1])
        self.failures = int(argv[2])
        self.stubborn = argv[3] == "stubborn"

    @staticmethod
    def argv(seconds: float, failures: int, *, stubborn: bool) -> tuple[str, ...]:
        """Return the command line that says it."""
        return ("work", f"{seconds:.3f}", str(failures), "stubborn" if stubborn else "obedient")

    def code(self, incarnation: int) -> int:
        """Return the exit code of an incarnation."""
        return 1 if incarnation <= self.failures else 0


class Run:
    """``alive``: there are processes. ``shim``: its shim lives. ``exit``: the record on the disk.

    ``going`` says that its processes make progress now: they live, and neither they nor the machine are stopped.
    """

    def __init__(self, course: Course, ground: Ground, command: LaunchTask, deadline: float | None) -> None:
        self.command = command
        self.task: TaskKey = command.task
        self.incarnation = command.incarnation
        self.work = Work(command.argv)
        self.deadline = deadline
        self.forked = False
        self.alive = False
        self.shim = False
        self.frozen = False
        self.going = False
        self.resumed_at = float("-inf")
        self.began_at: float | None = None
        self.began_boottime_s: float | None = None
        self.started_up = False
        self.exit: TaskExit | None = None
        self.told = False
        self.acknowledged = False
        self.stopping: Cause | None = None
        self.gate = Gate(course)
        self.shim_stops = 0
        self._course = course
        self._ground = ground
        self._kill_at = float("inf")
        self._left_s = ground.clock.true_s(self.work.seconds)
        self._since = 0.0
        self._turn = 0
        # Of its own: how late a shim is must not change what happens in the rest of a storm.
        self._late_s = random.Random(str(self)).uniform(0.0, LATE_S)  # noqa: S311 - a simulation
        self._lease: LeaseWatch | None = None
        if command.lease_s is not None:
            grace_s = command.checkpoint.grace_s if command.checkpoint is not None else 0.0
            self._lease = LeaseWatch(LeaseSpec("", grace_s + CHECKPOINT_MARGIN_S, FREEZE_MAX_S))

    def __str__(self) -> str:
        return f"{self.task}#{self.incarnation}"

    @property
    def exclusive(self) -> bool:
        """Return whether no other incarnation may run beside it."""
        return self.command.lease_s is not None

    @property
    def unguarded(self) -> bool:
        """Return whether processes run that no shim looks after."""
        return self.alive and (not self.shim or self.shim_stops > 0)

    # ---- life ------------------------------------------------------------------------------------------------------

    def fork(self) -> None:
        """The fork server makes the shim, and the shim the task."""
        self.forked = self.alive = self.shim = True
        self.began_at, self.began_boottime_s = self._ground.clock.wall(), self._ground.clock.boottime()
        self._course.note(self._ground.name, f"runs {self}")
        self._ground.moved(self)
        if self._lease is not None:
            # A lease that has run out on the way freezes the task before it has done anything.
            self._watch_lease()
        self.review()

    def review(self) -> None:
        """See whether it makes progress now, and when it will be done."""
        going = self.alive and not self.frozen and not self._ground.paused
        if going == self.going:
            return
        self._turn += 1
        self.going = going
        if going:
            self._since = self._course.now
            turn = self._turn
            self._course.after(self._left_s, lambda: self._done(turn))
        else:
            self._left_s -= self._course.now - self._since
        self._ground.moved(self)

    def _done(self, turn: int) -> None:
        if turn == self._turn and self.going:
            self._processes_end()
            code = self.work.code(self.incarnation)
            exit_ = TaskExit(Cause.EXITED, exit_code=code, started_at=self.began_at, ended_at=self._ground.clock.wall())
            self.gate.let(lambda: self._record(exit_))

    def _processes_end(self) -> None:
        self.alive = False
        self.review()

    def _record(self, exit_: TaskExit) -> None:
        """The shim writes down how it ended, and is gone."""
        if not self.shim:
            return
        if self.stopping is not None and not exit_.ok:
            exit_ = TaskExit(
                self.stopping, exit_code=exit_.exit_code, started_at=self.began_at, ended_at=exit_.ended_at
            )
        self.shim = False
        self.exit = exit_
        self.gate.shut()
        self._course.note(self._ground.name, f"{self} ends: {exit_.cause} {exit_.exit_code}")
        self._ground.noticed(self)

    # ---- what its shim does ----------------------------------------------------------------------------------------

    def ask_to_stop(self, cause: Cause, grace_s: float, saving_s: float) -> None:
        """The shim is told to stop the task."""
        self.gate.let(lambda: self._stop(cause, grace_s, saving_s))

    def _stop(self, cause: Cause, grace_s: float, saving_s: float) -> None:
        if not self.shim or self.exit is not None:
            return
        self.stopping = self.stopping or cause
        patience_s = grace_s + saving_s
        wish_s = patience_s if self.work.stubborn or self.frozen else min(patience_s, self._course.chance.uniform(0, 2))
        self._course.after(self._ground.clock.true_s(wish_s), lambda: self.gate.let(lambda: self._end(cause)))

    def _end(self, cause: Cause, message: str = "") -> None:
        if self.shim and self.exit is None:
            self._processes_end()
            now = self._ground.clock.wall()
            self._record(TaskExit(cause, message=message, started_at=self.began_at, ended_at=now))

    def _watch_lease(self) -> None:
        if not self.shim or self._lease is None or self.deadline is None:
            return
        now = self._ground.clock.boottime()
        act = self._lease.step(now, self.deadline)
        if act is Act.FREEZE:
            self.freeze("shim")
        elif act is Act.THAW:
            self.thaw("shim")
        elif act is Act.EXPIRE:
            self._end(Cause.LEASE_EXPIRED, "no contact for too long")
            return
        next_s = self._lease.next_s(now, self.deadline)
        wait_s = LEASE_EVERY_S if next_s is None or next_s > LEASE_EVERY_S else next_s + self._late_s
        self._course.after(self._ground.clock.true_s(wait_s) + 1e-6, lambda: self.gate.let(self._watch_lease))

    def freeze(self, who: str) -> None:
        """Stop all of its processes."""
        if self.alive and not self.frozen:
            self.frozen = True
            self._course.note(self._ground.name, f"{who} freezes {self}")
            self.review()

    def thaw(self, who: str) -> None:
        """Let its processes go on."""
        if self.alive and self.frozen:
            self.frozen = False
            self._course.note(self._ground.name, f"{who} thaws {self}")
            self.review()

    # ---- accidents -------------------------------------------------------------------------------------------------

    def kill_shim(self, *, leaves_processes: bool) -> None:
        """SIGKILL for the shim. Its child dies with it; what the child has started may go on."""
        if self.shim:
            self.shim = False
            self.gate.shut()
            self._course.note(self._ground.name, f"shim of {self} is killed")
            if not leaves_processes:
                self._processes_end()
            self._ground.noticed(self)

    def kill_rest(self) -> None:
        """The agent kills what a dead shim left."""
        self._processes_end()

    def vanish(self) -> None:
        """The machine is gone with everything on it; the disk stays."""
        self.shim = False
        self.forked = True
        self.gate.shut()
        self._processes_end()
