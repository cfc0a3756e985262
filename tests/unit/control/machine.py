"""A machine of the random cluster: the production agent core over processes, a disk and devices that are pretended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from corral.agent.core import AgentCore, Identity
from corral.agent.inputs import (
    Beat,
    DevicesSampled,
    Input,
    KnownTask,
    LaunchFailed,
    TaskBegan,
    TaskFinished,
    TaskRemoved,
)
from corral.agent.outputs import Forget, Launch, Output, Record, SaveEpoch, Say, Stop
from corral.appmaster.core import AppMasterCore
from corral.model.ids import DeviceId, TaskKey
from corral.model.job import Cause, TaskExit
from corral.model.messages import AgentSays, TaskPhase
from corral.model.resources import DeviceShare, DeviceState, Health, NodeSpec


@dataclass(eq=False)
class Run:
    """One incarnation of a task on a machine: its processes, and what the disk says of it."""

    task: TaskKey
    incarnation: int
    shares: tuple[DeviceShare, ...] = ()
    forked: bool = False
    alive: bool = False
    began_at: float | None = None
    exit: TaskExit | None = None
    told: bool = False
    acknowledged: bool = False
    stop: Cause | None = None


class Machine:
    """Processes and disk outlive the agent; ``core`` is ``None`` while no agent runs."""

    def __init__(self, spec: NodeSpec, clock: Callable[[], float], skew_s: float) -> None:
        self.spec = spec
        self.skew_s = skew_s
        self.core: AgentCore | None = None
        self.runs: dict[tuple[TaskKey, int], Run] = {}
        self.failed: set[DeviceId] = set()
        self.outbox: list[AgentSays] = []
        self.launched: list[Run] = []
        self._clock = clock
        self._epoch = 0
        self._boots = 1

    def now(self) -> float:
        """The wall clock of this machine is not that of the controller."""
        return self._clock() + self.skew_s

    # ---- the agent -------------------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        known = [
            KnownTask(
                run.task,
                run.incarnation,
                TaskPhase.ENDED if run.acknowledged else TaskPhase.RUNNING if run.began_at else TaskPhase.STARTING,
                acknowledged=run.acknowledged,
                started_at=run.began_at,
                devices=tuple(share.uuid for share in run.shares),
            )
            for run in self.runs.values()
        ]
        self.core = AgentCore(Identity(self.spec, 1), AppMasterCore, known, self._epoch)
        self.feed(DevicesSampled(self.states()))
        for run in [r for r in self.runs.values() if not r.acknowledged]:
            run.told, run.stop = False, None
            if not run.forked and run.exit is None:
                self.fail_launch(run, "the agent ended while it prepared the task")

    def kill_agent(self) -> None:
        self.core = None
        self.outbox.clear()

    def feed(self, given: Input) -> None:
        assert self.core is not None
        for output in self.core.handle(self.now(), self._clock(), given):
            self._do(output)

    def _do(self, output: Output) -> None:
        match output:
            case Say(message):
                self.outbox.append(message)
            case Launch(command):
                run = Run(command.task, command.incarnation, command.placement.devices)
                assert (run.task, run.incarnation) not in self.runs, f"{run} is launched twice"
                self.runs[run.task, run.incarnation] = run
                self.launched.append(run)
            case Stop(task, incarnation, reason):
                self.runs[task, incarnation].stop = Cause(reason)
            case Record(task, incarnation, exit_):
                run = self.runs.setdefault((task, incarnation), Run(task, incarnation))
                run.exit, run.told, run.alive, run.forked = exit_, True, False, True
            case Forget(task, incarnation):
                self.runs[task, incarnation].acknowledged = True
            case SaveEpoch(epoch):
                self._epoch = epoch
            case _:
                pass

    def beat(self) -> None:
        self.feed(DevicesSampled(self.states()))
        # Its clock is wrong and it says otherwise: a node that is known to be wrong gets no tasks.
        self.feed(Beat(wall_s=self._clock()))

    def states(self) -> tuple[DeviceState, ...]:
        return tuple(
            DeviceState(d.uuid, Health.FAILED if d.uuid in self.failed else Health.HEALTHY, detail="drill")
            for d in self.spec.devices
        )

    # ---- processes -------------------------------------------------------------------------------------------------

    def pick(self, wanted: Callable[[Run], bool], choice: int) -> Run | None:
        found = [run for run in self.runs.values() if wanted(run)]
        return found[choice % len(found)] if found else None

    def fork(self, run: Run) -> None:
        run.forked = run.alive = True

    def fail_launch(self, run: Run, message: str) -> None:
        run.forked, run.told = True, True
        self.feed(LaunchFailed(run.task, run.incarnation, message))

    def begin(self, run: Run) -> None:
        run.began_at = self.now()
        if self.core is not None:
            self.feed(TaskBegan(run.task, run.incarnation, 42, run.began_at))

    def end(self, run: Run, cause: Cause, code: int | None = None) -> None:
        """The processes are gone and the record is on the disk."""
        run.alive = False
        run.exit = TaskExit(cause, exit_code=code, started_at=run.began_at, ended_at=self.now())
        self.notice(run)

    def notice(self, run: Run) -> None:
        """The agent, if there is one, sees that a task is over."""
        if self.core is None or run.told or run.alive or not run.forked:
            return
        if run.exit is None:
            run.exit = TaskExit(Cause.SHIM_LOST, started_at=run.began_at, ended_at=self.now())
        run.told = True
        self.feed(TaskFinished(run.task, run.incarnation, run.exit))

    def notice_all(self) -> None:
        for run in list(self.runs.values()):
            self.notice(run)

    def retire(self, run: Run) -> None:
        """The directory of an acknowledged task is removed."""
        del self.runs[run.task, run.incarnation]
        if self.core is not None:
            self.feed(TaskRemoved(run.task, run.incarnation))

    def kill(self) -> None:
        """SIGKILL for the agent, all shims and all tasks; what is on the disk stays."""
        self.kill_agent()
        for run in self.runs.values():
            run.alive = False
            run.forked = True

    def reboot(self) -> None:
        self.kill()
        self._boots += 1
        self.spec = replace(self.spec, incarnation=f"boot-{self._boots}")
