"""Time as the rooms see it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch that never run backwards within one pool, and the boot clock that leases use."""

    def now(self) -> float:
        """Return seconds since the epoch, never less than any earlier answer."""

    def boottime(self) -> float:
        """Return CLOCK_BOOTTIME in seconds."""

    def wall_offset_s(self) -> float:
        """Return how far the machine's wall clock has moved from ``now`` (positive: the wall clock is ahead)."""
