"""The clock of the daemon: wall time at the start, then carried on by the boot clock, so that it never runs back."""

from __future__ import annotations

import time
from collections.abc import Callable


def boottime() -> float:
    """Return CLOCK_BOOTTIME in seconds (it goes on while the machine sleeps, and nobody can set it)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Implements ``ports.clock.Clock``.

    ``not_before`` is the time of the newest journaled fact: after a restart with the wall clock set back, time goes on
    from there. How far the wall clock is off is told by ``wall_offset_s``.
    """

    def __init__(
        self,
        not_before: float,
        wall: Callable[[], float] = time.time,
        boot: Callable[[], float] = boottime,
    ) -> None:
        self._wall = wall
        self._boot = boot
        self._base = max(wall(), not_before)
        self._boot_base = boot()

    def now(self) -> float:
        """Return seconds since the epoch, never less than before."""
        return self._base + (self._boot() - self._boot_base)

    def boottime(self) -> float:
        """Return the boot clock."""
        return self._boot()

    def wall_offset_s(self) -> float:
        """Return how far the wall clock is ahead of ``now``."""
        return self._wall() - self.now()
