"""The way between a controller and the agent of a node: sessions, of which the newest counts.

On every node a relay waits beside the agent. A leading controller opens a session with it; the agent of an older
session is disconnected and says hello in the new one. A *strict* relay refuses sessions of older leaders; one that is
not lets a deposed leader take a node back, which agents have to survive as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec

from corral.model.errors import NotFound
from corral.model.ids import NodeId, TaskKey
from corral.model.messages import AgentSays, ControllerSays
from corral.ports.engine import AgentGone, LogChunk, Sink
from corral.sim.storm.course import Course
from corral.sim.storm.network import Line, Network
from corral.sim.storm.process import Process

DIAL_S = 0.7
SILENCE_S = 4.0
"""So long a controller waits on a connection that is cut before it gives it up."""

_says = msgspec.msgpack.Decoder(AgentSays)
_commands = msgspec.msgpack.Decoder(ControllerSays)


class Agent(Protocol):
    """The agent's end of a relay."""

    def connected(self, session: Session) -> None:
        """Hear that a session begins."""

    def disconnected(self) -> None:
        """Hear that the session is over."""

    def commanded(self, command: ControllerSays) -> None:
        """Hear a command."""


class Session:
    """One session between an engine and a relay: two ordered lines."""

    def __init__(self, course: Course, network: Network, engine: VirtualEngine, relay: Relay) -> None:
        self.engine = engine
        self.relay = relay
        self.node = relay.node
        self.epoch = engine.epoch
        self.up = Line(course, network, relay.node, engine.host, self._heard)
        self.down = Line(course, network, engine.host, relay.node, self._told)

    def say(self, message: AgentSays) -> None:
        """Send what the agent says; nothing arrives once the session is over."""
        self.up.send(msgspec.msgpack.encode(message))

    def _heard(self, message: bytes) -> None:
        self.engine.heard(self, _says.decode(message))

    def _told(self, message: bytes) -> None:
        self.relay.told(self, _commands.decode(message))


class Relay:
    """A node's end. ``agent`` is set while an agent is there; without ``up`` nobody answers."""

    def __init__(self, course: Course, network: Network, node: NodeId, *, strict: bool) -> None:
        self.node = node
        self.up = True
        self.agent: Agent | None = None
        self.session: Session | None = None
        self._course = course
        self._strict = strict
        self._epoch = 0
        self._network = network

    def open(self, session: Session) -> bool:
        """Take a new session; the one before it is over. Return whether it was taken."""
        if not self.up or (self._strict and session.epoch < self._epoch):
            return False
        self._epoch = max(self._epoch, session.epoch)
        self.close()
        self.session = session
        if self.agent is not None:
            self.agent.connected(session)
        return True

    def close(self) -> None:
        """End the session that there is; its controller learns of it when that is possible."""
        session, self.session = self.session, None
        if session is None:
            return
        session.up.close()
        session.down.close()
        if self.agent is not None:
            self.agent.disconnected()
        delay_s = self._network.delay_s()
        self._course.after(delay_s, lambda: session.engine.lost(session, "the relay closed it"))

    def attach(self, agent: Agent) -> None:
        """Serve an agent that has just started."""
        self.agent = agent
        if self.session is not None:
            agent.connected(self.session)

    def detach(self) -> None:
        """Serve nobody; the controller learns that the agent is gone."""
        self.agent = None
        self.close()

    def told(self, session: Session, command: ControllerSays) -> None:
        """Pass on what the controller of the session says."""
        if session is self.session and self.agent is not None:
            self.agent.commanded(command)


class VirtualEngine:
    """Implements ``ports.engine.Engine`` for one leader: it dials every node until a session is there."""

    def __init__(
        self,
        course: Course,
        network: Network,
        process: Process,
        host: str,
        relays: dict[NodeId, Relay],
        epoch: int,
        power_off: Callable[[NodeId, Callable[[bool], None]], None],
    ) -> None:
        """``power_off`` switches a node off, if it can, and says whether it did."""
        self.host = host
        self.epoch = epoch
        self._course = course
        self._network = network
        self._process = process
        self._relays = relays
        self._power_off = power_off
        self._sink: Sink | None = None
        self._sessions: dict[NodeId, Session] = {}

    @property
    def _works(self) -> bool:
        return self._process.alive and self._sink is not None

    async def start(self, sink: Sink) -> None:
        """Begin to dial."""
        self._sink = sink
        for node in self._relays:
            self._dial(node)

    async def stop(self) -> None:
        """Close all sessions."""
        self._sink = None
        self.drop()

    def drop(self) -> None:
        """Let go of all sessions, as a process that dies does: nodes notice once they can."""
        for node, session in list(self._sessions.items()):
            del self._sessions[node]
            session.down.close()
            self._course.after(self._network.delay_s(), lambda gone=session: self._end_there(gone))  # type: ignore[misc]

    def _end_there(self, session: Session) -> None:
        if session.relay.session is session and self._network.reaches(self.host, session.node):
            session.relay.close()

    # ---- dialling --------------------------------------------------------------------------------------------------

    def _dial(self, node: NodeId) -> None:
        if not self._works:
            return
        if not self._process.stopped:
            if node in self._sessions:
                self._look(node)
            elif self._reaches(node):
                session = Session(self._course, self._network, self, self._relays[node])
                self._course.after(self._network.delay_s(), lambda: self._knock(session))
        self._course.after(DIAL_S * self._course.chance.uniform(0.8, 1.2), lambda: self._dial(node))

    def _reaches(self, node: NodeId) -> bool:
        return self._network.reaches(self.host, node) and self._network.reaches(node, self.host)

    def _knock(self, session: Session) -> None:
        node = session.node
        if self._works and node not in self._sessions and self._reaches(node) and session.relay.open(session):
            self._sessions[node] = session

    def _look(self, node: NodeId) -> None:
        """Give a session up that has been cut for too long."""
        session = self._sessions[node]
        if not self._reaches(node):
            self._course.after(SILENCE_S, lambda: None if self._reaches(node) else self.lost(session, "no answer"))

    # ---- messages --------------------------------------------------------------------------------------------------

    def heard(self, session: Session, message: AgentSays) -> None:
        """Hand what a node says to the controller."""
        if self._works and self._sessions.get(session.node) is session:
            self._process.call_soon(self._give, message)

    def lost(self, session: Session, reason: str) -> None:
        """Tell the controller that a session is over."""
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            session.up.close()
            session.down.close()
            if self._works:
                self._process.call_soon(self._give, AgentGone(session.node, reason))

    def _give(self, said: AgentSays | AgentGone) -> None:
        if self._sink is not None:
            self._sink(said)

    def send(self, command: ControllerSays) -> bool:
        """Send a command if the node is connected."""
        session = self._sessions.get(command.node)
        if session is None or not self._works:
            return False
        session.down.send(msgspec.msgpack.encode(command))
        return True

    def connected(self) -> frozenset[NodeId]:
        """Return the nodes with a session."""
        return frozenset(self._sessions)

    async def read_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int, limit: int) -> LogChunk:
        """Raise ``NotFound``: tasks write no logs here."""
        raise NotFound(f"task {task} has no log")

    async def follow_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int) -> AsyncIterator[LogChunk]:
        """Raise ``NotFound``: tasks write no logs here."""
        raise NotFound(f"task {task} has no log")
        yield LogChunk(offset, b"", complete=True)

    async def fence(self, node: NodeId, machine: str = "") -> bool:
        """Have a node switched off; return whether it is proven to be."""
        answer = self._process.create_future()
        self._power_off(node, lambda done: None if answer.done() else answer.set_result(done))
        return bool(await answer)
