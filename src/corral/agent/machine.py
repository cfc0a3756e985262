"""Which machine this is: what tells its state directory apart from those of all other machines of the pool."""

from __future__ import annotations

from pathlib import Path

from corral.agent import processes

MACHINE_NAME = "machine-id"


def incarnation() -> str:
    """Return what names this start of this machine: another boot, or another process namespace, is another one."""
    return f"{processes.boot_id()}:{processes.process_space()}"


def machine_of(state_dir: Path) -> str:
    """Return the id of the machine with this state directory, empty in a pool of one machine."""
    try:
        return (state_dir / MACHINE_NAME).read_text().strip()
    except OSError:
        return ""
