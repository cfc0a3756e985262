"""Ending several jobs with one command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.cli.targets import task_ref
from corral.model.errors import AmbiguousName, Conflict, CorralError, NotFound

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.report import JobSummary

NAMED_MAX = 20


def cancel_all(client: Client, jobs: Sequence[str], *, wait: bool) -> tuple[list[JobSummary], list[CorralError]]:
    """Cancel jobs, by number or name; return them and what went wrong with the others, in the order of the jobs.

    Raises ``AmbiguousName`` or ``NotFound`` before anything is done.
    """
    refs = list(dict.fromkeys(jobs))
    for ref in refs:
        _check_name(client, ref)
    if len(refs) > 1:
        for ref in refs:
            client.summary(ref)
    cancelled: list[JobSummary] = []
    problems: list[CorralError] = []
    for ref in refs:
        try:
            cancelled.append(client.cancel(ref))
        except (Conflict, NotFound) as error:
            problems.append(error)
    if wait:
        cancelled = [client.wait(job.id) for job in cancelled]
    return cancelled, problems


def _check_name(client: Client, ref: str) -> None:
    """Raise ``AmbiguousName`` when several unfinished jobs have this name: which of them is meant must be said."""
    if task_ref(ref).job.isdigit():
        return
    found = [job.id for job in client.jobs(name=ref, limit=NAMED_MAX + 1).jobs]
    if len(found) > 1:
        shown = ", ".join(sorted(found[:NAMED_MAX], key=int)) + (", ..." if len(found) > NAMED_MAX else "")
        raise AmbiguousName(f"several unfinished jobs are called {ref}: {shown}", hint="name one by its number")
