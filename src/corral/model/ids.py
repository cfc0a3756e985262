"""Identifiers. Jobs are numbered per pool (``12``), a gang is ``12.3`` and a task ``12.3.1`` (job.gang.rank)."""

from __future__ import annotations

from typing import NewType

import msgspec

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
DeviceId = NewType("DeviceId", str)
TenantId = NewType("TenantId", str)
QueueName = NewType("QueueName", str)
ServiceName = NewType("ServiceName", str)

DEFAULT_TENANT = TenantId("default")
DEFAULT_QUEUE = QueueName("default")


class GangKey(msgspec.Struct, frozen=True, order=True):
    """One gang of a job: element ``gang`` of its array, 0 for a job without one."""

    job: JobId
    gang: int

    def __str__(self) -> str:
        return f"{self.job}.{self.gang}"


class TaskKey(msgspec.Struct, frozen=True, order=True):
    """One task: rank ``rank`` of a gang."""

    job: JobId
    gang: int
    rank: int

    def __str__(self) -> str:
        return f"{self.job}.{self.gang}.{self.rank}"

    @property
    def gang_key(self) -> GangKey:
        """Return the gang that this task belongs to."""
        return GangKey(self.job, self.gang)

    @classmethod
    def parse(cls, text: str) -> TaskKey:
        """Parse ``job.gang.rank``; raise ``ValueError`` on any other form."""
        job, gang, rank = text.split(".")
        return cls(JobId(job), int(gang), int(rank))
