"""`submit`: job files, batch scripts and commands into the queue."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corral.cli.flags import ask_of_flags, names_file, with_flags
from corral.cli.session import Session, note, print_json
from corral.cli.tree import FreeCommand, Json, command, settings
from corral.model.errors import JobFileUnreadable, MissingField, UsageError

if TYPE_CHECKING:
    from corral.model.ask import JobAsk


@settings(cls=FreeCommand)
@command
def submit(
    ctx: typer.Context,
    session: Session,
    flags: Mapping[str, Any],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]... [-- COMMAND [ARG]...]",
            help="Job files (YAML) or batch scripts (#SBATCH); or, after --, a command.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when the jobs have ended, with their exit code.")
    ] = False,
    as_json: Json = False,
) -> int | None:
    """Submit jobs and print their numbers, one a line.

    All jobs of all files are admitted, or none. Flags beside a file replace what the file says.
    """
    program = ctx.meta[FreeCommand.PROGRAM]
    asks = asks_of(files or [], program, flags, lambda: {queue.name for queue in session.client.queues()})
    jobs = session.client.submit_all(asks)
    if not as_json:
        for job in jobs:
            print(job.id, flush=True)
    code = None
    if wait:
        from corral.cli.follow import job_exit_code

        ended = [session.client.wait(job.id) for job in jobs]
        for found in ended:
            told = f": {found.message}" if found.message else ""
            note(f"job {found.id} ({found.name}) {found.state.value}{told}")
        code = next((one for one in map(job_exit_code, ended) if one), 0)
    if as_json:
        print_json({"jobs": [session.client.summary(job.id) for job in jobs]})
    return code


def asks_of(
    files: Sequence[str], program: Sequence[str] | None, flags: Mapping[str, Any], queues: Callable[[], Collection[str]]
) -> list[JobAsk]:
    """Return the jobs of files, or the one of a command. ``queues`` tells which partitions of scripts are queues."""
    here = str(Path.cwd())
    if program is not None:
        if files:
            raise UsageError(f"{files[0]} stands before -- and a command after it", hint="submit one or the other")
        return [ask_of_flags(flags, program, os.environ, here)]
    if not files:
        raise MissingField(
            "there is nothing to submit", hint="corral submit job.yaml, or corral submit --gpus 1 -- python train.py"
        )
    from corral.wire.jobfile import load_any

    asks: list[JobAsk] = []
    for file in files:
        if not names_file(file):
            raise JobFileUnreadable("there is no such file", where=file, hint="a command goes after --")
        found, ignored = load_any(file, environment=os.environ, queues=queues)
        asks += found
        for line in ignored:
            note(f"{file}: {line}")
    return with_flags(asks, flags, os.environ, here)
