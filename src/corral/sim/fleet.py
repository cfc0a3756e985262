"""The nodes of the simulated world: they obey the controller's commands at once and host AppMasters.

A node here is as lean as the protocol allows. It says what a real agent would say, without processes, disks or leases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from corral.model.ids import GangKey, JobId, NodeId, TaskKey
from corral.model.job import Cause, TaskExit
from corral.model.messages import (
    PROTOCOL,
    AgentSays,
    ControllerSays,
    DismissMaster,
    Hello,
    HostMaster,
    LaunchTask,
    MasterDecided,
    MasterProposed,
    StopTask,
    TaskPhase,
    TaskReport,
    TaskReported,
    TellMaster,
    Usage,
)
from corral.model.resources import NodeSpec
from corral.ports.master import AppMaster, AppMasterFactory


class Hosted:
    """An AppMaster on a node, under the generation that the controller gave it."""

    __slots__ = ("generation", "master", "node")

    def __init__(self, node: NodeId, generation: int, master: AppMaster) -> None:
        self.node = node
        self.generation = generation
        self.master = master


class Gang:
    """The ranks of one incarnation that were launched."""

    __slots__ = ("incarnation", "launched", "ranks")

    def __init__(self, incarnation: int, ranks: int) -> None:
        self.incarnation = incarnation
        self.ranks = ranks
        self.launched: dict[int, LaunchTask] = {}


Started = Callable[[GangKey, Gang], None]
Stopped = Callable[[GangKey, Gang, str], float | None]


class Fleet:
    """All nodes. ``started`` is called when the last rank of a gang runs, ``stopped`` when one was told to stop.

    ``stopped`` returns the progress that the gang reports with its last breath, if it reports any.
    """

    def __init__(
        self, nodes: Sequence[NodeSpec], factory: AppMasterFactory, *, started: Started, stopped: Stopped
    ) -> None:
        self._nodes = nodes
        self._factory = factory
        self._started = started
        self._stopped = stopped
        self._hosted: dict[JobId, Hosted] = {}
        self._gangs: dict[GangKey, Gang] = {}

    def hellos(self) -> Iterable[Hello]:
        """Yield the first message of every node."""
        for spec in self._nodes:
            yield Hello(
                node=spec.id, protocol=PROTOCOL, spec=spec, agent_pid=1, supervisor_start="0", tasks=(), devices=()
            )

    def obey(self, command: ControllerSays, now: float) -> list[AgentSays]:
        """Do what a node is told and return what it says."""
        match command:
            case LaunchTask():
                return self._launch(command, now)
            case TellMaster(job=job, generation=generation, fact=fact):
                hosted = self._hosted.get(job)
                if hosted is None or hosted.generation != generation:
                    return []
                return _said(hosted, job, hosted.master.handle(fact))
            case StopTask():
                return self._stop(command, now)
            case HostMaster(job=job, generation=generation, node=node):
                hosted = self._hosted[job.id] = Hosted(node, generation, self._factory(job))
                return _said(hosted, job.id, hosted.master.resume(now))
            case DismissMaster(job=job, generation=generation):
                known = self._hosted.get(job)
                if known is not None and known.generation <= generation:
                    del self._hosted[job]
        return []

    def adopt(self, key: GangKey, incarnation: int, launched: Mapping[int, LaunchTask]) -> None:
        """Let a gang run already: ``launched`` are the commands that started its ranks."""
        gang = self._gangs[key] = Gang(incarnation, len(launched))
        gang.launched.update(launched)

    def finish(self, key: GangKey, now: float) -> list[AgentSays]:
        """Let all ranks of a running gang end well."""
        gang = self._gangs.pop(key)
        exit_ = TaskExit(Cause.EXITED, exit_code=0, ended_at=now)
        return [_report(launch, TaskPhase.ENDED, now, exit_) for launch in gang.launched.values()]

    def sample(self, key: GangKey, progress: float, now: float) -> list[AgentSays]:
        """Let a gang's first rank report its progress; its AppMaster may revise what it believes."""
        gang, hosted = self._gangs.get(key), self._hosted.get(key.job)
        if gang is None or hosted is None:
            return []
        task = TaskKey(key.job, key.gang, 0)
        usage = Usage(task, gang.incarnation, progress=progress, checkpointed_at=progress)
        hosted.master.observe((usage,), now)
        proposal = hosted.master.revise(now)
        if proposal is None:
            return []
        return [MasterProposed(node=hosted.node, job=key.job, generation=hosted.generation, proposal=proposal, at=now)]

    def _launch(self, command: LaunchTask, now: float) -> list[AgentSays]:
        key = command.task.gang_key
        gang = self._gangs.get(key)
        if gang is None or gang.incarnation != command.incarnation:
            gang = self._gangs[key] = Gang(command.incarnation, len(command.peers))
        gang.launched[command.task.rank] = command
        if len(gang.launched) < gang.ranks:
            return []
        self._started(key, gang)
        return [_report(launch, TaskPhase.RUNNING, now, None) for launch in gang.launched.values()]

    def _stop(self, command: StopTask, now: float) -> list[AgentSays]:
        key = command.task.gang_key
        gang = self._gangs.get(key)
        if gang is None or gang.incarnation != command.incarnation:
            return []
        launch = gang.launched.pop(command.task.rank, None)
        if launch is None:
            return []
        said: list[AgentSays] = []
        if len(gang.launched) == gang.ranks - 1:
            progress = self._stopped(key, gang, command.reason)
            said = self.sample(key, progress, now) if progress is not None else []
        if not gang.launched:
            del self._gangs[key]
        exit_ = TaskExit(Cause(command.reason), exit_code=0, ended_at=now)
        return [*said, _report(launch, TaskPhase.ENDED, now, exit_)]


def _said(hosted: Hosted, job: JobId, decisions: Sequence[object]) -> list[AgentSays]:
    if not decisions:
        return []
    return [MasterDecided(node=hosted.node, job=job, generation=hosted.generation, decisions=tuple(decisions))]  # type: ignore[arg-type]


def _report(launch: LaunchTask, phase: TaskPhase, now: float, exit_: TaskExit | None) -> TaskReported:
    report = TaskReport(launch.task, launch.incarnation, phase, pid=1, started_at=now, exit=exit_)
    return TaskReported(node=launch.node, report=report)
