"""Liveness: hellos, heartbeats, task reports. What silence means is decided in ``control.silence``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from corral.control.board import NodeView
from corral.control.book import Book
from corral.control.devices import Devices
from corral.control.excuses import excused, restarted
from corral.control.holdings import tasks_on
from corral.control.launching import STOP_CAUSE, draining_s, launch, stops
from corral.control.leases import Leases
from corral.control.namesakes import Namesakes
from corral.control.observed import Contact
from corral.model.events import (
    Decision,
    NodeJoined,
    NodeUncordoned,
    TaskEnded,
    TaskStarted,
)
from corral.model.ids import JobId, NodeId, TaskKey
from corral.model.job import Cause, Gang, Job, Task, TaskExit, TaskState, end_state
from corral.model.messages import (
    Acknowledge,
    Heartbeat,
    Hello,
    HostMaster,
    MasterDecided,
    SayHello,
    StopTask,
    TaskPhase,
    TaskReport,
    TaskReported,
)
from corral.model.state import UNTIL_STARTED
from corral.model.transitions import copy_job
from corral.policy.fencing import is_wrong

SKEWS_KEPT = 5
"""Messages that a clock is judged by: of those the one that was delayed least counts."""


class Liveness:
    """Keeps the book in step with what the agents say.

    Attributes:
        wall_offset_s: How far this machine's wall clock is ahead of the controller's clock.
    """

    wall_offset_s = 0.0

    def __init__(self, book: Book, leases: Leases) -> None:
        self._book = book
        self._leases = leases
        self._namesakes = Namesakes(book, leases)
        self._devices = Devices(book)

    # ---- contact ---------------------------------------------------------------------------------------------------

    def hello(self, now: float, hello: Hello) -> None:
        """A node (re)connected: register it, then settle every task that should be there or is there."""
        book = self._book
        known = book.state.nodes.get(hello.node)
        contact = book.observed.contact(hello.node)
        if known is not None and self._namesakes.keeps_out(now, known, contact, hello.spec):
            # From now on it may be that one which is heard under this name.
            self.gone(now, hello.node)
            return
        if hello.asked is not None and (contact.connected or hello.asked != contact.lapses):
            # It was said before launches that have been sent since: not to know of them proves nothing.
            return
        rebooted = known is not None and known.spec.incarnation != hello.spec.incarnation
        if known is None or known.lost or known.spec != hello.spec:
            book.record(NodeJoined(at=now, spec=hello.spec))
        if rebooted:
            self._leases.restarted(contact)
            contact.restarted_at = now
            if book.state.nodes[hello.node].cordon_reason in UNTIL_STARTED:
                book.record(NodeUncordoned(at=now, node=hello.node, by=hello.node))
        contact.connected = True
        self._heard(now, contact)
        self._devices.observe(hello.node, contact, hello.devices, hello.shards)
        self._devices.judge(now, hello.node, contact, hello.devices)
        reported = {(r.task, r.incarnation): r for r in hello.tasks}
        expected = [
            (job.task_key(gang.index, t.rank), gang.incarnation)
            for job, gang, t in tasks_on(self._book.state, hello.node)
        ]
        # In this order: what is over here must be stopped there before any lease is extended, else it would be thawed.
        there = set(expected)
        for report in hello.tasks:
            if (report.task, report.incarnation) not in there:
                self._unknown(hello.node, report)
        if hello.sent_boottime_s is not None:
            self._leases.acknowledge(now, hello.node, contact, hello.sent_boottime_s)
        for key, incarnation in expected:
            # What is settled for one rank may stop its gang: each is looked up anew.
            found = self._holding(hello.node, key, incarnation)
            if found is not None:
                self._settle(now, hello.node, *found, reported.get((key, incarnation)), rebooted=rebooted)
        self._devices.gone(now, hello.node)
        self._rehost_on(hello.node)

    def gone(self, now: float, node: NodeId) -> None:
        """The connection to an agent broke."""
        contact = self._book.observed.contact(node)
        if contact.connected:
            answered, contact.connected, contact.lapses = contact.answering, False, contact.lapses + 1
            if answered:
                self.out_of_reach(now, node, contact)

    def _heard(self, now: float, contact: Contact) -> None:
        contact.silent, contact.heard_at, contact.gone_on = False, now, None
        contact.heard_on = self._book.observed.hearing.at(now)
        contact.fence_stale = contact.fencing

    def out_of_reach(self, now: float, node: NodeId, contact: Contact) -> None:
        """Stop counting on a node: nothing is placed there, and its AppMasters are hosted here."""
        contact.gone_on = self._book.observed.hearing.at(now)
        self._book.board.observe(node, NodeView(answering=False, shards=contact.shards))
        self._book.dirty = True
        for job in self._book.masters.on_node(node):
            self._book.rehost(job, now)

    def heartbeat(self, now: float, beat: Heartbeat) -> None:
        """A node is alive: take its observations in and acknowledge."""
        contact = self._book.observed.contact(beat.node)
        if not contact.connected:
            # It was given up, and what it runs may run elsewhere by now: first of all it has to say what that is.
            self._book.send(SayHello(node=beat.node, epoch=self._book.epoch, asked=contact.lapses))
            return
        was_silent, contact.fence_asked = contact.silent, False
        self._heard(now, contact)
        self._leases.heard(contact, beat.contact_boottime_s)
        contact.load_1m, contact.memory_free_mib, contact.unfit = beat.load_1m, beat.memory_free_mib, beat.unfit
        contact.skews_s = (*contact.skews_s[-(SKEWS_KEPT - 1) :], beat.wall_s - now - self.wall_offset_s)
        contact.clock_wrong = is_wrong(contact.clock_skew_s or 0.0, self._book.observed.own_skew_s)
        self._devices.observe(beat.node, contact, beat.devices, beat.shards)
        self._devices.judge(now, beat.node, contact, beat.devices)
        self._book.observed.hear_halts(beat.usage, self._book.state.jobs)
        self._leases.acknowledge(now, beat.node, contact, beat.sent_boottime_s)
        if was_silent:
            self._rehost_on(beat.node)

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def report(self, now: float, said: TaskReported) -> None:
        """A task changed on its node."""
        report = said.report
        job, gang = self._gang(report.task)
        if job is None or gang is None or not self._is_placed(said.node, gang, report):
            self._unknown(said.node, report)
            return
        self._apply(now, said.node, job, gang, report, said)

    @staticmethod
    def _is_placed(node: NodeId, gang: Gang, report: TaskReport) -> bool:
        """Return whether a report is of the incarnation and the node that a rank was placed on last."""
        if gang.incarnation != report.incarnation or report.task.rank not in range(len(gang.tasks)):
            return False
        placement = gang.tasks[report.task.rank].placement
        return placement is not None and placement.node == node

    def _holding(self, node: NodeId, key: TaskKey, incarnation: int) -> tuple[Job, Gang, Task] | None:
        """Return a task if it still holds its placement on a node."""
        job, gang = self._gang(key)
        if job is None or gang is None or gang.incarnation != incarnation:
            return None
        task = gang.tasks[key.rank]
        return (job, gang, task) if task.state.holds and task.placement and task.placement.node == node else None

    def decided(self, now: float, said: MasterDecided) -> None:
        """A remote AppMaster decided; only the newest generation is listened to."""
        host = self._book.masters.host(said.job)
        if host is not None and host.generation == said.generation and host.node == said.node:
            self._book.decide(said.job, dated(said.decisions, now))

    def _apply(
        self, now: float, node: NodeId, job: Job, gang: Gang, report: TaskReport, said: TaskReported | None
    ) -> None:
        key = report.task
        task = gang.tasks[key.rank]
        seen_by = self._seen_by(job, said)
        if task.state in (TaskState.PLACED, TaskState.STARTING) and report.began:
            started = TaskStarted(
                at=now, job=job.id, gang=key.gang, incarnation=report.incarnation, rank=key.rank, pid=report.pid
            )
            self._book.record(started)
            self._book.tell(job.id, started, seen_by=seen_by)
        if report.phase is TaskPhase.ENDED and report.exit is not None:
            if not task.state.holds:
                self._acknowledge(node, report)
                return
            exit_ = excused(report.exit, self._book, node, gang) if seen_by is None else report.exit
            self._end(now, job.id, key, report.incarnation, exit_, seen_by)
        elif not task.state.holds:
            self._unknown(node, report)
        elif gang.stopping is not None:
            self._resend_stop(job, gang, task)
        if said is not None and seen_by is not None:
            self._book.decide(job.id, dated(said.decisions, now))

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
            self._devices.doubt(job, key)
        if exit_.cause is Cause.NODE_UNFIT:
            self._devices.unfit(job, key, exit_.message)
        self._book.record(fact)
        self._book.tell(job, fact, seen_by=seen_by)

    def lose_task(self, now: float, node: NodeId, key: TaskKey, incarnation: int) -> None:
        """End a task that surely does not run on its lost node any more, if that was not done meanwhile."""
        if self._holding(node, key, incarnation) is not None:
            exit_ = TaskExit(Cause.NODE_LOST, message=f"node {node} was lost")
            self._end(now, key.job, key, incarnation, exit_, None)

    def _settle(
        self, now: float, node: NodeId, job: Job, gang: Gang, task: Task, report: TaskReport | None, *, rebooted: bool
    ) -> None:
        """Bring one task of a node that said hello in line with what the node reports of it."""
        if report is not None:
            self._apply(now, node, job, gang, report, None)
            return
        key = job.task_key(gang.index, task.rank)
        if task.state is TaskState.RUNNING or rebooted:
            unknown = TaskExit(Cause.SHIM_LOST, message="its node does not know the task any more")
            self._end(now, job.id, key, gang.incarnation, restarted(node) if rebooted else unknown, None)
        elif gang.stopping is not None:
            exit_ = TaskExit(STOP_CAUSE[gang.stopping], message="never started")
            self._end(now, job.id, key, gang.incarnation, exit_, None)
        elif task.placement is not None:
            state, epoch = self._book.state, self._book.epoch
            self._book.send(launch(job, gang, task, state, epoch=epoch, leases=self._book.config.leases))

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

    def _acknowledge(self, node: NodeId, report: TaskReport) -> None:
        self._book.send(
            Acknowledge(node=node, epoch=self._book.epoch, task=report.task, incarnation=report.incarnation)
        )

    def _resend_stop(self, job: Job, gang: Gang, task: Task) -> None:
        if gang.stopping is not None and task.state.holds:
            left_s = draining_s(job, gang, gang.stopping, self._book.state)
            for stop in stops(job, gang, gang.stopping, epoch=self._book.epoch, draining_s=left_s):
                if stop.task.rank == task.rank:
                    self._book.send(stop)

    def _gang(self, task: TaskKey) -> tuple[Job | None, Gang | None]:
        job = self._book.state.jobs.get(task.job)
        return job, job.gangs.get(task.gang) if job is not None else None

    def _rehost_on(self, node: NodeId) -> None:
        """Host the AppMasters there whose job's first live rank runs on the node and whose master is here now."""
        for name in dict.fromkeys(job.id for job, _, _ in tasks_on(self._book.state, node)):
            host = self._book.masters.host(name)
            job = self._book.state.jobs[name]
            first = next((g for g in job.gangs.values() if g.live), None)
            if (host is None or host.node is None) and first is not None and first.placements[0].node == node:
                generation = self._book.masters.move(name, node)
                self._book.send(HostMaster(node=node, epoch=self._book.epoch, job=copy_job(job), generation=generation))


def dated(decisions: Iterable[Decision], now: float) -> Iterator[Decision]:
    """Return decisions of an agent with the controller's time: the clocks of nodes may be off by hours."""
    return (replace(decision, at=now) for decision in decisions)
