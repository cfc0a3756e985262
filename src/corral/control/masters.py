"""Where every job's AppMaster lives: in this process, or in the agent of the job's first placed rank."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from corral.model.ids import JobId, NodeId
from corral.model.job import Job
from corral.policy import recovery
from corral.ports.master import AppMaster, AppMasterFactory


class Host(msgspec.Struct):
    """One hosted AppMaster. ``master`` is set while it lives here; ``node`` names the agent otherwise.

    ``awaiting_since`` is when a fact was sent to a remote one that calls for a decision.
    """

    generation: int
    master: AppMaster | None
    node: NodeId | None = None
    awaiting_since: float | None = None


class Masters:
    """All hosts. Generations rise within one leader epoch, so an older host's words are told from the newest's."""

    def __init__(self, factory: AppMasterFactory, epoch: int) -> None:
        self._factory = factory
        self._next = epoch * 1_000_000_000
        self._hosts: dict[JobId, Host] = {}

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

    @staticmethod
    def due(job: Job, now: float) -> bool:
        """Return whether the job's state alone calls for a decision."""
        return bool(recovery.decide(job, now))

    def awaited(self) -> Iterable[tuple[JobId, Host]]:
        """Return the remote masters that owe a decision."""
        return [(job, host) for job, host in self._hosts.items() if host.awaiting_since is not None]
