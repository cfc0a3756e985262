"""The clocks of one host: they start anywhere and run a little fast or slow."""

from __future__ import annotations

from corral.sim.storm.course import Course

EPOCH_S = 1_800_000_000.0
"""Where the wall clocks stand at the beginning, give or take what they are off."""


class HostClock:
    """CLOCK_BOOTTIME and the wall clock of one host.

    ``rate`` is how many seconds of the boot clock pass in one true second; it goes on while processes are stopped. The
    wall clock is ``ahead_s`` ahead, may be set, and runs right otherwise: somebody disciplines it. ``boot_s`` is where
    the boot clock stands when the course begins.
    """

    def __init__(self, course: Course, *, rate: float, boot_s: float, ahead_s: float) -> None:
        self.rate = rate
        self.ahead_s = ahead_s
        self._course = course
        self._boot_s = boot_s

    def boottime(self) -> float:
        """Return the boot clock in seconds."""
        return self._boot_s + self._course.now * self.rate

    def wall(self) -> float:
        """Return the wall clock in seconds since the epoch."""
        return EPOCH_S + self.ahead_s + self._course.now

    def true_s(self, duration_s: float) -> float:
        """Return how much true time passes while this clock counts a duration."""
        return duration_s / self.rate

    def reboot(self) -> None:
        """Let the boot clock begin anew."""
        self._boot_s = -self._course.now * self.rate


class SteadyClock:
    """Implements ``ports.clock.Clock`` as the daemon does: not before the newest fact, carried on by the boot clock."""

    def __init__(self, host: HostClock, not_before: float) -> None:
        self._host = host
        self._base = max(host.wall(), not_before)
        self._boot_base = host.boottime()

    def now(self) -> float:
        """Return seconds since the epoch that never run backwards."""
        return self._base + (self._host.boottime() - self._boot_base)

    def boottime(self) -> float:
        """Return the boot clock in seconds."""
        return self._host.boottime()

    def wall_offset_s(self) -> float:
        """Return how far the wall clock is ahead of ``now``."""
        return self._host.wall() - self.now()
