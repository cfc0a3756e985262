"""`run`: a command on the pool as if it ran here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from corral.cli.flags import ask_of_flags
from corral.cli.session import Session, note, print_json
from corral.cli.tree import FreeCommand, Json, command, settings
from corral.model.errors import UsageError


@settings(cls=FreeCommand, context_settings={"allow_interspersed_args": False})
@command
def run(
    ctx: typer.Context,
    session: Session,
    flags: Mapping[str, Any],
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--] COMMAND [ARG]...",
            help="What to run. One argument with blanks in it is a line for the shell.",
            show_default=False,
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the job's number and return at once.")] = False,
    as_json: Json = False,
) -> int | None:
    """Run a command on the pool: wait for its start, show its log, return its exit code.

    Ctrl-C asks whether to cancel the job or to leave it running; without a terminal it cancels. With --detach nothing
    is followed, and --json then prints the job as an object.
    """
    given = ctx.meta[FreeCommand.PROGRAM]
    if as_json and not detach:
        raise UsageError("--json prints the submitted job and so needs --detach", hint="or use corral submit --json")
    ask = ask_of_flags(flags, [*(program or ()), *(given or ())], os.environ, str(Path.cwd()))
    job = session.client.submit_all([ask])[0]
    if detach:
        if as_json:
            print_json({"jobs": [session.client.summary(job.id)]})
        else:
            print(job.id)
        return None
    from corral.cli.follow import follow_job

    note(f"job {job.id} ({job.name})")
    return follow_job(session.client, job.id)
