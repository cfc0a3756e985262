"""What commands are about: jobs, nodes, tenants and queues by name, with completion from the running pool."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from corral.model.errors import CorralError

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.service_report import ServiceReport

COMPLETION_S = 1.0
COMPLETED_MAX = 100


def _completion(known: Callable[[Client], Iterable[Any]]) -> Callable[[typer.Context], list[Any]]:
    """Return a completer that asks the pool. It says nothing when the pool does not answer at once: a shell waits."""

    def complete(ctx: typer.Context) -> list[Any]:
        from corral.client import Client

        chosen = ctx.find_root().params.get("state_dir") or ctx.params.get("state_dir")
        try:
            with Client(state_dir=chosen, timeout_s=COMPLETION_S, retry_s=0.0) as client:
                return list(known(client))
        except CorralError:
            return []

    return complete


def _jobs(client: Client) -> list[tuple[str, str]]:
    return [(job.id, f"{job.name} ({job.state})") for job in client.jobs(finished=True, limit=COMPLETED_MAX).jobs]


def _live_jobs(client: Client) -> list[tuple[str, str]]:
    return [(job.id, f"{job.name} ({job.state})") for job in client.jobs(limit=COMPLETED_MAX).jobs]


JobRef = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Number (12), array element (12.3) or name of a job.",
        autocompletion=_completion(_jobs),
        show_default=False,
    ),
]
OptionalJobRef = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="Number (12), array element (12.3) or name of a job.",
        autocompletion=_completion(_jobs),
        show_default=False,
    ),
]
live_jobs = _completion(_live_jobs)
NodeName = Annotated[
    str,
    typer.Argument(
        metavar="NODE",
        help="Name of a node.",
        autocompletion=_completion(lambda client: [str(node.spec.id) for node in client.nodes()]),
        show_default=False,
    ),
]
TenantName = Annotated[
    str,
    typer.Argument(
        metavar="TENANT",
        help="Name of a tenant.",
        autocompletion=_completion(lambda client: [str(report.tenant.id) for report in client.tenants()]),
        show_default=False,
    ),
]
QueueNameArgument = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="Name of a queue.",
        autocompletion=_completion(lambda client: [str(queue.name) for queue in client.queues()]),
        show_default=False,
    ),
]


ServiceNameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of a service.",
        autocompletion=_completion(lambda client: [str(service.name) for service in client.services()]),
        show_default=False,
    ),
]


def service_named(client: Client, ref: str) -> ServiceReport | None:
    """Return the service that somebody means who named it where a job is wanted, ``None`` when there is none."""
    return next((one for one in client.services() if one.name == ref), None)


class TaskRef(NamedTuple):
    """A job, or a part of it: ``12.3`` is an element, ``12.3.1`` one rank of it."""

    job: str
    gang: int | None = None
    rank: int | None = None


def task_ref(text: str) -> TaskRef:
    """Split a reference; a name stays whole."""
    match = re.fullmatch(r"([0-9]{1,18})(?:\.([0-9]{1,9})(?:\.([0-9]{1,9}))?)?", text)
    if match is None:
        return TaskRef(text)
    job, gang, rank = match.groups()
    return TaskRef(job, None if gang is None else int(gang), None if rank is None else int(rank))
