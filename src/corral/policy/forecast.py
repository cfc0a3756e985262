"""When a gang is expected to start although nobody declared an end: a range from how long such gangs really ran.

Two list schedules (Graham, 1966) of what holds and what goes before, over one number (free devices that the gang could
use, or CPUs): one in which everybody is as quick as the quickest quarter of its kind, one as slow as the slowest. How
long a gang goes on comes from its own progress, else from finished gangs of its class that ran at least as long, else
from its age: the chance to live on for r after an age of a is a / (a + r), the Pareto tail with exponent 1 that process
lifetimes follow (Harchol-Balter and Downey, SIGMETRICS'96).
"""

from __future__ import annotations

import heapq
from bisect import bisect_right

import msgspec

from corral.model.experience import ServiceClass, ServiceHistory
from corral.model.ids import TenantId
from corral.model.offer import Candidate, Holding, Snapshot
from corral.model.resources import MILLI, Demand, Placement
from corral.policy.config import SchedulingConfig
from corral.policy.feasibility import model_matches

QUICK, SLOW = 0.25, 0.75
"""The quantiles of the range: half of all starts should lie inside if the past is like the future."""

SAMPLE_MIN = 10
"""Finished gangs of a class from which on its own distribution is believed."""

KNOWN_SPREAD = 0.25
"""Measured remaining work is believed within this part: a steady job's rate varies little."""


class Range(msgspec.Struct, frozen=True):
    """Seconds since the epoch; ``basis`` says in words what the range rests on."""

    earliest: float
    latest: float
    basis: str


class _View:
    """The pool as candidates of one kind see it: one number that is free, and when more of it comes free."""

    def __init__(self, demand: Demand, free: int, ends: list[tuple[float, int]], now: float) -> None:
        self.demand = demand
        self.free = free
        self.ends = ends
        self.at = now
        self.seen = 0
        heapq.heapify(ends)

    def start(self, need: int) -> float | None:
        """Return when ``need`` is free and let time pass until then; ``None`` (and no time passes) if it never is."""
        if self.free + sum(freed for _, freed in self.ends) < need:
            return None
        while self.free < need:
            end, freed = heapq.heappop(self.ends)
            self.at, self.free = max(self.at, end), self.free + freed
        return self.at

    def take(self, need: int, runs_s: float) -> None:
        """Let a gang run that goes before. One that can never start in this view holds nobody up in it."""
        if need and self.start(need) is not None:
            self.free -= need
            heapq.heappush(self.ends, (self.at + runs_s, need))

    def peek(self, need: int) -> float | None:
        """Return when ``need`` would be free; nothing moves."""
        copy = _View(self.demand, self.free, list(self.ends), self.at)
        return copy.start(need)


class Forecast:
    """Forecasts over one state of the pool, for candidates in the order in which they are considered."""

    def __init__(self, snapshot: Snapshot, history: ServiceHistory, config: SchedulingConfig) -> None:
        self._snapshot = snapshot
        self._history = history
        self._config = config
        self._ahead: list[Candidate] = []
        self._views: dict[tuple[bool, bool, str | None, float], _View] = {}
        self._models = {device.uuid: device.model for node in snapshot.nodes for device in node.devices}
        self._offered = {node.node for node in snapshot.nodes}

    def add(self, candidate: Candidate) -> None:
        """Let a candidate go before all that are asked for from now on."""
        self._ahead.append(candidate)

    def of(self, candidate: Candidate) -> Range | None:
        """Return the range in which ``candidate`` is expected to start after those that were added.

        ``None`` when all that is offered and held would not be enough for it.
        """
        quick, slow = (self._start(candidate, quantile) for quantile in (QUICK, SLOW))
        if quick is None or slow is None:
            return None
        what = "devices" if candidate.shape.demand.gpu_milli else "CPUs"
        known = any(self._history.durations.values())
        basis = "how long finished jobs ran" if known else "how long what holds them has run"
        return Range(min(quick, slow), max(quick, slow), f"free {what}, and {basis}")

    def _start(self, candidate: Candidate, quantile: float) -> float | None:
        demand = candidate.shape.demand
        name = (demand.gpu_milli > 0, demand.is_share, demand.gpu_model, quantile)
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = _View(
                demand, self._free(demand), self._ends(demand, quantile), self._snapshot.at
            )
        for other in self._ahead[view.seen :]:
            view.take(_need(other, demand), runs_s(other, self._history, self._config, quantile))
        view.seen = len(self._ahead)
        return view.peek(_need(candidate, demand))

    def _free(self, demand: Demand) -> int:
        nodes = self._snapshot.nodes
        if not demand.gpu_milli:
            return sum(node.cpus_milli for node in nodes)
        free = [d.free_milli for n in nodes for d in n.devices if model_matches(demand.gpu_model, d.model)]
        return sum(free) if demand.is_share else MILLI * sum(1 for milli in free if milli >= MILLI)

    def _held(self, demand: Demand, placement: Placement) -> int:
        if not demand.gpu_milli:
            return placement.cpus_milli
        return sum(
            share.milli
            for share in placement.devices
            if share.uuid in self._models and model_matches(demand.gpu_model, self._models[share.uuid])
        )

    def _ends(self, demand: Demand, quantile: float) -> list[tuple[float, int]]:
        ends: list[tuple[float, int]] = []
        for holding in self._snapshot.holdings:
            held = sum(self._held(demand, p) for p in holding.placements if p.node in self._offered)
            if held:
                left = goes_on_s(holding, self._snapshot.at, self._history, self._config, quantile)
                ends.append((self._snapshot.at + left, held))
        return ends


def goes_on_s(
    holding: Holding, now: float, history: ServiceHistory, config: SchedulingConfig, quantile: float
) -> float:
    """Return how many more seconds a holder runs in the ``quantile`` of its kind."""
    if holding.stopping:
        return 0.0
    bound = max(0.0, holding.ends_at - now) if holding.ends_at is not None else float("inf")
    if holding.remaining_s is not None:
        left = max(0.0, holding.remaining_s - max(0.0, now - holding.known_at))
        return min(bound, left * (1.0 + 2.0 * KNOWN_SPREAD * (quantile - 0.5) / (SLOW - QUICK)))
    attained = holding.attained_s + max(0.0, now - holding.started_at)
    devices = sum(len(placement.devices) for placement in holding.placements)
    return min(bound, residual_s(history, holding.tenant, devices, attained, quantile, config))


def runs_s(candidate: Candidate, history: ServiceHistory, config: SchedulingConfig, quantile: float) -> float:
    """Return how many seconds a pending gang runs once it is started, in the ``quantile`` of its kind."""
    bound = candidate.max_duration_s if candidate.max_duration_s is not None else float("inf")
    if candidate.remaining_s is not None:
        return min(bound, candidate.remaining_s)
    devices = candidate.shape.ranks * -(-candidate.shape.demand.gpu_milli // MILLI)
    return min(bound, residual_s(history, candidate.tenant, devices, candidate.attained_s, quantile, config))


def _need(other: Candidate, wanted: Demand) -> int:
    """Return what a gang takes of what ``wanted`` waits for; nothing where it asks for other device models."""
    demand = other.shape.demand
    if not wanted.gpu_milli:
        return demand.cpus_milli * other.shape.ranks
    theirs, own = demand.gpu_model, wanted.gpu_model
    apart = theirs is not None and own is not None and not (model_matches(theirs, own) or model_matches(own, theirs))
    return 0 if apart else demand.gpu_milli * other.shape.ranks


def residual_s(
    history: ServiceHistory,
    tenant: TenantId,
    devices: int,
    attained_s: float,
    quantile: float,
    config: SchedulingConfig,
) -> float:
    """Return how many more seconds a gang runs in the ``quantile`` of its kind, after ``attained_s`` of service."""
    for name in (ServiceClass(tenant, devices), ServiceClass(None, devices), ServiceClass(None, None)):
        durations = history.durations.get(name, ())
        first = bisect_right(durations, attained_s)
        if len(durations) >= SAMPLE_MIN and first < len(durations):
            at = first + int(quantile * (len(durations) - first))
            return durations[min(at, len(durations) - 1)] - attained_s
    age = max(attained_s, config.unknown_end_s)
    return age * quantile / (1.0 - quantile)
