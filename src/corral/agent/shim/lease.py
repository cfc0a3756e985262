"""The lease of an exclusive task, as pure decisions: when to warn, freeze, thaw and give up. Clock: CLOCK_BOOTTIME."""

from __future__ import annotations

import math
import os
from enum import Enum

from corral.agent.shim.spec import LeaseSpec

_READ_MAX = 64


class Act(Enum):
    """What the shim has to do now."""

    NOTHING = "nothing"
    CHECKPOINT = "checkpoint"
    FREEZE = "freeze"
    THAW = "thaw"
    EXPIRE = "expire"


class LeaseWatch:
    """Follows one lease. ``frozen_since`` is the time of the freeze, ``None`` while the task may run."""

    def __init__(self, spec: LeaseSpec) -> None:
        self.frozen_since: float | None = None
        self._spec = spec
        self._warned = False

    def step(self, now: float, deadline: float) -> Act:
        """Return what is due at ``now`` when the lease runs until ``deadline`` (both in CLOCK_BOOTTIME seconds)."""
        if self.frozen_since is not None:
            if deadline > now:
                self.frozen_since = None
                self._warned = False
                return Act.THAW
            return Act.EXPIRE if now - self.frozen_since >= self._spec.freeze_max_s else Act.NOTHING
        if now >= deadline:
            self.frozen_since = now
            return Act.FREEZE
        if now < deadline - self._spec.checkpoint_before_s:
            self._warned = False
        elif not self._warned:
            self._warned = True
            return Act.CHECKPOINT
        return Act.NOTHING

    def next_s(self, now: float, deadline: float) -> float:
        """Return in how many seconds the next step is due, if nobody moves the deadline."""
        if self.frozen_since is not None:
            due = self.frozen_since + self._spec.freeze_max_s
        elif self._warned:
            due = deadline
        else:
            due = deadline - self._spec.checkpoint_before_s
        return max(0.0, due - now)


def read_deadline(path: str) -> float | None:
    """Return the deadline that the agent wrote (decimal CLOCK_BOOTTIME seconds), ``None`` when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        deadline = float(os.read(descriptor, _READ_MAX))
        return None if math.isnan(deadline) else deadline
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
