"""What was observed and is not journaled: contacts and device samples. After a restart all of it is unknown."""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from corral.control.hearing import Hearing
from corral.model.ids import DeviceId, GangKey, JobId, NodeId, TaskKey
from corral.model.job import Job
from corral.model.messages import Usage
from corral.model.resources import DeviceState

IDLE_PERCENT = 5.0


class Grant(msgspec.Struct):
    """What one node was granted beyond its tasks' own leases.

    ``terms`` is the maintenance (its start) under which its messages are acknowledged now, ``None`` outside of one;
    ``from_boottime_s`` the sending of the first message that was acknowledged so (the node's clock), ``confirmed`` that
    the node has had that acknowledgement. ``until`` (controller's clock) is the end of the longest grant by this
    controller, margin included.
    """

    terms: float | None = None
    from_boottime_s: float | None = None
    confirmed: bool = False
    until: float | None = None


class Contact(msgspec.Struct):
    """The contact with one node. Times named ``_at`` are the controller's clock, ``_on`` are hearing time.

    ``silent`` says that heartbeats stay away although the connection is there. ``doubted`` are devices that a task was
    said to have lost, until the node's next look at its devices comes in. ``fencing`` is set from a request to fence
    until its answer, ``fence_stale`` when the node was heard in between: then the answer proves nothing.
    ``fence_asked`` stays until its first heartbeat after that: shims that it misses were killed by the fencing.

    ``clock_skew_s`` is how far the node's wall clock is ahead of the controller's, ``clock_wrong`` keeps the node
    from getting new tasks; so does ``unfit``, which says why. ``other_machine`` is the hostname of a machine that
    wants to be this node while tasks of the one before it may still run. ``lapses`` counts how often the connection
    broke or the node was given up: the wish for a hello bears that number, and an answer to an older one is out of
    date.
    ``restarted_at`` is when the machine was last seen to have been started anew.
    """

    connected: bool = False
    silent: bool = False
    heard_at: float | None = None
    heard_on: float = 0.0
    gone_on: float | None = None
    fencing: bool = False
    fence_stale: bool = False
    fence_on: float = 0.0
    fence_asked: bool = False
    grant: Grant = msgspec.field(default_factory=Grant)
    devices: dict[DeviceId, DeviceState] = {}
    shards: frozenset[str] = frozenset()
    load_1m: float | None = None
    memory_free_mib: int | None = None
    skews_s: tuple[float, ...] = ()
    clock_wrong: bool = False
    unfit: str = ""
    other_machine: str = ""
    lapses: int = 0
    restarted_at: float | None = None
    healthy_streak: dict[DeviceId, int] = {}
    doubted: frozenset[DeviceId] = frozenset()

    @property
    def answering(self) -> bool:
        """Return whether the node can be counted on."""
        return self.connected and not self.silent

    @property
    def clock_skew_s(self) -> float | None:
        """Return how far the wall clock is ahead, by the message that was delayed least; ``None`` when unknown."""
        return max(self.skews_s) if self.skews_s else None


def clock_words(contact: Contact) -> str:
    """Return how far the clock of a node is off, for people."""
    skew_s = contact.clock_skew_s or 0.0
    return f"its clock is {abs(skew_s):.1f} s {'ahead' if skew_s > 0 else 'behind'}"


class IdleCount(msgspec.Struct):
    """Samples of devices that a job held: how many there were and how many of them showed an idle device."""

    samples: int = 0
    idle: int = 0

    @property
    def share(self) -> float | None:
        """Return the idle share, ``None`` without a sample."""
        return self.idle / self.samples if self.samples else None


class Observed:
    """All observations of this controller.

    Attributes:
        hearing: The time in which nodes could have been heard.
        own_skew_s: How far the controller's own wall clock is ahead of what most nodes say; 0 while they agree.
        steps: What gangs reported: (step, total or ``None``).
        halted: Tasks whose main process does not run, and why.
    """

    def __init__(self, *, may_be_deaf: bool = False) -> None:
        """``may_be_deaf``: the engine can lose contact with the nodes."""
        self.hearing = Hearing(may_be_deaf=may_be_deaf)
        self.own_skew_s = 0.0
        self.halted: dict[TaskKey, str] = {}
        self.contacts: dict[NodeId, Contact] = {}
        self.idle: dict[JobId, IdleCount] = {}
        self.steps: dict[JobId, dict[int, tuple[float, float | None]]] = {}

    def contact(self, node: NodeId) -> Contact:
        """Return the contact with a node, made when missing."""
        found = self.contacts.get(node)
        if found is None:
            found = self.contacts[node] = Contact(devices={}, healthy_streak={}, grant=Grant())
        return found

    def sample_device(self, state: DeviceState, holders: list[GangKey]) -> None:
        """Count one device sample for the jobs that hold it."""
        if state.utilisation_percent is None:
            return
        for key in holders:
            count = self.idle.get(key.job)
            if count is None:
                count = self.idle[key.job] = IdleCount()
            count.samples += 1
            count.idle += state.utilisation_percent < IDLE_PERCENT

    def hear_progress(self, usage: Iterable[Usage], live: Container[JobId]) -> None:
        """Take in how far tasks are; the first rank speaks for its gang, and jobs that are not ``live`` are over."""
        for sample in usage:
            job, gang, rank = sample.task.job, sample.task.gang, sample.task.rank
            if sample.progress is not None and rank == 0 and job in live:
                self.steps.setdefault(job, {})[gang] = (sample.progress, sample.progress_total)

    def hear_halts(self, usage: Iterable[Usage], live: Container[JobId]) -> None:
        """Take in which tasks' main processes do not run although they live; jobs that are not ``live`` are over."""
        for sample in usage:
            if sample.halted is not None and sample.task.job in live:
                self.halted[sample.task] = sample.halted
            else:
                self.halted.pop(sample.task, None)

    def done_share(self, job: Job) -> float | None:
        """Return how much of a live job is done, 0..1 over all its gangs; ``None`` when no task has ever told."""
        steps = self.steps.get(job.id)
        if not steps:
            return None
        declared = job.spec.work.total if job.spec.work is not None else None
        done = 0.0
        for index, gang in job.gangs.items():
            if gang.state.ended:
                done += 1.0
            elif index in steps:
                step, total = steps[index]
                whole = declared if total is None else total
                if whole is None:
                    return None
                done += min(1.0, step / whole)
        return done / len(job.gangs)

    def forget_node(self, node: NodeId) -> None:
        """Drop what is known of a removed node; an answer that is still to come proves nothing about the next one."""
        contact = self.contacts.pop(node, None)
        if contact is not None and contact.fencing:
            self.contact(node).fencing = self.contact(node).fence_stale = True

    def forget_job(self, job: JobId) -> float | None:
        """Drop what is known of an ended job; return its idle share."""
        self.steps.pop(job, None)
        for task in [task for task in self.halted if task.job == job]:
            del self.halted[task]
        count = self.idle.pop(job, None)
        return count.share if count else None
