"""Taking this machine out of its pool: what `leave` and, on a node, `down` do."""

from __future__ import annotations

import os
from pathlib import Path

from corral.cli.session import STATE_DIR_VARIABLE, Session, note, print_json


def leave_now(session: Session, *, force: bool, leave_tasks: bool, as_json: bool) -> None:
    """Take this machine out of its pool, and say so."""
    from corral.runtime.starting.joining import leave as leave_pool

    report = leave_pool(place_of(session), force=force, leave_tasks=leave_tasks)
    if as_json:
        print_json(report)
    elif report.tasks_left:
        note(f"this machine has left the pool; {report.tasks_left} tasks go on, as long as their leases let them")
    else:
        note("this machine has left the pool")


def place_of(session: Session) -> Path:
    """Return the state directory: as it was chosen, else of the allocation of Slurm, else the usual one."""
    from corral.runtime.machines.allocation import allocation, pilot_state_dir

    given = allocation()
    if given is None or session.chosen is not None or os.environ.get(STATE_DIR_VARIABLE):
        return session.state_dir
    return pilot_state_dir(given)
