"""A pool's machine for the engine's contract: a real fork server, real agents and one engine, in one state directory.

Another engine joins the suite with a subclass of :class:`World` that says how it and its agents are started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from corral.agent import processes
from corral.agent.config import AgentConfig, save
from corral.agent.nodefiles import NodeFiles
from corral.agent.shim import client as fork_server
from corral.devices.simulated import SimulatedProbe
from corral.engines.local import LocalEngine
from corral.model.ids import JobId, NodeId, TaskKey
from corral.model.messages import (
    Acknowledge,
    AcknowledgeHeartbeat,
    Heartbeat,
    Hello,
    LaunchTask,
    Peer,
    StopTask,
    TaskPhase,
    TaskReport,
    TaskReported,
)
from corral.model.resources import DeviceShare, Placement
from corral.ports.engine import AgentGone, Engine, EngineSays
from tests.waiting import wait_until_async

NODE = NodeId("node-1")
EPOCH = 1

Scenario = Callable[["World"], Awaitable[None]]
Scene = Callable[[Scenario], None]


class World:
    """Everything around the engine under test. ``heard`` is all that it said, in order."""

    limit_s = 60.0

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.heard: list[EngineSays] = []
        self.epoch = EPOCH
        self._servers: list[subprocess.Popen[bytes]] = []
        self._agents: dict[NodeId, subprocess.Popen[bytes]] = {}
        self._engine: Engine | None = None

    # ---- what an engine has to bring -------------------------------------------------------------------------------

    def make_engine(self) -> Engine:
        return LocalEngine(self.state_dir / "e.sock", self.state_dir, NodeFiles(), self.epoch)

    def start_agent(self, node: NodeId = NODE) -> None:
        self._agents[node] = self._spawn_agent(node)

    def second_agent(self, node: NodeId = NODE) -> int:
        return self._spawn_agent(node).wait(timeout=20.0)

    def _spawn_agent(self, node: NodeId) -> subprocess.Popen[bytes]:
        config = self.config(node)
        config.node_dir.mkdir(parents=True, exist_ok=True)
        save(config, config.node_dir / "node.json")
        with (self.state_dir / f"agent-{node}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "corral.runtime.agent", "--config", str(config.node_dir / "node.json")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "SECRET": "not for tasks"},
            )

    # ---- the rest is the same for all ------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        assert self._engine is not None
        return self._engine

    def config(self, node: NodeId) -> AgentConfig:
        devices = SimulatedProbe(self.state_dir / "nodes" / node / "devices.json", "h100", 2, node).discover()
        return AgentConfig(
            node=node,
            state_dir=str(self.state_dir),
            engine_socket=str(self.state_dir / "e.sock"),
            fork_socket=str(self.state_dir / "f.sock"),
            notify_socket=str(self.state_dir / f"n-{node}.sock"),
            cpus_milli=8000,
            memory_mib=65536,
            simulated=True,
            simulated_devices=devices,
            log_max_bytes=40_000,
            log_files=3,
            release_timeout_s=2.0,
        )

    def stop_fork_server(self) -> None:
        server = self._servers.pop()
        server.terminate()
        server.wait()

    def start_fork_server(self) -> None:
        self._servers.append(fork_server.start(self.state_dir / "f.sock"))

    async def start_engine(self) -> None:
        self._engine = self.make_engine()
        await self._engine.start(self._hear)

    async def stop_engine(self) -> None:
        if self._engine is not None:
            await self._engine.stop()
            self._engine = None

    async def start(self, nodes: Sequence[NodeId] = (NODE,)) -> None:
        self.start_fork_server()
        await self.start_engine()
        for node in nodes:
            self.start_agent(node)
        await self.until(lambda: set(nodes) <= self.engine.connected(), "the agents to connect")

    def kill_agent(self, node: NodeId = NODE) -> None:
        agent = self._agents.pop(node)
        agent.kill()
        agent.wait()

    def end_agent(self, node: NodeId = NODE) -> int:
        agent = self._agents.pop(node)
        agent.terminate()
        return agent.wait(timeout=20.0)

    def agent_pid(self, node: NodeId = NODE) -> int:
        return self._agents[node].pid

    async def close(self) -> None:
        await self.stop_engine()
        for agent in self._agents.values():
            # Also one that a test has stopped.
            agent.kill()
            agent.wait()
        for server in self._servers:
            server.terminate()
            server.wait()
        for node_dir in (self.state_dir / "nodes").iterdir():
            assert NodeFiles().fence(node_dir)

    def _hear(self, said: EngineSays) -> None:
        self.heard.append(said)
        if isinstance(said, Heartbeat) and self._engine is not None:
            self._engine.send(
                AcknowledgeHeartbeat(node=said.node, epoch=self.epoch, sent_boottime_s=said.sent_boottime_s)
            )

    async def until(
        self, predicate: Callable[[], object], what: str = "the condition", *, timeout_s: float = 20.0
    ) -> None:
        await wait_until_async(predicate, timeout_s=timeout_s, what=what)

    # ---- words -----------------------------------------------------------------------------------------------------

    def launch(
        self,
        job: int,
        *argv: str,
        script: str | None = None,
        incarnation: int = 1,
        node: NodeId = NODE,
        devices: Sequence[int] = (0,),
        **changes: object,
    ) -> LaunchTask:
        uuids = [spec.uuid for spec in self.config(node).simulated_devices]
        command: dict[str, object] = {
            "node": node,
            "epoch": self.epoch,
            "task": task(job),
            "incarnation": incarnation,
            "placement": Placement(0, node, tuple(DeviceShare(uuids[i], 1000) for i in devices), 1000, 512),
            "tenant": "default",
            "name": f"job-{job}",
            "array_index": None,
            "is_gang": False,
            "peers": (Peer(0, node, "127.0.0.1"),),
            "master_port": 0,
            "argv": argv,
            "script": script,
            "setup": None,
            "envs": {},
            "workdir": None,
            "file_mounts": {},
            "max_duration_s": None,
            "grace_s": 5.0,
            "checkpoint": None,
            "lease_s": None,
        }
        return LaunchTask(**{**command, **changes})  # type: ignore[arg-type]

    def stop(self, job: int, *, incarnation: int = 1, grace_s: float = 5.0, node: NodeId = NODE) -> StopTask:
        return StopTask(
            node=node,
            epoch=self.epoch,
            task=task(job),
            incarnation=incarnation,
            reason="cancelled",
            grace_s=grace_s,
        )

    def acknowledge(self, job: int, *, incarnation: int = 1, node: NodeId = NODE) -> Acknowledge:
        return Acknowledge(node=node, epoch=self.epoch, task=task(job), incarnation=incarnation)

    def reports(self, job: int, incarnation: int = 1) -> list[TaskReport]:
        """Return what was reported of a task outside of hellos."""
        return [
            said.report
            for said in self.heard
            if isinstance(said, TaskReported)
            and said.report.task == task(job)
            and said.report.incarnation == incarnation
        ]

    def last(self, job: int, incarnation: int = 1) -> TaskReport | None:
        """Return the newest that was reported of a task, in a hello or by itself."""
        for said in reversed(self.heard):
            told = said.tasks if isinstance(said, Hello) else (said.report,) if isinstance(said, TaskReported) else ()
            for report in told:
                if (report.task, report.incarnation) == (task(job), incarnation):
                    return report
        return None

    async def until_phase(self, job: int, phase: TaskPhase, incarnation: int = 1) -> TaskReport:
        def reached() -> TaskReport | None:
            report = self.last(job, incarnation)
            return report if report is not None and report.phase is phase else None

        await self.until(reached, f"task {job} to be {phase}")
        found = reached()
        assert found is not None
        return found

    def hellos(self, node: NodeId = NODE) -> list[Hello]:
        return [said for said in self.heard if isinstance(said, Hello) and said.node == node]

    def beats(self, node: NodeId = NODE) -> list[Heartbeat]:
        return [said for said in self.heard if isinstance(said, Heartbeat) and said.node == node]

    def agent_logs(self) -> str:
        return "".join(f"{log.name}\n{log.read_text()}" for log in sorted(self.state_dir.glob("agent-*.log")))

    def gone(self, node: NodeId = NODE) -> list[AgentGone]:
        return [said for said in self.heard if isinstance(said, AgentGone) and said.node == node]

    def task_dir(self, job: int, incarnation: int = 1, node: NodeId = NODE) -> Path:
        return self.state_dir / "nodes" / node / "tasks" / f"{task(job)}.{incarnation}"

    def acknowledged(self, job: int, incarnation: int = 1, node: NodeId = NODE) -> bool:
        return f" {task(job)}.{incarnation}\n" in (self.state_dir / "nodes" / node / "acknowledged").read_text()

    def shim_pid(self, job: int, incarnation: int = 1, node: NodeId = NODE) -> int:
        return int(json.loads((self.task_dir(job, incarnation, node) / "shim.json").read_text())["pid"])


def task(job: int) -> TaskKey:
    return TaskKey(JobId(str(job)), 0, 0)


def alive(pid: int) -> bool:
    stat = processes.read_stat(pid)
    return stat is not None and not stat.dead


async def whole_log(world: World, job: int, offset: int = 0, incarnation: int = 1) -> bytes:
    """Follow a log to its end; the chunks must join without a gap."""
    pieces, position = [], offset
    async for chunk in world.engine.follow_log(NODE, task(job), incarnation, offset):
        assert chunk.offset == position
        pieces.append(chunk.data)
        position += len(chunk.data)
    return b"".join(pieces)
