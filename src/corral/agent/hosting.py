"""The AppMasters that live on this node, by job and generation.

A master is told the facts of its own node directly, so that its decisions travel with the report of the change. When
the connection breaks all masters are dropped: the controller goes on with its own copies and hosts them anew, from the
journal and under a higher generation, after the next hello.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from corral.model.events import Decision, Fact, TaskEnded, TaskStarted
from corral.model.ids import JobId
from corral.model.job import Job
from corral.model.messages import DismissMaster, HostMaster, TellMaster, Usage
from corral.model.offer import Proposal
from corral.ports.master import AppMaster, AppMasterFactory


class Hosted(msgspec.Struct):
    """One AppMaster, the generation that it was hosted under and the epoch of the leader that placed it here."""

    master: AppMaster
    generation: int
    epoch: int


class Heard(msgspec.Struct, frozen=True):
    """What an AppMaster decided on hearing something, and the generation to say it under."""

    job: JobId
    generation: int
    decisions: tuple[Decision, ...]


class Revised(msgspec.Struct, frozen=True):
    """What an AppMaster believes of its gangs after what it saw, and the generation to say it under."""

    job: JobId
    generation: int
    proposal: Proposal


class Hosting:
    """Table of hosted AppMasters. A master that raises is dropped: the controller notices its silence."""

    def __init__(self, factory: AppMasterFactory) -> None:
        self._factory = factory
        self._hosted: dict[JobId, Hosted] = {}
        self.faults: list[str] = []

    def generations(self) -> dict[JobId, int]:
        """Return the generation of every hosted AppMaster."""
        return {job: hosted.generation for job, hosted in self._hosted.items()}

    def obey(self, command: HostMaster | DismissMaster | TellMaster, now: float) -> Heard | None:
        """Do what the controller commands; return what there is to say, ``None`` for nothing."""
        match command:
            case HostMaster():
                hosted = self.host(command.job, command.generation, command.epoch, now)
                return hosted if hosted is not None and hosted.decisions else None
            case DismissMaster():
                self.dismiss(command.job, command.generation)
                return None
            case TellMaster():
                told = self.tell_remote(command.job, command.generation, command.fact)
                # The controller waits for an answer to what happened elsewhere, an empty one included.
                return told if told is not None and (told.decisions or not isinstance(command.fact, Decision)) else None

    def host(self, job: Job, generation: int, epoch: int, now: float) -> Heard | None:
        """Host a job's AppMaster and return what is due at once; ``None`` when this or a newer one is here already."""
        known = self._hosted.get(job.id)
        if known is not None and (known.epoch, known.generation) >= (epoch, generation):
            return None
        try:
            hosted = Hosted(self._factory(job), generation, epoch)
        except Exception as error:  # noqa: BLE001 - a job's master must not take its node down
            self._fault(job.id, error)
            return None
        self._hosted[job.id] = hosted
        return self._due(job.id, hosted, now)

    def dismiss(self, job: JobId, generation: int) -> None:
        """Stop hosting a job's AppMaster unless a newer one is here."""
        known = self._hosted.get(job)
        if known is not None and known.generation <= generation:
            del self._hosted[job]

    def clear(self) -> None:
        """Drop all AppMasters."""
        self._hosted.clear()

    def drop_older_than(self, epoch: int) -> None:
        """Drop the AppMasters that an earlier leader placed here."""
        self._hosted = {job: hosted for job, hosted in self._hosted.items() if hosted.epoch >= epoch}

    def tell(self, fact: TaskStarted | TaskEnded) -> Heard | None:
        """Tell a fact of this node to the job's AppMaster if it lives here and knows the incarnation."""
        hosted = self._hosted.get(fact.job)
        return None if hosted is None else self._handle(fact.job, hosted, fact)

    def tell_remote(self, job: JobId, generation: int, fact: Fact) -> Heard | None:
        """Tell a journaled fact; ``None`` when that generation is not hosted here."""
        hosted = self._hosted.get(job)
        if hosted is None or hosted.generation != generation:
            return None
        return self._handle(job, hosted, fact)

    def observe(self, usage: Sequence[Usage], now: float) -> list[Revised]:
        """Let the AppMasters see what their tasks use and how far they are; return what they believe now instead."""
        revised = []
        by_job: dict[JobId, list[Usage]] = {}
        for sample in usage:
            if sample.task.job in self._hosted:
                by_job.setdefault(sample.task.job, []).append(sample)
        for job, samples in by_job.items():
            try:
                hosted = self._hosted[job]
                hosted.master.observe(samples, now)
                proposal = hosted.master.revise(now)
            except Exception as error:  # noqa: BLE001 - a job's master must not take its node down
                self._fault(job, error)
                continue
            if proposal is not None:
                revised.append(Revised(job, hosted.generation, proposal))
        return revised

    def _handle(self, job: JobId, hosted: Hosted, fact: Fact) -> Heard | None:
        try:
            return Heard(job, hosted.generation, hosted.master.handle(fact))
        except Exception as error:  # noqa: BLE001 - a job's master must not take its node down
            self._fault(job, error)
            return None

    def _due(self, job: JobId, hosted: Hosted, now: float) -> Heard | None:
        try:
            return Heard(job, hosted.generation, hosted.master.resume(now))
        except Exception as error:  # noqa: BLE001 - a job's master must not take its node down
            self._fault(job, error)
            return None

    def _fault(self, job: JobId, error: Exception) -> None:
        self._hosted.pop(job, None)
        self.faults.append(f"dropped the AppMaster of job {job}: {type(error).__name__}: {error}")
