"""`plan`: what a job or a change would do, tried on a copy of the pool."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corral.cli.amounts import duration_of
from corral.cli.commands.submit import asks_of
from corral.cli.session import Session
from corral.cli.tree import FreeCommand, Json, command, settings
from corral.model.errors import InvalidField, MissingField
from corral.model.ids import NodeId, TenantId
from corral.model.plan import NewNodes, PlanAsk

if TYPE_CHECKING:
    from rich.console import RenderableType


@settings(cls=FreeCommand)
@command
def plan(  # noqa: PLR0917 - typer passes them by name
    ctx: typer.Context,
    session: Session,
    flags: Mapping[str, Any],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]... [-- COMMAND [ARG]...]",
            help="Jobs to try: job files or batch scripts; or, after --, a command.",
            show_default=False,
        ),
    ] = None,
    weigh: Annotated[
        list[str] | None,
        typer.Option("--weigh", metavar="TENANT=WEIGHT", help="Try another weight of a tenant.", show_default=False),
    ] = None,
    drain: Annotated[
        list[str] | None,
        typer.Option("--drain", metavar="NODE", help="Try to empty a node.", show_default=False),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add-nodes", metavar="N[:NODE]", help="Try N more nodes, like NODE or the largest.", show_default=False
        ),
    ] = None,
    horizon: Annotated[str, typer.Option("--horizon", metavar="TIME", help="How far to look ahead.")] = "7d",
    as_json: Json = False,
) -> None:
    """Show what a job or a change would do: which starts move, and who is hurt. Nothing is changed.

    The pool's own scheduler runs on a copy of its state. How long jobs go on is an expectation: from their progress,
    from finished jobs like them, from what they declared.
    """
    program = ctx.meta[FreeCommand.PROGRAM]
    asks = []
    if files or program is not None:
        asks = asks_of(files or [], program, flags, lambda: {queue.name for queue in session.client.queues()})
    ask = PlanAsk(
        submit=tuple(asks),
        weights=dict(map(_weight, weigh or [])),
        drain=tuple(map(NodeId, drain or [])),
        add=tuple(map(_new_nodes, add or [])),
        horizon_s=duration_of(horizon, "--horizon"),
    )
    if not ask.changes:
        raise MissingField(
            "there is nothing to plan", hint="name a job file, --weigh, --drain or --add-nodes; corral plan --help"
        )
    report = session.client.plan(ask)

    def text() -> RenderableType:
        from corral.cli.render.plan import plan as rendered

        return rendered(report, now=time.time())

    session.answer(report, text, as_json=as_json)


def _weight(text: str) -> tuple[TenantId, float]:
    name, equals, number = text.partition("=")
    try:
        weight = float(number) if equals and name else 0.0
    except ValueError:
        weight = 0.0
    if not 0 < weight < float("inf"):
        raise InvalidField(f"{text!r} is not TENANT=WEIGHT with a weight above 0", field="--weigh")
    return TenantId(name), weight


def _new_nodes(text: str) -> NewNodes:
    number, colon, like = text.partition(":")
    if not (number.isascii() and number.isdigit() and int(number) and (like or not colon)):
        raise InvalidField(f"{text!r} is not N or N:NODE with a number of nodes", field="--add-nodes")
    return NewNodes(int(number), NodeId(like) if like else None)
