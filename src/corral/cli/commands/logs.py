"""`logs`: what tasks wrote, during and after their run."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli.session import Session
from corral.cli.targets import JobRef, task_ref
from corral.cli.tree import Json, command
from corral.model.errors import UsageError


@command
def logs(
    session: Session,
    job: JobRef,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended; restarts included.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", "-r", metavar="N", min=0, help="One rank of a gang.", show_default=False)
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Only the last lines.", show_default=False)
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option(
            "--attempt", metavar="N", min=1, help="The Nth start of the job, not the newest.", show_default=False
        ),
    ] = None,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="The attempt before the newest.")] = False,
    replica: Annotated[
        int | None,
        typer.Option(
            "--replica", metavar="N", min=1, help="JOB is a service: the log of a replica.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> int | None:
    """Show the log of a job: of one task as it is, of several line by line with the name of the task before each.

    A job that was started again has a log for each attempt: shown is the newest, or the one that is asked for.

    A terminal gets colours but no other control sequences; a pipe or file gets the bytes as they were written.
    """
    from corral.cli.logreading import PREVIOUS, follow_logs, replica_job, show_logs

    if as_json and follow:
        raise UsageError("--json prints one object and so cannot follow", hint="leave --follow out")
    ref = task_ref(job if replica is None else replica_job(session.client, job, replica))
    if rank is not None:
        if ref.rank is not None:
            raise UsageError(f"{job} names a rank already", hint="leave --rank out")
        ref = ref._replace(rank=rank)
    if attempt is not None and previous:
        raise UsageError("--attempt and --previous both name an attempt", hint="choose one")
    if follow and (attempt is not None or previous):
        raise UsageError("an earlier attempt has ended: there is nothing to follow", hint="leave --follow out")
    if follow:
        return follow_logs(session.client, ref, tail)
    show_logs(session.client, ref, tail, as_json=as_json, attempt=PREVIOUS if previous else attempt)
    return None
