"""What must hold of every plan, on random pools with mixed jobs, quotas, running gangs and reservations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.model.ids import GangKey, NodeId
from corral.model.market import Market, RoundPlan
from corral.model.offer import Candidate, Holding
from corral.model.resources import Amount, Placement
from corral.policy.cursor import FOREVER
from corral.policy.market.solve import RoundSolver, solve
from corral.policy.placement import Wish, place
from corral.policy.trial import Trial
from tests.unit.policy.building import CONFIG, NOW
from tests.unit.policy.market.worlds import market_of

seeds = st.integers(0, 10**9)
many = settings(max_examples=60, deadline=None)


def holdings_of(market: Market) -> dict[GangKey, Holding]:
    return {h.key: h for h in market.snapshot.holdings}


def running_after(market: Market, plan: RoundPlan) -> Iterator[tuple[Candidate | Holding, tuple[Placement, ...]]]:
    gone = {e.key for e in plan.evictions}
    by_key: dict[GangKey, Candidate | Holding] = {c.key: c for c in market.pending}
    by_key.update(holdings_of(market))
    for key, held in holdings_of(market).items():
        if key not in gone:
            yield held, held.placements
    for award in plan.awards:
        yield by_key[award.key], award.placements


def amount(placements: tuple[Placement, ...]) -> Amount:
    total = Amount()
    for placement in placements:
        total = total + Amount.of(placement)
    return total


def trial_after(market: Market, plan: RoundPlan) -> Trial:
    """Return the pool as the plan leaves it, with what reservations of others keep."""
    trial = Trial(market.snapshot.nodes)
    for eviction in plan.evictions:
        trial.release(holdings_of(market)[eviction.key].placements)
    awarded = {award.key: award.placements for award in plan.awards}
    for kept in market.reservations:
        # A gang that is placed elsewhere gives its reservation back with the next fill.
        if awarded.get(kept.key) != kept.placements:
            trial.take(kept.placements, FOREVER)
    for award in plan.awards:
        trial.take(award.placements, FOREVER)
    return trial


@many
@given(seeds)
def test_nobody_takes_what_is_not_there_and_gangs_start_whole(seed: int) -> None:
    market = market_of(seed, reserve=False)
    plan = solve(market, CONFIG)
    trial = trial_after(market, plan)
    for node in trial.offers:
        room = trial.room(node)
        assert min([room.cpus_milli, room.memory_mib, *room.free]) >= 0
    for award in plan.awards:
        assert [p.rank for p in award.placements] == list(range(award.bid.shape.ranks))
        for placement in award.placements:
            demand = award.bid.shape.demand
            assert (placement.gpu_milli, placement.cpus_milli) == (demand.gpu_milli, demand.cpus_milli)


@many
@given(seeds)
def test_limits_of_tenants_and_queues_are_not_broken_any_further(seed: int) -> None:
    market = market_of(seed)
    plan = solve(market, CONFIG)
    tenants: dict[str, Amount] = {}
    queues: dict[str, Amount] = {}
    for of, placements in running_after(market, plan):
        tenants[of.tenant] = tenants.get(of.tenant, Amount()) + amount(placements)
        queues[of.queue] = queues.get(of.queue, Amount()) + amount(placements)
    for tenant, standing in market.standings.items():
        limit = standing.tenant.limit.gpu_milli
        if limit is not None:
            assert tenants.get(tenant, Amount()).gpu_milli <= max(limit, standing.held.gpu_milli)
    for name, queue in market.queues.items():
        limit = queue.queue.limit.gpu_milli
        if limit is not None:
            assert queues.get(name, Amount()).gpu_milli <= max(limit, queue.held.gpu_milli)
        if queue.queue.paused:
            waiting = {c.key for c in market.pending if c.queue == name}
            assert not waiting & {award.key for award in plan.awards}


@many
@given(seeds)
def test_tenure_and_what_may_not_be_preempted_are_respected(seed: int) -> None:
    market = market_of(seed)
    for eviction in solve(market, CONFIG).evictions:
        holding = holdings_of(market)[eviction.key]
        assert holding.tenure_until <= NOW
        assert holding.preemptible
        assert not holding.stopping
        assert eviction.incarnation == holding.incarnation


@many
@given(seeds)
def test_nobody_gives_way_for_nothing(seed: int) -> None:
    market = market_of(seed)
    plan = solve(market, CONFIG)
    awards = {award.key: award for award in plan.awards}
    tenants = {h.tenant for h in market.snapshot.holdings}
    for eviction in plan.evictions:
        holding = holdings_of(market)[eviction.key]
        if eviction.key in awards:
            continue
        others = [p for award in plan.awards for p in award.placements]
        devices = {share.uuid for p in others for share in p.devices}
        nodes = {p.node for p in others}
        used = any(share.uuid in devices for p in holding.placements for share in p.devices)
        hosted = any(p.node in nodes for p in holding.placements)
        limited = (
            market.standings[holding.tenant].tenant.limit.gpu_milli is not None
            or market.queues[holding.queue].queue.limit.gpu_milli is not None
        )
        assert used or hosted or limited
        assert eviction.preemption.beneficiary in {award.key.job for award in plan.awards}
        assert eviction.preemption.tenant in tenants | {c.tenant for c in market.pending}


@many
@given(seeds)
def test_nothing_that_fits_the_rest_is_left_out(seed: int) -> None:
    market = market_of(seed)
    plan = solve(market, CONFIG)
    trial = trial_after(market, plan)
    held: dict[str, int] = {}
    for of, placements in running_after(market, plan):
        for name in (f"tenant {of.tenant}", f"queue {of.queue}"):
            held[name] = held.get(name, 0) + amount(placements).gpu_milli
    for candidate in market.pending:
        if candidate.key not in plan.losses or market.queues[candidate.queue].queue.paused:
            continue
        reserved = any(candidate.key == kept.key for kept in market.reservations)
        without = frozenset[NodeId](candidate.avoid)
        for bid in candidate.bids:
            need = bid.shape.ranks * bid.shape.demand.gpu_milli
            limits = (
                (market.standings[candidate.tenant].tenant.limit, held.get(f"tenant {candidate.tenant}", 0)),
                (market.queues[candidate.queue].queue.limit, held.get(f"queue {candidate.queue}", 0)),
            )
            if reserved or any(q.gpu_milli is not None and has + need > q.gpu_milli for q, has in limits):
                continue
            assert place(trial, Wish.of(bid, CONFIG, without)) is None or _mixes_models(trial, candidate)


def _mixes_models(trial: Trial, candidate: Candidate) -> bool:
    """Return whether a bid fits only over several device models, which a round leaves to the fill."""
    for bid in candidate.bids:
        models = [bid.shape.demand.gpu_model] if bid.shape.demand.gpu_model else list(trial.models)
        for model in models:
            shape = replace(bid.shape, demand=replace(bid.shape.demand, gpu_model=model))
            only = replace(bid, shape=shape)
            if bid.shape.demand.gpu_milli and place(trial, Wish.of(only, CONFIG, frozenset(candidate.avoid))):
                return False
    return True


@many
@given(seeds)
def test_everyone_wins_or_knows_why_not(seed: int) -> None:
    market = market_of(seed)
    plan = solve(market, CONFIG)
    awarded = {award.key for award in plan.awards}
    assert len(awarded) == len(plan.awards)
    evicted = {e.key for e in plan.evictions}
    losers = {c.key for c in market.pending} - awarded | (evicted - awarded)
    assert losers == set(plan.losses)
    assert {loss.reason for loss in plan.losses.values()} <= {"price", "placement", "limit", "tenure", "unplaceable"}


@many
@given(seeds)
def test_the_bound_bounds(seed: int) -> None:
    plan = solve(market_of(seed), CONFIG)
    assert plan.value <= plan.bound * (1 + 1e-9) + 1e-12


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_a_solver_that_remembers_gives_the_same_plans(seed: int) -> None:
    solver = RoundSolver(CONFIG)
    first, second = market_of(seed), market_of(seed + 1)
    solver(first)
    assert solver(second) == solve(second, CONFIG)
    assert solver(second) == solve(second, CONFIG)
    assert solver(first) == solve(first, CONFIG)


@pytest.mark.parametrize("running", [False, True])
def test_gaps_are_small_on_average(running: bool) -> None:
    gaps = [solve(market_of(seed, running=running, reserve=False), CONFIG).gap for seed in range(60)]
    assert sum(gaps) / len(gaps) < 0.03
