"""Who contends in a round: pending candidates and running gangs that may give way, with what each is worth."""

from __future__ import annotations

from corral.model.ids import GangKey, NodeId, QueueName, TenantId
from corral.model.market import Market
from corral.model.offer import Bid, Candidate, Holding
from corral.model.resources import Amount, Demand, GangShape, Placement
from corral.policy.config import SchedulingConfig
from corral.policy.estimation import devices_of
from corral.policy.remaining import Expected, RemainingService, remaining_service
from corral.policy.valuation import bid_value, critical_worth, finish_time_ratio, hedged, hurry_value, patience, weight

KEEPING = 1e-6
"""What going on is worth more, as a part, than starting anew for nothing: so that nothing moves without a gain."""


class Contender:
    """A gang that contends, with its worth.

    ``of`` is the candidate or holding that it was made from; ``holding`` is set for a running gang. ``rates`` are the
    throughputs of ``bids`` after the audit of claims, ``best`` the largest, ``slowest`` the least; ``size`` is the
    dominant share of the first bid or of what it runs on. ``raw`` is its worth within its tenant, ``worth`` after the
    tenant's credit. ``urgent`` is set within its tenant's guarantee: served before all that are not. ``lost_s`` is what
    giving way costs a running gang, ``kept_rate`` the throughput that it runs at. ``remaining_s`` is on the best bid;
    ``hurry`` is what faster devices are worth more because all of its tenant waits for this gang in the end, as a part
    of ``worth``.
    """

    __slots__ = (
        "avoid",
        "best",
        "bids",
        "holding",
        "hurry",
        "kept_rate",
        "key",
        "lost_s",
        "of",
        "order",
        "priority",
        "queue",
        "queued_at",
        "rates",
        "raw",
        "remaining_s",
        "size",
        "slowest",
        "tenant",
        "urgent",
        "worth",
    )

    def __init__(self, of: Candidate | Holding, bids: tuple[Bid, ...], rates: list[float], size: float) -> None:
        self.of = of
        self.key: GangKey = of.key
        self.tenant: TenantId = of.tenant
        self.queue: QueueName = of.queue
        self.order = of.order
        self.priority = of.priority
        self.bids = bids
        self.rates = rates
        self.best = max(rates)
        self.slowest = min(rates)
        self.size = size
        self.avoid: tuple[NodeId, ...] = ()
        if isinstance(of, Holding):
            self.holding: Holding | None = of
            self.queued_at = of.started_at
        else:
            self.holding = None
            self.queued_at = of.queued_at
            self.avoid = of.avoid
        self.kept_rate = self.best
        self.lost_s = 0.0
        self.raw = 0.0
        self.remaining_s = 0.0
        self.hurry = 0.0
        self.worth = 0.0
        self.urgent = False

    def value_of(self, rate: float) -> float:
        """Return what running at ``rate`` is worth."""
        value = bid_value(self.worth, rate, self.best)
        return value + self.worth * self.hurry * hurry_value(rate, self.best, self.slowest) if self.hurry else value

    @property
    def kept_value(self) -> float:
        """Return what going on as it runs is worth."""
        return self.value_of(self.kept_rate)

    def lost_value(self, config: SchedulingConfig) -> float:
        """Return what giving way costs: the work lost, spread over the tenure for which a decision stands."""
        return self.kept_value * max(KEEPING, self.lost_s / max(config.tenure_s, config.round_s, 1.0))


class Field:
    """All of a round: who contends, whose devices are out of reach, and who may not start whatever is free."""

    __slots__ = ("contenders", "fixed", "paused")

    def __init__(self, contenders: list[Contender], fixed: list[Holding], paused: list[Candidate]) -> None:
        self.contenders = contenders
        self.fixed = fixed
        self.paused = paused


class Gatherer:
    """Makes contenders, and knows those of the last round: a candidate that did not change is not read again."""

    def __init__(self, config: SchedulingConfig) -> None:
        self._config = config
        self._known: dict[GangKey, Contender] = {}
        self._capacity = Amount()
        self._audited = False

    def gather(self, market: Market) -> Field:
        """Return who contends, running gangs first, each in the order given."""
        now = market.snapshot.at
        found: list[Contender] = []
        fixed: list[Holding] = []
        paused: list[Candidate] = []
        known, self._known = self._known, {}
        if market.snapshot.capacity != self._capacity or market.trust or self._audited:
            self._capacity, self._audited, known = market.snapshot.capacity, bool(market.trust), {}
        expect = _Expectations(market, self._config)
        closed = {name for name, queue in market.queues.items() if queue.queue.paused}
        added = {name: queue.queue.priority for name, queue in market.queues.items()}
        for holding in market.snapshot.holdings:
            if holding.stopping or not holding.preemptible or now < holding.tenure_until:
                fixed.append(holding)
            else:
                found.append(self._running(holding, market, expect))
        for candidate in market.pending:
            if candidate.queue in closed:
                paused.append(candidate)
            elif candidate.bids:
                contender = known.get(candidate.key)
                if contender is None or contender.of is not candidate:
                    contender = self._pending(candidate, market)
                self._known[candidate.key] = contender
                self._weigh(contender, candidate, now, expect)
                found.append(contender)
        for contender in found:
            contender.priority = contender.of.priority + added.get(contender.queue, 0)
            contender.urgent = False
        _hurry(found, self._config)
        return Field(found, fixed, paused)

    def _pending(self, candidate: Candidate, market: Market) -> Contender:
        rates = rates_of(candidate.bids, market.trust.get(candidate.tenant, 1.0))
        return Contender(candidate, candidate.bids, rates, _share(candidate.bids[0].shape, self._capacity))

    def _weigh(self, contender: Contender, candidate: Candidate, now: float, expect: _Expectations) -> None:
        first = contender.bids[0]
        attained = candidate.attained_s
        remaining = candidate.remaining_s
        inverse: float | None = None
        if remaining is None:
            remaining = first.remaining_s
        if remaining is None:
            remaining, inverse = expect.of(candidate.tenant, first.shape, attained)
        elif first.throughput > contender.rates[0] > 0.0:
            # Who claims twice the speed that is believed declares half of the time.
            remaining *= first.throughput / contender.rates[0]
        # The first bid's time at the best bid's rate, so that all weights speak of the same thing.
        remaining *= contender.rates[0] / contender.best
        waited = max(0.0, now - (candidate.submitted_at or candidate.queued_at) - attained)
        ratio = finish_time_ratio(waited, 1.0 / max(1.0, attained + remaining) if inverse is None else inverse)
        contender.remaining_s = remaining
        contender.raw = weight(remaining, contender.size, ratio, self._config)
        contender.raw *= patience(waited, self._config)

    def _running(self, holding: Holding, market: Market, expect: _Expectations) -> Contender:
        now = market.snapshot.at
        bids = holding.bids or ((holding.won,) if holding.won is not None else (_bid_of(holding.placements),))
        trust = market.trust.get(holding.tenant, 1.0)
        won = holding.won if holding.won is not None else bids[0]
        contender = Contender(holding, bids, rates_of(bids, trust), _share(won.shape, self._capacity))
        # What it won was bid before anything was measured, perhaps in other units: its bid of now knows better.
        same = [rate for bid, rate in zip(bids, contender.rates, strict=True) if bid.shape == won.shape]
        contender.kept_rate = same[0] if same else rates_of((won,), trust)[0]
        contender.best = max(contender.best, contender.kept_rate)
        ran = max(0.0, now - holding.started_at)
        attained = holding.attained_s + ran
        remaining = holding.remaining_s
        inverse: float | None = None
        if remaining is None:
            remaining, inverse = expect.of(holding.tenant, won.shape, attained)
        else:
            remaining = max(1.0, remaining - max(0.0, now - holding.known_at))
        remaining *= contender.kept_rate / contender.best
        waited = max(0.0, now - (holding.submitted_at or holding.started_at) - attained)
        ratio = finish_time_ratio(waited, 1.0 / max(1.0, attained + remaining) if inverse is None else inverse)
        contender.remaining_s = remaining
        contender.raw = weight(remaining, contender.size, ratio, self._config)
        contender.raw *= patience(waited, self._config)
        unsaved = ran if holding.saved_at is None else max(0.0, now - max(holding.saved_at, holding.started_at))
        contender.lost_s = won.restart_cost_s + unsaved
        return contender


def _hurry(contenders: list[Contender], config: SchedulingConfig) -> None:
    """Set ``hurry`` of those for whom it matters where they run.

    Each tenant has a critical path of its own, on its part of the pool: who declares more work than is true is the
    last to end among its own, not among all.
    """
    choosing: dict[TenantId, list[Contender]] = {}
    work_s: dict[TenantId, float] = {}
    longest_s: dict[TenantId, float] = {}
    for contender in contenders:
        contender.hurry = 0.0
        name, remaining_s = contender.tenant, contender.remaining_s
        work_s[name] = work_s.get(name, 0.0) + remaining_s * contender.size
        longest_s[name] = max(longest_s.get(name, 1.0), remaining_s)
        if contender.slowest < contender.best:
            choosing.setdefault(name, []).append(contender)
    for name, mine in choosing.items():
        usual = sum(contender.raw for contender in mine) / len(mine)
        end_s = max(work_s[name] * len(work_s), longest_s[name])
        for contender in mine:
            contender.hurry = critical_worth(contender.remaining_s, end_s, config) * usual / contender.raw


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
    """Expected remaining service where nobody says; made when it is first asked for."""

    __slots__ = ("_config", "_market", "_remaining")

    def __init__(self, market: Market, config: SchedulingConfig) -> None:
        self._market = market
        self._config = config
        self._remaining: RemainingService | None = None

    def of(self, tenant: TenantId, shape: GangShape, attained_s: float) -> Expected:
        if self._remaining is None:
            self._remaining = remaining_service(self._market, self._config)
        found = self._remaining.of(tenant, devices_of(shape), attained_s)
        return Expected(hedged(found.remaining_s, attained_s, self._config), found.inverse)
