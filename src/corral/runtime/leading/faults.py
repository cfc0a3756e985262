"""Fault points for crash tests: a file named like the point in ``fault_dir`` kills the daemon when it is reached."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from corral.ports.faults import FaultPoint


class NoFaults:
    """Production: every point is passed."""

    def armed(self, point: FaultPoint) -> bool:
        """Return False."""
        del point
        return False

    def reach(self, point: FaultPoint) -> None:
        """Go on."""


class FileFaults:
    """Dies by SIGKILL at a point whose file exists (once: the file is removed first)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def armed(self, point: FaultPoint) -> bool:
        """Return whether the point's file exists."""
        return (self._directory / point.value).exists()

    def reach(self, point: FaultPoint) -> None:
        """Remove the point's file and die; go on when there is none."""
        try:
            (self._directory / point.value).unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
