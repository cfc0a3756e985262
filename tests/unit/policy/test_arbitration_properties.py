"""Properties of single rounds on small random pools, against a checker that tries everything by brute force."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.model.ids import TenantId
from corral.model.offer import Arbitration, Candidate, Holding, Reservation
from corral.model.resources import MILLI, Amount, DeviceShare, NodeSpec, Placement
from corral.policy.feasibility import model_matches
from tests.unit.policy.building import CONFIG, NOW, candidate, holding, node_spec, queue, run_round, shape, tenant

LIMIT_GPUS = 3.0
QUEUE_LIMIT_GPUS = 4.0


class Free:
    """What is free on each node: devices, CPUs and memory. Written without the code under test."""

    def __init__(self, specs: Sequence[NodeSpec], held: Sequence[Placement]) -> None:
        self.devices = {d.uuid: MILLI for s in specs for d in s.devices}
        self.models = {d.uuid: d.model for s in specs for d in s.devices}
        self.nodes = {d.uuid: s.id for s in specs for d in s.devices}
        self.cpus = {s.id: s.cpus_milli for s in specs}
        self.memory = {s.id: s.memory_mib for s in specs}
        for placement in held:
            self.take(placement)

    def take(self, placement: Placement, sign: int = 1) -> None:
        self.cpus[placement.node] -= sign * placement.cpus_milli
        self.memory[placement.node] -= sign * placement.memory_mib
        for share in placement.devices:
            self.devices[share.uuid] -= sign * share.milli

    @property
    def sound(self) -> bool:
        return min([*self.devices.values(), *self.cpus.values(), *self.memory.values()]) >= 0

    def ways(self, what: Candidate) -> Iterator[tuple[Placement, ...]]:
        """Yield every way to place all ranks (ranks are equal: in ascending order of their choices)."""
        demand, ranks = what.shape.demand, what.shape.ranks
        choices: list[Placement] = []
        for node in self.cpus:
            mine = [d for d, at in self.nodes.items() if at == node and model_matches(demand.gpu_model, self.models[d])]
            count = max(1, demand.gpu_milli // MILLI) if demand.gpu_milli else 0
            for devices in itertools.combinations(mine, count):
                shares = tuple(DeviceShare(d, min(MILLI, demand.gpu_milli)) for d in devices)
                choices.append(Placement(0, node, shares, demand.cpus_milli, demand.memory_mib))
        for chosen in itertools.combinations_with_replacement(choices, ranks):
            for placement in chosen:
                self.take(placement)
            fits = self.sound
            for placement in chosen:
                self.take(placement, -1)
            if fits:
                yield chosen


def delays(
    reservations: Sequence[Reservation],
    specs: Sequence[NodeSpec],
    holdings: Sequence[Holding],
    more: Sequence[Placement],
    end: float,
) -> bool:
    """Return whether starting ``more`` (until ``end``) takes what the reservations were promised together."""
    known = [kept for kept in reservations if kept.start_at is not None]
    last = float("-inf")
    for kept in known:
        assert kept.start_at is not None
        last = max(last, kept.start_at)
        due = [p for k in known if k.start_at is not None and k.start_at <= kept.start_at for p in k.placements]
        still = [p for h in holdings if h.ends_at is None or h.ends_at > kept.start_at for p in h.placements]
        assert Free(specs, [*still, *due]).sound, "the promise does not hold in itself"
        if end > kept.start_at and not Free(specs, [*still, *due, *more]).sound:
            return True
    unknown = [kept for kept in reservations if kept.start_at is None]
    if not unknown:
        return False
    kept_open = [p for kept in unknown for p in kept.placements]
    now = Free(specs, [p for h in holdings for p in h.placements]).devices
    then = Free(specs, [p for h in holdings for p in h.placements] + kept_open).devices
    # The devices on which somebody has to leave first.
    devices = {uuid for uuid in now if then[uuid] < now[uuid] and then[uuid] < 0}
    others = [
        p
        for h in holdings
        if not any(s.uuid in devices for p in h.placements for s in p.devices)
        and (h.ends_at is None or h.ends_at > last)
        for p in h.placements
    ]
    kept_all = [p for kept in reservations for p in kept.placements]
    without = Free(specs, [*others, *kept_all])
    with_more = Free(specs, [*others, *kept_all, *more])
    return any(
        then[name] < min(0, now[name])  # type: ignore[index]
        for now, then in (
            (without.devices, with_more.devices),
            (without.cpus, with_more.cpus),
            (without.memory, with_more.memory),
        )
        for name in now
    )


def random_pool(rng: random.Random) -> list[NodeSpec]:
    return [
        node_spec(
            f"node-{n}",
            models=[rng.choice(["H100", "H100", "A100"]) for _ in range(rng.randint(0, 3))],
            cpus=rng.choice([2, 4, 8]),
            memory=1_000,
            rack=f"rack-{rng.randint(0, 1)}",
            island=2,
        )
        for n in range(rng.randint(1, 3))
    ]


def random_shape(rng: random.Random):  # type: ignore[no-untyped-def]
    return shape(
        rng.choice([0, 0.25, 0.5, 1, 1, 1, 2, 3]),
        ranks=rng.choice([1, 1, 1, 2, 3]),
        model=rng.choice([None, None, "H100", "A100"]),
        cpus=rng.choice([0.5, 1, 2, 4]),
        memory=rng.choice([50, 300]),
    )


def random_holdings(rng: random.Random, specs: Sequence[NodeSpec]) -> list[Holding]:
    free, found = Free(specs, ()), []
    for number in range(rng.randint(0, 6)):
        wanted = candidate(900 + number, random_shape(rng))
        ways = list(itertools.islice(free.ways(wanted), 50))
        if ways:
            chosen = rng.choice(ways)
            for placement in chosen:
                free.take(placement)
            ends = rng.choice([None, NOW + 10, NOW + 50, NOW + 100])
            one = holding(900 + number, *chosen, ends_at=ends, tenant=rng.choice("ab"), started_at=NOW - 7)
            found.append(replace(one, preemptible=False))
    return found


def random_candidates(rng: random.Random) -> list[Candidate]:
    return [
        candidate(
            number,
            random_shape(rng),
            tenant=rng.choice("abc"),
            queue=rng.choice(["default", "small"]),
            priority=rng.choice([0, 0, 1]),
            lasts=rng.choice([None, 10.0, 60.0, 200.0]),
        )
        for number in range(rng.randint(1, 7))
    ]


class Case:
    """A random pool with a first round, some change, and a second round that carries the reservations over."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        # None gives way, not those of the first round either: what is promised here rests on declared ends alone.
        scan = rng.choice([1, 512])
        self.config = type(CONFIG)(reservations=rng.choice([1, 1, 2]), backfill_scan=scan, tenure_s=math.inf)
        self.specs = random_pool(rng)
        self.holdings = random_holdings(rng, self.specs)
        self.candidates = random_candidates(rng)
        self.verdict = self._round((), NOW)
        self.rounds = [(self.holdings, self.candidates, self.verdict)]
        won = {a.key: a.placements for a in self.verdict.allocations}
        started = [
            Holding(
                key=c.key,
                tenant=c.tenant,
                placements=won[c.key],
                started_at=NOW,
                ends_at=None if c.max_duration_s is None else NOW + c.max_duration_s,
                preemptible=False,
            )
            for c in self.candidates
            if c.key in won
        ]
        running = [*self.holdings, *started]
        later = NOW + 5
        self.holdings = [h for h in running if rng.random() < 0.7]
        self.candidates = [c for c in self.candidates if c.key not in won] + [
            candidate(100 + int(c.key.job), c.shape, tenant=c.tenant, queue=c.queue) for c in random_candidates(rng)
        ]
        self.rounds.append((self.holdings, self.candidates, self._round(self.verdict.reservations, later)))

    def _round(self, reservations: Sequence[Reservation], at: float) -> Arbitration:
        return run_round(
            self.specs,
            self.candidates,
            holdings=self.holdings,
            tenants=[tenant("a", limit=LIMIT_GPUS), tenant("b", 2), tenant("c", guaranteed=1)],
            queues=[queue(), queue("small", limit=QUEUE_LIMIT_GPUS)],
            reservations=reservations,
            config=self.config,
            at=at,
        )


def gpus_of(holdings: Sequence[Holding], tenant_id: str) -> int:
    return sum(p.gpu_milli for h in holdings if h.tenant == tenant_id for p in h.placements)


def check_round(case: Case, holdings: list[Holding], waiting: list[Candidate], verdict: Arbitration, at: float) -> None:
    by_key = {c.key: c for c in waiting}
    small = 0
    after = list(holdings)
    for allocation in verdict.allocations:
        won = by_key.pop(allocation.key)
        assert [p.rank for p in allocation.placements] == list(range(won.shape.ranks))
        for placement in allocation.placements:
            assert Amount.of(placement) == Amount.of(won.shape.demand)
        end = None if won.max_duration_s is None else at + won.max_duration_s
        after.append(Holding(won.key, won.tenant, allocation.placements, at, end))
        if won.queue == "small":
            small += Amount.of(won.shape.demand).gpu_milli * won.shape.ranks
    held = [p for h in after for p in h.placements]
    assert Free(case.specs, held).sound, "over capacity"
    assert small <= QUEUE_LIMIT_GPUS * MILLI
    took = gpus_of(after, "a") - gpus_of(holdings, "a")
    assert took == 0 or gpus_of(after, "a") <= LIMIT_GPUS * MILLI
    assert len(verdict.reservations) <= case.config.reservations
    assert not delays(verdict.reservations, case.specs, after, (), 0.0)
    assert {kept.key for kept in verdict.reservations} <= set(by_key)
    assert len({kept.key for kept in verdict.reservations}) == len(verdict.reservations)
    for left in by_key.values():
        if left.tenant == "a" and gpus_of(after, "a") + total_milli(left) > LIMIT_GPUS * MILLI and total_milli(left):
            continue
        if left.queue == "small" and small + total_milli(left) > QUEUE_LIMIT_GPUS * MILLI and total_milli(left):
            continue
        end = float("inf") if left.max_duration_s is None else at + left.max_duration_s
        others = promised_before(left, verdict.reservations)
        for way in Free(case.specs, held).ways(left):
            assert delays(others, case.specs, after, way, end), f"{left.key} could start: {way}"


def promised_before(what: Candidate, reservations: Sequence[Reservation]) -> list[Reservation]:
    """Return whom a candidate may not delay: all, or for a reserved one those before it and those with a start."""
    keys = [kept.key for kept in reservations]
    at = keys.index(what.key) if what.key in keys else len(keys)
    return [kept for i, kept in enumerate(reservations) if i < at or (i > at and kept.start_at is not None)]


def total_milli(what: Candidate) -> int:
    return what.shape.demand.gpu_milli * what.shape.ranks


@given(st.integers(0, 10**9))
@hypothesis_settings(max_examples=300)
def test_rounds_are_sound_and_work_conserving(seed: int) -> None:
    case = Case(seed)
    for (holdings, waiting, verdict), at in zip(case.rounds, (NOW, NOW + 5), strict=True):
        check_round(case, holdings, waiting, verdict, at)


@given(st.integers(0, 10**9))
@hypothesis_settings(max_examples=50)
def test_the_same_state_gives_the_same_verdict(seed: int) -> None:
    first, second = Case(seed), Case(seed)
    assert [r[2] for r in first.rounds] == [r[2] for r in second.rounds]
    assert TenantId("a") == "a"
