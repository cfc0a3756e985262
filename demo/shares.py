"""Who held how much of the pool, exactly, from the journaled facts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from corral.model.events import DeviceFailed, Fact, GangPlaced, JobSubmitted, TaskEnded


@dataclass
class Held:
    """Milli-GPU seconds by tenant within [begin, end), replayed from facts in order."""

    begin: float
    end: float
    seconds: dict[str, float] = field(default_factory=dict)
    _tenant: dict[str, str] = field(default_factory=dict)
    _since: dict[tuple[str, int, int], tuple[float, int]] = field(default_factory=dict)

    def take(self, fact: Fact) -> None:
        """Account for one fact."""
        match fact:
            case JobSubmitted():
                self._tenant[fact.job] = fact.spec.tenant
            case GangPlaced():
                for place in fact.placements:
                    self._since[fact.job, fact.gang, place.rank] = (fact.at, place.gpu_milli)
            case TaskEnded():
                self._close(fact.job, fact.gang, fact.rank, fact.at)
            case _:
                pass

    def close(self) -> dict[str, float]:
        """Account for what is still held at the end; return milli-GPU seconds by tenant."""
        for job, gang, rank in list(self._since):
            self._close(job, gang, rank, self.end)
        return self.seconds

    def _close(self, job: str, gang: int, rank: int, at: float) -> None:
        started, milli = self._since.pop((job, gang, rank), (at, 0))
        overlap = min(at, self.end) - max(started, self.begin)
        tenant = self._tenant.get(job, "?")
        self.seconds[tenant] = self.seconds.get(tenant, 0.0) + max(0.0, overlap) * milli


def measured_shares(facts: Iterable[Fact], begin: float, end: float, devices: int) -> dict[str, float]:
    """Return each tenant's part of the pool's device time in a window; a failed device counts until it failed."""
    held = Held(begin, end)
    capacity = devices * 1000.0 * (end - begin)
    for fact in facts:
        held.take(fact)
        if isinstance(fact, DeviceFailed) and fact.at < end:
            capacity -= 1000.0 * (end - max(begin, fact.at))
    return {tenant: seconds / capacity for tenant, seconds in held.close().items() if tenant != "?"}
