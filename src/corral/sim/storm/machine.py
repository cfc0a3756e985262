"""A virtual machine that breaks in many ways: the production agent core over pretended processes, disk and devices."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from corral.agent.core import AgentCore, Identity
from corral.agent.guarding import is_overdue
from corral.agent.inputs import (
    Beat,
    Commanded,
    Connected,
    DevicesSampled,
    Disconnected,
    Input,
    KnownTask,
    LaunchFailed,
    TaskBegan,
    TaskFinished,
    TaskRemoved,
)
from corral.agent.outputs import (
    Ask,
    ExtendLease,
    Forget,
    Hush,
    Launch,
    MarkStartedUp,
    Output,
    Record,
    SaveEpoch,
    Say,
    Stop,
)
from corral.appmaster.core import AppMasterCore
from corral.model.ids import DeviceId, TaskKey
from corral.model.job import Cause, TaskExit
from corral.model.messages import ControllerSays, TaskPhase
from corral.model.resources import DeviceState, Health, NodeSpec
from corral.sim.storm.clocks import HostClock
from corral.sim.storm.course import Course
from corral.sim.storm.gate import Gate
from corral.sim.storm.questions import Questions
from corral.sim.storm.relay import Relay, Session
from corral.sim.storm.run import Run

BEAT_S = 1.0
KEPT_S = 20.0
SUPERVISOR_S = (0.3, 1.5)
SHIM_PATIENCE_S = 10.0


class Tomb(msgspec.Struct):
    """What the disk says of a task that never ran here."""

    exit: TaskExit
    acknowledged: bool = False


class Machine:
    """Processes and disk outlive the agent; the disk outlives the machine.

    ``moved`` is called for each run that begins or ceases to make progress, ``faults`` are what must never happen.
    """

    def __init__(
        self, course: Course, spec: NodeSpec, clock: HostClock, relay: Relay, moved: Callable[[Machine, Run], None]
    ) -> None:
        self.name = str(spec.id)
        self.spec = spec
        self.clock = clock
        self.relay = relay
        self.up = True
        self.pauses = 0
        self.agent_stops = 0
        self.disk_slow_s = 0.0
        self.failed: set[DeviceId] = set()
        self.runs: dict[tuple[TaskKey, int], Run] = {}
        self.tombs: dict[tuple[TaskKey, int], Tomb] = {}
        self.core: AgentCore | None = None
        self.faults: list[str] = []
        self._course = course
        self._moved = moved
        self._epoch = 0
        self._boots = 1
        self._gate = Gate(course)
        self._questions = self._new_questions()
        self._starts = 0
        self._session: Session | None = None

    @property
    def paused(self) -> bool:
        """Return whether the whole machine is stopped (or off)."""
        return self.pauses > 0 or not self.up

    # ---- the agent -------------------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        """The supervisor starts the agent: it reads the disk, adopts what runs and says hello."""
        if not self.up or self.core is not None:
            return
        self._gate = Gate(self._course, closed=self.pauses)
        self._questions = self._new_questions()
        self._starts += 1
        known = [self._known(run) for run in self.runs.values()]
        known += [
            KnownTask(*key, TaskPhase.ENDED, tomb.acknowledged, exit=tomb.exit) for key, tomb in self.tombs.items()
        ]
        self.core = AgentCore(Identity(self.spec, self._starts), AppMasterCore, known, self._epoch)
        self.feed(DevicesSampled(self.states()))
        for run in [r for r in self.runs.values() if not r.acknowledged]:
            run.told = False
            if not run.forked and run.exit is None:
                self._fail_launch(run, "the agent ended while it prepared the task")
            else:
                self.noticed(run)
        self.relay.attach(self)
        start = self._starts
        self._course.after(self.clock.true_s(BEAT_S) * self._course.chance.random(), lambda: self._beat(start))

    @staticmethod
    def _known(run: Run) -> KnownTask:
        phase = TaskPhase.ENDED if run.acknowledged else TaskPhase.RUNNING if run.began_at else TaskPhase.STARTING
        return KnownTask(
            run.task,
            run.incarnation,
            phase,
            acknowledged=run.acknowledged,
            started_at=run.began_at,
            devices=tuple(share.uuid for share in run.command.placement.devices),
            lease_s=run.command.lease_s,
            grace_s=run.command.grace_s,
            serving=run.command.serving,
            began_boottime_s=run.began_boottime_s,
            started_up=run.started_up,
        )

    def _new_questions(self) -> Questions:
        return Questions(
            self._course, self._gate, lambda task, incarnation: self.runs.get((task, incarnation)), self.feed
        )

    def kill_agent(self) -> None:
        """SIGKILL; the supervisor starts another."""
        if self.core is None:
            return
        self._course.note(self.name, "agent is killed")
        self._end_agent()
        delay_s = self._course.chance.uniform(*SUPERVISOR_S)
        self._course.after(delay_s, self.start_agent)

    def _end_agent(self) -> None:
        self.core = self._session = None
        self._gate.shut()
        if self.relay.agent is self:
            self.relay.detach()

    def stop_agent(self) -> Callable[[], None]:
        """SIGSTOP for the agent alone; the answer lets it go on."""
        gate = self._gate
        gate.stop()
        self._course.note(self.name, "agent is stopped")
        return gate.go_on

    def connected(self, session: Session) -> None:
        """Hear from the relay that a session begins."""

        def begin() -> None:
            self._session = session
            self.feed(Connected())

        self._gate.let(begin)

    def disconnected(self) -> None:
        """Hear from the relay that the session is over."""

        def end() -> None:
            self._session = None
            self.feed(Disconnected())

        self._gate.let(end)

    def commanded(self, command: ControllerSays) -> None:
        """Hear a command from the relay."""
        self._gate.let(lambda: self.feed(Commanded(command)))

    def feed(self, given: Input) -> None:
        """Hand something to the agent's core and do what it says."""
        if self.core is not None:
            for output in self.core.handle(self.clock.wall(), self.clock.boottime(), given):
                self._do(output)

    def _do(self, output: Output) -> None:
        match output:
            case Say(message):
                if self._session is not None:
                    self._session.say(message)
            case Launch():
                self._launch(output)
            case Stop():
                self._stop(output)
            case Ask() | Hush():
                self._questions.take(output)
            case Record(task, incarnation, exit_):
                self._record(task, incarnation, exit_)
            case Forget(task, incarnation):
                self._forget(task, incarnation)
            case SaveEpoch(epoch):
                self._epoch = epoch
            case ExtendLease(task, incarnation) | MarkStartedUp(task, incarnation):
                run = self.runs.get((task, incarnation))
                if run is not None and isinstance(output, ExtendLease):
                    run.deadline = output.deadline_boottime_s
                elif run is not None:
                    run.started_up = True
            case _:
                pass

    def _record(self, task: TaskKey, incarnation: int, exit_: TaskExit) -> None:
        run = self.runs.get((task, incarnation))
        if run is not None:
            run.exit, run.told = exit_, True
        else:
            self.tombs[task, incarnation] = Tomb(exit_)

    def _beat(self, start: int) -> None:
        if start == self._starts and self.core is not None:
            self._gate.let(self._beat_now)
            self._course.after(self.clock.true_s(BEAT_S), lambda: self._beat(start))

    def _beat_now(self) -> None:
        self.feed(DevicesSampled(self.states()))
        self.feed(Beat(wall_s=self.clock.wall()))
        for run in list(self.runs.values()):
            self._guard(run)
            self._notice(run)

    def _guard(self, run: Run) -> None:
        """Kill a task that its shim lets run without a lease, and the shim."""
        if run.shim and run.alive and not run.frozen and is_overdue(run.deadline, self.clock.boottime()):
            run.kill_shim(leaves_processes=False)
            run.exit = TaskExit(Cause.LEASE_EXPIRED, started_at=run.began_at, ended_at=self.clock.wall())

    def states(self) -> tuple[DeviceState, ...]:
        """Return what a look at the devices shows."""
        return tuple(
            DeviceState(d.uuid, Health.FAILED if d.uuid in self.failed else Health.HEALTHY, detail="drill")
            for d in self.spec.devices
        )

    # ---- runs ------------------------------------------------------------------------------------------------------

    def _launch(self, output: Launch) -> None:
        command = output.command
        if (command.task, command.incarnation) in self.runs:
            self.faults.append(f"{command.task}#{command.incarnation} is launched twice on {self.name}")
            return
        run = self.runs[command.task, command.incarnation] = Run(
            self._course, self, command, output.deadline_boottime_s
        )
        slow_s = self._course.chance.uniform(0.005, 0.1) + self.disk_slow_s
        gate = self._gate
        self._course.after(slow_s, lambda: gate.let(lambda: self._fork(run)))

    def _fork(self, run: Run) -> None:
        if run.forked or run.exit is not None:
            return
        if self._course.chance.random() < 0.01:
            self._fail_launch(run, "no space left on device")
            return
        run.fork()
        if run.stopping is not None:
            run.ask_to_stop(run.stopping, 0.0, 0.0)
        self.feed(TaskBegan(run.task, run.incarnation, 42, self.clock.wall()))

    def _fail_launch(self, run: Run, message: str) -> None:
        run.forked = run.told = True
        self.feed(LaunchFailed(run.task, run.incarnation, message))

    def _stop(self, order: Stop) -> None:
        run = self.runs.get((order.task, order.incarnation))
        if run is None or run.exit is not None:
            return
        if not run.forked:
            run.stopping = Cause(order.reason)
            return
        run.ask_to_stop(Cause(order.reason), order.grace_s, order.saving_s)
        gate = self._gate
        patience_s = order.grace_s + order.saving_s + SHIM_PATIENCE_S
        self._course.after(self.clock.true_s(patience_s), lambda: gate.let(lambda: self._kill_silent(run)))

    @staticmethod
    def _kill_silent(run: Run) -> None:
        """Kill a shim that was told to stop and did not, with everything below it."""
        if run.exit is None and run.shim:
            run.kill_shim(leaves_processes=False)

    def moved(self, run: Run) -> None:
        """Pass on that a run begins or ceases to make progress."""
        self._moved(self, run)

    def noticed(self, run: Run) -> None:
        """The agent, if there is one, sees soon that something of a run changed."""
        gate, slow_s = self._gate, 0.001 + self.disk_slow_s
        self._course.after(slow_s, lambda: gate.let(lambda: self._notice(run)))

    def _notice(self, run: Run) -> None:
        if self.core is None or run.told or run.shim or not run.forked:
            return
        if run.exit is None:
            run.kill_rest()
            run.exit = TaskExit(Cause.SHIM_LOST, started_at=run.began_at, ended_at=self.clock.wall())
        run.told = True
        self.feed(TaskFinished(run.task, run.incarnation, run.exit))

    def _forget(self, task: TaskKey, incarnation: int) -> None:
        tomb = self.tombs.get((task, incarnation))
        if tomb is not None:
            tomb.acknowledged = True
            return
        run = self.runs[task, incarnation]
        run.acknowledged = True
        if run.alive:
            self.faults.append(f"the end of {run} is acknowledged while it runs on {self.name}")
        self._course.after(KEPT_S, lambda: self._remove(run))

    def _remove(self, run: Run) -> None:
        """The directory of an acknowledged task is removed, some time later."""
        if self.core is not None and self.runs.get((run.task, run.incarnation)) is run:
            del self.runs[run.task, run.incarnation]
            self.feed(TaskRemoved(run.task, run.incarnation))

    # ---- accidents -------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """SIGSTOP for everything on the machine; its clocks go on."""
        self.pauses += 1
        self._course.note(self.name, "is paused")
        self._gate.stop()
        for run in self.runs.values():
            run.gate.stop()
            run.review()

    def unpause(self) -> None:
        """SIGCONT for everything."""
        self.pauses -= 1
        self._course.note(self.name, "goes on")
        for run in self.runs.values():
            if not self.paused:
                run.resumed_at = self._course.now
            run.gate.go_on()
            run.review()
        self._gate.go_on()

    def power_off(self) -> None:
        """Nothing runs any more; what is on the disk stays."""
        if not self.up:
            return
        self._course.note(self.name, "loses its power")
        self.up = False
        self._end_agent()
        self.relay.up = False
        self.relay.close()
        for run in self.runs.values():
            run.vanish()

    def power_on(self) -> None:
        """Boot: another incarnation of the node."""
        if self.up:
            return
        self._boots += 1
        self._course.note(self.name, f"boots for the {self._boots}. time")
        self.up = True
        self.clock.reboot()
        self.spec = replace(self.spec, incarnation=f"boot-{self._boots}")
        self.relay.up = True
        self.start_agent()

    def lose_relay(self) -> None:
        """The relay dies alone; agent and tasks go on without contact."""
        self._course.note(self.name, "relay is lost")
        self.relay.up = False
        self.relay.close()

    def restore_relay(self) -> None:
        """Another relay takes its place."""
        self.relay.up = self.up
