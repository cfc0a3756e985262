"""Where every job's AppMaster lives: in this process, or in the agent of the job's first placed rank."""

from __future__ import annotations

import msgspec

from corral.model.ids import JobId, NodeId
from corral.model.job import Job
from corral.ports.master import AppMaster, AppMasterFactory


class Host(msgspec.Struct, frozen=True):
    """One hosted AppMaster. ``master`` is set while it lives here; ``node`` names the agent otherwise."""

    generation: int
    master: AppMaster | None
    node: NodeId | None = None


Owed = tuple[JobId, int | None]
"""What a remote AppMaster may owe a decision on: one gang of its job, or the whole job (``None``)."""


class Masters:
    """All hosts. Generations rise within one leader epoch, so an older host's words are told from the newest's."""

    def __init__(self, factory: AppMasterFactory, epoch: int) -> None:
        self._factory = factory
        self._next = epoch * 1_000_000_000
        self._hosts: dict[JobId, Host] = {}
        self._owed: dict[Owed, float] = {}

    def _generation(self) -> int:
        self._next += 1
        return self._next

    def local(self, job: Job) -> AppMaster:
        """Return the job's master here, (re-)hosting it when it lived elsewhere."""
        host = self._hosts.get(job.id)
        if host is None or host.master is None:
            host = self._hosts[job.id] = Host(self._generation(), self._factory(job))
        master = host.master
        assert master is not None
        return master

    def proposer(self, job: Job) -> AppMaster:
        """Return who answers offers for a job: its master here, else a stand-in over the controller's copy.

        Bids of a remote master stand until it changes them; a job whose other gangs run already gets the default
        bidder, so that no message round delays a placement.
        """
        host = self._hosts.get(job.id)
        return self.local(job) if host is None or host.master is not None else self._factory(job)

    def stand_in(self, job: Job) -> AppMaster:
        """Return a master over the controller's copy of a job that lives elsewhere: it watches, it decides nothing."""
        return self._factory(job)

    def host(self, job: JobId) -> Host | None:
        """Return where a job's master lives, ``None`` when it was never needed."""
        return self._hosts.get(job)

    def move(self, job: JobId, node: NodeId) -> int:
        """Move a master to an agent and return its new generation."""
        generation = self._generation()
        self._hosts[job] = Host(generation, None, node)
        return generation

    def forget(self, job: JobId) -> Host | None:
        """Drop the master of an ended job."""
        return self._hosts.pop(job, None)

    def on_node(self, node: NodeId) -> list[JobId]:
        """Return the jobs whose masters live on a node."""
        return [job for job, host in self._hosts.items() if host.node == node]

    def owe(self, job: JobId, gang: int | None, now: float) -> None:
        """Note that a remote master was told something that may call for a decision."""
        # The newest goes last, so that `overdue` has to look at the first ones only.
        self._owed.pop((job, gang), None)
        self._owed[job, gang] = now

    def overdue(self, before: float) -> list[Owed]:
        """Return what remote masters were told last before a time, and forget it.

        Whether a decision is really missing is in the state of the job alone: an answer proves nothing, since it may be
        to something that was told earlier.
        """
        found: list[Owed] = []
        for owed, at in self._owed.items():
            if at >= before:
                break
            found.append(owed)
        for owed in found:
            del self._owed[owed]
        return found
