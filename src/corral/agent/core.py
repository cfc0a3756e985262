"""The agent as a pure object: what was commanded and what happened go in, what is to be done comes out.

Every incarnation of a task is launched at most once; a lower incarnation than the highest seen is refused for ever, and
so are the commands of an older leader. The end of a task is told in every hello until the controller acknowledges it.

Leases run from the sending of the last hello or heartbeat that the controller acknowledged. That a connection was made
proves nothing: what took it may be cut off from the controller.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from corral.agent.failures import Failures
from corral.agent.hosting import Heard, Hosting
from corral.agent.inputs import (
    Beat,
    Commanded,
    Connected,
    DevicesSampled,
    Disconnected,
    Input,
    KnownTask,
    LaunchFailed,
    Probed,
    ShardsListed,
    TaskBegan,
    TaskFinished,
    TaskRemoved,
)
from corral.agent.leases import Leases
from corral.agent.outputs import ExtendLease, Forget, Launch, Note, Output, Record, SaveEpoch, Say, Stop
from corral.agent.replicas import Replicas
from corral.agent.table import Entry, TaskTable
from corral.model.events import Decision, TaskEnded, TaskStarted
from corral.model.ids import NodeId, TaskKey
from corral.model.job import Cause, TaskExit
from corral.model.messages import (
    PROTOCOL,
    Acknowledge,
    AcknowledgeHeartbeat,
    Command,
    ControllerSays,
    Heartbeat,
    Hello,
    LaunchTask,
    MasterDecided,
    MasterProposed,
    SayHello,
    StopTask,
    TaskPhase,
    TaskReport,
    TaskReported,
    Usage,
)
from corral.model.resources import DeviceState, NodeSpec
from corral.ports.master import AppMasterFactory

DEVICE_FAILED_GRACE_S = 2.0


class Identity(msgspec.Struct, frozen=True):
    """Who the agent is in its hellos."""

    spec: NodeSpec
    agent_pid: int
    supervisor_start: str = ""


class AgentCore:
    """All of an agent's decisions. ``handle`` is called with every input, in one thread, in order."""

    def __init__(self, identity: Identity, factory: AppMasterFactory, known: Iterable[KnownTask], epoch: int) -> None:
        self.identity = identity
        self._node: NodeId = identity.spec.id
        self._hosting = Hosting(factory)
        self._table = TaskTable()
        self._epoch = epoch
        self._connected = False
        self._leases = Leases()
        self._failures = Failures()
        self._replicas = Replicas()
        self._load = Beat(wall_s=0.0)
        self._shards: tuple[str, ...] = ()
        self._outputs: list[Output] = []
        for task in known:
            self._table.saw(task.task, task.incarnation)
            if not task.acknowledged:
                self._table.add(Entry.known(task))
                self._outputs += self._replicas.adopt(task)

    @property
    def epoch(self) -> int:
        """Return the highest leader epoch seen."""
        return self._epoch

    @property
    def generations(self) -> dict[str, int]:
        """Return the hosted AppMasters: their generations by job."""
        return {str(job): generation for job, generation in self._hosting.generations().items()}

    def reports(self) -> tuple[TaskReport, ...]:
        """Return the state of every task whose end is not acknowledged."""
        return tuple(entry.report() for entry in self._table)

    def handle(self, now: float, boottime_s: float, given: Input) -> list[Output]:
        """Take one input in and return what is to be done, in order. Times: epoch seconds and CLOCK_BOOTTIME."""
        match given:
            case Commanded(command):
                self._on_command(command, now, boottime_s)
            case TaskBegan():
                self._on_began(given, now, boottime_s)
            case Probed():
                self._on_probed(given, now, boottime_s)
            case TaskFinished():
                self._on_finished(given.task, given.incarnation, given.exit, now)
            case LaunchFailed():
                failed = TaskExit(given.cause, message=given.message, ended_at=now)
                self._on_finished(given.task, given.incarnation, failed, now, record=True)
            case Beat():
                self._on_beat(given, now, boottime_s)
            case DevicesSampled(states):
                self._on_devices(states)
            case ShardsListed(shards):
                self._shards = shards
            case TaskRemoved(task, incarnation):
                self._table.forget(task, incarnation)
            case Connected() | Disconnected():
                self._on_connection(boottime_s, made=isinstance(given, Connected))
        for fault in self._hosting.faults:
            self._outputs.append(Note(fault))
        self._hosting.faults.clear()
        outputs, self._outputs = self._outputs, []
        return outputs

    # ---- speaking --------------------------------------------------------------------------------------------------

    def _on_connection(self, boottime_s: float, *, made: bool) -> None:
        self._connected = made
        if made:
            self._say_hello(boottime_s)
        else:
            self._hosting.clear()

    def _say_hello(self, boottime_s: float, asked: int | None = None) -> None:
        who = self.identity
        hello = Hello(
            node=self._node,
            protocol=PROTOCOL,
            spec=who.spec,
            agent_pid=who.agent_pid,
            supervisor_start=who.supervisor_start,
            tasks=self.reports(),
            devices=self._failures.states,
            shards=self._shards,
            sent_boottime_s=boottime_s,
            asked=asked,
        )
        self._outputs.append(Say(hello))

    def _on_beat(self, beat: Beat, now: float, boottime_s: float) -> None:
        for revised in self._hosting.observe(beat.usage, now) if self._connected else ():
            said = MasterProposed(
                node=self._node, job=revised.job, generation=revised.generation, proposal=revised.proposal, at=now
            )
            self._outputs.append(Say(said))
        self._load = beat
        self._say_heartbeat(beat.wall_s, boottime_s, beat.usage)

    def _say_heartbeat(self, wall_s: float, boottime_s: float, usage: tuple[Usage, ...] = ()) -> None:
        if self._connected:
            heartbeat = Heartbeat(
                node=self._node,
                sent_boottime_s=boottime_s,
                wall_s=wall_s,
                devices=self._failures.states,
                shards=self._shards,
                usage=usage,
                load_1m=self._load.load_1m,
                memory_free_mib=self._load.memory_free_mib,
                contact_boottime_s=self._leases.contact_s,
                readiness=self._replicas.readiness(),
                unfit=self._load.unfit,
            )
            self._outputs.append(Say(heartbeat))

    def _tell(self, entry: Entry, fact: TaskStarted | TaskEnded | None = None) -> None:
        """Report a task. A report without a generation says that the job's AppMaster has not heard of the change."""
        if not self._connected:
            return
        heard = self._hosting.tell(fact) if fact is not None else None
        generation = None if heard is None else heard.generation
        decisions: tuple[Decision, ...] = () if heard is None else heard.decisions
        report = TaskReported(node=self._node, report=entry.report(), generation=generation, decisions=decisions)
        self._outputs.append(Say(report))

    def _say_decided(self, heard: Heard) -> None:
        if self._connected:
            decided = MasterDecided(
                node=self._node, job=heard.job, generation=heard.generation, decisions=heard.decisions
            )
            self._outputs.append(Say(decided))

    # ---- commands --------------------------------------------------------------------------------------------------

    def _on_command(self, command: ControllerSays, now: float, boottime_s: float) -> None:
        if not self._admits(command):
            return
        match command:
            case LaunchTask():
                self._on_launch(command, now)
            case StopTask():
                self._on_stop(command, now)
            case Acknowledge():
                self._on_acknowledge(command)
            case AcknowledgeHeartbeat():
                self._on_contact(command)
            case SayHello():
                self._say_hello(boottime_s, command.asked)
            case _:
                heard = self._hosting.obey(command, now)
                if heard is not None:
                    self._say_decided(heard)

    def _admits(self, command: Command) -> bool:
        """Check that a command is for this node and of no older leader than the newest seen."""
        if command.node != self._node:
            self._outputs.append(Note(f"refused a command for node {command.node}"))
            return False
        if command.epoch < self._epoch:
            self._outputs.append(Note(f"refused a command of leader epoch {command.epoch}: {self._epoch} was seen"))
            return False
        if command.epoch > self._epoch:
            self._epoch = command.epoch
            self._outputs.append(SaveEpoch(command.epoch))
            self._hosting.drop_older_than(command.epoch)
        return True

    def _on_launch(self, command: LaunchTask, now: float) -> None:
        task, incarnation = command.task, command.incarnation
        known = self._table.find(task, incarnation)
        if known is not None:
            self._tell(known)
            return
        if incarnation <= self._table.highest(task):
            self._refuse(command, now)
            return
        entry = Entry.of(command)
        before = self._table.in_the_way(entry)
        self._table.add(entry)
        failed = self._failures.of(entry)
        if failed is not None:
            exit_ = TaskExit(Cause.DEVICE_FAILED, message=failed, ended_at=now)
            self._on_finished(task, incarnation, exit_, now, record=True)
            return
        if before:
            entry.waiting = command
            for other in before:
                if other.task == task:
                    self._stop(other, Cause.GANG_STOPPED, 0.0, now)
            return
        self._outputs.append(Launch(command, self._leases.deadline_s(entry.lease_s)))

    def _refuse(self, command: LaunchTask, now: float) -> None:
        highest = self._table.highest(command.task)
        message = f"refused: incarnation {highest} was seen here, or this one ended before"
        exit_ = TaskExit(Cause.LAUNCH_FAILED, message=message, ended_at=now)
        self._outputs.append(Note(f"task {command.task}.{command.incarnation} {message}"))
        self._tell(Entry(command.task, command.incarnation, TaskPhase.ENDED, exit=exit_))

    def _on_stop(self, command: StopTask, now: float) -> None:
        entry = self._table.find(command.task, command.incarnation)
        if entry is None:
            exit_ = TaskExit(Cause.SHIM_LOST, message="the agent does not know this task", ended_at=now)
            if command.incarnation > self._table.highest(command.task):
                self._table.add(Entry(command.task, command.incarnation))
                self._on_finished(command.task, command.incarnation, exit_, now, record=True)
            else:
                self._tell(Entry(command.task, command.incarnation, TaskPhase.ENDED, exit=exit_))
        elif entry.ended:
            self._tell(entry)
        else:
            try:
                cause = Cause(command.reason)
            except ValueError:
                cause = Cause.CANCELLED
            self._stop(entry, cause, command.grace_s, now, command.saving_s)

    def _stop(self, entry: Entry, cause: Cause, grace_s: float, now: float, saving_s: float = 0.0) -> None:
        entry.stopping = True
        self._outputs += self._replicas.end((entry.task, entry.incarnation))
        if entry.waiting is not None:
            exit_ = TaskExit(cause, message="stopped before it was started", ended_at=now)
            self._on_finished(entry.task, entry.incarnation, exit_, now, record=True)
        else:
            entry.condemned = entry.condemned or grace_s + saving_s <= 0
            self._outputs.append(Stop(entry.task, entry.incarnation, cause, grace_s, saving_s))

    def _on_acknowledge(self, command: Acknowledge) -> None:
        entry = self._table.find(command.task, command.incarnation)
        if entry is None:
            return
        if not entry.ended:
            self._outputs.append(Note(f"task {command.task}.{command.incarnation} was acknowledged while it runs"))
            return
        self._table.remove(entry)
        self._outputs.append(Forget(command.task, command.incarnation))

    # ---- leases ----------------------------------------------------------------------------------------------------

    def _on_contact(self, command: AcknowledgeHeartbeat) -> None:
        if not self._leases.confirm(command.sent_boottime_s, command.lease_s):
            return
        for entry in self._table:
            deadline = self._leases.deadline_s(entry.lease_s)
            # What is to end at once gets no more time: it would be thawed to die.
            if deadline is not None and entry.live and not entry.condemned:
                self._outputs.append(ExtendLease(entry.task, entry.incarnation, deadline))

    # ---- what happens ----------------------------------------------------------------------------------------------

    def _on_began(self, given: TaskBegan, now: float, boottime_s: float) -> None:
        entry = self._table.find(given.task, given.incarnation)
        if entry is None or entry.phase is not TaskPhase.STARTING:
            return
        entry.phase, entry.pid, entry.started_at = TaskPhase.RUNNING, given.pid, given.started_at
        self._tell(entry, entry.began(now))
        if entry.serving is not None and not entry.stopping:
            key = (given.task, given.incarnation)
            self._outputs += self._replicas.begin(key, entry.serving.probes, now, boottime_s)

    def _on_finished(
        self, task: TaskKey, incarnation: int, exit_: TaskExit, now: float, *, record: bool = False
    ) -> None:
        entry = self._table.find(task, incarnation)
        if entry is None or entry.ended:
            return
        failed = self._failures.of(entry)
        if failed is not None and exit_.cause is Cause.DEVICE_FAILED:
            exit_ = replace(exit_, message=failed)
        elif failed is not None and not exit_.ok and exit_.cause in (Cause.EXITED, Cause.SIGNAL):
            # It broke on the device before anybody saw that the device had failed.
            exit_ = replace(exit_, cause=Cause.DEVICE_FAILED, message=failed)
        if record:
            self._outputs.append(Record(task, incarnation, exit_))
        if entry.phase is TaskPhase.STARTING and exit_.started_at is not None:
            # It ended before anybody heard that it had begun: the controller takes both from one report.
            entry.started_at = exit_.started_at
            if self._connected:
                self._hosting.tell(entry.began(now))
        entry.phase, entry.exit, entry.waiting = TaskPhase.ENDED, exit_, None
        self._outputs += self._replicas.end((task, incarnation))
        self._tell(entry, entry.finished(exit_, now))
        self._release_waiting()

    def _release_waiting(self) -> None:
        """Launch what waited and has nothing in its way any more."""
        for entry in self._table:
            if entry.waiting is not None and not any(other.live for other in self._table.in_the_way(entry)):
                command, entry.waiting = entry.waiting, None
                self._outputs.append(Launch(command, self._leases.deadline_s(entry.lease_s)))

    def _on_devices(self, states: tuple[DeviceState, ...]) -> None:
        if not self._failures.observe(states):
            return
        for entry in self._table:
            if entry.live and not entry.device_failed and self._failures.of(entry) is not None:
                entry.device_failed = entry.stopping = True
                self._outputs += self._replicas.end((entry.task, entry.incarnation))
                grace_s = min(entry.grace_s, DEVICE_FAILED_GRACE_S)
                self._outputs.append(Stop(entry.task, entry.incarnation, Cause.DEVICE_FAILED, grace_s))

    def _on_probed(self, given: Probed, now: float, boottime_s: float) -> None:
        entry = self._table.find(given.task, given.incarnation)
        if entry is None:
            return
        frozen = self._leases.over(entry.lease_s, boottime_s)
        reaction = self._replicas.answered(given, now, boottime_s, frozen=frozen)
        self._outputs += reaction.outputs
        if reaction.unhealthy is not None:
            entry.stopping = True
            order = Stop(entry.task, entry.incarnation, Cause.UNHEALTHY, entry.grace_s, message=reaction.unhealthy)
            self._outputs.append(order)
        if reaction.turned:
            self._say_heartbeat(now, boottime_s)
