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
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended; restarts included.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", "-r", metavar="N", min=0, help="One rank of a gang.", show_default=False)
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Only the last lines.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> int | None:
    """Show the log of a job: of one task as it is, of several line by line with the name of the task before each.

    A terminal gets colours but no other control sequences; a pipe or file gets the bytes as they were written.
    """
    from corral.cli.logreading import follow_logs, show_logs

    if as_json and follow:
        raise UsageError("--json prints one object and so cannot follow", hint="leave --follow out")
    ref = task_ref(job)
    if rank is not None:
        if ref.rank is not None:
            raise UsageError(f"{job} names a rank already", hint="leave --rank out")
        ref = ref._replace(rank=rank)
    if follow:
        return follow_logs(session.client, ref, tail)
    show_logs(session.client, ref, tail, as_json=as_json)
    return None
