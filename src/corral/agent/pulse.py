"""The pulse of an agent: how others on its machine tell one that lives, and only has no contact, from one that hangs.

The agent sets the time of a file at every beat. It is CLOCK_BOOTTIME's: wall clocks jump. Setting it needs no room on
the disk, so a full one takes nobody for dead.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

PULSE_NAME = "agent.pulse"

WEAK_S = 10.0
"""An agent beats every second. Without a beat for so long it hangs or is dead; a node is lost after 15 s at least."""


def beat(node_dir: Path) -> None:
    """Say that the agent of a node lives. Where that cannot be written down it counts for dead, if it is not heard."""
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    path = node_dir / PULSE_NAME
    with contextlib.suppress(OSError):
        try:
            os.utime(path, ns=(now, now))
        except FileNotFoundError:
            path.touch(mode=0o600)
            os.utime(path, ns=(now, now))


def is_felt(node_dir: Path) -> bool:
    """Return whether the agent of a node lived a moment ago."""
    try:
        beaten_s = (node_dir / PULSE_NAME).stat().st_mtime
    except OSError:
        return False
    # One of an earlier boot may be ahead.
    return 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - beaten_s < WEAK_S
