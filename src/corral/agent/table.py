"""The tasks of a node as its agent's core sees them: every incarnation until its end is acknowledged."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from corral.agent.inputs import KnownTask
from corral.model.events import TaskEnded, TaskStarted
from corral.model.ids import DeviceId, TaskKey
from corral.model.job import TaskExit, end_state
from corral.model.messages import LaunchTask, TaskPhase, TaskReport
from corral.model.service import ServingTask

NEVER = -1


class Entry(msgspec.Struct):
    """One incarnation of a task. ``waiting`` is its command while an older incarnation still runs here.

    ``stopping`` was told to end, ``condemned`` to do so at once. ``serving`` is set of a replica.
    """

    task: TaskKey
    incarnation: int
    phase: TaskPhase = TaskPhase.STARTING
    pid: int | None = None
    started_at: float | None = None
    exit: TaskExit | None = None
    devices: tuple[DeviceId, ...] = ()
    lease_s: float | None = None
    grace_s: float = 10.0
    waiting: LaunchTask | None = None
    device_failed: bool = False
    stopping: bool = False
    condemned: bool = False
    serving: ServingTask | None = None

    @property
    def ended(self) -> bool:
        """Return whether it is over."""
        return self.phase is TaskPhase.ENDED

    @property
    def live(self) -> bool:
        """Return whether it may have processes."""
        return self.phase is not TaskPhase.ENDED and self.waiting is None

    def report(self) -> TaskReport:
        """Return what the controller is told about it."""
        return TaskReport(self.task, self.incarnation, self.phase, self.pid, self.started_at, self.exit)

    def began(self, now: float) -> TaskStarted:
        """Return the fact that its program runs."""
        task = self.task
        return TaskStarted(
            at=now, job=task.job, gang=task.gang, incarnation=self.incarnation, rank=task.rank, pid=self.pid
        )

    def finished(self, exit_: TaskExit, now: float) -> TaskEnded:
        """Return the fact that it ended."""
        task = self.task
        return TaskEnded(
            at=exit_.ended_at if exit_.ended_at is not None else now,
            job=task.job,
            gang=task.gang,
            incarnation=self.incarnation,
            rank=task.rank,
            state=end_state(exit_),
            exit=exit_,
        )

    @classmethod
    def of(cls, command: LaunchTask) -> Entry:
        """Return the entry of a task that is about to be launched."""
        return cls(
            command.task,
            command.incarnation,
            devices=tuple(share.uuid for share in command.placement.devices),
            lease_s=command.lease_s,
            grace_s=command.grace_s,
            serving=command.serving if command.task.rank == 0 else None,
        )

    @classmethod
    def known(cls, task: KnownTask) -> Entry:
        """Return the entry of a task that an earlier run of the agent left."""
        return cls(
            task.task,
            task.incarnation,
            task.phase,
            task.pid,
            task.started_at,
            task.exit,
            task.devices,
            task.lease_s,
            task.grace_s,
            serving=task.serving,
        )


class TaskTable:
    """Entries by task and incarnation, and the highest incarnation that was ever seen of each task."""

    def __init__(self) -> None:
        self._entries: dict[TaskKey, dict[int, Entry]] = {}
        self._highest: dict[TaskKey, int] = {}

    def __iter__(self) -> Iterator[Entry]:
        for by_incarnation in self._entries.values():
            yield from by_incarnation.values()

    def find(self, task: TaskKey, incarnation: int) -> Entry | None:
        """Return one incarnation."""
        by_incarnation = self._entries.get(task)
        return None if by_incarnation is None else by_incarnation.get(incarnation)

    def of_task(self, task: TaskKey) -> list[Entry]:
        """Return all incarnations of a task that are not acknowledged."""
        return list(self._entries.get(task, {}).values())

    def in_the_way(self, entry: Entry) -> list[Entry]:
        """Return what has to be over before a task is launched.

        Those are the other incarnations of itself, and what was told to end at once on its devices: a node that comes
        back has tasks that were given up, and they hold their devices' memory until they are gone.
        """
        devices = set(entry.devices)
        return [
            other
            for other in self
            if other is not entry
            and not other.ended
            and (other.task == entry.task or (other.condemned and not devices.isdisjoint(other.devices)))
        ]

    def highest(self, task: TaskKey) -> int:
        """Return the highest incarnation seen, ``NEVER`` when there was none."""
        return self._highest.get(task, NEVER)

    def saw(self, task: TaskKey, incarnation: int) -> None:
        """Remember an incarnation: no lower one is ever launched."""
        self._highest[task] = max(incarnation, self.highest(task))

    def add(self, entry: Entry) -> None:
        """Put an incarnation in."""
        self._entries.setdefault(entry.task, {})[entry.incarnation] = entry
        self.saw(entry.task, entry.incarnation)

    def remove(self, entry: Entry) -> None:
        """Take an acknowledged incarnation out; that it was seen stays known."""
        by_incarnation = self._entries[entry.task]
        del by_incarnation[entry.incarnation]
        if not by_incarnation:
            del self._entries[entry.task]

    def forget(self, task: TaskKey, incarnation: int) -> None:
        """Stop remembering a task whose newest incarnation's directory is gone."""
        if task not in self._entries and self._highest.get(task) == incarnation:
            del self._highest[task]
