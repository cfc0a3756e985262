"""Taking this machine out of its pool: what `leave` and, on a node, `down` do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.session import STATE_DIR_VARIABLE, Session, note, print_json

if TYPE_CHECKING:
    from corral.runtime.options import StopReport

DRAIN = "60s"
DrainTimeout = Annotated[
    str,
    typer.Option(
        "--drain-timeout",
        metavar="DURATION",
        help="How long tasks have to save themselves and end when this machine leaves others; then they are killed.",
    ),
]


def leave_now(session: Session, *, force: bool, leave_tasks: bool, drain_timeout: str, as_json: bool) -> None:
    """Take this machine out of its pool, and say so."""
    from corral.cli.amounts import duration_of
    from corral.runtime.starting.leaving import leave

    drain_s = duration_of(drain_timeout, "--drain-timeout")
    try:
        report = leave(place_of(session), force=force, leave_tasks=leave_tasks, drain_s=drain_s)
    except KeyboardInterrupt:
        note("this machine is still a node, and gets no new tasks: corral leave again, or corral nodes uncordon NODE")
        raise
    if as_json:
        print_json(report)
    else:
        note(f"this machine has left the pool{tasks_of(report, 'as long as their leases let them')}")


def tasks_of(report: StopReport, how: str) -> str:
    """Return what became of the tasks of a machine, to follow what became of it; ``how`` those that go on do so."""
    from corral.cli.render.units import counted

    said = ""
    if report.tasks_killed:
        late = "" if report.forced else " that had not ended in time"
        said += f"; killed {counted(report.tasks_killed, 'task')}{late}"
    if report.tasks_left:
        said += f"; {counted(report.tasks_left, 'task')} left running, {how}"
    return said


def place_of(session: Session) -> Path:
    """Return the state directory: as it was chosen, else of the allocation of Slurm, else the usual one."""
    from corral.runtime.machines.allocation import allocation, pilot_state_dir

    given = allocation()
    if given is None or session.chosen is not None or os.environ.get(STATE_DIR_VARIABLE):
        return session.state_dir
    return pilot_state_dir(given)
