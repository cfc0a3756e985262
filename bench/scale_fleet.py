"""A thousand nodes in one thread: production agent cores over tasks that pretend, and the transport to a controller.

Messages cross between the threads as frames, encoded and decoded where a real engine does it.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from corral.agent.core import AgentCore, Identity
from corral.agent.inputs import Beat, Commanded, Connected, DevicesSampled, Input, TaskBegan, TaskFinished, TaskRemoved
from corral.agent.outputs import Forget, Launch, Output, Say, Stop
from corral.appmaster.core import AppMasterCore
from corral.model.errors import NotFound
from corral.model.ids import DeviceId, NodeId, TaskKey
from corral.model.job import Cause, TaskExit
from corral.model.messages import ControllerSays, Heartbeat, Hello, LaunchTask
from corral.model.resources import DeviceSpec, DeviceState, Health, NodeSpec
from corral.ports.engine import LogChunk, Sink
from corral.wire.frames import HEADER_BYTES, Refused, agent_message, engine_message, frame

BEAT_S = 1.0
TURN_S = 0.01
"""How often the thread looks: messages wait so long at most, as on a network."""


def node_specs(nodes: int, devices: int) -> list[NodeSpec]:
    """Return nodes of one model in racks of 40."""
    return [
        NodeSpec(
            NodeId(f"n{number}"),
            f"n{number}",
            f"10.{number // 62_500}.{number // 250 % 250}.{number % 250}",
            64_000,
            512_000,
            tuple(DeviceSpec(DeviceId(f"n{number}-{i}"), "H100", "simulated", 81_559, i) for i in range(devices)),
            rack=f"rack-{number // 40}",
            simulated=True,
            incarnation="boot-1",
        )
        for number in range(nodes)
    ]


class Node:
    """One agent core, its devices and when its tasks end."""

    def __init__(self, spec: NodeSpec) -> None:
        self.core = AgentCore(Identity(spec, 1), AppMasterCore, (), 0)
        self._spec = spec
        self._beats = 0

    def states(self) -> tuple[DeviceState, ...]:
        """Return a look at the devices; their figures move."""
        self._beats += 1
        return tuple(
            DeviceState(
                device.uuid,
                Health.HEALTHY,
                memory_used_mib=1_000 + self._beats % 100,
                utilisation_percent=float((self._beats * 7 + device.index) % 100),
                temperature_c=55.0,
                power_w=300.0,
            )
            for device in self._spec.devices
        )


class Fleet:
    """The nodes' thread. ``deliver`` is called in it with the frames that nodes have sent."""

    def __init__(self, specs: Sequence[NodeSpec], task_s: float, deliver: Callable[[list[bytes]], None]) -> None:
        self.beats = 0
        self.late_s_max = 0.0
        self.cpu_s = 0.0
        self._nodes = {spec.id: Node(spec) for spec in specs}
        self._task_s = task_s
        self._deliver = deliver
        self._inbox: deque[bytes] = deque()
        self._out: list[bytes] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def start(self) -> None:
        """Let all nodes say hello, and beat once a second from then on, evenly spread."""
        begin = time.monotonic()
        for number, name in enumerate(self._nodes):
            self._plan(begin + BEAT_S * number / len(self._nodes), lambda name=name: self._join(name))  # type: ignore[misc]
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def put(self, data: bytes) -> None:
        """Take a frame of the controller in (called in its thread)."""
        self._inbox.append(data)

    def _plan(self, at: float, act: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._due, (at, self._planned, act))

    def _run(self) -> None:
        while not self._stop.wait(TURN_S):
            while self._inbox:
                said = engine_message(self._inbox.popleft()[HEADER_BYTES:])
                if not isinstance(said, Refused):
                    self._feed(said.node, Commanded(said))
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            if self._out:
                out, self._out = self._out, []
                self._deliver(out)
            self.cpu_s = time.thread_time()

    def _join(self, name: NodeId) -> None:
        self._feed(name, DevicesSampled(self._nodes[name].states()))
        self._feed(name, Connected())
        self._beat(name, time.monotonic() + BEAT_S)

    def _beat(self, name: NodeId, due: float) -> None:
        def beat() -> None:
            self.late_s_max = max(self.late_s_max, time.monotonic() - due)
            self.beats += 1
            self._feed(name, DevicesSampled(self._nodes[name].states()))
            self._feed(name, Beat(wall_s=time.time(), load_1m=1.0, memory_free_mib=400_000))
            self._beat(name, due + BEAT_S)

        self._plan(due, beat)

    def _feed(self, name: NodeId, given: Input) -> None:
        boottime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        for output in self._nodes[name].core.handle(time.time(), boottime_s, given):
            self._do(name, output)

    def _do(self, name: NodeId, output: Output) -> None:
        match output:
            case Say(message):
                self._out.append(frame(message))
            case Launch(command):
                self._feed(name, TaskBegan(command.task, command.incarnation, 1, time.time()))
                self._plan(time.monotonic() + self._task_s, lambda: self._end(name, command, Cause.EXITED))
            case Stop(task, incarnation, reason):
                self._feed(name, TaskFinished(task, incarnation, TaskExit(Cause(reason), ended_at=time.time())))
            case Forget(task, incarnation):
                self._feed(name, TaskRemoved(task, incarnation))
            case _:
                pass

    def _end(self, name: NodeId, command: LaunchTask, cause: Cause) -> None:
        exit_ = TaskExit(cause, exit_code=0, ended_at=time.time())
        self._feed(name, TaskFinished(command.task, command.incarnation, exit_))


class FleetEngine:
    """Implements ``ports.engine.Engine`` over a fleet.

    Attributes:
        launched: When each job's first task was sent off (monotonic seconds).
        heard: How many heartbeats the controller took in.
        joined: Set when all nodes have said hello.
    """

    def __init__(self, specs: Sequence[NodeSpec], task_s: float) -> None:
        self.launched: dict[str, float] = {}
        self.heard = 0
        self.joined = asyncio.Event()
        self._missing = len(specs)
        self.fleet = Fleet(specs, task_s, self._deliver)
        self._names = frozenset(spec.id for spec in specs)
        self._arrived: deque[bytes] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sink: Sink | None = None

    async def start(self, sink: Sink) -> None:
        """Let the nodes begin."""
        self._sink, self._loop = sink, asyncio.get_running_loop()
        self.fleet.start()

    async def stop(self) -> None:
        """Let them end."""
        self._sink = None
        self.fleet.stop()

    def _deliver(self, frames: list[bytes]) -> None:
        self._arrived.extend(frames)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        while self._arrived and self._sink is not None:
            said = agent_message(self._arrived.popleft()[HEADER_BYTES:])
            self.heard += isinstance(said, Heartbeat)
            self._missing -= isinstance(said, Hello)
            self._sink(said)
        if self._missing <= 0:
            self.joined.set()

    def send(self, command: ControllerSays) -> bool:
        """Send a command."""
        if isinstance(command, LaunchTask):
            self.launched.setdefault(command.task.job, time.monotonic())
        self.fleet.put(frame(command))
        return True

    def connected(self) -> frozenset[NodeId]:
        """Return all nodes."""
        return self._names

    async def read_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int, limit: int) -> LogChunk:
        """Raise ``NotFound``: the tasks write nothing."""
        raise NotFound(f"task {task} has no log")

    async def follow_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int) -> AsyncIterator[LogChunk]:
        """Raise ``NotFound``: the tasks write nothing."""
        raise NotFound(f"task {task} has no log")
        yield LogChunk(offset, b"", complete=True)

    async def fence(self, node: NodeId, machine: str = "") -> bool:
        """Return ``False``: nothing can be proven."""
        return False
