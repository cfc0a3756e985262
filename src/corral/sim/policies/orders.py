"""Baselines that decide every round anew who runs, by one order: least attained service, shortest remaining time.

All unfinished gangs are walked in the order; each that still fits is taken, the others wait or give way. A gang that is
taken again stays where it is.
"""

from __future__ import annotations

from typing import Protocol

from corral.model.market import Market, RoundPlan
from corral.policy.config import SchedulingConfig
from corral.sim.policies.packing import Contender, Places, Roster, Scene, take
from corral.sim.runs import Truth


class Order(Protocol):
    """What the gangs are sorted by, smallest first."""

    def __call__(self, contender: Contender, now: float) -> float:
        """Return the place of a contender."""


class Preemptive:
    """The walk, for any order."""

    def __init__(self, config: SchedulingConfig, order: Order) -> None:
        self._config = config
        self._order = order
        self._roster = Roster()

    def __call__(self, market: Market) -> RoundPlan:
        """Choose who runs in this round."""
        scene = Scene(market)
        now = scene.now
        running = scene.running()
        everybody = [*running, *self._roster.waiting(market)]
        places = [(self._order(one, now), one.order, i) for i, one in enumerate(everybody)]
        places.sort()
        left, open_milli = dict(scene.capacity), sum(scene.capacity.values())
        starting: list[Contender] = []
        staying: set[int] = set()
        for _, _, i in places:
            contender = everybody[i]
            if contender.milli > open_milli or not take(contender, left):
                continue
            open_milli -= contender.milli
            if contender.holding is None:
                starting.append(contender)
            else:
                staying.add(i)
            if not open_milli:
                break
        if not starting:
            return RoundPlan(market.snapshot.version)
        victims = [one for i, one in enumerate(running) if i not in staying]
        found = Places(scene, self._config, victims)
        for contender in starting:
            found.find(contender)
        return found.plan()


def attained_service(contender: Contender, now: float) -> float:  # noqa: ARG001 - an order
    """Order by attained service in device-seconds: least attained service (Tiresias, NSDI 2019, without its queues)."""
    return contender.attained_s * contender.milli


def remaining_time(truth: Truth) -> Order:
    """Order by the true remaining time in seconds: an oracle."""

    def order(contender: Contender, now: float) -> float:
        return truth.remaining_s(contender.key, now)

    return order
