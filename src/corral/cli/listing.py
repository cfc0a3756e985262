"""Which jobs `ps` shows: what runs first, then what waits, then what ended; each the newest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from corral.model.errors import NotFound, StoreAway, UsageError
from corral.model.job import JobState
from corral.model.report import JobRows, JobSummary

if TYPE_CHECKING:
    from corral.client import Client

RECENT_S = 86_400.0
PAGE = 200
PAGE_MAX = 2_000
SEEN_MAX = 20_000
"""How many jobs of others are looked through for those of one user."""
REASONS_MAX = 1_000
ASKED_MAX = 50
"""Of how many jobs that do not stand in the queue it is asked which others they wait for."""
EARLIER_SHOWN = 3


class Listing:
    """One question of `ps`. Own jobs are those that this user of the machine submitted."""

    def __init__(
        self, client: Client, *, everybody: bool, state: str | None, tenant: str | None, limit: int, now: float
    ) -> None:
        from corral.client.client import user_name

        self._client = client
        self._user = None if everybody else user_name()
        self._since = None if everybody or state is not None else now - RECENT_S
        self._state = None if state is None else state_of(state)
        self._tenant = tenant
        self._limit = limit
        self._total_live = 0
        self._asked = 0
        self.unread: StoreAway | None = None
        """Why the finished jobs are missing among the rows, if they are."""

    def rows(self) -> JobRows:
        """Return the jobs; ``next_before`` is set when there are more than were asked for."""
        found: list[JobSummary] = []
        more: int | None = None
        for query in self._queries():
            try:
                for job in self._jobs(query):
                    if len(found) == self._limit:
                        more = int(job.id) + 1
                        break
                    found.append(job)
            except StoreAway as error:
                # What is live the controller knows by itself.
                if self._state is not None or not query["finished"]:
                    raise
                self.unread = error
            if more is not None:
                break
        return JobRows(tuple(found), more, self._total_live)

    def reasons(self, rows: JobRows) -> dict[str, str]:
        """Return in short why the pending jobs among these wait, as far as they stand in the queue."""
        waiting = {job.id for job in rows.jobs if job.state is JobState.PENDING and not job.message}
        if not waiting:
            return {}
        reasons: dict[str, str] = {}
        for line in self._client.queue(limit=REASONS_MAX):
            if line.key.job in waiting:
                reasons.setdefault(line.key.job, line.reason)
        for job in rows.jobs:
            if job.id in waiting - reasons.keys() and (earlier := self._waits_for(job)):
                reasons[job.id] = earlier
        return reasons

    def _waits_for(self, job: JobSummary) -> str:
        """Return which jobs must end before a job that does not stand in the queue, in words; empty for none."""
        if self._asked >= ASKED_MAX:
            return ""
        self._asked += 1
        try:
            earlier = self._client.job(job.id, gangs_max=1).waiting_for
        except NotFound:  # it has ended and been removed meanwhile
            return ""
        shown = ", ".join(earlier[:EARLIER_SHOWN]) + (", ..." if len(earlier) > EARLIER_SHOWN else "")
        return f"waits for {'job' if len(earlier) == 1 else 'jobs'} {shown}" if earlier else ""

    def _queries(self) -> Iterator[dict[str, Any]]:
        if self._state is None:
            yield {"live": True, "finished": False, "state": JobState.RUNNING.value}
            yield {"live": True, "finished": False, "state": JobState.PENDING.value}
            yield {"live": False, "finished": True, "since": self._since}
        else:
            yield {"live": not self._state.ended, "finished": self._state.ended, "state": self._state.value}

    def _jobs(self, query: dict[str, Any]) -> Iterator[JobSummary]:
        """Yield what one query finds of the user's jobs, page by page."""
        before, seen, size = None, 0, min(self._limit + 1, PAGE)
        while seen < SEEN_MAX:
            page = self._client.jobs(**query, tenant=self._tenant, before=before, limit=size)
            self._total_live = max(self._total_live, page.total_live)
            yield from (job for job in page.jobs if self._user is None or job.user == self._user)
            before, seen, size = page.next_before, seen + len(page.jobs), PAGE_MAX
            if before is None:
                return


def state_of(text: str) -> JobState:
    """Return the state of a name; raise ``UsageError`` with the nearest right one."""
    from corral.cli.failures import did_you_mean

    names = [state.value for state in JobState]
    if text.lower() not in names:
        hint = did_you_mean(text, names, f"one of {', '.join(names)}")
        raise UsageError(f"--state: there is no state {text}", hint=hint)
    return JobState(text.lower())
