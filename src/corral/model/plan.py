"""What-if questions about the pool and their answers: whose start moves, who is hurt, when a new job would run."""

from __future__ import annotations

import msgspec

from corral.model.ask import JobAsk
from corral.model.ids import GangKey, NodeId, TenantId

HURT_S = 60.0
HURT_PART = 0.05
"""A gang is hurt that ends later by more than a minute and by more than this part of its way from now to its end."""


class NewNodes(msgspec.Struct, frozen=True):
    """``count`` further nodes that are like an existing one (``None``: like the one with the most devices)."""

    count: int
    like: NodeId | None = None


class PlanAsk(msgspec.Struct, frozen=True):
    """Changes that are tried together on a copy of the pool.

    ``weights`` are new weights of tenants; ``drain`` names nodes that are emptied at once (their gangs save themselves,
    are queued again and go elsewhere). ``horizon_s`` is how far the courses are followed.
    """

    submit: tuple[JobAsk, ...] = ()
    weights: dict[TenantId, float] = {}
    drain: tuple[NodeId, ...] = ()
    add: tuple[NewNodes, ...] = ()
    horizon_s: float = 7 * 86_400.0

    @property
    def changes(self) -> bool:
        """Return whether anything is asked for."""
        return bool(self.submit or self.weights or self.drain or self.add)


class Course(msgspec.Struct, frozen=True):
    """How it goes on with one gang: epoch seconds, ``None`` when it comes after the horizon or never.

    ``start`` is its next one, of a running gang the one that it had; ``preemptions`` are those to come.
    """

    key: GangKey
    name: str
    tenant: TenantId
    running: bool
    start: float | None
    end: float | None
    preemptions: int = 0


class Shift(msgspec.Struct, frozen=True):
    """One gang's course without and with the changes."""

    before: Course
    after: Course

    def hurts(self, now: float) -> bool:
        """Return whether the gang ends notably later, or no more within the horizon."""
        before, after = self.before.end, self.after.end
        if before is None:
            return False
        return after is None or after - before > max(HURT_S, HURT_PART * (before - now))


class PlanReport(msgspec.Struct, frozen=True):
    """What the changes would do, if jobs go on for as long as is expected of them.

    ``submitted`` are the courses of the new jobs. ``shifts`` are the gangs whose start or end moves, ``hurt`` those
    among them that end notably later or not at all within the horizon. Busy shares are of the pool's devices (CPUs of
    a pool without), up to the end of the last job that is there now in either course. ``gangs`` were followed.
    """

    at: float
    until: float
    gangs: int
    submitted: tuple[Course, ...]
    shifts: tuple[Shift, ...]
    hurt: tuple[GangKey, ...]
    busy_before: float
    busy_after: float
    ends_before: float | None
    ends_after: float | None
    basis: str
