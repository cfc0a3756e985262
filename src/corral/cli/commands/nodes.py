"""`nodes`: the machines of the pool and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.session import Session, note
from corral.cli.targets import NodeName
from corral.cli.tree import Json, StrictGroup, command

if TYPE_CHECKING:
    from rich.console import RenderableType

nodes = typer.Typer(cls=StrictGroup, invoke_without_command=True, add_completion=False, rich_markup_mode="rich")


@nodes.callback()
@command
def listed(
    ctx: typer.Context,
    session: Session,
    devices: Annotated[
        bool | None,
        typer.Option(
            "--devices/--no-devices", help="List each device; by default up to 64 in all.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the nodes and their devices: health, temperature, memory, and which job holds them."""
    if ctx.invoked_subcommand is not None:
        return
    found = session.client.nodes()

    def text() -> RenderableType:
        from corral.cli.render.nodes import nodes as rendered

        return rendered(found, devices=devices)

    session.answer({"nodes": found}, text, as_json=as_json)


@nodes.command()
@command
def cordon(
    session: Session,
    node: NodeName,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why, for others to read.", show_default=False)
    ] = "",
) -> None:
    """Give a node no new tasks; what runs there goes on."""
    session.client.cordon(node, reason)
    note(f"{node} gets no new tasks; corral nodes uncordon {node} takes it back")


@nodes.command()
@command
def uncordon(session: Session, node: NodeName) -> None:
    """Give a node tasks again."""
    session.client.uncordon(node)
    note(f"{node} takes tasks again")


@nodes.command()
@command
def remove(session: Session, node: NodeName) -> None:
    """Forget a lost node that has no tasks."""
    session.client.remove_node(node)
    note(f"{node} is forgotten")
