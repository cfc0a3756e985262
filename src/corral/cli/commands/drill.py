"""`drill`: something of a service is broken on purpose, under load, to see what callers would notice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.session import Session, note
from corral.cli.targets import ServiceNameArgument
from corral.cli.tree import Json, command
from corral.model.errors import InvalidField

if TYPE_CHECKING:
    from rich.console import RenderableType

    from corral.runtime.drilling.drill import DrillFound

RATE_MAX = 1_000.0
SECONDS_MIN, SECONDS_MAX = 3.0, 600.0


@command
def drill(
    session: Session,
    name: ServiceNameArgument,
    *,
    kill: Annotated[
        str, typer.Option("--kill", metavar="WHAT", help="replica, node, frontend or controller.", show_default=False)
    ],
    rate: Annotated[float, typer.Option("--rate", metavar="N", help="Requests a second, 1 to 1000.")] = 150.0,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", help="How long; the fault comes after a third of it.")
    ] = 30.0,
    path: Annotated[str, typer.Option("--path", metavar="PATH", help="What is asked for, by GET.")] = "/",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Also while others call the service, or other jobs die with a node.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Send a service a bounded load, kill something that it lives on, and print what its callers would have seen.

    A replica is killed through the pool; a node, a front end or a controller only on the machine where it runs. All of
    them are started again as after any fault.
    """
    from corral.client import Client
    from corral.runtime.drilling.drill import DrillOptions
    from corral.runtime.drilling.drill import drill as run
    from corral.runtime.drilling.faults import KINDS

    if kill not in KINDS:
        raise InvalidField(f"{kill!r} cannot be killed", field="--kill", hint=f"one of {', '.join(KINDS)}")
    if not (math.isfinite(rate) and 1.0 <= rate <= RATE_MAX):
        raise InvalidField(f"{rate:g} requests a second", field="--rate", hint=f"from 1 to {RATE_MAX:g}")
    if not (math.isfinite(seconds) and SECONDS_MIN <= seconds <= SECONDS_MAX):
        raise InvalidField(f"{seconds:g} seconds", field="--seconds", hint=f"from {SECONDS_MIN:g} to {SECONDS_MAX:g}")
    if not path.startswith("/") or not path.isascii() or any(c.isspace() for c in path):
        raise InvalidField(f"{path!r} is no path", field="--path", hint="write it like /health, without blanks")
    options = DrillOptions(
        state_dir=session.state_dir, service=name, kind=kill, rate=rate, seconds=seconds, path=path, sure=yes
    )
    found = run(options, session.client, lambda: Client(state_dir=session.chosen, retry_s=0.0), note)

    def text() -> RenderableType:
        return figures(found)

    session.answer(found, text, as_json=as_json)


def figures(found: DrillFound) -> RenderableType:
    """Return the figures for people."""
    from corral.cli.render.layout import facts
    from corral.cli.render.units import NOTHING, duration

    return facts(
        [
            ("killed", found.broken),
            ("requests", f"{found.requests:,}"),
            ("failed", f"{found.failed:,}"),
            ("retried", NOTHING if found.retried is None else f"{found.retried:,}"),
            ("slowest", duration(found.slowest_s)),
            ("ejected after", duration(found.ejected_s)),
            ("recovered after", duration(found.recovered_s)),
            ("last failure after", duration(found.failed_s)),
        ]
    )
