"""What a simulation writes down while it runs."""

from __future__ import annotations

import msgspec

from corral.model.market import RoundPlan


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """Devices that are held, jobs that wait and jobs that are unfinished, from ``at`` (s) on."""

    at: float
    held: float
    waiting: int
    unfinished: int


class Record:
    """The course of one simulation. Moments in which nothing changed are left out."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.rounds = 0
        self.gap_sum = 0.0
        self.gap_max = 0.0
        self.solve_s = 0.0

    def note(self, at: float, held: float, waiting: int, unfinished: int) -> None:
        """Write down how it stands at ``at``; the last word about an instant counts."""
        last = self.moments[-1] if self.moments else None
        if last is not None and (last.held, last.waiting, last.unfinished) == (held, waiting, unfinished):
            return
        moment = Moment(at, held, waiting, unfinished)
        if last is not None and last.at == at:
            self.moments[-1] = moment
        else:
            self.moments.append(moment)

    def solved(self, plan: RoundPlan, seconds: float) -> None:
        """Count a global round."""
        self.rounds += 1
        self.solve_s += seconds
        self.gap_sum += plan.gap
        self.gap_max = max(self.gap_max, plan.gap)
