"""Liveness: hellos, heartbeats, task reports, lost contact, failed devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from corral.control.board import NodeView
from corral.control.book import Book
from corral.control.inputs import Fenced
from corral.control.launching import STOP_CAUSE, launch, stops
from corral.control.observed import Contact
from corral.model.errors import IllegalTransition
from corral.model.events import (
    Decision,
    DeviceFailed,
    DeviceRecovered,
    GangStopping,
    NodeJoined,
    NodeLost,
    TaskEnded,
    TaskStarted,
)
from corral.model.ids import DeviceId, GangKey, JobId, NodeId, TaskKey
from corral.model.job import Cause, Gang, Job, StopReason, Task, TaskExit, TaskState, end_state
from corral.model.messages import (
    Acknowledge,
    AcknowledgeHeartbeat,
    Heartbeat,
    Hello,
    HostMaster,
    MasterDecided,
    StopTask,
    TaskPhase,
    TaskReport,
    TaskReported,
)
from corral.model.resources import DeviceState, Health
from corral.model.transitions import copy_job

RECOVERY_STREAK = 3


class Liveness:
    """Keeps the book in step with what the agents say and do not say."""

    def __init__(self, book: Book) -> None:
        self._book = book

    # ---- contact ---------------------------------------------------------------------------------------------------

    def hello(self, now: float, hello: Hello) -> None:
        """A node (re)connected: register it, then settle every task that should be there or is there."""
        book = self._book
        known = book.state.nodes.get(hello.node)
        if known is None or known.lost or known.spec != hello.spec:
            book.record(NodeJoined(at=now, spec=hello.spec))
        contact = book.observed.contact(hello.node)
        contact.connected = True
        self._heard(now, contact)
        self._observe(hello.node, contact, hello.devices, hello.shards)
        self._devices(now, hello.node, contact)
        rebooted = known is not None and known.spec.incarnation != hello.spec.incarnation
        reported = {(r.task, r.incarnation): r for r in hello.tasks}
        for job, gang, task in self._tasks_on(hello.node):
            report = reported.pop((job.task_key(gang.index, task.rank), gang.incarnation), None)
            self._settle(now, job, gang, task, report, rebooted=rebooted)
        for report in reported.values():
            self._unknown(hello.node, report)
        self._rehost_on(hello.node)

    def gone(self, now: float, node: NodeId) -> None:
        """The connection to an agent broke."""
        contact = self._book.observed.contact(node)
        if contact.connected:
            answered, contact.connected = contact.answering, False
            if answered:
                self._out_of_reach(now, node, contact)

    @staticmethod
    def _heard(now: float, contact: Contact) -> None:
        contact.silent, contact.heard_at, contact.gone_at, contact.fence_asked = False, now, None, False

    def _out_of_reach(self, now: float, node: NodeId, contact: Contact) -> None:
        contact.gone_at = now
        self._book.board.observe(node, NodeView(answering=False, shards=contact.shards))
        self._book.dirty = True
        for job in self._book.masters.on_node(node):
            self._book.rehost(job, now)

    def heartbeat(self, now: float, beat: Heartbeat) -> None:
        """A node is alive: take its observations in and acknowledge."""
        contact = self._book.observed.contact(beat.node)
        was_silent = contact.silent
        if contact.connected:
            self._heard(now, contact)
        contact.load_1m, contact.memory_free_mib = beat.load_1m, beat.memory_free_mib
        contact.clock_skew_s = beat.wall_s - now
        for sample in beat.usage:
            self._book.observed.usage[sample.task] = sample
        self._observe(beat.node, contact, beat.devices, beat.shards)
        self._devices(now, beat.node, contact)
        self._book.send(
            AcknowledgeHeartbeat(node=beat.node, epoch=self._book.epoch, sent_boottime_s=beat.sent_boottime_s)
        )
        if was_silent and contact.answering:
            self._rehost_on(beat.node)

    def _observe(self, node: NodeId, contact: Contact, devices: Sequence[DeviceState], shards: Iterable[str]) -> None:
        held = self._book.state.held.get(node)
        holders: dict[DeviceId, list[GangKey]] = {}
        if held is not None and held.devices:
            for job, gang, task in self._tasks_on(node):
                for share in task.placement.devices if task.placement else ():
                    holders.setdefault(share.uuid, []).append(GangKey(job.id, gang.index))
        blocked: set[str] = set()
        for state in devices:
            contact.devices[state.uuid] = state
            self._book.observed.sample_device(state, holders.get(state.uuid, []))
            if state.foreign:
                blocked.add(state.uuid)
        contact.shards = frozenset(shards)
        contact.doubted -= {state.uuid for state in devices}
        blocked |= contact.doubted
        view = NodeView(answering=contact.answering, shards=contact.shards, blocked=frozenset(blocked))
        before = self._book.board.view(node).shards
        if self._book.board.observe(node, view):
            self._book.dirty = True
            if before != contact.shards:
                self._book.waiting.jobs_with_data(self._book.state.jobs.values())

    def _devices(self, now: float, node: NodeId, contact: Contact) -> None:
        known = self._book.state.nodes.get(node)
        if known is None:
            return
        for spec in known.spec.devices:
            state = contact.devices.get(spec.uuid)
            if state is None:
                continue
            if state.health is Health.FAILED:
                contact.healthy_streak.pop(spec.uuid, None)
                if spec.uuid not in known.failed:
                    self.device_failed(now, node, spec.uuid, state.detail or "the device failed")
            elif spec.uuid in known.failed and state.health is Health.HEALTHY:
                streak = contact.healthy_streak.get(spec.uuid, 0) + 1
                contact.healthy_streak[spec.uuid] = streak
                if streak >= RECOVERY_STREAK:
                    contact.healthy_streak.pop(spec.uuid)
                    self._book.record(DeviceRecovered(at=now, node=node, device=spec.uuid))

    def device_failed(self, now: float, node: NodeId, device: DeviceId, reason: str) -> None:
        """Take a device out and move the gangs that hold it."""
        self._book.record(DeviceFailed(at=now, node=node, device=device, reason=reason))
        for job, gang, task in self._tasks_on(node):
            if task.placement and any(s.uuid == device for s in task.placement.devices):
                self.stop_gang(now, job, gang, StopReason.DEVICE_FAILED)

    def stop_gang(self, now: float, job: Job, gang: Gang, reason: StopReason) -> None:
        """Tell every rank of a gang to stop, once."""
        if gang.live and gang.stopping is None:
            fact = GangStopping(at=now, job=job.id, gang=gang.index, incarnation=gang.incarnation, reason=reason)
            self._book.record(fact)
            self._book.tell(job.id, fact)

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def report(self, now: float, said: TaskReported) -> None:
        """A task changed on its node."""
        task = said.report.task
        job, gang = self._gang(task)
        if job is None or gang is None or gang.incarnation != said.report.incarnation:
            self._unknown(said.node, said.report)
            return
        self._apply(now, job, gang, said.report, said)

    def decided(self, now: float, said: MasterDecided) -> None:
        """A remote AppMaster decided; only the newest generation is listened to."""
        host = self._book.masters.host(said.job)
        if host is not None and host.generation == said.generation and host.node == said.node:
            host.awaiting_since = None
            self._book.decide(said.job, dated(said.decisions, now))

    def _apply(self, now: float, job: Job, gang: Gang, report: TaskReport, said: TaskReported | None) -> None:
        key = report.task
        task = gang.tasks[key.rank]
        if report.phase is TaskPhase.STARTING:
            self._book.observed.starting.add(key)
            return
        seen_by = self._seen_by(job, said)
        if task.state in (TaskState.PLACED, TaskState.STARTING) and _ran(report):
            started = TaskStarted(
                at=now, job=job.id, gang=key.gang, incarnation=report.incarnation, rank=key.rank, pid=report.pid
            )
            self._book.record(started)
            self._book.tell(job.id, started, seen_by=seen_by)
        if report.phase is TaskPhase.ENDED and report.exit is not None:
            if not task.state.holds:
                self._acknowledge(said.node if said else None, report)
                return
            self._end(now, job.id, key, report.incarnation, report.exit, seen_by)
            if said is not None and seen_by is not None:
                self._book.decide(job.id, dated(said.decisions, now))
                self._book.expect(job.id, key.gang, now)
        elif gang.stopping is not None:
            self._resend_stop(job, gang, task)

    def _seen_by(self, job: Job, said: TaskReported | None) -> NodeId | None:
        host = self._book.masters.host(job.id)
        if said is None or host is None or said.generation is None or host.generation != said.generation:
            return None
        return said.node

    def _end(
        self, now: float, job: JobId, key: TaskKey, incarnation: int, exit_: TaskExit, seen_by: NodeId | None
    ) -> None:
        fact = TaskEnded(
            at=now, job=job, gang=key.gang, incarnation=incarnation, rank=key.rank, state=end_state(exit_), exit=exit_
        )
        if exit_.cause is Cause.DEVICE_FAILED:
            self._doubt(job, key)
        self._book.record(fact)
        self._book.tell(job, fact, seen_by=seen_by)

    def _doubt(self, job: JobId, key: TaskKey) -> None:
        """Give the devices of a task that lost one to nobody until their node has looked at them again."""
        placement = self._book.state.jobs[job].gangs[key.gang].tasks[key.rank].placement
        if placement is not None:
            contact = self._book.observed.contact(placement.node)
            contact.doubted |= {share.uuid for share in placement.devices}
            view = self._book.board.view(placement.node)
            blocked = view.blocked | contact.doubted
            self._book.board.observe(placement.node, NodeView(view.answering, view.shards, blocked))

    def _settle(
        self, now: float, job: Job, gang: Gang, task: Task, report: TaskReport | None, *, rebooted: bool
    ) -> None:
        """Bring one task of a node that said hello in line with what the node reports of it."""
        if report is not None:
            self._apply(now, job, gang, report, None)
            return
        key = job.task_key(gang.index, task.rank)
        if task.state is TaskState.RUNNING or rebooted:
            cause = Cause.NODE_LOST if rebooted else Cause.SHIM_LOST
            message = "the node restarted" if rebooted else "its node does not know the task any more"
            self._end(now, job.id, key, gang.incarnation, TaskExit(cause, message=message), None)
        elif gang.stopping is not None:
            exit_ = TaskExit(STOP_CAUSE[gang.stopping], message="never started")
            self._end(now, job.id, key, gang.incarnation, exit_, None)
        elif task.placement is not None:
            nodes, epoch = self._book.state.nodes, self._book.epoch
            self._book.send(launch(job, gang, task, nodes, epoch=epoch, leases=self._book.config.leases))

    def _unknown(self, node: NodeId, report: TaskReport) -> None:
        """A node reports a task that is over here: let it forget the end, or stop what still runs."""
        if report.phase is TaskPhase.ENDED:
            self._acknowledge(node, report)
            return
        self._book.send(
            StopTask(
                node=node,
                epoch=self._book.epoch,
                task=report.task,
                incarnation=report.incarnation,
                reason="cancelled",
                grace_s=0.0,
            )
        )

    def _acknowledge(self, node: NodeId | None, report: TaskReport) -> None:
        if node is None:
            job, gang = self._gang(report.task)
            placement = gang.tasks[report.task.rank].placement if job is not None and gang is not None else None
            node = placement.node if placement is not None else None
        if node is not None:
            self._book.send(
                Acknowledge(node=node, epoch=self._book.epoch, task=report.task, incarnation=report.incarnation)
            )

    def _resend_stop(self, job: Job, gang: Gang, task: Task) -> None:
        if gang.stopping is not None and task.state.holds:
            for stop in stops(job, gang, gang.stopping, epoch=self._book.epoch):
                if stop.task.rank == task.rank:
                    self._book.send(stop)

    def _gang(self, task: TaskKey) -> tuple[Job | None, Gang | None]:
        job = self._book.state.jobs.get(task.job)
        return job, job.gangs.get(task.gang) if job is not None else None

    def _tasks_on(self, node: NodeId) -> list[tuple[Job, Gang, Task]]:
        held = self._book.state.held.get(node)
        found: list[tuple[Job, Gang, Task]] = []
        for name in list(held.gangs) if held is not None else ():
            number, index = name.split(".")
            job = self._book.state.jobs.get(JobId(number))
            gang = job.gangs.get(int(index)) if job is not None else None
            if job is None or gang is None:
                continue
            found.extend(
                (job, gang, t)
                for t in gang.tasks
                if t.state.holds and t.placement is not None and t.placement.node == node
            )
        return found

    def _rehost_on(self, node: NodeId) -> None:
        """Host the AppMasters there whose job's first live rank runs on the node and whose master is here now."""
        for name in {job.id for job, _, _ in self._tasks_on(node)}:
            host = self._book.masters.host(name)
            job = self._book.state.jobs[name]
            first = next((g for g in job.gangs.values() if g.live), None)
            if (host is None or host.node is None) and first is not None and first.placements[0].node == node:
                generation = self._book.masters.move(name, node)
                self._book.send(HostMaster(node=node, epoch=self._book.epoch, job=copy_job(job), generation=generation))

    # ---- time ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look for silence: nodes that are gone for too long, masters that owe a decision."""
        config = self._book.config
        for name, node in list(self._book.state.nodes.items()):
            contact = self._book.observed.contact(name)
            if node.lost:
                continue
            if contact.answering and contact.heard_at is not None and now - contact.heard_at > config.node_silent_s:
                contact.silent = True
                self._out_of_reach(now, name, contact)
            since = contact.gone_at
            if since is None and not contact.answering:
                contact.gone_at = now
            elif since is not None and now - since > config.node_lost_s and not contact.fence_asked:
                contact.fence_asked = True
                self._book.fence(name)
        for job, host in self._book.masters.awaited():
            if host.awaiting_since is not None and now - host.awaiting_since > config.master_silent_s:
                host.awaiting_since = None
                live = self._book.state.jobs.get(job)
                if live is not None and self._book.masters.due(live, now):
                    self._book.rehost(job, now)

    def fenced(self, now: float, answer: Fenced) -> None:
        """The engine proved (or could not prove) that nothing of a silent node runs."""
        contact = self._book.observed.contact(answer.node)
        if contact.answering or answer.node not in self._book.state.nodes:
            return
        if not answer.proven:
            contact.fence_asked, contact.gone_at = False, now
            return
        self._book.record(NodeLost(at=now, node=answer.node, reason="no contact; its tasks are proven to be gone"))
        for job, gang, task in self._tasks_on(answer.node):
            exit_ = TaskExit(Cause.NODE_LOST, message=f"node {answer.node} was lost")
            try:
                self._end(now, job.id, job.task_key(gang.index, task.rank), gang.incarnation, exit_, None)
            except IllegalTransition:
                continue


def dated(decisions: Iterable[Decision], now: float) -> Iterator[Decision]:
    """Return decisions of an agent with the controller's time: the clocks of nodes may be off by hours."""
    return (replace(decision, at=now) for decision in decisions)


def _ran(report: TaskReport) -> bool:
    return report.phase is TaskPhase.RUNNING or (report.exit is not None and report.exit.started_at is not None)
