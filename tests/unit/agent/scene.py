"""An agent's shell in this process with a real engine, and a driver in the hands of the test."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from corral.agent.config import AgentConfig
from corral.agent.nodefiles import NodeFiles
from corral.agent.shell import Shell
from corral.agent.shim import client as fork_server
from corral.appmaster.core import AppMasterCore
from corral.engines.local import LocalEngine
from corral.model.errors import DeviceProbeFailed
from corral.model.ids import TaskKey
from corral.model.messages import AcknowledgeHeartbeat, Heartbeat, Hello, TaskPhase, TaskReport, TaskReported
from corral.model.resources import DeviceSpec, DeviceState, Health
from corral.ports.engine import EngineSays
from tests.unit.agent.words import GPU, NODE, OTHER_GPU
from tests.waiting import wait_until_async

FIRST = DeviceSpec(GPU, "H100", "nvidia", 81559, 0)
SECOND = DeviceSpec(OTHER_GPU, "H100", "nvidia", 81559, 1)


class Driver:
    vendor = "nvidia"

    def __init__(self, *devices: DeviceSpec) -> None:
        self.devices = devices
        self.states: tuple[DeviceState, ...] = tuple(DeviceState(spec.uuid, Health.HEALTHY) for spec in devices)
        self.answers = threading.Event()
        self.answers.set()
        self.fault: str | None = None

    def discover(self) -> tuple[DeviceSpec, ...]:
        self._obey()
        return self.devices

    def sample(self, own_pids: Sequence[int]) -> tuple[DeviceState, ...]:
        self._obey()
        return self.states

    def close(self) -> None:
        pass

    def _obey(self) -> None:
        assert self.answers.wait(30.0)
        if self.fault is not None:
            raise DeviceProbeFailed(self.fault)


class Scene:
    def __init__(self, state_dir: Path, **changes: Any) -> None:
        self.config = AgentConfig(
            node=NODE,
            state_dir=str(state_dir),
            engine_socket=str(state_dir / "e.sock"),
            fork_socket=str(state_dir / "f.sock"),
            notify_socket=str(state_dir / "n.sock"),
            cpus_milli=8000,
            memory_mib=65536,
            tasks_kept=2,
        )
        self.config = replace(self.config, **changes)
        self.engine = LocalEngine(state_dir / "e.sock", state_dir, NodeFiles())
        self.heard: list[EngineSays] = []
        self._servers: list[subprocess.Popen[bytes]] = []
        self._stops: list[tuple[asyncio.Event, asyncio.Task[None]]] = []

    async def agent(self, *drivers: Driver) -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(Shell(self.config, drivers, AppMasterCore, {"PATH": "/bin"}).run(stop))
        self._stops.append((stop, running))

    async def end_agents(self) -> None:
        for stop, running in self._stops:
            stop.set()
            await running
        self._stops.clear()

    def hellos(self) -> list[Hello]:
        return [said for said in self.heard if isinstance(said, Hello)]

    def beats(self) -> list[Heartbeat]:
        return [said for said in self.heard if isinstance(said, Heartbeat)]

    async def next_beat(self) -> float:
        """Wait for the next heartbeat and return when it was sent."""
        before = len(self.beats())
        await self.until(lambda: len(self.beats()) > before)
        return self.beats()[-1].sent_boottime_s

    async def until(self, predicate: Callable[[], object]) -> None:
        await wait_until_async(predicate, timeout_s=20.0)

    async def fork_server(self) -> None:
        path = Path(self.config.fork_socket)
        self._servers.append(await asyncio.to_thread(fork_server.start, path))

    async def close(self) -> None:
        await self.end_agents()
        await self.engine.stop()
        for server in self._servers:
            server.terminate()
            await asyncio.to_thread(server.wait)
        assert await asyncio.to_thread(NodeFiles().fence, self.config.node_dir)

    @staticmethod
    def echo(sent_boottime_s: float) -> AcknowledgeHeartbeat:
        return AcknowledgeHeartbeat(node=NODE, epoch=1, sent_boottime_s=sent_boottime_s)

    def report(self, task: TaskKey, phase: TaskPhase, incarnation: int = 1) -> TaskReport | None:
        """Return the report of a task in a phase, ``None`` before there is one."""
        for said in self.heard:
            told = said.tasks if isinstance(said, Hello) else (said.report,) if isinstance(said, TaskReported) else ()
            for report in told:
                if (report.task, report.incarnation, report.phase) == (task, incarnation, phase):
                    return report
        return None

    async def until_phase(self, task: TaskKey, phase: TaskPhase, incarnation: int = 1) -> TaskReport:
        await self.until(lambda: self.report(task, phase, incarnation))
        found = self.report(task, phase, incarnation)
        assert found is not None
        return found


Scenario = Callable[[Scene], Awaitable[None]]
Play = Callable[..., None]
