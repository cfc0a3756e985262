"""Whatever comes in whatever order, twice or never: no incarnation runs twice, no task in two incarnations at once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from corral.agent.core import AgentCore
from corral.agent.inputs import (
    Commanded,
    Connected,
    DevicesSampled,
    Disconnected,
    Input,
    KnownTask,
    LaunchFailed,
    TaskBegan,
    TaskFinished,
)
from corral.agent.outputs import Forget, Launch, Record, SaveEpoch, Say, Stop
from corral.appmaster.core import AppMasterCore
from corral.model.ids import TaskKey
from corral.model.job import Cause, TaskExit
from corral.model.messages import Acknowledge, Hello, LaunchTask, StopTask, TaskPhase, TaskReported
from corral.model.resources import DeviceState, Health
from tests.unit.agent.words import GPU, acknowledge, exited, identity, key, launch, stop

Run = tuple[TaskKey, int]

tasks = st.sampled_from([key(1), key(2), key(2, rank=1)])
incarnations = st.integers(1, 4)
epochs = st.integers(1, 3)


class Machine(RuleBasedStateMachine):
    """The disk and the processes of a node around the core; `disk` and `epoch` outlive the agent."""

    def __init__(self) -> None:
        super().__init__()
        self.core = AgentCore(identity(), AppMasterCore, (), 0)
        self.connected = False
        self.live: dict[Run, TaskPhase] = {}
        self.launched: set[Run] = set()
        self.disk: dict[Run, TaskExit | None] = {}
        self.forgotten: set[Run] = set()
        self.epoch = 0
        self.told: dict[Run, TaskExit] = {}
        self.sent: list[LaunchTask | StopTask | Acknowledge] = []
        self.newest_epoch = 0
        self.fresh: set[tuple[Run, int]] = set()

    def tell(self, given: Input) -> None:
        for output in self.core.handle(100.0, 50.0, given):
            match output:
                case Launch(command):
                    run = (command.task, command.incarnation)
                    assert run not in self.launched, "an incarnation runs once"
                    assert all(task != run[0] for task, _ in self.live), "one incarnation of a task at a time"
                    assert all(inc < run[1] for task, inc in self.launched if task == run[0]), "no ghost returns"
                    assert (run, command.epoch) in self.fresh, "no deposed leader launches"
                    self.launched.add(run)
                    self.live[run] = TaskPhase.STARTING
                    self.disk[run] = None
                case Stop(task, incarnation):
                    assert (task, incarnation) in self.live
                case Record(task, incarnation, exit_):
                    self.disk[task, incarnation] = exit_
                case Forget(task, incarnation):
                    assert self.disk[task, incarnation] is not None
                    self.forgotten.add((task, incarnation))
                case SaveEpoch(epoch):
                    assert epoch > self.epoch
                    self.epoch = epoch
                case Say(message):
                    assert self.connected
                    reports = (
                        message.tasks
                        if isinstance(message, Hello)
                        else (message.report,)
                        if isinstance(message, TaskReported)
                        else ()
                    )
                    for report in reports:
                        if report.exit is not None:
                            self.told[report.task, report.incarnation] = report.exit

    def send(self, command: LaunchTask | StopTask | Acknowledge) -> None:
        if not self.connected:
            return
        self.sent.append(command)
        if command.epoch >= self.newest_epoch:
            self.newest_epoch = command.epoch
            self.fresh.add(((command.task, command.incarnation), command.epoch))
        self.tell(Commanded(command))

    @rule(task=tasks, incarnation=incarnations, epoch=epochs)
    def launch(self, task: TaskKey, incarnation: int, epoch: int) -> None:
        self.send(launch(task, incarnation, epoch=epoch))

    @rule(task=tasks, incarnation=incarnations, epoch=epochs)
    def stop(self, task: TaskKey, incarnation: int, epoch: int) -> None:
        self.send(stop(task, incarnation, epoch=epoch))

    @rule(task=tasks, incarnation=incarnations)
    def acknowledge(self, task: TaskKey, incarnation: int) -> None:
        # A controller acknowledges only what it was told.
        if (task, incarnation) in self.told:
            self.send(acknowledge(task, incarnation, epoch=3))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_old_command_comes_again(self, data: st.DataObject) -> None:
        if self.connected:
            self.send(data.draw(st.sampled_from(self.sent)))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), code=st.integers(0, 1))
    def a_task_ends(self, data: st.DataObject, code: int) -> None:
        run = data.draw(st.sampled_from(sorted(self.live)))
        del self.live[run]
        self.disk[run] = exited(code)
        self.tell(TaskFinished(*run, exited(code)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def a_task_begins_or_fails(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.live)))
        if self.live[run] is TaskPhase.STARTING and data.draw(st.booleans()):
            del self.live[run]
            self.tell(LaunchFailed(*run, "no room"))
        else:
            self.live[run] = TaskPhase.RUNNING
            self.tell(TaskBegan(*run, 77, 10.0))

    @rule(failed=st.booleans())
    def a_look_at_the_devices(self, failed: bool) -> None:
        self.tell(DevicesSampled((DeviceState(GPU, Health.FAILED if failed else Health.HEALTHY),)))

    @rule()
    def connect(self) -> None:
        if not self.connected:
            self.connected = True
            self.tell(Connected())

    @rule()
    def disconnect(self) -> None:
        if self.connected:
            self.tell(Disconnected())
            self.connected = False

    @rule()
    def the_agent_starts_anew(self) -> None:
        known = [
            KnownTask(
                task,
                incarnation,
                TaskPhase.ENDED if exit_ is not None else self.live[task, incarnation],
                acknowledged=(task, incarnation) in self.forgotten,
                exit=exit_,
                devices=(GPU,),
            )
            for (task, incarnation), exit_ in self.disk.items()
        ]
        # Commands that waited for an older incarnation die with the agent: the controller sends them again.
        self.connected = False
        self.core = AgentCore(identity(), AppMasterCore, known, self.epoch)

    @invariant()
    def what_is_live_or_unacknowledged_is_known(self) -> None:
        reported = {(report.task, report.incarnation): report for report in self.core.reports()}
        for run in self.live:
            assert reported[run].phase is not TaskPhase.ENDED
        for run, exit_ in self.disk.items():
            if exit_ is not None and run not in self.forgotten:
                found = reported[run].exit
                assert found is not None
                assert found.exit_code == exit_.exit_code
                assert found.cause in (exit_.cause, Cause.DEVICE_FAILED)
        assert not self.forgotten & set(reported)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=40)
