"""`frontend`: machines at which services are reached."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.commands.pool import TlsCert, TlsKey
from corral.cli.session import Session, note, print_json
from corral.cli.tree import Json, StrictGroup, command
from corral.model.errors import InvalidField, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from corral.serving.vrrp.render import Vip

frontend = typer.Typer(cls=StrictGroup, invoke_without_command=True, add_completion=False, rich_markup_mode="rich")


@frontend.callback()
@command
def known(ctx: typer.Context, session: Session, as_json: Json = False) -> None:
    """List the front ends that report to the pool: where they serve, and what is wrong with them."""
    if ctx.invoked_subcommand is None:
        show(session, as_json=as_json)


@frontend.command("list")
@command
def listed(session: Session, as_json: Json = False) -> None:
    """List the front ends, as corral frontend does."""
    show(session, as_json=as_json)


def show(session: Session, *, as_json: bool) -> None:
    """Print all front ends."""
    found = session.client.front_ends()

    def text() -> RenderableType:
        from corral.cli.render.frontends import front_ends

        return front_ends(found)

    session.answer({"front_ends": found}, text, as_json=as_json)


Heads = Annotated[
    str | None,
    typer.Argument(
        metavar="HEAD[:PORT][,HEAD...]", help="Heads of the pool; none on a head itself.", show_default=False
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the token of corral frontend token; $CORRAL_FRONT_TOKEN otherwise.",
        show_default=False,
    ),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Its name in lists; the host name otherwise.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where it listens; 0.0.0.0 is everywhere.")]
Port = Annotated[int, typer.Option("--port", metavar="PORT", min=1, max=65535, help="Port for all services.")]
Url = Annotated[
    str, typer.Option("--address", metavar="URL", help="What people call it by, in lists.", show_default=False)
]
MetricsPort = Annotated[
    int, typer.Option("--metrics-port", metavar="PORT", min=0, max=65535, help="Port of its metrics; 0: none.")
]
Virtual = Annotated[
    str | None,
    typer.Option(
        "--vip",
        metavar="ADDRESS/LENGTH",
        help="A virtual address that it holds in turn with others.",
        show_default=False,
    ),
]
Interface = Annotated[
    str | None,
    typer.Option("--interface", metavar="NAME", help="Where the virtual address goes.", show_default=False),
]
Own = Annotated[
    str | None, typer.Option("--own", metavar="ADDRESS", help="This machine's address there.", show_default=False)
]
Peer = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="ADDRESS", help="Another front end's address there; repeat it.", show_default=False),
]
Router = Annotated[int, typer.Option("--router", metavar="ID", help="VRRP router id, the same at all of them.")]
Priority = Annotated[
    int, typer.Option("--priority", metavar="N", help="The highest of those that are well has the address.")
]


@frontend.command()
@command
def start(
    session: Session,
    heads: Heads = None,
    *,
    token_file: TokenFile = None,
    name: Name = None,
    host: Host = "127.0.0.1",
    port: Port = 7480,
    address: Url = "",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    metrics_port: MetricsPort = 7481,
    vip: Virtual = None,
    interface: Interface = None,
    own: Own = None,
    peer: Peer = None,
    router: Router = 74,
    priority: Priority = 100,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Send the token without TLS, to a head that runs so.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make this machine a front end of a pool, or change how it is one; return when it serves.

    A pool makes its head a front end by itself when it gets its first service. More of them keep services reachable
    when one dies: with a virtual address that moves (--vip needs keepalived and root), or by the list of their
    addresses.
    """
    from corral.runtime.starting.frontends import FrontOptions, start_front_end

    info = start_front_end(
        FrontOptions(
            state_dir=session.state_dir,
            heads=tuple(one for one in (heads or "").split(",") if one),
            token=token_of(token_file),
            name=name,
            host=host,
            port=port,
            address=address,
            tls_cert=None if tls_cert is None else Path(tls_cert),
            tls_key=None if tls_key is None else Path(tls_key),
            metrics_port=metrics_port,
            vip=virtual(vip, interface, own, peer or [], router, priority),
            insecure=insecure,
        )
    )
    if as_json:
        print_json(info)
    else:
        note(f"front end {info.name} serves at {info.url}")


def token_of(file: str | None) -> str | None:
    """Return the token from a file, else from the environment, if any. Raises ``InvalidField``."""
    from corral.runtime.starting.frontends import VARIABLE

    if file is None:
        return os.environ.get(VARIABLE) or None
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidField(f"cannot read {file}: {error}", field="--token-file") from None


def virtual(
    vip: str | None, interface: str | None, own: str | None, peers: list[str], router: int, priority: int
) -> Vip | None:
    """Return the virtual address that the options say. Raises ``UsageError``."""
    if vip is None:
        if interface is not None or own is not None or peers:
            raise UsageError("--interface, --own and --peer belong to a virtual address", hint="add --vip")
        return None
    from corral.serving.vrrp.render import Vip

    if interface is None or own is None:
        raise UsageError(
            "--vip needs --interface and --own", hint="for example --interface eth0 --own 10.0.0.11 --peer 10.0.0.12"
        )
    return Vip(address=vip, interface=interface, own=own, peers=tuple(peers), router=router, priority=priority)


@frontend.command()
@command
def stop(session: Session) -> None:
    """Let this machine be a front end no longer. Requests under way are cut: take it out of use before."""
    from corral.runtime.starting.frontends import stop_front_end

    stop_front_end(session.state_dir)
    note("this machine is no front end any more")


@frontend.command()
@command
def token(session: Session) -> None:
    """Make a token, and print the command with which another machine becomes a front end. It holds a secret."""
    from corral.runtime.starting.frontends import front_command

    sys.stdout.write(front_command(session.state_dir) + "\n")
