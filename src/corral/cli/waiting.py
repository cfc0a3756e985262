"""What a person reads while a job waits or an array is on its way."""

from __future__ import annotations

from corral.cli.render.units import counted, span
from corral.model import events
from corral.model.job import JobState
from corral.model.report import WhyReport


class Progress:
    """How far a job is, from its facts."""

    def __init__(self) -> None:
        self._running: set[tuple[int, int]] = set()
        self._ended: dict[int, JobState] = {}
        self.ended = False

    def apply(self, fact: events.Event) -> None:
        """Take the next fact of the job."""
        match fact:
            case events.TaskStarted():
                self._running.add((fact.gang, fact.rank))
            case events.TaskEnded():
                self._running.discard((fact.gang, fact.rank))
            case events.GangEnded():
                self._ended[fact.gang] = fact.state
            case events.JobEnded():
                self.ended = True
            case _:
                pass

    @property
    def running(self) -> int:
        """Return the number of elements of which at least one task runs."""
        return len({gang for gang, _ in self._running})

    @property
    def finished(self) -> int:
        """Return the number of elements that have ended for good."""
        return len(self._ended)

    def counts(self, total: int) -> str:
        """Return ``12 of 48 done (1 failed), 8 running, 28 pending``."""
        bad = sum(state is not JobState.SUCCEEDED for state in self._ended.values())
        failed = f" ({bad} not well)" if bad else ""
        pending = total - self.finished - self.running
        return f"{self.finished} of {total} done{failed}, {self.running} running, {max(0, pending)} pending"


def waiting_line(report: WhyReport, now: float) -> str:
    """Return in one line where a pending job stands: place in the queue, expected start, the reason."""
    parts = []
    if report.position is not None:
        parts.append(f"place {report.position}" + (f", {counted(report.ahead, 'gang')} ahead" if report.ahead else ""))
    if report.estimate is not None:
        parts.append(f"starts {span(report.estimate.earliest, report.estimate.latest, now)}")
    parts.append(report.verdict)
    return " · ".join(parts)
