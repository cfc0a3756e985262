"""The pending candidates, indexed so that a round looks at shapes and not at candidates.

Lines: tenant -> (queue, bid kinds, avoided nodes, kin) -> candidates sorted by priority, urgency and order. All
candidates of a line fit or do not fit together (but for their declared duration), so the first that does not fit speaks
for the line. Urgencies are coarse (see ``valuation``), so that most candidates keep their place from one round to the
next.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from corral.model.ids import GangKey, NodeId, QueueName, TenantId
from corral.model.offer import Candidate, Kin, Locality
from corral.model.resources import GangShape

Entry = tuple[int, float, int, tuple[int, str], Candidate]
Kind = tuple[tuple[tuple[GangShape, Locality], ...], tuple[NodeId, ...], Kin | None]


def kind_of(candidate: Candidate) -> Kind:
    """Return what decides whether a candidate fits: shapes and localities of its bids, avoided nodes, and its kin."""
    return tuple((bid.shape, bid.locality) for bid in candidate.bids), candidate.avoid, candidate.kin


def _entry(candidate: Candidate) -> Entry:
    key = candidate.key
    return (-candidate.priority, candidate.urgency, candidate.order, (key.gang, key.job), candidate)


class Line:
    """Candidates of one tenant, queue and kind, best first. ``durations`` counts them by declared duration."""

    __slots__ = ("durations", "entries", "kind", "queue")

    def __init__(self, queue: QueueName, kind: Kind) -> None:
        self.queue = queue
        self.kind = kind
        self.entries: list[Entry] = []
        self.durations: dict[float | None, int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def shortest_s(self) -> float:
        """Return the shortest declared duration, infinity when none is declared."""
        return min((d for d in self.durations if d is not None), default=float("inf"))

    def add(self, candidate: Candidate) -> None:
        """Add one candidate in its place."""
        insort(self.entries, _entry(candidate))
        duration = candidate.max_duration_s
        self.durations[duration] = self.durations.get(duration, 0) + 1

    def remove(self, candidate: Candidate) -> None:
        """Remove one candidate, which must be here."""
        at = bisect_left(self.entries, _entry(candidate)[:4])
        del self.entries[at]
        duration = candidate.max_duration_s
        left = self.durations[duration] - 1
        if left:
            self.durations[duration] = left
        else:
            del self.durations[duration]


class PendingIndex:
    """All candidates. Changes cost O(log n) comparisons and one list move; nothing here depends on the pool."""

    def __init__(self, candidates: Iterable[Candidate] = ()) -> None:
        self._candidates: dict[GangKey, Candidate] = {}
        self._lines: dict[TenantId, dict[tuple[QueueName, Kind], Line]] = {}
        self._counts: dict[TenantId, int] = {}
        for candidate in candidates:
            self.add(candidate)

    def __len__(self) -> int:
        return len(self._candidates)

    def __contains__(self, key: GangKey) -> bool:
        return key in self._candidates

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._candidates.values())

    def get(self, key: GangKey) -> Candidate | None:
        """Return the candidate of a gang, ``None`` when it does not wait here."""
        return self._candidates.get(key)

    def add(self, candidate: Candidate) -> None:
        """Add a candidate, or replace the one of the same gang. Raises ``ValueError`` when it has no bid."""
        if not candidate.bids:
            raise ValueError(f"candidate {candidate.key} has no bid")
        self.remove(candidate.key)
        self._candidates[candidate.key] = candidate
        lines = self._lines.setdefault(candidate.tenant, {})
        name = (candidate.queue, kind_of(candidate))
        line = lines.get(name)
        if line is None:
            line = lines[name] = Line(*name)
        line.add(candidate)
        self._counts[candidate.tenant] = self._counts.get(candidate.tenant, 0) + 1

    def update(self, candidate: Candidate) -> None:
        """Replace the candidate of the same gang (or add it)."""
        self.add(candidate)

    def remove(self, key: GangKey) -> Candidate | None:
        """Remove and return the candidate of a gang; unknown gangs are no fault."""
        candidate = self._candidates.pop(key, None)
        if candidate is None:
            return None
        lines = self._lines[candidate.tenant]
        name = (candidate.queue, kind_of(candidate))
        line = lines[name]
        line.remove(candidate)
        if not line.entries:
            del lines[name]
        self._counts[candidate.tenant] -= 1
        if not self._counts[candidate.tenant]:
            del self._counts[candidate.tenant], self._lines[candidate.tenant]
        return candidate

    def tenants(self) -> tuple[TenantId, ...]:
        """Return the tenants that wait, sorted."""
        return tuple(sorted(self._counts))

    def count(self, tenant: TenantId) -> int:
        """Return how many candidates a tenant has here."""
        return self._counts.get(tenant, 0)

    def kinds(self) -> Iterator[tuple[Candidate, int]]:
        """Yield the first candidate of each line with how many wait in it."""
        for tenant in self.tenants():
            for line in self._lines[tenant].values():
                yield line.entries[0][4], len(line)

    def lines(self, tenant: TenantId) -> Iterable[Line]:
        """Return the lines of a tenant. Do not change them."""
        return self._lines.get(tenant, {}).values()
