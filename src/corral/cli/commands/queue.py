"""`queue`: what waits, in order, and the named queues."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.amounts import milli_of
from corral.cli.session import Session, note
from corral.cli.targets import QueueNameArgument
from corral.cli.tree import Json, StrictGroup, command
from corral.model.errors import NotFound
from corral.model.ids import QueueName
from corral.model.tenant import Queue, Quota

if TYPE_CHECKING:
    from rich.console import RenderableType

LIMIT = 50
LIMIT_MAX = 10_000

queue = typer.Typer(cls=StrictGroup, invoke_without_command=True, add_completion=False, rich_markup_mode="rich")

Priority = Annotated[
    int | None, typer.Option("--priority", metavar="N", help="Added to the priority of its jobs.", show_default=False)
]
LimitGpus = Annotated[
    str | None,
    typer.Option(
        "--limit-gpus", metavar="N", help="GPUs that its jobs hold together at most; none lifts it.", show_default=False
    ),
]
LimitCpus = Annotated[
    str | None,
    typer.Option(
        "--limit-cpus", metavar="N", help="CPUs that its jobs hold together at most; none lifts it.", show_default=False
    ),
]
Paused = Annotated[
    bool | None,
    typer.Option("--paused/--open", help="Let its jobs wait, or let them start again.", show_default=False),
]


@queue.callback()
@command
def waiting(
    ctx: typer.Context,
    session: Session,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=LIMIT_MAX, help="Show at most so many lines.")
    ] = LIMIT,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Show who received, who is owed, and who gave way for whom.")
    ] = False,
    hours: Annotated[
        float, typer.Option("--hours", metavar="N", min=1, max=168, help="How far the ledger looks back.")
    ] = 24.0,
    as_json: Json = False,
) -> None:
    """Show what waits, in the order in which it is considered, with the reason and the expected start."""
    if ctx.invoked_subcommand is not None:
        return
    if ledger:
        _ledger(session, hours, as_json=as_json)
        return
    lines = session.client.queue(limit=limit)

    def text() -> RenderableType:
        from corral.cli.render.pool import queue as rendered

        return rendered(lines, now=time.time(), limit=limit, held_back=session.client.status().waiting_jobs)

    session.answer({"lines": lines}, text, as_json=as_json)


def _ledger(session: Session, hours: float, *, as_json: bool) -> None:
    found = session.client.ledger(hours)

    def text() -> RenderableType:
        from corral.cli.render.ledger import ledger as rendered

        return rendered(found, now=time.time())

    session.answer(found, text, as_json=as_json)


@queue.command("list")
@command
def listed(session: Session, as_json: Json = False) -> None:
    """List the named queues."""
    found = session.client.queues()

    def text() -> RenderableType:
        from corral.cli.render.pool import queues as rendered

        return rendered(found)

    session.answer({"queues": found}, text, as_json=as_json)


@queue.command()
@command
def add(
    session: Session,
    name: QueueNameArgument,
    priority: Priority = None,
    limit_gpus: LimitGpus = None,
    limit_cpus: LimitCpus = None,
    paused: Paused = None,
) -> None:
    """Add a queue."""
    made = changed(Queue(QueueName(name)), priority, limit_gpus, limit_cpus, paused)
    session.client.set_queue(made, create=True)
    note(f"queue {name} is there")


@queue.command("set")
@command
def change(
    session: Session,
    name: QueueNameArgument,
    priority: Priority = None,
    limit_gpus: LimitGpus = None,
    limit_cpus: LimitCpus = None,
    paused: Paused = None,
) -> None:
    """Change a queue; what is not given stays as it is."""
    before = {str(one.name): one for one in session.client.queues()}
    if name not in before:
        from corral.cli.failures import did_you_mean

        raise NotFound(f"there is no queue {name}", hint=did_you_mean(name, before, "corral queue list shows them"))
    session.client.set_queue(changed(before[name], priority, limit_gpus, limit_cpus, paused))
    note(f"queue {name} is changed")


@queue.command()
@command
def remove(session: Session, name: QueueNameArgument) -> None:
    """Remove a queue in which no unfinished job waits."""
    session.client.remove_queue(name)
    note(f"queue {name} is removed")


def changed(
    before: Queue, priority: int | None, limit_gpus: str | None, limit_cpus: str | None, paused: bool | None
) -> Queue:
    """Return a queue with what was given in place of what was."""
    return Queue(
        before.name,
        before.priority if priority is None else priority,
        Quota(
            milli_of(limit_gpus, "--limit-gpus", before.limit.gpu_milli),
            milli_of(limit_cpus, "--limit-cpus", before.limit.cpus_milli),
        ),
        before.paused if paused is None else paused,
    )
