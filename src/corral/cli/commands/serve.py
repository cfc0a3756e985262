"""`serve`: a service from a file, or from a name and a command."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corral.cli.flags import names_file
from corral.cli.service_flags import percent_of, spec_of_flags, with_flags
from corral.cli.session import Session, note, print_json
from corral.cli.tree import FreeCommand, Json, command, settings
from corral.model.errors import Conflict, JobFileUnreadable, MissingField, Unavailable, UsageError

if TYPE_CHECKING:
    from corral.client import Client
    from corral.model.service import ServiceSpec
    from corral.model.service_report import ServiceReport

LOOK_S = 0.25
FRONT_S = 15.0
"""How long a front end may take to reach replicas that serve. A pool may have none at all."""


@settings(cls=FreeCommand)
@command
def serve(
    ctx: typer.Context,
    session: Session,
    service_flags: Mapping[str, Any],
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE... | NAME -- COMMAND [ARG]...",
            help="Service files (YAML, kind: service); or a name and, after --, the command of each replica.",
            show_default=False,
        ),
    ] = None,
    canary: Annotated[
        str | None,
        typer.Option(
            "--canary", metavar="PERCENT", help="Hold the new revision at this part, such as 10%.", show_default=False
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it serves, or when it was undone.")] = False,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="With --wait: how long at most.")] = "30m",
    as_json: Json = False,
) -> None:
    """Start a service, or bring its next revision out: a few replicas at a time, undone when they fail.

    Each replica finds the port that it listens on in PORT. Flags beside a file replace what the file says. The same
    service again changes nothing.
    """
    from corral.cli.amounts import duration_of

    patience_s = duration_of(timeout, "--timeout")
    percent = percent_of(canary, "--canary") if canary is not None else None
    specs = specs_of(what or [], ctx.meta[FreeCommand.PROGRAM], service_flags)
    reports = []
    for spec in specs:
        told = session.client.serve(spec, canary_percent=percent)
        if not as_json:
            note(_words(told))
        reports.append(told)
    if wait:
        deadline = time.monotonic() + patience_s
        reports = [awaited(session.client, told, deadline) for told in reports]
    if as_json:
        print_json({"services": reports})
        return
    for told in reports:
        for url in told.urls:
            print(url, flush=True)
        if wait and not told.urls:
            note(f"service {told.name} serves, but no front end reports: corral frontend start makes this machine one")


def specs_of(what: Sequence[str], program: Sequence[str] | None, flags: Mapping[str, Any]) -> list[ServiceSpec]:
    """Return the services of files, or the one of a name and a command."""
    here = str(Path.cwd())
    if program is not None:
        if len(what) != 1:
            raise UsageError("a command is served under one name", hint="corral serve NAME -- COMMAND")
        if not program:
            raise MissingField("there is no command to run", hint=f"corral serve {what[0]} -- python server.py")
        return [spec_of_flags(what[0], flags, program, os.environ, here)]
    if not what:
        raise MissingField(
            "there is nothing to serve", hint="corral serve service.yaml, or corral serve NAME -- python server.py"
        )
    from corral.wire.servicefile import load_services

    specs: list[ServiceSpec] = []
    for file in what:
        if not names_file(file):
            raise JobFileUnreadable("there is no such file", where=file, hint="a command goes after --")
        specs += load_services(file)
    return [with_flags(spec, flags, os.environ, here) for spec in specs]


def awaited(client: Client, told: ServiceReport, deadline: float) -> ServiceReport:
    """Return a service once what was asked for serves, and a front end routes to it if there comes to be one.

    Raises ``Conflict`` when it was given up, and ``Unavailable`` at the deadline (by ``time.monotonic``).
    """
    wanted = told.revisions[-1].number
    serves_since: float | None = None
    while True:
        now = client.service(told.name)
        if now.rollout is None and now.stable != wanted:
            raise Conflict(f"revision {wanted} of {now.name} was given up: {now.message}", hint="look at its logs")
        if _serves(now):
            serves_since = time.monotonic() if serves_since is None else serves_since
            if _routed(now) or time.monotonic() - serves_since > FRONT_S:
                return now
        if time.monotonic() >= deadline:
            why = now.waits_for or now.message or "it is not known why"
            raise Unavailable(f"service {now.name} does not serve yet: {why}", hint=f"corral services {now.name}")
        time.sleep(LOOK_S)


def _serves(told: ServiceReport) -> bool:
    """Return whether a revision is as far as it was to go: all replicas are ready, or the first ones of a canary."""
    if told.rollout is None:
        return told.ready >= told.wanted
    return told.rollout.canary_percent is not None and told.rollout.began_to_serve_at is not None


def _routed(told: ServiceReport) -> bool:
    """Return whether front ends reach every replica that serves."""
    serving = [one for one in told.replicas if one.phase.value == "serving"]
    return bool(told.urls) and all(one.load is not None and one.load.up for one in serving)


def _words(told: ServiceReport) -> str:
    rollout = told.rollout
    if rollout is not None:
        held = f", held at {rollout.canary_percent} %" if rollout.canary_percent is not None else ""
        return f"service {told.name}: revision {rollout.revision} follows {told.stable}{held}"
    if told.wanted == 0:
        return f"service {told.name}: revision {told.stable}, at rest until somebody calls"
    return f"service {told.name}: revision {told.stable}, {told.ready} of {told.wanted} replicas ready"
