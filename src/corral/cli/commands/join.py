"""`head`, `join`, `leave`: a pool of several machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from corral.cli.commands.pool import TlsCert, TlsKey
from corral.cli.leaving import DRAIN, DrainTimeout, leave_now, place_of
from corral.cli.session import Session, note, print_json
from corral.cli.tree import Json, command
from corral.model.errors import InvalidField, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from corral.runtime.options import JoinOptions, NodeInfo

Name = Annotated[
    str | None, typer.Option("--name", metavar="NODE", help="Name of this machine as a node; its host name otherwise.")
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="ADDRESS",
        help="Where other machines reach this one; the address of its way out when not given.",
        show_default=False,
    ),
]
Simulated = Annotated[
    str | None,
    typer.Option(
        "--simulated",
        metavar="MODEL",
        help="Pretend that this machine has GPUs of this model, for example h100.",
        show_default=False,
    ),
]
GpusPerNode = Annotated[
    int | None,
    typer.Option("--gpus-per-node", metavar="N", min=0, max=64, help="Simulated GPUs.", show_default=False),
]
RayPorts = Annotated[
    int | None,
    typer.Option(
        "--ray-ports",
        metavar="FIRST",
        min=0,
        max=65_000,
        help="First of 28 ports for Ray; 7430, or any free ones when those are taken (0: any).",
        show_default=False,
    ),
]


Host = Annotated[
    str | None,
    typer.Option(
        "--host", metavar="ADDRESS", help="Address to listen on; the one of --address otherwise.", show_default=False
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port", metavar="PORT", min=0, max=65535, help="Port; 7420 or a free one otherwise.", show_default=False
    ),
]
GcsPort = Annotated[
    int | None,
    typer.Option(
        "--gcs-port",
        metavar="PORT",
        min=0,
        max=65535,
        help="Port of Ray's GCS; 7421 or a free one otherwise.",
        show_default=False,
    ),
]

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="PostgreSQL database that several heads share; $CORRAL_STORE otherwise (there it may hold a password). "
        "none: a journal of its own.",
        show_default=False,
    ),
]

TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the join token; $CORRAL_JOIN_TOKEN otherwise.",
        show_default=False,
    ),
]

Slurm = Annotated[
    bool, typer.Option("--slurm", help="Print a batch script for sbatch whose machines join; start nothing here.")
]
Block = Annotated[
    bool,
    typer.Option("--block", help="Stay until the node ends; SIGTERM and Ctrl-C make it leave, as corral leave does."),
]


@command
def head(
    session: Session,
    *,
    host: Host = None,
    address: Address = None,
    port: Port = None,
    gcs_port: GcsPort = None,
    ray_ports: RayPorts = None,
    name: Name = None,
    node: Annotated[
        bool | None,
        typer.Option("--node/--no-node", help="Run jobs on this machine, or none.", show_default=False),
    ] = None,
    store: Store = None,
    simulated: Simulated = None,
    gpus_per_node: GpusPerNode = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: Annotated[
        bool | None,
        typer.Option(
            "--insecure/--secure",
            help="Speak without TLS: tokens can be read on the way. Or with TLS and a certificate of its own making.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start a pool that other machines can join, and print the command with which they do.

    Without --tls-cert and --tls-key a certificate is made; the join command carries its fingerprint. What is not given
    is as at the last start: address, ports, node, store, certificate. --node, --secure and --store none take back what
    --no-node, --insecure, TLS files and --store said then.
    """
    from corral.runtime.options import HeadAsked
    from corral.runtime.starting.heading import start_head

    if node is False and (name is not None or simulated is not None or gpus_per_node is not None):
        raise UsageError("--no-node leaves nothing to name or to simulate", hint="choose one")
    info = start_head(
        HeadAsked(
            state_dir=session.state_dir,
            host=host,
            address=address,
            port=port,
            gcs_port=gcs_port,
            ray_port_first=ray_ports,
            node=None if name is None else checked_node(name),
            no_node=None if node is None else not node,
            store=store_url(store),
            simulated=simulated,
            gpus_per_node=gpus_per_node,
            tls_cert=None if tls_cert is None else Path(tls_cert).absolute(),
            tls_key=None if tls_key is None else Path(tls_key).absolute(),
            insecure=insecure,
        )
    )

    def text() -> RenderableType:
        from corral.cli.render.pool import started_head

        return started_head(info)

    session.answer(info, text, as_json=as_json)


@command
def join(
    session: Session,
    heads: Annotated[
        str | None,
        typer.Argument(
            metavar="HEAD[:PORT][,HEAD...]",
            help="Heads of the pool; none: those that this machine has joined before.",
            show_default=False,
        ),
    ] = None,
    *,
    token_file: TokenFile = None,
    name: Name = None,
    address: Address = None,
    ray_ports: RayPorts = None,
    simulated: Simulated = None,
    gpus_per_node: GpusPerNode = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Send the join token without TLS, to a head that runs so.")
    ] = False,
    slurm: Slurm = False,
    block: Block = False,
    drain_timeout: DrainTimeout = DRAIN,
    as_json: Json = False,
) -> int:
    """Make this machine a node of the pool of a head, and return when it is one.

    The head prints the whole command, with the token that lets machines in. What speaks against joining, from another
    release of corral, Ray or Python to a wrong clock, is said before anything is started.

    A machine that has joined before and has not left, after a reboot for example, is started again by plain
    corral join: it needs neither head nor token, and takes --address if it is to have another one. When it joins
    anew instead, what is not given is as it was: name, --simulated, --ray-ports.

    Inside an allocation of Slurm the node is what Slurm gave: its CPUs, memory and GPUs. With --slurm the command
    prints a batch script that makes all machines of an allocation nodes: corral join HEAD --slurm | sbatch --nodes 4.
    """
    from corral.cli.amounts import duration_of
    from corral.runtime.machines.jointoken import find_join_token
    from corral.runtime.options import JoinOptions
    from corral.runtime.starting.joining import start_node
    from corral.runtime.starting.leaving import hold

    drain_s = duration_of(drain_timeout, "--drain-timeout")
    if heads is None:
        others = (token_file, name, ray_ports, simulated, gpus_per_node)
        if slurm or insecure or any(one is not None for one in others):
            raise UsageError("options of a node need its heads", hint="corral join HEAD[:PORT] ...")
        return again(session, address=address, block=block, drain_s=drain_s, as_json=as_json)
    if slurm:
        print(pilot(heads, drain_s, token_file=token_file, simulated=simulated, insecure=insecure), end="")
        return 0
    options = JoinOptions(
        state_dir=place_of(session),
        heads=tuple(one for one in heads.split(",") if one),
        token=find_join_token(None if token_file is None else Path(token_file)),
        node=checked_node(name) if name is not None else None,
        address=address,
        ray_port_first=ray_ports,
        simulated=simulated,
        gpus_per_node=gpus_per_node,
        insecure=insecure,
    )
    info = start_node(as_allocated(options))
    say_joined(info, as_json=as_json)
    return hold(options.state_dir, info.supervisor_pid, drain_s) if block else 0


def as_allocated(options: JoinOptions) -> JoinOptions:
    """Return the options of a node that is what Slurm gave; the same outside of an allocation."""
    from corral.runtime.machines.allocation import allocation

    given = allocation()
    if given is None:
        return options
    pretended = options.simulated is not None and options.gpus_per_node is None
    return replace(
        options,
        node=options.node or given.node,
        cpus_milli=given.cpus_milli,
        memory_mib=given.memory_mib,
        devices=given.devices,
        gpus_per_node=len(given.devices or ()) if pretended else options.gpus_per_node,
    )


def again(session: Session, *, address: str | None, block: bool, drain_s: float, as_json: bool) -> int:
    """Start the node that this machine is."""
    from corral.runtime.starting.joining import start_node_again
    from corral.runtime.starting.leaving import hold

    info = start_node_again(place_of(session), address)
    say_joined(info, as_json=as_json)
    return hold(place_of(session), info.supervisor_pid, drain_s) if block else 0


def say_joined(info: NodeInfo, *, as_json: bool) -> None:
    """Say that this machine is a node."""
    if as_json:
        print_json(info)
    else:
        note(f"node {info.node} ({info.address}) is in the pool at {info.url}")


def pilot(heads: str, drain_s: float, *, token_file: str | None, simulated: str | None, insecure: bool = False) -> str:
    """Return the batch script of a pilot. The token stays out of it."""
    import sys

    from corral.runtime.machines.pilot import pilot_script

    join = [heads]
    if token_file is not None:
        join += ["--token-file", str(Path(token_file).absolute())]
    if simulated is not None:
        join += ["--simulated", simulated]
    if insecure:
        join.append("--insecure")
    return pilot_script([sys.executable, "-P", "-m", "corral"], join, drain_s)


@command
def leave(
    session: Session,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            "-f",
            help="Kill running tasks at once, without a checkpoint; their jobs go on elsewhere from their last ones.",
        ),
    ] = False,
    leave_tasks: Annotated[
        bool,
        typer.Option(
            "--leave-tasks", help="Let running tasks go on while their leases last; joining again takes them over."
        ),
    ] = False,
    drain_timeout: DrainTimeout = DRAIN,
    as_json: Json = False,
) -> None:
    """Take this machine out of its pool. The head gives it nothing more and forgets it when it is gone.

    What runs here gives way first: tasks are asked for a checkpoint if their job declares one, have its grace for that,
    are stopped, and their jobs go on elsewhere without charge. What has not ended after --drain-timeout is killed.
    """
    if force and leave_tasks:
        raise UsageError("--force and --leave-tasks contradict each other", hint="choose one")
    leave_now(session, force=force, leave_tasks=leave_tasks, drain_timeout=drain_timeout, as_json=as_json)


def store_url(given: str | None) -> str | None:
    """Return the URL of the shared database. Raises ``InvalidField`` for one that shows a password to everybody."""
    import os
    from urllib.parse import urlsplit

    if given is not None and urlsplit(given).password:
        raise InvalidField(
            "everybody on this machine can read the arguments of a program",
            field="--store",
            hint="name a URL with a password in $CORRAL_STORE, or keep the password in ~/.pgpass",
        )
    return given or os.environ.get("CORRAL_STORE") or None


def checked_node(name: str) -> str:
    """Return the name of a node. Raises ``InvalidField``."""
    import re

    from corral.wire.v1.join import NODE_NAME

    if not re.fullmatch(NODE_NAME, name):
        raise InvalidField(
            f"{name!r} is no name of a node: letters, digits, dots and dashes, at most 64", field="--name"
        )
    return name
