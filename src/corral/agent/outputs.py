"""What the agent's core wants done, in this order."""

from __future__ import annotations

import msgspec

from corral.agent.inputs import Question
from corral.model.ids import TaskKey
from corral.model.job import TaskExit
from corral.model.messages import AgentSays, LaunchTask
from corral.model.service import Probe


class SaveEpoch(msgspec.Struct, frozen=True):
    """Remember the highest leader epoch over restarts."""

    epoch: int


class Say(msgspec.Struct, frozen=True):
    """Send a message to the controller."""

    message: AgentSays


class Launch(msgspec.Struct, frozen=True):
    """Prepare the task's directory and start its shim. ``deadline_boottime_s`` is the first end of its lease."""

    command: LaunchTask
    deadline_boottime_s: float | None = None


class Stop(msgspec.Struct, frozen=True):
    """Stop a task: SIGTERM, ``grace_s`` seconds, SIGKILL. ``reason`` is the cause that its record will show.

    With ``saving_s`` above 0 it is first asked for a checkpoint, and has so long to end by itself. ``message`` says
    more than the cause, where there is more to say.
    """

    task: TaskKey
    incarnation: int
    reason: str
    grace_s: float
    saving_s: float = 0.0
    message: str = ""


class Ask(msgspec.Struct, frozen=True):
    """Ask a replica again and again from now on, and tell each answer.

    ``hasty``: more often than its period says, at first.
    """

    task: TaskKey
    incarnation: int
    question: Question
    probe: Probe
    hasty: bool = False


class Hush(msgspec.Struct, frozen=True):
    """Ask a replica this no more; ``None``: nothing more."""

    task: TaskKey
    incarnation: int
    question: Question | None = None


class MarkStartedUp(msgspec.Struct, frozen=True):
    """Remember over restarts that a replica has started up."""

    task: TaskKey
    incarnation: int


class Record(msgspec.Struct, frozen=True):
    """Write down the end of a task that has no shim to do it."""

    task: TaskKey
    incarnation: int
    exit: TaskExit


class ExtendLease(msgspec.Struct, frozen=True):
    """Write the new end of a task's lease, in seconds of CLOCK_BOOTTIME."""

    task: TaskKey
    incarnation: int
    deadline_boottime_s: float


class Forget(msgspec.Struct, frozen=True):
    """The end of a task is in the journal: mark its directory, which may go when it is old."""

    task: TaskKey
    incarnation: int


class Note(msgspec.Struct, frozen=True):
    """Something that people may want to read in the agent's log."""

    text: str


Output = SaveEpoch | Say | Launch | Stop | Ask | Hush | MarkStartedUp | Record | ExtendLease | Forget | Note
