"""What the agent's core is told."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from corral.model.ids import DeviceId, TaskKey
from corral.model.job import Cause, TaskExit
from corral.model.messages import ControllerSays, TaskPhase, Usage
from corral.model.resources import DeviceState
from corral.model.service import ServingTask


class Question(StrEnum):
    """What a probe of a replica is for."""

    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"


class KnownTask(msgspec.Struct, frozen=True):
    """A task that an earlier run of the agent left in its directories. ``exit`` is set when it ended.

    ``began_boottime_s`` is when the program of a replica began (CLOCK_BOOTTIME), ``started_up`` that it once answered.
    """

    task: TaskKey
    incarnation: int
    phase: TaskPhase
    acknowledged: bool = False
    pid: int | None = None
    started_at: float | None = None
    exit: TaskExit | None = None
    devices: tuple[DeviceId, ...] = ()
    lease_s: float | None = None
    grace_s: float = 10.0
    serving: ServingTask | None = None
    began_boottime_s: float | None = None
    started_up: bool = False


class Connected(msgspec.Struct, frozen=True):
    """The connection to the controller is made: time for a hello."""


class Disconnected(msgspec.Struct, frozen=True):
    """The connection to the controller is lost."""


class Commanded(msgspec.Struct, frozen=True):
    """The controller says something."""

    command: ControllerSays


class TaskBegan(msgspec.Struct, frozen=True):
    """The user's process of a task runs. ``started_at`` in seconds since the epoch."""

    task: TaskKey
    incarnation: int
    pid: int | None
    started_at: float


class TaskFinished(msgspec.Struct, frozen=True):
    """A task is over, in whatever way, and its record is on the disk."""

    task: TaskKey
    incarnation: int
    exit: TaskExit


class LaunchFailed(msgspec.Struct, frozen=True):
    """A task could not be launched, or was stopped before (``cause``); nothing of it runs."""

    task: TaskKey
    incarnation: int
    message: str
    cause: Cause = Cause.LAUNCH_FAILED


class Probed(msgspec.Struct, frozen=True):
    """A replica was asked: ``fault`` says in words what was not good, ``None`` that all was."""

    task: TaskKey
    incarnation: int
    question: Question
    fault: str | None


class DevicesSampled(msgspec.Struct, frozen=True):
    """The newest observation of all devices."""

    states: tuple[DeviceState, ...]


class ShardsListed(msgspec.Struct, frozen=True):
    """The data shards that lie on the node now."""

    shards: tuple[str, ...]


class Beat(msgspec.Struct, frozen=True):
    """A second has passed. ``wall_s`` is the machine's wall clock, which may jump.

    ``unfit`` says why no task can begin.
    """

    wall_s: float
    usage: tuple[Usage, ...] = ()
    load_1m: float | None = None
    memory_free_mib: int | None = None
    unfit: str = ""


class TaskRemoved(msgspec.Struct, frozen=True):
    """The directory of an acknowledged task is gone: nothing of it need be remembered."""

    task: TaskKey
    incarnation: int


Input = (
    Connected
    | Disconnected
    | Commanded
    | TaskBegan
    | TaskFinished
    | LaunchFailed
    | Probed
    | DevicesSampled
    | ShardsListed
    | Beat
    | TaskRemoved
)
