"""`fetch`: what the tasks of a job gave back, into a directory of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corral.cli.session import Session, note, print_json
from corral.cli.targets import JobRef
from corral.cli.tree import Json, command
from corral.model.errors import InvalidField


@command
def fetch(
    session: Session,
    job: JobRef,
    directory: Annotated[
        str | None,
        typer.Argument(metavar="[DIR]", help="Where to; a new directory job-NUMBER if not given.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Get the outputs of a job: what matches `outputs` in its job file, and what it wrote into $CORRAL_OUTPUT_DIR.

    Of one task they lie in the directory itself. An array has a directory for each element, called by its index; a
    gang has rank-N for each rank. What is there under the same names is replaced.
    """
    found = session.client.handle(job.partition(".")[0] if job[:1].isdecimal() else job)
    target = Path(directory) if directory is not None else Path(f"job-{found.id}")
    try:
        written = session.client.fetch(job, target)
    except OSError as error:
        raise InvalidField(f"cannot write {error.filename or target}: {error.strerror}", field="DIR") from None
    if as_json:
        print_json({"job": found.id, "files": [str(path) for path in written]})
    else:
        for path in written:
            print(path)
        note(f"{len(written)} file{'s' if len(written) != 1 else ''} of job {found.id} ({found.name})")
