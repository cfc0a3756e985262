"""A controller as the daemon wires it: the shell over a store on the disk and an engine with production agent cores.

Only time and processes are pretended: tests move the clock, and say when a task ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from corral.agent.inputs import Commanded, Connected, Disconnected
from corral.appmaster.core import AppMasterCore
from corral.control.config import ControlConfig
from corral.control.core import ControlCore
from corral.control.inputs import Administer
from corral.control.pool import ControllerPool, Identity
from corral.control.shell import ControlShell
from corral.model.ask import JobAsk
from corral.model.errors import EngineFault, NotFound
from corral.model.events import TenantSet
from corral.model.ids import DEFAULT_TENANT, JobId, NodeId, TaskKey, TenantId
from corral.model.job import Cause, Job
from corral.model.market import RoundPlan
from corral.model.messages import ControllerSays
from corral.model.plan import PlanReport
from corral.model.resources import NodeSpec
from corral.model.tenant import Role, Tenant
from corral.planner.compare import compare
from corral.planner.projection import Seen
from corral.ports.engine import AgentGone, LogChunk, Sink
from corral.ports.faults import FaultPoint
from corral.ports.planner import PlanQuestion
from corral.ports.pool import Principal, Submission
from corral.ports.proposers import Proposers
from corral.ports.solver import RoundWorker
from corral.ports.store import Store
from corral.storage import SqliteStore
from tests.unit.control.machine import Machine, Run
from tests.unit.control.world import node_spec
from tests.waiting import wait_until_async

ADMIN = Principal(DEFAULT_TENANT, Role.ADMIN, "root")
START = 1_000_000.0


def user(tenant: str) -> Principal:
    return Principal(TenantId(tenant), Role.USER, f"token-of-{tenant}")


class Hands:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> float:
        return self.at

    def boottime(self) -> float:
        return self.at

    def wall_offset_s(self) -> float:
        return 0.0


class Died(BaseException):
    """The process died here."""


class Points:
    """Fault points: the armed one kills, once."""

    def __init__(self) -> None:
        self.point: FaultPoint | None = None

    def armed(self, point: FaultPoint) -> bool:
        return self.point is point

    def reach(self, point: FaultPoint) -> None:
        if self.point is point:
            self.point = None
            raise Died(point)


class Log:
    """What one incarnation of a task wrote so far."""

    def __init__(self) -> None:
        self.data = b""
        self.complete = False


class Machines:
    """Implements ``ports.engine.Engine`` over machines of this process. Nothing gets lost on the way."""

    def __init__(self, hands: Hands) -> None:
        self.machines: dict[NodeId, Machine] = {}
        self.commands: list[ControllerSays] = []
        self.logs: dict[tuple[str, TaskKey, int], Log] = {}
        self.fences: dict[NodeId, bool | None] = {}
        self.asked: list[NodeId] = []
        self.hands = hands
        self.heard_a_death = False
        self._sink: Sink | None = None
        self._connected: set[NodeId] = set()

    async def start(self, sink: Sink) -> None:
        self._sink = sink
        for node in self.machines:
            self.connect(node)

    async def stop(self) -> None:
        self._sink = None
        for node in list(self._connected):
            self.machines[node].feed(Disconnected())
        self._connected.clear()

    def add(self, spec: NodeSpec) -> Machine:
        machine = self.machines[spec.id] = Machine(spec, self.hands.now, 0.0)
        machine.start_agent()
        self.connect(spec.id)
        return machine

    def connect(self, node: NodeId) -> None:
        if self._sink is not None:
            self._connected.add(node)
            self.machines[node].feed(Connected())
            self.pump(node)

    def cut(self, node: NodeId) -> None:
        self._connected.discard(node)
        self.machines[node].feed(Disconnected())
        self.say(AgentGone(node, "cut"))

    def say(self, said: Any) -> None:
        if self._sink is not None:
            try:
                self._sink(said)
            except Died:
                self.heard_a_death = True

    def pump(self, node: NodeId) -> None:
        """Hand over what an agent said; start what it was told to start, end what it was told to stop."""
        machine = self.machines[node]
        for run in [r for r in machine.runs.values() if not r.forked]:
            machine.fork(run)
            machine.begin(run)
        for run in [r for r in machine.runs.values() if r.alive and r.stop is not None]:
            assert run.stop is not None
            machine.end(run, run.stop)
        said, machine.outbox = machine.outbox, []
        for message in said if node in self._connected else ():
            self.say(message)

    def send(self, command: ControllerSays) -> bool:
        self.commands.append(command)
        if command.node not in self._connected:
            return False
        self.machines[command.node].feed(Commanded(command))
        asyncio.get_running_loop().call_soon(self.pump, command.node)
        return True

    def connected(self) -> frozenset[NodeId]:
        return frozenset(self._connected)

    def run(self, job: str, gang: int = 0, rank: int = 0) -> tuple[Machine, Run]:
        """Return the living run of a task and its machine."""
        for machine in self.machines.values():
            for run in machine.runs.values():
                if run.task == TaskKey(JobId(job), gang, rank) and run.alive:
                    return machine, run
        raise AssertionError(f"{job}.{gang}.{rank} does not run")

    def runs(self, job: str, gang: int = 0, rank: int = 0) -> int:
        """Return how many incarnations of a task were started."""
        task = TaskKey(JobId(job), gang, rank)
        return sum(run.task == task for machine in self.machines.values() for run in machine.runs.values())

    def end(self, job: str, gang: int = 0, rank: int = 0, *, code: int = 0) -> None:
        machine, run = self.run(job, gang, rank)
        machine.end(run, Cause.EXITED, code)
        self.pump(machine.spec.id)

    def beat(self, node: str) -> None:
        self.machines[NodeId(node)].beat()
        self.pump(NodeId(node))

    def write(self, node: str, task: TaskKey, incarnation: int, data: bytes, *, complete: bool) -> None:
        log = self.logs.setdefault((node, task, incarnation), Log())
        log.data += data
        log.complete = complete

    async def read_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int, limit: int) -> LogChunk:
        log = self.logs.get((node, task, incarnation))
        if log is None:
            raise NotFound("there is no such log")
        data = log.data[offset : offset + limit]
        return LogChunk(offset, data, complete=log.complete and offset + len(data) == len(log.data))

    async def follow_log(self, node: NodeId, task: TaskKey, incarnation: int, offset: int) -> AsyncIterator[LogChunk]:
        while True:
            chunk = await self.read_log(node, task, incarnation, offset, 1 << 20)
            if chunk.data or chunk.complete:
                yield chunk
            if chunk.complete:
                return
            offset += len(chunk.data)
            await asyncio.sleep(0.005)

    async def fence(self, node: NodeId, machine: str = "") -> bool:
        self.asked.append(node)
        answer = self.fences.get(node)
        if answer is None:
            raise EngineFault("the fence does not answer")
        if answer:
            self.machines[node].kill()
        return answer


class HerePlanner:
    """Answers what-if questions in this process; only the fill decides in its copies."""

    def __init__(self, shell: ControlShell) -> None:
        self._config = shell.core.book.config

    async def plan(self, question: PlanQuestion) -> PlanReport:
        seen = Seen(question.image, question.at, tuple(question.answering), self._config)
        return compare(seen, question.ask, lambda market: RoundPlan(market.snapshot.version))


class House:
    """One state directory, and the controller that runs on it, start after start."""

    def __init__(self, state_dir: Path, config: ControlConfig | None = None) -> None:
        self.state_dir = state_dir
        self.config = config or ControlConfig()
        self.hands = Hands()
        self.points = Points()
        self.engine = Machines(self.hands)
        self.store: Store = SqliteStore(state_dir / "corral.db")
        self.solver: RoundWorker | None = None
        self.proposers: Proposers | None = None
        self.shell: ControlShell
        self.pool: ControllerPool
        self.running: asyncio.Task[None]

    async def start(self, *nodes: str, gpus: int = 4) -> None:
        self.store.open()
        epoch, recovered = self.store.acquire_leadership(), self.store.recover()
        last = recovered.entries[-1].seq if recovered.entries else recovered.snapshot_seq
        core = ControlCore(recovered, self.config, AppMasterCore, epoch)
        self.shell = ControlShell(
            core,
            self.store,
            self.engine,
            self.hands,
            self.points,
            last_seq=last,
            solver=self.solver,
            proposers=self.proposers,
        )
        self.pool = ControllerPool(
            self.shell, self.store, Identity("0", 1, "http://pool", START), HerePlanner(self.shell)
        )
        self.running = asyncio.create_task(self.shell.run())
        await self.engine.start(self.shell.hear)
        for node in nodes:
            self.engine.add(node_spec(node, gpus))

    async def stop(self) -> None:
        """End as the daemon does."""
        self.shell.end()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.engine.stop()
        await self.shell.close()
        self.store.close()

    async def crash(self) -> None:
        """Nothing more is written: what is on the disk is all that the next start has."""
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.engine.stop()
        self.shell._journal.shutdown(wait=True)
        self.shell._readers.shutdown(wait=True)
        self.store.close()

    async def until(self, condition: Callable[[], Any], what: str = "the condition") -> Any:
        return await wait_until_async(condition, what=what)

    async def tenant(self, name: str, weight: float = 1.0) -> Principal:
        await self.shell.ask(Administer(TenantSet(at=0.0, tenant=Tenant(TenantId(name), weight), by="t"), create=True))
        return user(name)

    async def submit(self, *asks: JobAsk, who: Principal = ADMIN, key: str | None = None) -> list[str]:
        return [job.id for job in await self.pool.submit(who, Submission(asks, key))]

    def job(self, number: str) -> Job:
        return self.shell.core.book.state.jobs[JobId(number)]

    async def running_task(self, job: str, gang: int = 0, rank: int = 0) -> None:
        """Wait until the controller knows that a task runs."""
        await self.until(
            lambda: job in self.shell.core.book.state.jobs and self.job(job).gangs[gang].tasks[rank].state == "running",
            f"task {job}.{gang}.{rank} to run",
        )


def live(scenario: Callable[[House], Awaitable[None]], state_dir: Path, config: ControlConfig | None = None) -> None:
    """Run a scenario on a house of its own and clean up, whatever happens."""

    async def whole() -> None:
        house = House(state_dir, config)
        try:
            await asyncio.wait_for(scenario(house), 60.0)
        finally:
            if hasattr(house, "running"):
                house.running.cancel()
                with contextlib.suppress(BaseException):
                    await house.running
                house.shell._journal.shutdown(wait=True)
                house.shell._readers.shutdown(wait=True)
            house.store.close()

    asyncio.run(whole())
