"""What was observed and is not journaled: contacts and device samples. After a restart all of it is unknown."""

from __future__ import annotations

import msgspec

from corral.model.ids import DeviceId, GangKey, JobId, NodeId
from corral.model.resources import DeviceState

IDLE_PERCENT = 5.0


class Contact(msgspec.Struct):
    """The contact with one node. Times are the controller's clock.

    ``silent`` says that heartbeats stay away although the connection is there. ``doubted`` are devices that a task was
    said to have lost, until the node's next look at its devices comes in.
    """

    connected: bool = False
    silent: bool = False
    heard_at: float | None = None
    gone_at: float | None = None
    fence_asked: bool = False
    devices: dict[DeviceId, DeviceState] = {}
    shards: frozenset[str] = frozenset()
    load_1m: float | None = None
    memory_free_mib: int | None = None
    clock_skew_s: float | None = None
    healthy_streak: dict[DeviceId, int] = {}
    doubted: frozenset[DeviceId] = frozenset()

    @property
    def answering(self) -> bool:
        """Return whether the node can be counted on."""
        return self.connected and not self.silent


class IdleCount(msgspec.Struct):
    """Samples of devices that a job held: how many there were and how many of them showed an idle device."""

    samples: int = 0
    idle: int = 0

    @property
    def share(self) -> float | None:
        """Return the idle share, ``None`` without a sample."""
        return self.idle / self.samples if self.samples else None


class Observed:
    """All observations of this controller."""

    def __init__(self) -> None:
        self.contacts: dict[NodeId, Contact] = {}
        self.idle: dict[JobId, IdleCount] = {}

    def contact(self, node: NodeId) -> Contact:
        """Return the contact with a node, made when missing."""
        found = self.contacts.get(node)
        if found is None:
            found = self.contacts[node] = Contact(devices={}, healthy_streak={})
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

    def forget_node(self, node: NodeId) -> None:
        """Drop what is known of a removed node."""
        self.contacts.pop(node, None)

    def forget_job(self, job: JobId) -> float | None:
        """Drop what is known of an ended job; return its idle share."""
        count = self.idle.pop(job, None)
        return count.share if count else None
