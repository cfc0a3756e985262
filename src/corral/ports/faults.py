"""Named points at which a test may let the daemon die. In production the answer is always "go on"."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class FaultPoint(StrEnum):
    """The points of the recovery benchmark."""

    BEFORE_APPEND = "before-append"
    APPENDED_UNACKNOWLEDGED = "appended-unacknowledged"
    ACKNOWLEDGED_UNLAUNCHED = "acknowledged-unlaunched"
    FORKED_UNJOURNALED = "forked-unjournaled"
    EXITED_UNREPORTED = "exited-unreported"


class FaultPoints(Protocol):
    """Called on the way; may not return."""

    def armed(self, point: FaultPoint) -> bool:
        """Return whether the next ``reach`` of this point will not return."""

    def reach(self, point: FaultPoint) -> None:
        """Die here when a test armed this point."""
