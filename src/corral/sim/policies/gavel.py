"""The rounds of Gavel: shares of time become turns on the devices.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020 (section 5),
with the habits of its public simulator that the paper leaves open; ``docs/simulator-gavel.md`` lists them. A policy
gives each gang a share of time on each device model. In each round the gang that is furthest behind its share on a
model goes first, then the next that still fits, until the model is full.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from msgspec.structs import replace

from corral.model.ids import GangKey
from corral.model.market import Market, Preemption, PreemptionKind, RoundPlan
from corral.model.offer import Bid, Holding
from corral.model.resources import MILLI
from corral.policy.config import SchedulingConfig
from corral.policy.feasibility import model_matches
from corral.sim.policies.packing import Contender, Places, Scene
from corral.sim.policies.shares import Situation
from corral.sim.workload import CANNOT

RECOMPUTE_S = 1_920.0
"""Shares are computed anew at most so often, whatever the length of a round (default of Gavel's simulator)."""

SEED = 5
"""Of the order in which models are filled under policies that do not know how fast jobs are where."""


class Policy(Protocol):
    """What decides on the shares. ``heterogeneous``: it knows how fast gangs are on which model."""

    heterogeneous: bool
    idles: bool
    """A gang without a share never runs, even on devices that stay idle."""

    def shares(self, situation: Situation) -> dict[GangKey, dict[str, float]]:
        """Return the share of time (0..1) of each gang on each model."""


class Rounds:
    """A solver that follows a policy of shares. It remembers who got how much since the shares were last computed."""

    def __init__(self, config: SchedulingConfig, policy: Policy) -> None:
        self._config = config
        self._policy = policy
        self._head_start_s = config.round_s / 2
        self._shuffler = random.Random(SEED)  # noqa: S311 - an experiment, no secret
        self._shares: dict[GangKey, dict[str, float]] = {}
        self._received: dict[GangKey, dict[str, float]] = {}
        self._deficits: dict[GangKey, dict[str, float]] = {}
        self._preferred: dict[str, set[GangKey]] = {}
        self._computed_for: frozenset[GangKey] = frozenset()
        self._computed_at: float | None = None
        self._began_at = 0.0
        self._at = 0.0

    def __call__(self, market: Market) -> RoundPlan:
        """Choose who has a turn in this round."""
        scene = Scene(market)
        models = sorted(scene.capacity)
        waiting = [Contender.waits(candidate) for candidate in market.pending]
        gangs = sorted([*scene.running(), *waiting], key=lambda gang: gang.order)
        if not gangs:
            return RoundPlan(market.snapshot.version)
        rates = {gang.key: rates_of(gang.bids, models) for gang in gangs}
        self._account(gangs, rates, scene.now)
        if self._is_due(gangs, scene.now):
            self._compute(gangs, rates, scene)
        chosen = self._choose(gangs, rates, scene.capacity)
        return _plan(scene, gangs, chosen, self._config)

    def _account(self, gangs: Sequence[Contender], rates: dict[GangKey, dict[str, float]], now: float) -> None:
        """Add the time since the last round, and forget the gangs that ended."""
        received, deficits = self._received, self._deficits
        self._received = {g.key: received.get(g.key) or dict.fromkeys(rates[g.key], self._head_start_s) for g in gangs}
        self._deficits = {g.key: deficits.get(g.key) or dict.fromkeys(rates[g.key], 0.0) for g in gangs}
        for gang in gangs:
            if gang.holding is not None and gang.model is not None:
                self._received[gang.key][gang.model] += min(
                    now - max(self._at, gang.holding.started_at), self._turn_s(rates[gang.key][gang.model])
                )
            if gang.key not in received:
                best = max(rates[gang.key], key=rates[gang.key].__getitem__)
                self._preferred.setdefault(best, set()).add(gang.key)
        self._at = now

    def _turn_s(self, rate: float) -> float:
        """Return the seconds of a whole round in which a gang does whole steps: the rest does not count as received."""
        steps = math.floor(rate * self._config.round_s)
        return steps / rate if steps else self._config.round_s

    def _is_due(self, gangs: Iterable[Contender], now: float) -> bool:
        if self._computed_at is None:
            self._began_at = now
            return True
        if self._computed_for == frozenset(gang.key for gang in gangs):
            return False
        # The shares of the very first round, of the first job alone, do not stand so long.
        return now - self._computed_at >= RECOMPUTE_S or self._computed_at == self._began_at

    def _compute(self, gangs: Sequence[Contender], rates: dict[GangKey, dict[str, float]], scene: Scene) -> None:
        """Settle what the old shares owe, and compute new ones."""
        elapsed = scene.now - (self._computed_at if self._computed_at is not None else scene.now)
        for gang in gangs:
            old, received, deficit = self._shares.get(gang.key, {}), self._received[gang.key], self._deficits[gang.key]
            for model in received:
                deficit[model] += old.get(model, 0.0) * elapsed - (received[model] - self._head_start_s)
                received[model] = self._head_start_s
        models = sorted(scene.capacity)
        self._shares = self._policy.shares(
            Situation(
                keys=tuple(gang.key for gang in gangs),
                models=tuple(models),
                rates=np.array([[rates[gang.key][model] for model in models] for gang in gangs]).reshape(
                    -1, len(models)
                ),
                devices=np.array([gang.milli / MILLI for gang in gangs]),
                capacity=np.array([scene.capacity[model] / MILLI for model in models]),
                waited_s=np.array([scene.now - gang.gang.submitted_at for gang in gangs]),
                remaining=np.array([remaining_units(gang, scene.now) for gang in gangs]),
            )
        )
        self._computed_for, self._computed_at = frozenset(gang.key for gang in gangs), scene.now

    def _choose(
        self, gangs: Sequence[Contender], rates: dict[GangKey, dict[str, float]], capacity: dict[str, int]
    ) -> dict[GangKey, str]:
        """Return who runs on which model in this round."""
        left = dict(capacity)
        chosen: dict[GangKey, str] = {}
        passed: set[GangKey] = set()
        for model in self._order(capacity):
            ranked = sorted(gangs, key=lambda gang: self._rank(gang.key, model), reverse=True)
            for gang in ranked:
                share = self._shares.get(gang.key)
                if gang.key in chosen or gang.key in passed or not rates[gang.key][model] or gang.milli > left[model]:
                    continue
                if self._policy.idles and not (share or {}).get(model):
                    continue
                left[model] -= gang.milli
                if share is None:
                    # It came after the shares were computed: its turn is counted, but it waits for a share.
                    passed.add(gang.key)
                else:
                    chosen[gang.key] = model
        return chosen

    def _rank(self, key: GangKey, model: str) -> tuple[float, float, float]:
        share = self._shares.get(key, {}).get(model, 0.0)
        return share / self._received[key][model], self._deficits[key][model], share

    def _order(self, capacity: dict[str, int]) -> list[str]:
        """Return the models in the order in which they are filled: the one that most gangs prefer first."""
        order = sorted(capacity, key=lambda model: (-len(self._preferred.get(model, ())), model))
        if not self._policy.heterogeneous:
            self._shuffler.shuffle(order)
        return order


def rates_of(bids: Sequence[Bid], models: Iterable[str]) -> dict[str, float]:
    """Return units of work per second by model, 0 where a gang cannot run."""
    named = [bid for bid in bids if bid.shape.demand.gpu_model is not None] or bids
    rates = {model: max((bid.throughput for bid in named if _takes(bid, model)), default=0.0) for model in models}
    least = max(rates.values()) * 10 * CANNOT
    return {model: rate if rate > least else 0.0 for model, rate in rates.items()}


def _takes(bid: Bid, model: str) -> bool:
    wanted = bid.shape.demand.gpu_model
    return wanted is None or model_matches(wanted, model)


def remaining_units(contender: Contender, now: float) -> float:
    """Return the units of work that a gang declares as left, not a number where it declares nothing."""
    gang = contender.gang
    way = gang.won if isinstance(gang, Holding) and gang.won is not None else gang.bids[0]
    left_s = gang.remaining_s if gang.remaining_s is not None else way.remaining_s
    if left_s is None:
        return float("nan")
    if isinstance(gang, Holding):
        left_s = max(0.0, left_s - max(0.0, now - gang.known_at))
    return left_s * way.throughput


def _plan(scene: Scene, gangs: Sequence[Contender], chosen: dict[GangKey, str], config: SchedulingConfig) -> RoundPlan:
    """Return the plan that makes the choice true: who changes its model is stopped and starts elsewhere."""
    moved = [gang for gang in gangs if gang.holding is None or chosen.get(gang.key) != gang.model]
    places = Places(scene, config, [gang for gang in moved if gang.holding is not None])
    for gang in sorted(moved, key=lambda gang: -gang.milli):
        model = chosen.get(gang.key)
        if model is None:
            continue
        named = [bid for bid in gang.bids if bid.shape.demand.gpu_model is not None]
        gang.bids = tuple(bid for bid in named or gang.bids if _takes(bid, model))
        places.find(gang)
    plan = places.plan()
    moving = {award.key: award.tenant for award in plan.awards}
    evictions = tuple(
        replace(one, preemption=Preemption(PreemptionKind.MOVE, one.key.job, moving[one.key]))
        if one.key in moving
        else one
        for one in plan.evictions
    )
    return replace(plan, evictions=evictions)
