"""`token`: access tokens for people and programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.session import Session, note, print_json
from corral.cli.targets import TenantName
from corral.cli.tree import Json, StrictGroup, command
from corral.model.errors import UsageError
from corral.model.tenant import Role

if TYPE_CHECKING:
    from rich.console import RenderableType

token = typer.Typer(cls=StrictGroup, invoke_without_command=True, add_completion=False, rich_markup_mode="rich")


@token.callback()
@command
def known(ctx: typer.Context, session: Session, as_json: Json = False) -> None:
    """List the access tokens: of your tenant, or all for an administrator."""
    if ctx.invoked_subcommand is None:
        show_tokens(session, as_json)


@token.command("list")
@command
def listed(session: Session, as_json: Json = False) -> None:
    """List the access tokens, as corral token does."""
    show_tokens(session, as_json)


def show_tokens(session: Session, as_json: bool) -> None:
    """Print all tokens that may be seen."""
    found = session.client.tokens()

    def text() -> RenderableType:
        from corral.cli.render.pool import tokens as rendered

        return rendered(found)

    # The digest stays behind: the API does not tell it either.
    rows = [
        {"id": one.id, "tenant": one.tenant, "role": one.role, "created_at": one.created_at, "label": one.label}
        for one in found
    ]
    session.answer({"tokens": rows}, text, as_json=as_json)


@token.command()
@command
def issue(
    session: Session,
    tenant: TenantName,
    role: Annotated[
        str,
        typer.Option(
            "--role",
            metavar="ROLE",
            help="user, admin, caller (an API key of services), join (lets machines in) or front (a front end).",
        ),
    ] = "user",
    label: Annotated[
        str, typer.Option("--label", metavar="TEXT", help="What it is for, for others to read.", show_default=False)
    ] = "",
    as_json: Json = False,
) -> None:
    """Make an access token and print its secret, this once. Of a join token: the whole command for other machines."""
    # A node's token is made for a machine when it joins.
    roles = [one.value for one in Role if one is not Role.NODE]
    if role not in roles:
        from corral.cli.failures import did_you_mean

        raise UsageError(
            f"--role: there is no role {role}", hint=did_you_mean(role, roles, "user, admin, caller, join or front")
        )
    made, secret = session.client.issue_token(tenant, role, label)
    if as_json:
        about = {"id": made.id, "tenant": made.tenant, "role": made.role, "created_at": made.created_at}
        print_json({"token": about | {"label": made.label}, "secret": secret})
        return
    sys.stdout.write((joining(session, secret) if made.role is Role.JOIN else secret) + "\n")
    note(f"token {made.id} of tenant {made.tenant} ({made.role.value}): the secret is not shown again")


def joining(session: Session, token: str) -> str:
    """Return the command with which a machine joins the pool with a token."""
    from corral.runtime.machines.jointoken import join_line, parse_join_token

    status = session.client.status()
    urls = dict.fromkeys([status.url, *(head.url for head in status.heads)])
    return join_line(parse_join_token(token, insecure=True), list(urls))


@token.command()
@command
def join(session: Session) -> None:
    """Print the command with which other machines join the pool of this head. It holds the join token: a secret."""
    from corral.runtime.paths import StatePaths
    from corral.runtime.starting.heading import join_command

    sys.stdout.write(join_command(StatePaths(session.state_dir.absolute())) + "\n")


@token.command()
@command
def revoke(
    session: Session,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, from the list.", show_default=False)],
) -> None:
    """Refuse a token from now on."""
    session.client.revoke_token(token_id)
    note(f"token {token_id} is refused from now on")
