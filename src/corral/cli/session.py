"""What the commands of one process share: where the pool is, the client, and how results are printed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.client import Client

STATE_DIR_VARIABLE = "CORRAL_STATE_DIR"


def default_state_dir() -> Path:
    """Return the state directory that applies when none is named: $CORRAL_STATE_DIR, else ~/.corral."""
    return Path(os.environ.get(STATE_DIR_VARIABLE) or Path("~/.corral")).expanduser()


@dataclass(slots=True)
class Session:
    """One run of the command line. ``client`` connects on first use."""

    state_dir: Path = field(default_factory=default_state_dir)
    debug: bool = False
    _client: Client | None = None
