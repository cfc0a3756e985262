"""`state`: the whole state of a pool in one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.commands.join import Store, store_url
from corral.cli.session import Session
from corral.cli.tree import Json, StrictGroup, command
from corral.model.errors import Conflict

if TYPE_CHECKING:
    from corral.storage.archive import Archived

state = typer.Typer(cls=StrictGroup, no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


Place = Annotated[Path, typer.Argument(metavar="FILE", help="The file.", show_default=False)]


@state.callback()
def about() -> None:
    """Back the whole state of a pool up, or move it to another database."""


@state.command("export")
@command
def export(
    session: Session,
    file: Place,
    *,
    store: Store = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace the file if it is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write the whole state of this machine's pool, or of a database, to a file. The pool may run meanwhile.

    The file holds what jobs were told in their environment, and everybody's idempotency keys: keep it as safe as the
    database. Logs stay where they are.
    """
    from corral.runtime.archiving import export_state

    if not force:
        check_free(file)
    told(session, export_state(session.state_dir, file, store_url(store)), f"written to {file}", as_json=as_json)


@state.command("import")
@command
def import_(session: Session, file: Place, *, store: Store = None, as_json: Json = False) -> None:
    """Fill a new state directory, or an empty database, from such a file. Start the pool afterwards.

    Never let two pools go on from one state: end the one that was exported before you start the other.
    """
    from corral.runtime.archiving import import_state

    told(session, import_state(session.state_dir, file, store_url(store)), f"imported from {file}", as_json=as_json)


def check_free(file: Path) -> None:
    """Raise ``Conflict`` where something would be overwritten."""
    if os.path.lexists(file):
        raise Conflict(f"{file} is there already", hint="name another file, or replace it with --force")


def told(session: Session, archived: Archived, what: str, *, as_json: bool) -> None:
    """Say what was written or read."""
    from rich.text import Text

    value = {"last_seq": archived.last_seq, "rows": archived.rows, "blobs": archived.blobs}
    words = f"{archived.rows} rows and {archived.blobs} blobs {what}, up to entry {archived.last_seq} of the journal"
    session.answer(value, lambda: Text(words), as_json=as_json)
