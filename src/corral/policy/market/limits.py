"""The limits of tenants and queues: as constraints of a round, and as what is left while it seats gangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.model.ids import GangKey, QueueName, TenantId
from corral.model.offer import QueueStanding, Standing
from corral.model.resources import MILLI, Amount, GangShape
from corral.model.tenant import Quota
from corral.policy.market.contenders import Contender


class Limits:
    """The limits of tenants and queues, less what is out of this round's reach.

    Contenders under the same limits are of one group. ``caps`` are GPUs or CPUs that contenders may hold together, and
    ``of`` the caps of each group as (row, whether it counts GPUs).
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        standings: Mapping[TenantId, Standing],
        queues: Mapping[QueueName, QueueStanding],
        reserved: Mapping[GangKey, object],
    ) -> None:
        self.caps: list[float] = []
        self.of: list[tuple[tuple[int, bool], ...]] = [()]
        self.groups: list[int] = []
        self._rows: dict[TenantId | QueueName | tuple[str, str], tuple[tuple[int, bool], ...]] = {}
        self.reserved_group: dict[GangKey, int] = {}
        if not reserved and not _any_limit(standings, queues):
            self.groups = [0] * len(contenders)
            return
        own = _held(contenders)
        known: dict[tuple[tuple[tuple[int, bool], ...], object], int] = {((), None): 0}
        for contender in contenders:
            rows = self._tenant(contender.tenant, standings, own) + self._queue(contender.queue, queues, own)
            name = (rows, contender.key if contender.key in reserved else None)
            group = known.get(name)
            if group is None:
                group = known[name] = len(self.of)
                self.of.append(rows)
            if contender.key in reserved:
                self.reserved_group[contender.key] = group
            self.groups.append(group)

    def _tenant(
        self, name: TenantId, standings: Mapping[TenantId, Standing], own: Mapping[tuple[str, str], Amount]
    ) -> tuple[tuple[int, bool], ...]:
        label = ("tenant", str(name))
        if label not in self._rows:
            standing = standings.get(name)
            if standing is None:
                self._rows[label] = ()
            else:
                self._rows[label] = self._add(
                    standing.tenant.limit.gpu_milli, standing.tenant.limit.cpus_milli, standing.held, own.get(label)
                )
        return self._rows[label]

    def _queue(
        self, name: QueueName, queues: Mapping[QueueName, QueueStanding], own: Mapping[tuple[str, str], Amount]
    ) -> tuple[tuple[int, bool], ...]:
        label = ("queue", str(name))
        if label not in self._rows:
            standing = queues.get(name)
            if standing is None:
                self._rows[label] = ()
            else:
                self._rows[label] = self._add(
                    standing.queue.limit.gpu_milli, standing.queue.limit.cpus_milli, standing.held, own.get(label)
                )
        return self._rows[label]

    def _add(
        self, gpu_milli: int | None, cpus_milli: int | None, held: Amount, own: Amount | None
    ) -> tuple[tuple[int, bool], ...]:
        # What contenders hold is theirs to give; the rest of what is held stays.
        stays = held - (own or Amount())
        rows = []
        if gpu_milli is not None:
            rows.append((len(self.caps), True))
            self.caps.append(max(0, gpu_milli - max(0, stays.gpu_milli)) / MILLI)
        if cpus_milli is not None:
            rows.append((len(self.caps), False))
            self.caps.append(max(0, cpus_milli - max(0, stays.cpus_milli)) / MILLI)
        return tuple(rows)


def _any_limit(standings: Mapping[TenantId, Standing], queues: Mapping[QueueName, QueueStanding]) -> bool:
    none = Quota()
    return any(standing.tenant.limit != none for standing in standings.values()) or any(
        queue.queue.limit != none for queue in queues.values()
    )


def _held(contenders: Sequence[Contender]) -> dict[tuple[str, str], Amount]:
    found: dict[tuple[str, str], Amount] = {}
    for contender in contenders:
        if contender.holding is None:
            break
        for placement in contender.holding.placements:
            amount = Amount.of(placement)
            for label in (("tenant", str(contender.tenant)), ("queue", str(contender.queue))):
                found[label] = found.get(label, Amount()) + amount
    return found


class LimitsLeft:
    """What the limits of tenants and queues leave while a round seats gangs."""

    def __init__(self, limits: Limits, contenders: Sequence[Contender]) -> None:
        self._left = list(limits.caps)
        self.of = [limits.of[group] for group in limits.groups]
        self._contenders = contenders

    def allow(self, index: int, shape: GangShape) -> bool:
        """Return whether a start keeps within the limits."""
        return all(_asked(shape, gpus) <= self._left[row] + 1e-9 for row, gpus in self.of[index])

    def take(self, index: int, shape: GangShape) -> None:
        """Count a start."""
        for row, gpus in self.of[index]:
            self._left[row] -= _asked(shape, gpus)

    def put_back(self, index: int, shape: GangShape) -> None:
        """Take a start back."""
        for row, gpus in self.of[index]:
            self._left[row] += _asked(shape, gpus)

    def _held(self, index: int, gpus: bool) -> float:  # noqa: FBT001 - which of the two quantities
        holding = self._contenders[index].holding
        assert holding is not None
        return sum(p.gpu_milli if gpus else p.cpus_milli for p in holding.placements) / MILLI

    def allows_keeping(self, index: int) -> bool:
        """Return whether a running gang may go on next to what was started."""
        return all(self._held(index, gpus) <= self._left[row] + 1e-9 for row, gpus in self.of[index])

    def hold(self, index: int) -> None:
        """Count a running gang that goes on."""
        for row, gpus in self.of[index]:
            self._left[row] -= self._held(index, gpus)

    def give_back(self, index: int) -> None:
        """Take a running gang out again."""
        for row, gpus in self.of[index]:
            self._left[row] += self._held(index, gpus)


def _asked(shape: GangShape, gpus: bool) -> float:  # noqa: FBT001 - which of the two quantities
    return (shape.demand.gpu_milli if gpus else shape.demand.cpus_milli) * shape.ranks / MILLI
