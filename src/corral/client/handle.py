"""One submitted job, as the SDK holds it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from corral.model.job import Job
    from corral.model.report import JobSummary, Receipt, WhyReport
    from corral.ports.engine import LogChunk


class JobCalls(Protocol):
    """What a handle asks of its client; every ``ref`` is a job's number or a gang of it."""

    def summary(self, ref: str) -> JobSummary:
        """Return one job as a row."""

    def job(self, ref: str) -> Job:
        """Return one job with its tasks."""

    def wait(self, ref: str, timeout_s: float | None = None) -> JobSummary:
        """Return the job once it ended."""

    def logs(self, ref: str, *, rank: int | None = None, follow: bool = False) -> Generator[LogChunk]:
        """Yield the log of one task."""

    def cancel(self, ref: str) -> JobSummary:
        """Ask for the end of a job."""

    def why(self, ref: str) -> WhyReport:
        """Explain where a job stands."""

    def receipt(self, ref: str) -> Receipt:
        """Return what a job cost."""


class JobHandle:
    """A job by its number. ``name`` is what it was called at submit."""

    __slots__ = ("_client", "id", "name")

    def __init__(self, client: JobCalls, id_: str, name: str) -> None:
        self._client = client
        self.id = id_
        self.name = name

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r}, {self.name!r})"

    def status(self) -> JobSummary:
        """Return the job as one row."""
        return self._client.summary(self.id)

    def details(self) -> Job:
        """Return the job with its gangs and tasks."""
        return self._client.job(self.id)

    def wait(self, timeout_s: float | None = None) -> JobSummary:
        """Return the job once it ended, or as it is after ``timeout_s``."""
        return self._client.wait(self.id, timeout_s)

    def logs(self, *, element: int | None = None, rank: int | None = None, follow: bool = False) -> Generator[LogChunk]:
        """Yield the log in pieces of bytes; ``element`` is a gang of an array, ``follow`` waits for more."""
        ref = self.id if element is None else f"{self.id}.{element}"
        return self._client.logs(ref, rank=rank, follow=follow)

    def cancel(self) -> JobSummary:
        """Ask for the end of the job."""
        return self._client.cancel(self.id)

    def why(self) -> WhyReport:
        """Explain where the job stands and why."""
        return self._client.why(self.id)

    def receipt(self) -> Receipt:
        """Return what the job cost so far or in all."""
        return self._client.receipt(self.id)
