"""`nodes`: the machines of the pool and what is wrong with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.session import Session, note
from corral.cli.targets import NodeName
from corral.cli.tree import Json, StrictGroup, command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from corral.model.report import NodeReport

LOOK_S = 0.5
JOBS_SHOWN = 8

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
    """Give a node no new tasks; what runs there goes on. To empty it: corral nodes drain."""
    session.client.cordon(node, reason)
    note(f"{node} gets no new tasks; corral nodes uncordon {node} takes it back")


@nodes.command()
@command
def drain(
    session: Session,
    node: NodeName,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why, for others to read.", show_default=False)
    ] = "",
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long to wait until the node is empty.")
    ] = "10m",
) -> None:
    """Empty a node: it gets no new tasks, and what runs there gives way. Returns when nothing is left on it.

    Tasks are asked for a checkpoint if their job declares one, have their grace for it, and are stopped. Their jobs
    wait again without charge and start elsewhere, from that checkpoint. Nothing is killed before its grace is over:
    when the timeout comes first the node goes on being emptied.
    """
    from corral.cli.amounts import duration_of

    patience_s = duration_of(timeout, "--timeout")
    session.client.cordon(node, reason, drain=True)
    note(f"{node} gets no new tasks; what runs there saves itself and is stopped")
    emptied(node, session.client.nodes, patience_s)
    note(f"{node} is empty; corral nodes uncordon {node} takes it back")


def emptied(node: str, look: Callable[[], Sequence[NodeReport]], patience_s: float) -> None:
    """Return once a node is empty or forgotten. Raises ``Unavailable`` when it is not after ``patience_s``."""
    from corral.cli.render.units import gang_name
    from corral.model.errors import Unavailable

    deadline = time.monotonic() + patience_s
    while True:
        found = next((one for one in look() if one.spec.id == node), None)
        if found is None or not found.gangs:
            return
        if time.monotonic() >= deadline:
            left = ", ".join(gang_name(key.job, key.gang) for key in found.gangs[:JOBS_SHOWN])
            raise Unavailable(
                f"{node} is not empty yet: {left}{', ...' if len(found.gangs) > JOBS_SHOWN else ''}",
                hint=f"it goes on being emptied; corral nodes drain {node} waits on",
            )
        time.sleep(LOOK_S)


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
