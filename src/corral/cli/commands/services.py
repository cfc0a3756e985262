"""`services`, `scale`, `rollout`: what serves, how much of it, and which revision."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from corral.cli.session import Session, note
from corral.cli.targets import ServiceNameArgument
from corral.cli.tree import Json, StrictGroup, command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from corral.model.service_report import ServiceReport


class NamesGroup(TyperGroup):
    """A group whose unknown members are names of services: `services chat` is `services show chat`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; what is none of them is shown."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            args = ["show", *args]
        return super().resolve_command(ctx, args)


services = typer.Typer(
    cls=NamesGroup,
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode="rich",
    subcommand_metavar="[NAME | COMMAND [ARGS]...]",
)


@services.callback()
@command
def shown(ctx: typer.Context, session: Session, as_json: Json = False) -> None:
    """List the services: of your tenant, or all for an administrator. With a name: one with its replicas."""
    if ctx.invoked_subcommand is None:
        found = session.client.services()

        def text() -> RenderableType:
            from corral.cli.render.services import services as rendered

            return rendered(found)

        session.answer({"services": found}, text, as_json=as_json)


@services.command()
@command
def show(session: Session, name: ServiceNameArgument, as_json: Json = False) -> None:
    """Show one service with its replicas and revisions, as corral services NAME does."""
    answer(session, session.client.service(name), as_json=as_json)


@services.command()
@command
def stop(
    session: Session,
    name: ServiceNameArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Return when its last replica has ended.")] = False,
) -> None:
    """End a service. Its replicas get no new requests, and end when those under way are done."""
    session.client.remove_service(name)
    if wait:
        from corral.model.errors import NotFound

        try:
            while session.client.service(name).removing:
                time.sleep(LOOK_S)
        except NotFound:
            note(f"service {name} is gone")
            return
    note(f"service {name} ends; its replicas finish what they are at")


LOOK_S = 0.25


def answer(session: Session, told: ServiceReport, *, as_json: bool) -> None:
    """Print one service."""

    def text() -> RenderableType:
        from corral.cli.render.services import service as rendered

        return rendered(told, now=time.time())

    session.answer(told, text, as_json=as_json)


@command
def scale(
    session: Session,
    name: ServiceNameArgument,
    replicas: Annotated[int, typer.Argument(metavar="N", min=0, help="How many replicas.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Ask for a number of replicas. Where load decides, it goes on to decide from there."""
    told = session.client.scale(name, replicas)
    if as_json:
        answer(session, told, as_json=True)
        return
    note(f"service {name}: {told.ready} of {told.wanted} replicas ready")


rollout = typer.Typer(cls=StrictGroup, no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


@rollout.callback()
@command
def about(session: Session) -> None:
    """See how the next revision of a service comes out, let it have more of the replicas, or go back."""
    del session


@rollout.command()
@command
def status(session: Session, name: ServiceNameArgument, as_json: Json = False) -> None:
    """Show how far a rollout is, and the revisions to which one may go back."""
    told = session.client.service(name)

    def text() -> RenderableType:
        from corral.cli.render.services import rollout as rendered

        return rendered(told, now=time.time())

    session.answer({"rollout": told.rollout, "stable": told.stable, "revisions": told.revisions}, text, as_json=as_json)


@rollout.command()
@command
def undo(
    session: Session,
    name: ServiceNameArgument,
    to: Annotated[
        int | None, typer.Option("--to", metavar="N", min=1, help="The revision to go back to.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Give a rollout up; without one bring the revision before the stable one out again, or another that is kept."""
    told = session.client.undo_rollout(name, to)
    if as_json:
        answer(session, told, as_json=True)
    elif told.rollout is None:
        note(f"service {name} stays at revision {told.stable}")
    else:
        note(f"service {name}: revision {told.rollout.revision}, as an earlier one was, follows {told.stable}")


@rollout.command()
@command
def widen(
    session: Session,
    name: ServiceNameArgument,
    percent: Annotated[
        str | None,
        typer.Argument(metavar="[PERCENT]", help="The part of the replicas, such as 50%; all when not given."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a canary have more of the replicas, or all: then it becomes the stable revision."""
    from corral.cli.service_flags import percent_of

    told = session.client.widen_rollout(name, percent_of(percent, "PERCENT") if percent is not None else None)
    if as_json:
        answer(session, told, as_json=True)
        return
    note(f"service {name}: revision {told.revisions[-1].number} may have {percent or 'all'} of the replicas")
