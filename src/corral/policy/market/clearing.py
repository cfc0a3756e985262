"""Which cells to clear of running gangs so that one that is worth more fits together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from corral.model.offer import Locality
from corral.policy.market.cells import Cells
from corral.policy.market.contenders import Contender
from corral.policy.market.forms import Form
from corral.policy.market.ground import Ground

_Option = tuple[float, int, tuple[int, ...], int]
"""What clearing a seat costs, the seat, who has to give way there, and how many ranks it takes then."""


class Residents:
    """Who goes on at which seat, with how many whole devices there."""

    def __init__(self, ground: Ground, contenders: Sequence[Contender], kept: AbstractSet[int]) -> None:
        self._ground = ground
        self._contenders = contenders
        self.at: dict[int, dict[int, int]] = {}
        for index in sorted(kept):
            for seat, positions in ground.footprints[contenders[index].key].seats.items():
                self.at.setdefault(seat, {})[index] = len(positions)

    def remove(self, index: int) -> None:
        """Forget one that gave way."""
        for seat in self._ground.footprints[self._contenders[index].key].seats:
            self.at.get(seat, {}).pop(index, None)

    def seats_of(self, model: int) -> list[int]:
        """Return the seats of a model."""
        return [i for i, seat in enumerate(self._ground.seats) if seat.model == model]

    def rack(self, seat: int) -> int:
        """Return the rack of a seat."""
        return self._ground.seats[seat].rack

    def urgent(self, index: int) -> bool:
        """Return whether a gang is within its tenant's guarantee."""
        return self._contenders[index].urgent


def clear_cells(
    form: Form, value: float, cells: Cells, residents: Residents, stake: Callable[[int], float]
) -> list[int]:
    """Return who has to give way so that ``form`` fits, worth less together than ``value``; empty when nobody is.

    Islands are left to the placement: when it cannot use what was cleared, nothing happens.
    """
    each, ranks = form.shape.demand.gpus_whole, form.shape.ranks
    need = each * ranks if form.together else each
    options: list[_Option] = []
    for seat in residents.seats_of(form.model or 0):
        found = _cheapest(seat, need, len(cells.open[seat]), residents, stake)
        if found is not None:
            cost, victims, free = found
            options.append((cost, seat, victims, free // need))
    options.sort(key=lambda option: option[:2])
    if form.together:
        return _within(options[:1], 1, value, stake)
    if form.locality is not Locality.RACK:
        return _within(options, ranks, value, stake)
    racks: dict[int, list[_Option]] = {}
    for option in options:
        racks.setdefault(residents.rack(option[1]), []).append(option)
    best: tuple[float, list[int]] = (value, [])
    for rack in sorted(racks):
        who = _within(racks[rack], ranks, best[0], stake)
        if who:
            best = (sum(stake(victim) for victim in who), who)
    return best[1]


def _cheapest(
    seat: int, need: int, free: int, residents: Residents, stake: Callable[[int], float]
) -> tuple[float, tuple[int, ...], int] | None:
    """Return the stake of those to clear from a seat so that ``need`` devices are free, who, and what is free then."""
    if free >= need:
        return 0.0, (), free
    here = residents.at.get(seat, {})
    by_density = sorted((stake(i) / max(1, count), i, count) for i, count in here.items())
    cost = 0.0
    victims: list[int] = []
    for _, index, count in by_density:
        cost += stake(index)
        victims.append(index)
        free += count
        if free >= need:
            return cost, tuple(victims), free
    return None


def _within(options: Sequence[_Option], ranks: int, value: float, stake: Callable[[int], float]) -> list[int]:
    """Return who gives way at the first options that take all ranks, empty when they are worth ``value`` or more."""
    victims: dict[int, None] = {}
    for _, _, who, fits in options:
        victims.update(dict.fromkeys(who))
        ranks -= fits
        if ranks <= 0:
            break
    if ranks > 0 or sum(stake(victim) for victim in victims) >= value:
        return []
    return list(victims)
