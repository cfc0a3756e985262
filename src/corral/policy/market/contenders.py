"""Who contends in a round: pending candidates and running gangs that may give way, with what each is worth."""

from __future__ import annotations

from collections.abc import Mapping

from corral.model.ids import GangKey, NodeId, QueueName, TenantId
from corral.model.market import Market
from corral.model.offer import Bid, Candidate, Holding, QueueStanding
from corral.model.resources import Amount, Demand, GangShape, Placement
from corral.model.tenant import Queue
from corral.policy.config import SchedulingConfig
from corral.policy.estimation import devices_of
from corral.policy.remaining import remaining_service
from corral.policy.valuation import bid_value, finish_time_ratio, weight


class Contender:
    """A gang that contends, with its worth.

    ``holding`` is set for a running gang. ``rates`` are the throughputs of ``bids`` after the audit of claims, ``best``
    the largest. ``raw`` is its worth within its tenant, ``worth`` after the tenant's credit. ``lost_s`` is what giving
    way costs a running gang, ``kept_rate`` the throughput that it runs at.
    """

    __slots__ = (
        "avoid",
        "best",
        "bids",
        "holding",
        "kept_rate",
        "key",
        "lost_s",
        "order",
        "priority",
        "queue",
        "queued_at",
        "rates",
        "raw",
        "size",
        "tenant",
        "urgent",
        "worth",
    )

    def __init__(self, of: Candidate | Holding, bids: tuple[Bid, ...], priority: int) -> None:
        self.key: GangKey = of.key
        self.tenant: TenantId = of.tenant
        self.queue: QueueName = of.queue
        self.order = of.order
        self.priority = priority
        self.bids = bids
        self.holding: Holding | None = of if isinstance(of, Holding) else None
        self.avoid: tuple[NodeId, ...] = () if isinstance(of, Holding) else of.avoid
        self.queued_at = of.started_at if isinstance(of, Holding) else of.queued_at
        self.rates: list[float] = []
        self.best = 1.0
        self.kept_rate = 1.0
        self.lost_s = 0.0
        self.raw = 0.0
        self.worth = 0.0
        self.size = 0.0
        self.urgent = False
        """Within its tenant's guarantee: served before all that are not."""

    def value_of(self, rate: float) -> float:
        """Return what running at ``rate`` is worth."""
        return bid_value(self.worth, rate, self.best)

    @property
    def kept_value(self) -> float:
        """Return what going on as it runs is worth."""
        return self.value_of(self.kept_rate)

    def lost_value(self, config: SchedulingConfig) -> float:
        """Return what giving way costs: the work lost, spread over the tenure for which a decision stands."""
        return self.kept_value * self.lost_s / max(config.tenure_s, config.round_s, 1.0)


class Field:
    """All of a round: who contends, whose devices are out of reach, and who may not start whatever is free."""

    __slots__ = ("contenders", "fixed", "paused")

    def __init__(self, contenders: list[Contender], fixed: list[Holding], paused: list[Candidate]) -> None:
        self.contenders = contenders
        self.fixed = fixed
        self.paused = paused


def gather(market: Market, config: SchedulingConfig) -> Field:
    """Return who contends, running gangs first, each in the order given."""
    now = market.snapshot.at
    found: list[Contender] = []
    fixed: list[Holding] = []
    paused: list[Candidate] = []
    expect = _Expectations(market, config)
    for holding in market.snapshot.holdings:
        if holding.stopping or not holding.preemptible or now < holding.tenure_until:
            fixed.append(holding)
        else:
            found.append(_running(holding, market, config, expect))
    for candidate in market.pending:
        if _queue(market.queues, candidate.queue).queue.paused:
            paused.append(candidate)
        elif candidate.bids:
            found.append(_pending(candidate, market, config, expect))
    return Field(found, fixed, paused)


def _queue(queues: Mapping[QueueName, QueueStanding], name: QueueName) -> QueueStanding:
    return queues.get(name) or QueueStanding(Queue(name))


def _pending(candidate: Candidate, market: Market, config: SchedulingConfig, expect: _Expectations) -> Contender:
    priority = candidate.priority + _queue(market.queues, candidate.queue).queue.priority
    contender = Contender(candidate, candidate.bids, priority)
    trust = market.trust.get(candidate.tenant, 1.0)
    contender.rates = rates_of(candidate.bids, trust)
    contender.best = max(contender.rates)
    first = candidate.bids[0]
    shape = first.shape
    contender.size = _share(shape, market.snapshot.capacity)
    remaining = candidate.remaining_s
    if remaining is None:
        remaining = expect.of(candidate.tenant, shape, candidate.attained_s, first)
    else:
        remaining /= min(1.0, contender.rates[0] / first.throughput) if first.throughput > 0 else 1.0
    # The first bid's time at the best bid's rate, so that all weights speak of the same thing.
    remaining *= contender.rates[0] / contender.best
    submitted = candidate.submitted_at or candidate.queued_at
    waited = max(0.0, market.snapshot.at - submitted - candidate.attained_s)
    contender.raw = weight(remaining, finish_time_ratio(waited, candidate.attained_s, remaining), config)
    return contender


def _running(holding: Holding, market: Market, config: SchedulingConfig, expect: _Expectations) -> Contender:
    now = market.snapshot.at
    bids = holding.bids or ((holding.won,) if holding.won is not None else (_bid_of(holding.placements),))
    priority = holding.priority + _queue(market.queues, holding.queue).queue.priority
    contender = Contender(holding, bids, priority)
    trust = market.trust.get(holding.tenant, 1.0)
    contender.rates = rates_of(bids, trust)
    won = holding.won if holding.won is not None else bids[0]
    contender.kept_rate = rates_of((won,), trust)[0]
    contender.best = max(contender.kept_rate, *contender.rates)
    contender.size = _share(won.shape, market.snapshot.capacity)
    ran = max(0.0, now - holding.started_at)
    attained = holding.attained_s + ran
    remaining = holding.remaining_s
    if remaining is None:
        remaining = expect.of(holding.tenant, won.shape, attained, won)
    else:
        remaining = max(1.0, remaining - max(0.0, now - holding.known_at))
    remaining *= contender.kept_rate / contender.best
    submitted = holding.submitted_at or holding.started_at
    waited = max(0.0, now - submitted - attained)
    contender.raw = weight(remaining, finish_time_ratio(waited, attained, remaining), config)
    unsaved = ran if holding.saved_at is None else max(0.0, now - max(holding.saved_at, holding.started_at))
    contender.lost_s = won.restart_cost_s + unsaved
    return contender


def rates_of(bids: tuple[Bid, ...], trust: float) -> list[float]:
    """Return the throughputs in units per second; what is claimed and not measured is scaled by ``trust``."""
    if trust >= 1.0:
        return [max(bid.throughput, 1e-12) for bid in bids]
    doubt = 1.0 - max(0.0, trust)
    return [max(bid.throughput * (1.0 - doubt * (1.0 - min(1.0, bid.confidence))), 1e-12) for bid in bids]


def _share(shape: GangShape, capacity: Amount) -> float:
    return max(1e-12, Amount.of(shape.demand).times(shape.ranks).dominant_share(capacity))


def _bid_of(placements: tuple[Placement, ...]) -> Bid:
    first = placements[0]
    return Bid(GangShape(len(placements), Demand(first.gpu_milli, None, first.cpus_milli, first.memory_mib)))


class _Expectations:
    """Expected remaining service where nobody says."""

    __slots__ = ("_remaining",)

    def __init__(self, market: Market, config: SchedulingConfig) -> None:
        self._remaining = remaining_service(market, config)

    def of(self, tenant: TenantId, shape: GangShape, attained_s: float, bid: Bid) -> float:
        if bid.remaining_s is not None:
            return bid.remaining_s
        return self._remaining.remaining_s(tenant, devices_of(shape), attained_s)
