"""Which machine this is: what tells its state directory apart from those of all other machines of the pool."""

from __future__ import annotations

from pathlib import Path

MACHINE_NAME = "machine-id"


def machine_of(state_dir: Path) -> str:
    """Return the id of the machine with this state directory, empty in a pool of one machine."""
    try:
        return (state_dir / MACHINE_NAME).read_text().strip()
    except OSError:
        return ""
