"""Plans of global rounds against the newest state: what counts, and why the rest does not. Worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from msgspec.structs import replace

from corral.model.ids import GangKey, JobId, TenantId
from corral.model.market import Award, Eviction, Preemption, PreemptionKind, RoundPlan
from corral.model.offer import Bid, Candidate, Holding, Locality
from corral.model.resources import GangShape, Placement
from corral.policy.pending import PendingIndex
from corral.policy.verification import Ruling, verify_plan
from tests.unit.policy.building import NOW, candidate, holding, node_spec, place_on, queue, shape, snapshot, standings
from tests.unit.policy.building import tenant as tenant_of

NODE = node_spec("n", 4, cpus=8)
PAIR = [node_spec("n", 4, cpus=8), node_spec("m", 4, cpus=8)]


def runs(job: int, *placements: Placement, tenant: str = "a", bids: Sequence[GangShape] = ()) -> Holding:
    """Return a gang whose tenure is over, in its first incarnation."""
    ways = tuple(Bid(one) for one in bids) or (Bid(shape(len(placements[0].devices), len(placements))),)
    return replace(holding(job, *placements, tenant=tenant), incarnation=1, bids=ways, tenure_until=NOW - 1)


def key(job: int) -> GangKey:
    return GangKey(JobId(str(job)), 0)


def gives_way(job: int, lost_s: float = 0.0, *, to: int | None = None) -> Eviction:
    kind = PreemptionKind.MOVE if to is None else PreemptionKind.ROOM
    return Eviction(key(job), 1, Preemption(kind, None if to is None else JobId(str(to)), lost_s=lost_s))


def gets(job: int, *placements: Placement, tenant: str = "a", locality: Locality = Locality.ANY) -> Award:
    bid = Bid(shape(len(placements[0].devices), len(placements)), locality)
    return Award(key(job), TenantId(tenant), bid, placements)


def rule(
    awards: Iterable[Award],
    evictions: Iterable[Eviction],
    *,
    pending: Iterable[Candidate] = (),
    running: Sequence[Holding] = (),
    kept: Sequence[Award] = (),
    limit: float | None = None,
    line_limit: float | None = None,
    paused: bool = False,
) -> Ruling:
    plan = RoundPlan(1, tuple(awards), tuple(evictions))
    stand = standings(tenant_of("a", limit=limit), tenant_of("b"), holdings=running)
    name, line = queue(limit=line_limit, paused=paused)
    held = stand[TenantId("a")].held + stand[TenantId("b")].held
    lines = {name: replace(line, held=held)}
    return verify_plan(plan, snapshot(PAIR, running), PendingIndex(pending), stand, lines, kept)


def kept_of(ruling: Ruling) -> tuple[list[str], list[str]]:
    """Return the jobs that are awarded and those that give way."""
    return [a.key.job for a in ruling.awards], [e.key.job for e in ruling.evictions]


def test_a_plan_that_holds_counts_as_it_is() -> None:
    running = [runs(1, place_on("n", 0, 1)), runs(2, place_on("n", 2))]
    plan = [gets(3, place_on("n", 0, 1, 3))]
    ruling = rule(plan, [gives_way(1, to=3)], pending=[candidate(3, shape(3))], running=running)
    assert kept_of(ruling) == (["3"], ["1"])
    assert ruling.refused == {}


def test_the_bid_of_an_award_is_the_one_that_the_gang_makes_now() -> None:
    bids = (Bid(shape(2), throughput=7.0), Bid(shape(1), throughput=4.0))
    ruling = rule([gets(3, place_on("n", 0))], [], pending=[candidate(3, bids=bids)])
    assert ruling.awards[0].bid == bids[1]
    near = rule([gets(3, place_on("n", 0), locality=Locality.NODE)], [], pending=[candidate(3, bids=bids)])
    assert near.refused == {key(3): "it does not bid so any more"}


MOVED: dict[str, tuple[dict[str, object], str]] = {
    "another incarnation": ({"incarnation": 2}, "it does not run any more"),
    "stopping": ({"stopping": True}, "it is stopping already"),
    "in its tenure": ({"tenure_until": NOW + 1}, "its tenure is not over"),
    "never": ({"preemptible": False}, "it is not preemptible"),
}


@pytest.mark.parametrize("case", MOVED)
def test_who_must_not_give_way_stays_and_its_devices_are_not_awarded(case: str) -> None:
    changes, why_not = MOVED[case]
    running = [replace(runs(1, place_on("n", 0)), **changes)]
    ruling = rule([gets(2, place_on("n", 0))], [gives_way(1, to=2)], pending=[candidate(2)], running=running)
    assert ruling.refused[key(1)] == why_not
    # What a stopping gang holds comes free by itself.
    assert kept_of(ruling) == ((["2"], []) if case == "stopping" else ([], []))


def test_a_gang_that_cannot_go_on_elsewhere_stays_and_so_do_those_who_count_on_its_place() -> None:
    """Job 1 is to move to m, so that 2 gets its device. On m somebody started in the meantime."""
    running = [runs(1, place_on("n", 0)), runs(9, place_on("m", 0))]
    awards = [gets(1, place_on("m", 0)), gets(2, place_on("n", 0))]
    ruling = rule(awards, [gives_way(1)], pending=[candidate(2)], running=running)
    assert kept_of(ruling) == ([], [])
    assert ruling.refused == {key(1): "the gang does not wait any more", key(2): "n-0 on n was taken"}


def test_gangs_change_places_and_sizes() -> None:
    both = [shape(1), shape(2)]
    running = [runs(1, place_on("n", 0, 1), bids=both), runs(2, place_on("m", 0), bids=both)]
    awards = [gets(1, place_on("m", 0)), gets(2, place_on("n", 0, 1))]
    ruling = rule(awards, [gives_way(1), gives_way(2)], running=running)
    assert kept_of(ruling) == (["1", "2"], ["1", "2"])
    smaller = rule([gets(1, place_on("n", 1))], [gives_way(1)], running=running)
    assert kept_of(smaller) == (["1"], ["1"])
    same = rule([gets(1, place_on("n", 0, 1))], [gives_way(1)], running=running)
    assert kept_of(same) == ([], [])


def test_a_move_for_another_counts_only_if_the_other_needs_the_place() -> None:
    running = [runs(1, place_on("n", 0)), runs(2, place_on("n", 1))]
    moves = [gets(1, place_on("m", 0)), gets(3, place_on("n", 0, 2, 3))]
    ruling = rule(moves, [gives_way(1, to=3)], pending=[candidate(3, shape(3))], running=running)
    assert kept_of(ruling) == (["1", "3"], ["1"])
    ruling = rule(moves, [gives_way(1, to=3)], pending=[], running=running)
    assert kept_of(ruling) == ([], [])
    assert ruling.refused[key(1)] == "it stays where it is"


def test_cpus_and_memory_are_needed_too() -> None:
    """A job without GPUs needs 6 of 8 CPUs: one of three holders of 2 has to go, the one that loses least."""
    running = [runs(n, place_on("n", n, cpus=2)) for n in (1, 2, 3)]
    ways = [gives_way(1, 30.0, to=5), gives_way(2, 10.0, to=5), gives_way(3, 20.0, to=5)]
    need = shape(0, cpus=4)
    award = Award(key(5), TenantId("a"), Bid(need), (place_on("n", cpus=4),))
    ruling = rule([award], ways, pending=[candidate(5, need)], running=running)
    assert kept_of(ruling) == (["5"], ["2"])


def test_earlier_awards_go_first() -> None:
    running = [replace(runs(1, place_on("n", 0)), stopping=True)]
    earlier = gets(2, place_on("n", 0))
    pending = [candidate(2), candidate(3)]
    ruling = rule([gets(3, place_on("n", 0)), gets(2, place_on("n", 1))], [], pending=pending, running=running,
                  kept=[earlier])  # fmt: skip
    assert kept_of(ruling) == ([], [])
    assert ruling.refused == {key(3): "n-0 on n was taken", key(2): "it has an award already"}


def test_limits_count_what_leaves_what_comes_and_what_is_promised() -> None:
    running = [runs(1, place_on("n", 0, 1))]
    pending = [candidate(3, shape(2)), candidate(4, shape(1)), candidate(5, shape(1), tenant="b")]
    two, one = gets(3, place_on("m", 0, 1)), gets(4, place_on("m", 2))
    assert kept_of(rule([two], [], pending=pending, running=running, limit=3)) == ([], [])
    assert kept_of(rule([two], [], pending=pending, running=running, line_limit=3)) == ([], [])
    assert kept_of(rule([one], [], pending=pending, running=running, limit=3, kept=[two])) == ([], [])
    assert kept_of(rule([two], [], pending=pending, running=running, paused=True)) == ([], [])
    # Nobody needs the devices of job 1, but the limit its place.
    ruling = rule([two], [gives_way(1, to=3)], pending=pending, running=running, limit=3)
    assert kept_of(ruling) == (["3"], ["1"])
    other = gets(5, place_on("m", 0), tenant="b")
    ruling = rule([other], [gives_way(1, to=5)], pending=pending, running=running, limit=2)
    assert kept_of(ruling) == (["5"], [])
    assert ruling.refused == {key(1): "nobody needs its devices"}


def test_of_two_awards_for_one_device_the_first_counts() -> None:
    pending = [candidate(3), candidate(4)]
    ruling = rule([gets(3, place_on("n", 0)), gets(4, place_on("n", 0))], [], pending=pending)
    assert kept_of(ruling) == (["3"], [])


def test_a_device_of_the_wrong_model_is_refused() -> None:
    bid = Bid(shape(1, model="A100"))
    award = Award(key(3), TenantId("a"), bid, (place_on("n", 0),))
    ruling = rule([award], [], pending=[candidate(3, bids=(bid,))])
    assert ruling.refused == {key(3): "the placements are not those of its bid"}
