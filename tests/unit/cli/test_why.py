"""`corral why` as text, worked out by hand from a small pool."""

from __future__ import annotations

from datetime import UTC

from corral.cli.render.layout import as_text
from corral.cli.render.why import held_by_gang, price, quality, shape_brief, shape_words, shares, why
from corral.model.ids import DeviceId, GangKey, JobId, NodeId, TenantId
from corral.model.job import JobState
from corral.model.offer import Reservation
from corral.model.report import (
    ForecastQuality,
    Holder,
    NodeConstraint,
    PriceTerms,
    ShareArithmetic,
    StartEstimate,
    WhyReport,
)
from corral.model.resources import Amount, Demand, DeviceShare, GangShape, Placement

NOW = 1_764_504_000.0  # 2025-11-30 12:00:00 UTC
GIB = 1024
SHAPE = GangShape(3, Demand(gpu_milli=8000, gpu_model="H100", cpus_milli=32_000, memory_mib=256 * GIB))


def held(
    node: str, *, fits: int, gpus_free: int, blocks: tuple[str, ...], holders: tuple[Holder, ...]
) -> NodeConstraint:
    free = Amount(gpus_free * 1000, 64_000, 512 * GIB)
    return NodeConstraint(NodeId(node), fits, free, Amount(8000, 128_000, 1024 * GIB), blocks, holders)


BLUE = Holder(JobId("9"), 0, TenantId("blue"), 6000, 24_000, NOW + 1200)
RED = Holder(JobId("11"), 4, TenantId("red\x1b[2J"), 500, 1000, None)
KEPT = tuple(DeviceShare(DeviceId(f"GPU-{n}"), 1000) for n in range(8))
REPORT = WhyReport(
    job=JobId("12"),
    gang=0,
    state=JobState.PENDING,
    verdict="2 of 3 nodes lack free GPUs",
    shape=SHAPE,
    position=3,
    ahead=2,
    shortfall=2,
    constraints=(
        held("node-0", fits=1, gpus_free=8, blocks=(), holders=()),
        held("node-1", fits=0, gpus_free=2, blocks=("2 of 8 GPUs are free", "kept for job 7"), holders=(BLUE,)),
        held("node-2", fits=0, gpus_free=1, blocks=("1 of 8 GPUs is free",), holders=(BLUE, RED)),
    ),
    share=ShareArithmetic(TenantId("green"), 2.0, 1 / 3, 0.25, 0.2841, 1, 3),
    blocked_by=("the reservation of job 7",),
    reservation=Reservation(
        GangKey(JobId("7"), 0), TenantId("blue"), (Placement(0, NodeId("node-1"), KEPT, 1, 1),), NOW + 1200, NOW
    ),
    estimate=StartEstimate(NOW + 1200, NOW + 2100, "job 9 ends by its max_duration"),
    cheapest_change="ask for 1 node instead of 3",
)

AT_80 = """\
job 12 pending: 2 of 3 nodes lack free GPUs

needs            3 nodes at once, each 8 H100, 32 CPUs, 256 GiB
position         3, 2 gangs ahead
shortfall        2 of 3 ranks find no place now
blocked by       the reservation of job 7
expected start   12:20 to 12:35 (job 9 ends by its max_duration)
cheapest change  ask for 1 node instead of 3

nodes (1 rank of 3 would fit now)
NODE    FITS  FREE GPU     CPU   MEMORY  WHY NOT
node-0     1       8/8  64/128  512 GiB  nothing against it
node-1     0       2/8  64/128  512 GiB  2 of 8 GPUs are free; kept for job 7
node-2     0       1/8  64/128  512 GiB  1 of 8 GPUs is free

who holds these nodes
JOB   TENANT      GPUS  CPUS  NODES  ENDS
9     blue          12    48      2  by 12:20:00
11.4  red\\x1b[2J   0.5     1      1  unknown (declares no max_duration)

shares
Tenant green has weight 2, which makes 33.3% of the pool its due. It holds 25.0%
now; its average, in which older use counts less, is 28.4%: 4.9 points below its
due. Of 3 tenants that wait it is number 1 to be served.

reservation
Job 7 of tenant blue keeps node-1 (8 GPUs) from 12:20:00. What would end later
is not started there.
"""


def test_why_at_80_columns() -> None:
    assert as_text(why(REPORT, now=NOW, zone=UTC), width=80) == AT_80


def test_why_at_120_columns_wraps_less() -> None:
    text = as_text(why(REPORT, now=NOW, zone=UTC), width=120)
    assert (
        "Job 7 of tenant blue keeps node-1 (8 GPUs) from 12:20:00. What would end later is not started there." in text
    )
    assert max(map(len, text.splitlines())) <= 120


def test_why_at_50_columns_loses_no_reason() -> None:
    text = as_text(why(REPORT, now=NOW, zone=UTC), width=50)
    assert max(map(len, text.splitlines())) <= 50
    words = " ".join(text.split())
    assert "kept for" in words
    assert "job 7" in words


def test_many_nodes_are_cut_and_counted() -> None:
    import msgspec

    many = tuple(held(f"n{i:03}", fits=0, gpus_free=0, blocks=("down",), holders=()) for i in range(128))
    report = msgspec.structs.replace(REPORT, constraints=many)
    text = as_text(why(report, now=NOW, zone=UTC), width=80)
    assert "and 108 more nodes (--all shows them)" in text
    assert "n127" not in text
    assert "n127" in as_text(why(report, now=NOW, zone=UTC, everything=True), width=80)


def test_holders_are_summed_over_nodes() -> None:
    first, second = held_by_gang(REPORT.constraints)
    assert (first.key, first.gpu_milli, first.cpus_milli, first.nodes) == ("9", 12_000, 48_000, 2)
    assert (second.key, second.gpu_milli, second.ends_at) == ("11.4", 500, None)


def test_the_first_element_of_an_array_is_named_like_the_others() -> None:
    holders = tuple(Holder(JobId("2"), gang, TenantId("a"), 1000, 1000, None) for gang in (0, 1))
    node = held("n", fits=0, gpus_free=0, blocks=(), holders=(*holders, BLUE))
    assert [one.key for one in held_by_gang((node,))] == ["9", "2.0", "2.1"]


def test_the_answer_is_headed_by_the_element_that_it_is_about() -> None:
    report = WhyReport(JobId("2"), 20, JobState.RUNNING, "runs on node-0", GangShape(1, Demand(cpus_milli=1000)))
    assert as_text(why(report, now=NOW), width=80).startswith("job 2.20 running: runs on node-0\n")


def test_the_share_arithmetic_in_words() -> None:
    alone = ShareArithmetic(TenantId("a"), 1.0, 1.0, 0.5, 1.0, 1, 1)
    assert shares(alone) == (
        "Tenant a has weight 1, which makes 100.0% of the pool its due. It holds 50.0% now; its average, in which "
        "older use counts less, is 100.0%: exactly its due. No other tenant waits."
    )
    above = ShareArithmetic(TenantId("a"), 0.5, 0.2, 0.3, 0.25, 2, 2)
    assert "5.0 points above its due. Of 2 tenants that wait it is number 2 to be served." in shares(above)


def test_what_a_job_needs_in_words() -> None:
    assert shape_words(GangShape(1, Demand(cpus_milli=1000))) == "1 CPU"
    assert (
        shape_words(GangShape(1, Demand(gpu_milli=500, cpus_milli=2000, memory_mib=GIB))) == "0.5 GPUs, 2 CPUs, 1 GiB"
    )
    assert shape_brief(SHAPE) == "3 x 8 H100"
    assert shape_brief(GangShape(1, Demand(gpu_milli=1000))) == "1 GPU"
    assert shape_brief(GangShape(2, Demand(cpus_milli=16_000))) == "2 x 16 CPUs"
    assert shape_words(SHAPE) == "3 nodes at once, each 8 H100, 32 CPUs, 256 GiB"


def test_a_running_job_says_so_without_constraints() -> None:
    report = WhyReport(JobId("5"), 0, JobState.RUNNING, "runs on node-0", GangShape(1, Demand(cpus_milli=1000)))
    assert as_text(why(report, now=NOW), width=80) == "job 5 running: runs on node-0\n\nneeds  1 CPU\n"


def test_what_went_wrong_beside_it_is_a_line_each() -> None:
    notes = ("its own proposer made no bids: it broke\x1b[2J", "the last global round gave no plan")
    shape = GangShape(1, Demand(cpus_milli=1000))
    report = WhyReport(JobId("5"), 0, JobState.RUNNING, "runs on node-0", shape, notes=notes)
    assert as_text(why(report, now=NOW), width=80) == (
        "job 5 running: runs on node-0\n\n"
        "needs  1 CPU\n"
        "note   its own proposer made no bids: it broke\\x1b[2J\n"
        "note   the last global round gave no plan\n"
    )


def test_price_terms_say_why_others_won() -> None:
    terms = PriceTerms(NOW - 42, "price", 5.2, 8.0, 0.0012)
    assert price(terms, NOW, UTC) == (
        "With the price of one device as 1, what it asks for costs 8 and running it is worth 5.2: others are worth "
        "more. The round was 42s ago and at most 0.12% below the best possible."
    )
    loose = price(PriceTerms(NOW - 42, "price", 5.2, 8.0, 0.5), NOW, UTC)
    assert loose.endswith("The round was 42s ago; its bound is too loose to judge it.")
    protected = PriceTerms(NOW - 42, "tenure", 9.0, 8.0, 0.0, protected_until=NOW + 600)
    assert "protected still, the first of them until 12:10:00." in price(protected, NOW, UTC)
    assert price(PriceTerms(NOW, "limit", 1.0, 8.0, 0.0), NOW, UTC).startswith("A limit of its tenant or queue")


def test_the_quality_of_expected_starts_is_told_as_measured() -> None:
    assert quality(ForecastQuality(40, 0.525, 90.0)) == (
        "of the last 40 expected starts 52% came within the range; half were off its middle by 1m30s or less"
    )
