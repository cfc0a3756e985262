"""`maintenance`: planned outages of the controller, in which nothing is frozen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.session import Session, note
from corral.cli.tree import Json, StrictGroup, command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from corral.model.report import MaintenanceReport

LOOK_S = 0.5
NODES_SHOWN = 8

maintenance = typer.Typer(cls=StrictGroup, invoke_without_command=True, add_completion=False, rich_markup_mode="rich")


@maintenance.callback()
@command
def shown(ctx: typer.Context, session: Session, as_json: Json = False) -> None:
    """Plan an outage of the controller in which nothing is frozen; alone it shows what is planned."""
    if ctx.invoked_subcommand is None:
        _show(session, as_json=as_json)


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NODES_SHOWN} more" if len(names) > NODES_SHOWN else ""
    return ", ".join(names[:NODES_SHOWN]) + more


@maintenance.command()
@command
def start(
    session: Session,
    duration: Annotated[str, typer.Argument(metavar="DURATION", help="How long the controller may be away, 1m to 7d.")],
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why, for others to read.", show_default=False)
    ] = "",
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long to wait for the nodes.")
    ] = "30s",
) -> None:
    """Grant every node leases of that length and return when all of them have it: then the outage may begin.

    Nothing is frozen or replaced for silence until the time is over. The price: an exclusive task of a node that dies
    meanwhile waits as long, unless a proof of its death comes first.
    """
    from corral.cli.amounts import duration_of

    patience_s = duration_of(timeout, "--timeout")
    report = session.client.start_maintenance(duration_of(duration, "DURATION"), reason)
    note(words(prepared(report, session.client.maintenance, patience_s)))


def prepared(report: MaintenanceReport, look: Callable[[], MaintenanceReport], patience_s: float) -> MaintenanceReport:
    """Return once every node has its long lease. Raises ``Unavailable``, and ``Conflict`` when it ends before that."""
    from corral.model.errors import Conflict, Unavailable

    deadline = time.monotonic() + patience_s
    while report.active and report.missing:
        if time.monotonic() >= deadline:
            raise Unavailable(
                f"{len(report.missing)} node{'s have' if len(report.missing) > 1 else ' has'} no long lease yet: "
                f"{_names(report.missing)}",
                hint="do not begin: look at corral nodes, then start it again, or corral maintenance stop",
            )
        time.sleep(LOOK_S)
        report = look()
    if not report.active:
        raise Conflict("the maintenance ended before every node was prepared", hint="do not begin: start it again")
    return report


@maintenance.command()
@command
def stop(session: Session) -> None:
    """Take the long leases back. Nodes that are not reached keep theirs until they are."""
    session.client.stop_maintenance()
    note("leases have their usual length again")


@maintenance.command()
@command
def status(session: Session, as_json: Json = False) -> None:
    """Show whether a maintenance is under way, until when, and which nodes are not prepared."""
    _show(session, as_json=as_json)


def _show(session: Session, *, as_json: bool) -> None:
    report = session.client.maintenance()

    def text() -> RenderableType:
        from rich.text import Text

        return Text(words(report))

    session.answer(report, text, as_json=as_json)


def words(report: MaintenanceReport) -> str:
    """Return it in one line."""
    if not report.active:
        kept = f"; may still hold the long lease of the last one: {_names(report.holding)}" if report.holding else ""
        return f"no maintenance is under way{kept}"
    from corral.cli.render.units import counted, duration

    why = f" ({report.reason})" if report.reason else ""
    left = f"for {duration(report.left_s)} from now"
    if report.missing:
        return f"not prepared{why}: {_names(report.missing)} without the long lease; it would last {left}"
    return f"the controller may be away {left}{why}: {counted(len(report.ready), 'node')} prepared"
