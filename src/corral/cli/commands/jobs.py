"""`ps`, `cancel`, `why`, `receipt`, `history`: questions about jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.session import Session, note
from corral.cli.targets import JobRef, OptionalJobRef, live_jobs, service_named
from corral.cli.tree import Json, command
from corral.model.errors import InvalidField, MissingField, NotFound

if TYPE_CHECKING:
    from rich.console import RenderableType

LIMIT = 100
LIMIT_MAX = 10_000


@command
def ps(
    session: Session,
    everybody: Annotated[
        bool, typer.Option("--all", "-a", help="Jobs of all users, and finished ones however old.")
    ] = False,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="Only jobs in this state: pending, running, succeeded, failed or cancelled.",
            show_default=False,
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-t", metavar="TENANT", help="Only this tenant.", show_default=False)
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=LIMIT_MAX, help="Show at most so many jobs.")
    ] = LIMIT,
    as_json: Json = False,
) -> None:
    """List your jobs: what runs, what waits, and what ended in the last day.

    One row per job; an array is one row with the number of its elements in each state. Why a job waits or failed is cut
    to fit; --all shows all of it.
    """
    from corral.cli.listing import Listing

    listing = Listing(session.client, everybody=everybody, state=state, tenant=tenant, limit=limit, now=time.time())
    rows = listing.rows()
    if listing.unread is not None:
        note("finished jobs are not shown: the database of the pool does not answer")

    def text() -> RenderableType:
        from corral.cli.render.jobs import TOLD_MAX, jobs

        told_max = None if everybody else TOLD_MAX
        return jobs(rows, now=time.time(), reasons=listing.reasons(rows), told_max=told_max)

    session.answer(rows, text, as_json=as_json)


@command
def cancel(
    session: Session,
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...", help="Numbers or names of jobs.", autocompletion=live_jobs, show_default=False
        ),
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Return when the jobs have ended.")] = False,
    as_json: Json = False,
) -> int | None:
    """End jobs: SIGTERM to their tasks, SIGKILL after their grace.

    None is ended when one of them does not exist, or when a name is that of several unfinished jobs. Each other problem
    is one line, after all jobs were acted on; the exit code is that of the first.
    """
    from corral.cli.ending import cancel_all

    cancelled, problems = cancel_all(session.client, jobs, wait=wait)
    if as_json:
        from corral.cli.session import print_json

        print_json({"jobs": cancelled})
    else:
        for job in cancelled:
            note(f"job {job.id} ({job.name}) {'is ' + job.state.value if job.state.ended else 'is being cancelled'}")
    if not problems:
        return None
    from corral.cli.failures import error_line, exit_code

    for problem in problems:
        note(error_line(problem.refusal))
    return exit_code(problems[0])


@command
def why(
    session: Session,
    job: JobRef,
    everything: Annotated[bool, typer.Option("--all", "-a", help="List every node and holder.")] = False,
    as_json: Json = False,
) -> None:
    """Explain why a job waits: each constraint, who holds what, its share, and when it will start."""
    try:
        report = session.client.why(job)
    except NotFound:
        named = service_named(session.client, job)
        if named is None:
            raise
        told = f"{job} is a service, not a job: {named.waits_for or 'it has all the replicas that it wants'}"
        raise NotFound(told, hint=f"corral services {job}") from None

    def text() -> RenderableType:
        from corral.cli.render.why import why as rendered

        return rendered(report, now=time.time(), everything=everything)

    session.answer(report, text, as_json=as_json)


@command
def receipt(session: Session, job: JobRef, as_json: Json = False) -> None:
    """Show what a job cost: waiting and run time, GPU-hours, idle share, restarts, lost work, how it ended."""
    found = session.client.receipt(job)

    def text() -> RenderableType:
        from corral.cli.render.receipt import receipt as rendered

        return rendered(found)

    session.answer(found, text, as_json=as_json)


@command
def history(
    session: Session,
    job: OptionalJobRef = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Instead write what all jobs that ended did as a trace for corral sim; - is standard output.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what happened to a job, fact by fact; with --trace write the history of the pool for corral sim."""
    if trace is not None:
        if job is not None:
            raise InvalidField("--trace writes the history of the whole pool", field="JOB", hint="leave the job out")
        from corral.cli.tracing import export

        count = export(session.client, trace)
        note(f"{count} jobs and array elements in {'standard output' if trace == '-' else trace}")
        return
    if job is None:
        raise MissingField("which job?", field="JOB", hint="name one, or write all with --trace FILE")
    entries = session.client.history(job)

    def text() -> RenderableType:
        from corral.cli.render.receipt import history as rendered

        return rendered(entries)

    session.answer({"entries": entries}, text, as_json=as_json)
