"""Priority before price: who waits takes the place of lower priorities of its own tenant, whatever work they lose.

Prices weigh what a gang that saves nothing would lose by giving way, and after hours that outweighs any priority. Whose
work is lost is the tenant's own affair, and it has said what comes first. So after everybody was seated at the prices,
gangs of higher priority may still displace lower ones of their tenant, and nobody else: no other tenant loses anything
by a priority, nor gains by it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from corral.model.ids import TenantId
from corral.policy.market.cells import Cells
from corral.policy.market.clearing import Residents, clear_cells
from corral.policy.market.contenders import Contender
from corral.policy.market.forms import Columns, Seated
from corral.policy.market.ground import Ground
from corral.policy.valuation import bid_value

TRIES_MAX = 64
"""Gangs that may look for lower ones to displace in one round, and lower ones that each may ask to give way."""


class Seats(Protocol):
    """What a seating offers to those who come before others."""

    ground: Ground
    contenders: Sequence[Contender]
    columns: Columns
    cells: Cells
    kept: set[int]
    awards: dict[int, Seated]
    conceded: float
    displaced: list[int]
    cleared_for: dict[int, int]
    ways: dict[int, tuple[int, int]]

    def idle(self) -> list[int]:
        """Return who neither goes on nor starts, though it could in an empty pool."""
        ...

    def stake(self, index: int) -> float:
        """Return what going on is worth to a running gang, with what giving way would cost."""
        ...

    def start_trial(self) -> None:
        """Let all rules of placement know what is released and taken from here on."""
        ...

    def try_again(self) -> None:
        """Forget which forms did not fit: something came free."""
        ...

    def start_somehow(self, index: int) -> bool:
        """Start a contender in the most valuable of its ways that fits."""
        ...

    def release(self, index: int) -> None:
        """Let a running gang give way."""
        ...

    def withdraw(self, index: int) -> bool:
        """Let a gang go on after all; return whether its devices are unused still."""
        ...


def make_room(seats: Seats) -> None:
    """Let those who wait take the place of lower priorities of their own tenant."""
    order = _Order(seats.contenders, seats.kept)
    waiting = order.waiting(seats.idle())
    if not waiting:
        return
    seats.start_trial()
    residents = Residents(seats.ground, seats.contenders, seats.kept)
    for index in waiting:
        lower = _on_cells(index, seats, order, residents) or order.below(index)
        released: list[int] = []
        for below in lower:
            if not order.outweighs(index, [*released, below]):
                break
            seats.release(below)
            released.append(below)
            seats.try_again()
            if seats.start_somehow(index):
                break
        won = seats.awards.get(index)
        for below in reversed(released):
            if not seats.withdraw(below):
                seats.displaced.append(below)
                residents.remove(below)
                seats.cleared_for[below] = index
                seats.conceded += seats.stake(below)
        seats.conceded -= won.value if won is not None else 0.0
    seats.try_again()


def _on_cells(index: int, seats: Seats, order: _Order, residents: Residents) -> list[int]:
    """Return whom to clear from the cells that cost least, of lower priorities only; empty when that does not help."""
    levels = order.levels(index)
    # One of a higher level costs more than all of lower ones.
    all_stakes = sum(seats.stake(other) for other in levels)

    def stake(other: int) -> float:
        return seats.stake(other) + levels[other] * all_stakes if other in levels else math.inf

    begin, end = seats.ways[index]
    for way in (begin + np.argsort(-seats.columns.value[begin:end], kind="stable")[:2]).tolist():
        form = seats.columns.forms[int(seats.columns.form[way])]
        victims = clear_cells(form, math.inf, seats.cells, residents, stake) if form.plain else []
        if victims and order.outweighs(index, victims):
            return victims
    return []


class _Order:
    """The priorities of each tenant. ``kept`` are those who go on, as of now."""

    def __init__(self, contenders: Sequence[Contender], kept: Collection[int]) -> None:
        self._contenders = contenders
        self._kept = kept
        self._running: dict[TenantId, list[int]] = {}
        for index in sorted(kept):
            self._running.setdefault(contenders[index].tenant, []).append(index)
        for mine in self._running.values():
            mine.sort(key=lambda i: (contenders[i].priority, contenders[i].lost_s, i))

    def waiting(self, indices: Sequence[int]) -> list[int]:
        """Return those of ``indices`` that have somebody below them, as their tenants order them."""
        of, lowest = self._contenders, {name: mine[0] for name, mine in self._running.items()}
        found = [i for i in indices if of[i].tenant in lowest and of[lowest[of[i].tenant]].priority < of[i].priority]
        found.sort(key=lambda i: (-of[i].priority, -of[i].raw / of[i].size, of[i].order, i))
        return found[:TRIES_MAX]

    def below(self, index: int) -> list[int]:
        """Return who may be asked to give way: the lowest priority first, of these who loses least."""
        of, mine = self._contenders, self._running.get(self._contenders[index].tenant, [])
        found = [i for i in mine if i in self._kept and of[i].priority < of[index].priority]
        return found[:TRIES_MAX]

    def levels(self, index: int) -> dict[int, int]:
        """Return those below a gang with their level: 0 for the lowest priority, 1 for the next."""
        below = self.below(index)
        ranks = {priority: i for i, priority in enumerate(sorted({self._contenders[b].priority for b in below}))}
        return {b: ranks[self._contenders[b].priority] for b in below}

    def outweighs(self, index: int, lower: Sequence[int]) -> bool:
        """Return whether a gang is worth more to its tenant than lower ones together, as far as they go on."""
        return self._contenders[index].raw > sum(self._worth(i) for i in lower)

    def _worth(self, index: int) -> float:
        one = self._contenders[index]
        return bid_value(one.raw, one.kept_rate, one.best)
