"""How the controller reaches its agents. ``engines/local`` and ``engines/ray`` pass the same contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec

from corral.model.ids import NodeId, TaskKey
from corral.model.messages import AgentSays, ControllerSays


class AgentGone(msgspec.Struct, frozen=True):
    """The connection to an agent broke. Its tasks may go on."""

    node: NodeId
    reason: str


EngineSays = AgentSays | AgentGone
Sink = Callable[[EngineSays], None]


class LogChunk(msgspec.Struct, frozen=True):
    """A piece of a task's log: ``data`` starts at byte ``offset``; ``complete`` when the task ended and no more comes.

    Offsets count from the task's first byte, over rotations; bytes rotated away are skipped: then ``offset`` is larger
    than asked. ``incarnation`` is whose log it is: each start of a task has one of its own (``None``: not told).
    """

    offset: int
    data: bytes
    complete: bool
    incarnation: int | None = None


class Engine(Protocol):
    """A transport to agents. Messages of one node arrive in order; a broken connection is reported as ``AgentGone``."""

    async def start(self, sink: Sink) -> None:
        """Accept agents; ``sink`` is called in the event loop for every message. Raises ``EngineFault``."""

    async def stop(self) -> None:
        """Stop accepting and close the connections. Agents and tasks go on."""

    def send(self, command: ControllerSays) -> bool:
        """Queue a command to ``command.node``; False when the node is not connected (it will say hello again)."""

    def connected(self) -> frozenset[NodeId]:
        """Return the nodes that are connected now."""

    async def read_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int, limit: int) -> LogChunk:
        """Return up to ``limit`` bytes of a log from ``offset``, also of ended tasks and of dead nodes where possible.

        Raises ``NotFound`` when there is no such log, ``Unavailable`` when the node's machine does not answer now.
        """

    def follow_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int) -> AsyncIterator[LogChunk]:
        """Yield chunks as they are written until the task ended. Raises what ``read_log`` raises."""

    async def fence(self, node: NodeId, machine: str = "") -> bool | None:
        """Make sure that nothing of a silent node's tasks runs (power fencing); False when that cannot be proven.

        ``None`` when its agent was found to live: then nothing was done to it, and nothing else should be.
        ``machine`` is the id of the machine that the node is: what is reached under its name may be another one.
        """
