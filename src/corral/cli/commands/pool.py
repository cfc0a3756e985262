"""`up`, `down`, `status`, `doctor`: the pool of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.failures import ExitCode
from corral.cli.leaving import DRAIN, DrainTimeout, leave_now, tasks_of
from corral.cli.session import Session, confirmed_by_tty, note, print_json
from corral.cli.tree import Json, command
from corral.model.errors import JobsRunning, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from corral.runtime.options import StopReport

TlsCert = Annotated[
    str | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate (PEM).", show_default=False)
]
TlsKey = Annotated[
    str | None, typer.Option("--tls-key", metavar="FILE", help="Its private key (PEM).", show_default=False)
]
DropNodes = Annotated[
    bool, typer.Option("--drop-nodes", help="Give up nodes that still have running tasks; their jobs start again.")
]


@command
def up(
    session: Session,
    *,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", metavar="N", min=1, help="Number of simulated nodes.", show_default=False),
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option("--gpus-per-node", metavar="N", min=0, help="Simulated GPUs per node.", show_default=False),
    ] = None,
    simulated: Annotated[
        str | None,
        typer.Option(
            "--simulated",
            metavar="MODEL",
            help="Pretend nodes with GPUs of this model, for example h100; none: the real machine.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Port; 7420 or a free one when not given.",
            show_default=False,
        ),
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without TLS: tokens can be read on the way.")
    ] = False,
    drop_nodes: DropNodes = False,
    as_json: Json = False,
) -> None:
    """Start the pool of this machine and return when it serves.

    Its GPUs are found by themselves; a machine without any becomes a CPU pool. Without --nodes,
    --gpus-per-node and --simulated, a state directory that was used before gets the nodes that it had.
    """
    from corral.runtime.options import PoolOptions
    from corral.runtime.starting.launcher import start_pool

    info = start_pool(
        PoolOptions(
            state_dir=session.state_dir,
            host=host,
            port=port,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            simulated=simulated,
            tls_cert=None if tls_cert is None else Path(tls_cert).absolute(),
            tls_key=None if tls_key is None else Path(tls_key).absolute(),
            insecure=insecure,
            drop_nodes=drop_nodes,
        )
    )

    def text() -> RenderableType:
        from corral.cli.render.pool import started

        return started(info)

    session.answer(info, text, as_json=as_json)


@command
def down(
    session: Session,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            "-f",
            help="With the pool: stop running tasks, after a checkpoint (60 s at most); their jobs wait for the next "
            "start. On a node or one of several heads: kill them at once, without one; their jobs go on elsewhere.",
        ),
    ] = False,
    leave_tasks: Annotated[
        bool, typer.Option("--leave-tasks", help="Let running tasks go on; the next start takes them over.")
    ] = False,
    drain_timeout: DrainTimeout = DRAIN,
    as_json: Json = False,
) -> None:
    """Stop the pool of this machine. Nothing is forgotten: the next start goes on where this one ended.

    While tasks run it asks what to do with them, or wants --force or --leave-tasks.

    On a node of another machine's pool, this is corral leave. Of several heads it stops this one while another answers,
    and the pool goes on there: as with corral leave, the tasks of this machine save themselves first and go on
    elsewhere.

    What a killed supervisor left behind is ended too.
    """
    from corral.cli.amounts import duration_of
    from corral.runtime.starting.topology import is_node

    if force and leave_tasks:
        raise UsageError("--force and --leave-tasks contradict each other", hint="choose one")
    drain_s = duration_of(drain_timeout, "--drain-timeout")
    if is_node(session.state_dir):
        leave_now(session, force=force, leave_tasks=leave_tasks, drain_timeout=drain_timeout, as_json=as_json)
        return
    report = _stop(session.state_dir, force=force, leave_tasks=leave_tasks, drain_s=drain_s)
    if as_json:
        print_json(report)
        return
    stopped = "the pool is stopped"
    if report.one_head:
        stopped = "this head is stopped, and the pool goes on at the others"
    elif report.last_head:
        stopped = "the pool is stopped: no other head of it answers"
    note(f"{stopped}{tasks_of(report, 'and its next start takes them over')}")


def _stop(state_dir: Path, *, force: bool, leave_tasks: bool, drain_s: float) -> StopReport:
    """Stop the pool; where tasks run and somebody sits there, ask what to do with them."""
    from corral.runtime.starting.stopping import stop_pool

    try:
        return stop_pool(state_dir, force=force, leave_tasks=leave_tasks, drain_s=drain_s)
    except JobsRunning as refused:
        if not confirmed_by_tty():
            raise
        note(refused.refusal.message)
        sys.stderr.write("[s]top them, [d]etach and let them go on, or [k]eep the pool? ")
        sys.stderr.flush()
        answer = sys.stdin.readline().strip().lower()[:1]
        if answer not in {"s", "d", "l"}:
            raise
    return stop_pool(state_dir, force=answer == "s", leave_tasks=answer in {"d", "l"})


@command
def status(session: Session, as_json: Json = False) -> None:
    """Show the pool at a glance: nodes, devices, what is held, what waits."""
    found = session.client.status()

    def text() -> RenderableType:
        from corral.cli.render.pool import status as rendered

        return rendered(found, state_dir=str(session.state_dir))

    session.answer(found, text, as_json=as_json)


@command
def doctor(session: Session, as_json: Json = False) -> int:
    """Check this machine and its pool, and say what to do about what is wrong."""
    from corral.runtime.doctor import examine

    findings = examine(session.state_dir)

    def text() -> RenderableType:
        from corral.cli.render.pool import findings as rendered

        return rendered(findings)

    session.answer({"findings": findings}, text, as_json=as_json)
    return ExitCode.FAILED if any(finding.ok is False for finding in findings) else ExitCode.OK
