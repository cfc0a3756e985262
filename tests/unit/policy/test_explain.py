"""Why a gang waits: the words and numbers of an explanation, worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from corral.model.ids import GangKey, JobId, NodeId, QueueName, TenantId
from corral.model.offer import Bid, Candidate, Holding, QueueStanding
from corral.model.report import NodeConstraint, StartEstimate, WhyReport
from corral.model.resources import Amount, NodeSpec
from corral.model.tenant import Tenant
from corral.policy.arbitration import PendingIndex, arbitrate
from corral.policy.explain import explain_pending, queue_lines
from corral.policy.outlook import Absence, Scene, in_order
from tests.unit.policy.building import (
    CONFIG,
    NOW,
    candidate,
    holding,
    node_spec,
    place_on,
    queue,
    shape,
    snapshot,
    standings,
    tenant,
)

TWO = [node_spec("node-0"), node_spec("node-1")]


def scene(
    pending: Iterable[Candidate],
    *,
    specs: Sequence[NodeSpec] = TWO,
    holdings: Sequence[Holding] = (),
    tenants: Sequence[Tenant] = (),
    queues: Iterable[tuple[QueueName, QueueStanding]] = (),
    absent: Sequence[Absence] = (),
    past: dict[str, float] | None = None,
) -> Scene:
    """Return the scene after a round in which nothing could start."""
    index = PendingIndex(pending)
    shot = snapshot(specs, holdings)
    known = {t.id: t for t in tenants}
    names = sorted({*known, *index.tenants(), *(h.tenant for h in holdings)})
    stand = standings(*(known.get(name) or Tenant(name) for name in names), holdings=holdings, past=past)
    lines = dict(queues)
    verdict = arbitrate(shot, index, stand, lines, (), CONFIG)
    for allocation in verdict.allocations:
        index.remove(allocation.key)
    assert not verdict.allocations
    return Scene(shot, index, stand, lines, verdict.reservations, absent, CONFIG)


def why(pending: Sequence[Candidate], job: int, viewer: str | None = None, **context: object) -> WhyReport:
    stage = scene(pending, **context)  # type: ignore[arg-type]
    asked = next(c for c in pending if c.key.job == str(job))
    return explain_pending(stage, asked, TenantId(viewer) if viewer is not None else None)


def node(report: WhyReport, name: str) -> NodeConstraint:
    return next(c for c in report.constraints if c.node == name)


def full(name: str, job: int, ends_at: float | None = None, owner: str = "b") -> Holding:
    return holding(job, place_on(name, *range(8), cpus=8), ends_at=ends_at, tenant=owner)


def test_every_node_says_what_it_lacks_and_who_holds_it() -> None:
    small = node_spec("node-2", 4, "A100")
    holdings = [full("node-0", 90, NOW + 60), holding(91, place_on("node-1", 0, cpus=60), tenant="c")]
    pending = [candidate(1, shape(8, model="H100", cpus=8))]
    gone = Absence(NodeId("node-3"), Amount(8_000, 64_000, 64_000), "cordoned: new disk")
    report = why(pending, 1, specs=[*TWO, small], holdings=holdings, absent=[gone])
    assert node(report, "node-0").blocks == ("0 of 8 GPUs are free, 8 are needed",)
    assert node(report, "node-1").blocks == (
        "7 of 8 GPUs are free, 8 are needed",
        "4 CPUs are free, 8 are needed",
    )
    assert node(report, "node-2").blocks == ("no H100 here (A100)",)
    assert node(report, "node-3").blocks == ("cordoned: new disk",)
    assert node(report, "node-1").free == Amount(7_000, 4_000, 63_900)
    (holder,) = node(report, "node-0").holders
    assert (holder.job, holder.tenant, holder.gpu_milli, holder.cpus_milli, holder.ends_at) == (
        "90",
        "b",
        8_000,
        8_000,
        NOW + 60,
    )
    assert (report.shortfall, report.position, report.ahead, report.own_reservation) == (1, 1, 0, True)
    assert report.verdict.startswith("first in line")
    assert "1 node not available: node-3" in report.blocked_by


def test_the_first_in_line_is_told_its_reservation() -> None:
    report = why([candidate(1, shape(8, ranks=2))], 1, holdings=[full("node-0", 90, NOW + 60)])
    assert report.reservation is not None
    assert report.reservation.start_at == NOW + 60
    assert report.estimate == StartEstimate(NOW, NOW + 60, "its reservation; holders may end earlier")


def test_who_would_delay_a_reservation_is_told_whose() -> None:
    pending = [candidate(1, shape(8, ranks=2), tenant="b"), candidate(2, shape(1), lasts=120.0)]
    held = [full("node-0", 90, NOW + 60, owner="c"), holding(92, place_on("node-1", 0, milli=10), ends_at=NOW + 60)]
    report = why(pending, 2, holdings=held, past={"a": 1.0})
    assert report.verdict == "would fit, but its start would delay the reservation of job 1"
    assert node(report, "node-1").blocks == ("kept for job 1",)
    assert report.reservation is not None
    assert not report.own_reservation
    assert report.cheapest_change == "with a max_duration of at most 1 min it would start now on node-1"
    # A tenant does not learn the numbers of others' jobs.
    veiled = why(pending, 2, "a", holdings=held, past={"a": 1.0})
    assert veiled.blocked_by == ("the reservation of a job of tenant b: it would be delayed",)
    assert node(veiled, "node-1").blocks == ("kept for job of tenant b",)
    assert veiled.reservation is not None
    assert veiled.reservation.key.job == "-"
    assert [h.job for c in veiled.constraints for h in c.holders] == ["-", "92"]


def test_limits_and_pauses_are_named_with_their_numbers() -> None:
    held = [full("node-0", 90, owner="a")]
    report = why([candidate(1, shape(2))], 1, holdings=held, tenants=[tenant("a", limit=9)])
    assert report.blocked_by == ("the limit of tenant a: 8 GPUs are held, 2 more would exceed 9",)
    assert report.estimate is None
    assert report.cheapest_change is None
    report = why([candidate(1, queue="slow")], 1, queues=[queue("slow", paused=True)])
    assert report.verdict == "waits: queue slow is paused"
    report = why([candidate(1, shape(2), queue="q")], 1, queues=[queue("q", limit=1)])
    assert report.blocked_by == ("the limit of queue q: 0 GPUs are held, 2 more would exceed 1",)


def test_the_share_arithmetic_adds_up() -> None:
    holdings = [full("node-0", 90, owner="a"), full("node-1", 91, owner="b")]
    pending = [candidate(1, tenant="a"), candidate(2, tenant="b"), candidate(3, tenant="c")]
    tenants = [tenant("a", 1), tenant("b", 2), tenant("c", 1)]
    share = why(pending, 1, holdings=holdings, tenants=tenants).share
    assert share is not None
    assert (share.weight, share.due_share, share.held_share) == (1.0, 0.25, 0.5)
    # Claims: c holds nothing, b holds 0.5 at weight 2, a 0.5 at weight 1.
    assert (share.rank_among_tenants, share.tenants_waiting) == (3, 3)


def test_the_cheapest_change_is_the_smallest_that_helps() -> None:
    six = [holding(90, place_on("node-0", 0, 1), tenant="b"), full("node-1", 91)]
    report = why([candidate(1, shape(8))], 1, holdings=six)
    assert report.cheapest_change == "with 6 GPUs instead of 8 GPUs per node it would start now on node-0"
    other = [node_spec("node-0", model="A100"), node_spec("node-1")]
    report = why([candidate(1, shape(2, model="H100"))], 1, specs=other, holdings=[full("node-1", 91)])
    assert report.cheapest_change == "without asking for H100 it would start now on node-0"
    report = why([candidate(1, shape(8, ranks=2))], 1, holdings=[full("node-0", 90)])
    assert report.cheapest_change == "with 1 node instead of 2 it would start now on node-1"
    both = [full("node-0", 90, owner="b"), full("node-1", 91, NOW + 50, owner="a")]
    assert why([candidate(1)], 1, holdings=both).cheapest_change == "after your job 91 ends it would start"


def test_a_suggestion_names_all_that_it_changes() -> None:
    # 64 - 36 = 28 CPUs are free: too few for half of 64, enough for 3/8 of them (24); 3/8 of 16 GiB are 6.
    busy = [holding(90, place_on("node-0", cpus=36), tenant="b")]
    asked = candidate(1, shape(8, cpus=64, memory=16_384))
    words = "with 3 GPUs, 24 CPUs and 6 GiB per node it would start now on node-0"
    assert why([asked], 1, specs=TWO[:1], holdings=busy).cheapest_change == words
    # 40 are free: half of the CPUs are enough, with all 8 GPUs.
    busy = [holding(90, place_on("node-0", cpus=24), tenant="b")]
    words = "with 32 CPUs per node it would start now on node-0"
    assert why([asked], 1, specs=TWO[:1], holdings=busy).cheapest_change == words


def test_an_end_is_named_only_where_nobody_ahead_takes_its_room() -> None:
    pending = [candidate(1, shape(8)), candidate(2, shape(8))]
    one: dict[str, Any] = {"specs": TWO[:1], "holdings": [full("node-0", 90)]}
    assert why(pending, 1, **one).cheapest_change == "after one job of tenant b ends it would start"
    assert why(pending, 2, **one).cheapest_change is None
    # Whichever of the two ends, its node is kept for the gang of two that is first in line.
    pending = [candidate(1, shape(8, ranks=2)), candidate(2, shape(8))]
    both = [full("node-0", 90), full("node-1", 91)]
    assert why(pending, 2, holdings=both).cheapest_change is None
    # The room of one end is enough for the first and the second.
    pending = [candidate(1, shape(4)), candidate(2, shape(4))]
    assert why(pending, 2, **one).cheapest_change == "after one job of tenant b ends it would start"


def test_an_end_lets_its_own_tenant_go_ahead() -> None:
    # Each holds half the pool. Whose holder ends holds nothing then, and is next.
    held = [full("node-0", 90, owner="b"), full("node-1", 91, owner="a")]
    pending = [candidate(1, shape(8), tenant="a"), candidate(2, shape(8), tenant="b")]
    stage = scene(pending, holdings=held)
    assert stage.reservations[0].key.job == "1"
    report = explain_pending(msgspec.structs.replace(stage, reservations=()), pending[0], None)
    assert report.cheapest_change == "after your job 91 ends it would start"
    report = explain_pending(msgspec.structs.replace(stage, reservations=()), pending[1], None)
    assert report.cheapest_change == "after your job 90 ends it would start"


def test_a_gap_of_seconds_is_offered_too_and_an_open_one_is_not() -> None:
    pending = [candidate(1, shape(8, ranks=2), tenant="b"), candidate(2, shape(1))]
    held = [full("node-0", 90, NOW + 5.9, owner="c")]
    report = why(pending, 2, holdings=held, past={"a": 1.0})
    assert report.cheapest_change == "with a max_duration of at most 5 s it would start now on node-1"
    # Nobody knows when 90 ends: no duration is short enough, and its end starts the gang of two.
    report = why(pending, 2, holdings=[full("node-0", 90, owner="c")], past={"a": 1.0})
    assert report.cheapest_change is None


def test_an_element_waits_for_another_one_of_its_job() -> None:
    second = msgspec.structs.replace(candidate(1, shape(8)), key=GangKey(JobId("1"), 1))
    report = why([second], 1, specs=TWO[:1], holdings=[full("node-0", 1, owner="a")])
    assert report.cheapest_change == "after another element of this job ends it would start"


def test_nothing_is_promised_behind_two_hundred_others() -> None:
    pending = [candidate(i, shape(0.01, cpus=0.01, memory=1)) for i in range(1, 203)]
    one: dict[str, Any] = {"specs": TWO[:1], "holdings": [full("node-0", 900)]}
    assert why(pending, 200, **one).cheapest_change == "after one job of tenant b ends it would start"
    assert why(pending, 201, **one).cheapest_change is None


def test_a_retry_that_backs_off_says_so() -> None:
    retry = candidate(1, shape(8), avoid=["node-0"], queued_at=NOW)
    report = why([retry], 1, holdings=[full("node-1", 91)])
    assert report.verdict == "waits for a node on which it has not failed"
    assert node(report, "node-0").fits == 1
    assert node(report, "node-0").blocks == ("it failed here before: taken again when no other node can run it",)
    assert "it failed on node-0 and tries others first" in report.blocked_by


def test_the_order_is_that_of_progressive_filling() -> None:
    holdings = [full("node-0", 90, owner="a"), full("node-1", 91, owner="b")]
    pending = [candidate(i, tenant=t) for i, t in ((1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "b"), (6, "c"))]
    pending.append(candidate(7, tenant="b", priority=1))
    stage = scene(pending, holdings=holdings, tenants=[tenant("a"), tenant("b", 2), tenant("c")])
    assert [int(c.key.job) for c in in_order(stage)] == [6, 7, 3, 4, 5, 1, 2]


def test_the_queue_lists_the_first_ones_and_hides_names_of_others() -> None:
    holdings = [full("node-0", 90, NOW + 60), full("node-1", 91, NOW + 90)]
    pending = [candidate(1, shape(8), lasts=100.0), candidate(2, shape(16 // 2), lasts=100.0), candidate(3, tenant="b")]
    stage = scene(pending, holdings=holdings)
    names = {JobId("1"): "one", JobId("2"): "two", JobId("3"): "three"}
    lines = queue_lines(stage, 2, names, None)
    assert [(line.position, line.key.job, line.name) for line in lines] == [(1, "1", "one"), (2, "2", "two")]
    assert lines[0].reason == "first in line: devices are kept for it"
    assert lines[1].reason == "waits for 8 GPUs"
    assert lines[0].estimate == StartEstimate(NOW, NOW + 60, "its reservation; holders may end earlier")
    # The second: node-1 is free at 90 s; at the latest after the last holder, the first's 100 s on half the pool, and
    # once more its length.
    second = lines[1].estimate
    assert second is not None
    assert (second.earliest, second.latest) == (NOW + 90, NOW + 90 + 50 + 100)
    (_, _, last) = queue_lines(stage, 9, names, TenantId("a"))
    assert (last.key.job, last.name, last.tenant) == ("-", "", "b")


@pytest.mark.parametrize("ends_at", [None, NOW + 60])
def test_an_explanation_agrees_with_the_round(ends_at: float | None) -> None:
    holdings = [full("node-0", 90, ends_at), full("node-1", 91, NOW + 30)]
    report = why([candidate(1, shape(8, ranks=2))], 1, holdings=holdings)
    assert report.own_reservation
    assert report.shortfall == 2
    assert report.estimate is not None
    if ends_at is not None:
        assert (report.estimate.earliest, report.estimate.latest) == (NOW, ends_at)
        return
    # What has run for 100 s goes on for 100 x 1/3 s in the quickest quarter, for 100 x 3 s in the slowest.
    assert report.estimate.earliest == pytest.approx(NOW + 100 / 3)
    assert report.estimate.latest == pytest.approx(NOW + 300)


def test_an_elastic_job_needs_the_least_that_it_can_run_with() -> None:
    sizes = tuple(Bid(shape(gpus)) for gpus in (8, 6, 4))
    elastic = replace(candidate(1, shape(8)), bids=sizes)
    busy = [full("node-0", 90), full("node-1", 91)]
    report = why([elastic], 1, holdings=busy)
    assert (report.shape, report.largest) == (shape(4), shape(8))
    assert node(report, "node-0").blocks[0] == "0 of 8 GPUs are free, 4 are needed"
    assert "waits for 4 GPUs" in report.verdict or report.own_reservation
    (line,) = queue_lines(scene([elastic], holdings=busy), 5, {}, None)
    assert line.shape == shape(4)
    assert why([candidate(1, shape(8))], 1, holdings=busy).largest is None
