"""Virtual time: implements ``ports.clock.Clock``."""

from __future__ import annotations


class VirtualClock:
    """Seconds since the beginning of a trace. Moves only when the world moves it, and never back."""

    def __init__(self, at: float = 0.0) -> None:
        self._at = at

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self._at

    def boottime(self) -> float:
        """Return the same: no simulated machine sleeps."""
        return self._at

    def wall_offset_s(self) -> float:
        """Return 0: nobody sets a virtual clock."""
        return 0.0

    def advance(self, to: float) -> None:
        """Move on to a time. Raises ``ValueError`` for one that has passed."""
        if to < self._at:
            raise ValueError(f"time cannot go back from {self._at} to {to}")
        self._at = to
