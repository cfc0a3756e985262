"""A scripted world around the control core: nodes that launch what they are told, a journal in memory, a clock."""

from __future__ import annotations

import msgspec

from corral.appmaster.core import AppMasterCore
from corral.control.config import ControlConfig
from corral.control.core import ControlCore, Input
from corral.control.inputs import Outcome, Solved, Submit
from corral.model.ask import JobAsk
from corral.model.errors import Refusal
from corral.model.events import Fact
from corral.model.ids import DeviceId, JobId, NodeId, TaskKey
from corral.model.job import Cause, Job, TaskExit
from corral.model.market import Market, RoundPlan
from corral.model.messages import (
    PROTOCOL,
    Acknowledge,
    ControllerSays,
    Heartbeat,
    Hello,
    HostMaster,
    LaunchTask,
    MasterDecided,
    Readiness,
    StopTask,
    TaskPhase,
    TaskReport,
    TaskReported,
    TellMaster,
)
from corral.model.resources import MILLI, DeviceSpec, DeviceState, Health, NodeSpec
from corral.ports.engine import AgentGone
from corral.ports.solver import Solver
from corral.ports.store import FinishedJob, JournalEntry, Recovered


def node_spec(name: str, gpus: int = 4, model: str = "H100", incarnation: str = "boot-1") -> NodeSpec:
    devices = tuple(DeviceSpec(DeviceId(f"{name}-gpu{i}"), model, "simulated", 81_559, i) for i in range(gpus))
    return NodeSpec(NodeId(name), name, "127.0.0.1", 64_000, 512_000, devices, incarnation=incarnation)


class World:
    """Everything that a test needs to see what the core decides, and to check that it stays consistent."""

    def __init__(self, config: ControlConfig | None = None, **nodes: int) -> None:
        self.now = 1_000_000.0
        self.config = config or ControlConfig()
        self.core = ControlCore(Recovered(0, None, ()), self.config, AppMasterCore, epoch=1)
        self.journal: list[Fact] = []
        self.commands: list[ControllerSays] = []
        self.finished: list[FinishedJob] = []
        self.fences: list[NodeId] = []
        self.launched: dict[TaskKey, LaunchTask] = {}
        self.masters: dict[JobId, tuple[NodeId, int, AppMasterCore]] = {}
        self.solver: Solver | None = None
        self.markets: list[Market] = []
        self.notices: list[str] = []
        self.specs = {name: node_spec(name.replace("_", "-"), gpus) for name, gpus in nodes.items()}
        for spec in self.specs.values():
            self.hello(spec)

    # ---- driving -------------------------------------------------------------------------------------------------

    def tell(self, item: Input) -> object:
        answer = self.core.handle(self.now, item)
        self.settle()
        return answer

    def settle(self) -> None:
        while self._settle_once():
            pass

    def _settle_once(self) -> bool:
        self.core.settle(self.now)
        outcome: Outcome = self.core.drain()
        self.journal.extend(outcome.facts)
        self.commands.extend(outcome.commands)
        self.finished.extend(outcome.finished)
        self.fences.extend(outcome.fences)
        self.notices.extend(outcome.notices)
        for command in outcome.commands:
            self._obey(command)
        self.check()
        if outcome.solve is not None:
            self._solve(outcome.solve)
        return bool(outcome.facts) or outcome.solve is not None

    def _solve(self, market: Market) -> None:
        """Solve a round at once, if there is somebody who can; otherwise it stays under way."""
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(market), type=Market)
        self.markets.append(sent)
        if self.solver is not None:
            plan = msgspec.msgpack.decode(msgspec.msgpack.encode(self.solver(sent)), type=RoundPlan)
            self.core.handle(self.now, Solved(market.snapshot.version, plan))

    def _obey(self, command: ControllerSays) -> None:
        match command:
            case LaunchTask():
                self.launched[command.task] = command
            case HostMaster():
                copy = msgspec.json.decode(msgspec.json.encode(command.job), type=Job)
                self.masters[command.job.id] = (command.node, command.generation, AppMasterCore(copy))
            case TellMaster(job=job, fact=fact, generation=generation):
                node, hosted, master = self.masters[job]
                assert hosted == generation
                self.decided(node, job, generation, master.handle(fact))
            case _:
                pass

    def decided(self, node: NodeId, job: JobId, generation: int, decisions: tuple[object, ...]) -> None:
        if decisions:
            self.core.handle(self.now, MasterDecided(node=node, job=job, generation=generation, decisions=decisions))  # type: ignore[arg-type]

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            self.core.tick(self.now)
            self.settle()

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def hello(self, spec: NodeSpec, tasks: tuple[TaskReport, ...] = (), devices: tuple[DeviceState, ...] = ()) -> None:
        self.tell(
            Hello(
                node=spec.id,
                protocol=PROTOCOL,
                spec=spec,
                agent_pid=1,
                supervisor_start="s",
                tasks=tasks,
                devices=devices,
            )
        )

    def heartbeat(
        self, name: str, *failed: str, shards: tuple[str, ...] = (), readiness: tuple[Readiness, ...] = ()
    ) -> None:
        spec = self.specs[name]
        states = tuple(
            DeviceState(d.uuid, Health.FAILED if d.uuid in failed else Health.HEALTHY, detail="gone")
            for d in spec.devices
        )
        beat = Heartbeat(node=spec.id, sent_boottime_s=1.0, wall_s=self.now, devices=states, shards=shards)
        self.tell(msgspec.structs.replace(beat, readiness=readiness))

    def gone(self, name: str) -> None:
        self.tell(AgentGone(self.specs[name].id, "cut"))

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def submit(self, *asks: JobAsk, key: str | None = None, digest: str | None = None) -> list[JobId]:
        answer = self.tell(Submit(asks, key, digest))
        assert isinstance(answer, tuple), answer
        return list(answer)

    def refused(self, *asks: JobAsk, key: str | None = None, digest: str | None = None) -> Refusal:
        answer = self.tell(Submit(asks, key, digest))
        assert isinstance(answer, Refusal), answer
        return answer

    def start(self, job: str, gang: int = 0, rank: int = 0) -> None:
        self._report(job, gang, rank, TaskPhase.RUNNING, None)

    def end(self, job: str, gang: int = 0, rank: int = 0, *, code: int = 0, cause: Cause = Cause.EXITED) -> None:
        exit_ = TaskExit(cause, exit_code=code if cause is Cause.EXITED else None, started_at=self.now)
        self._report(job, gang, rank, TaskPhase.ENDED, exit_)

    def _report(self, job: str, gang: int, rank: int, phase: TaskPhase, exit_: TaskExit | None) -> None:
        launch = self.launched[TaskKey(JobId(job), gang, rank)]
        report = TaskReport(launch.task, launch.incarnation, phase, 42, self.now, exit_)
        self.tell(TaskReported(node=launch.node, report=report))

    def job(self, name: str) -> Job:
        return self.core.book.state.jobs[JobId(name)]

    def placed_on(self, job: str, gang: int = 0) -> list[str]:
        return [p.node for p in self.job(job).gangs[gang].placements]

    def stops(self) -> list[StopTask]:
        return [c for c in self.commands if isinstance(c, StopTask)]

    def acknowledged(self) -> list[TaskKey]:
        return [c.task for c in self.commands if isinstance(c, Acknowledge)]

    # ---- invariants ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """No device is held twice, held sums equal the placements, gangs are placed as a whole."""
        held: dict[str, int] = {}
        cpus: dict[str, int] = {}
        for job in self.core.book.state.jobs.values():
            for gang in job.gangs.values():
                for placement in gang.placements:
                    cpus[placement.node] = cpus.get(placement.node, 0) + placement.cpus_milli
                    for share in placement.devices:
                        held[share.uuid] = held.get(share.uuid, 0) + share.milli
        assert all(milli <= MILLI for milli in held.values()), held
        board = self.core.book.board
        assert board.choosing == sum(len(holding.bids) > 1 for holding in board.holdings.values())
        for name, known in self.core.book.state.held.items():
            assert known.cpus_milli == cpus.get(name, 0)
            assert known.devices == {u: m for u, m in held.items() if u.startswith(f"{name}-")}
            node = self.core.book.state.nodes.get(name)
            assert node is None or known.cpus_milli <= node.spec.cpus_milli

    def replayed(self) -> ControlCore:
        """Return a core that was rebuilt from the journal alone."""
        entries = tuple(JournalEntry(i + 1, 1, fact) for i, fact in enumerate(self.journal))
        return ControlCore(Recovered(0, None, entries), self.config, AppMasterCore, epoch=2)
