from __future__ import annotations

import pytest

from corral.model.experience import ServiceClass, ServiceHistory
from corral.model.ids import DeviceId, GangKey, JobId, NodeId, QueueName, TenantId
from corral.model.offer import Bid, Candidate, FreeDevice, Holding, NodeOffer, Snapshot
from corral.model.resources import MILLI, Amount, Demand, DeviceShare, GangShape, Placement
from corral.policy.config import SchedulingConfig
from corral.policy.forecast import Forecast, residual_s

A = TenantId("a")
NOW = 10_000.0
CONFIG = SchedulingConfig()


def node(name: str, free: int, busy: int, model: str = "H100") -> NodeOffer:
    devices = tuple(
        FreeDevice(DeviceId(f"{name}-{i}"), model, MILLI if i < free else 0, 80_000) for i in range(free + busy)
    )
    return NodeOffer(NodeId(name), "r", devices, 8_000, 8_000, Amount(MILLI * (free + busy), 16_000, 16_000))


def holding(job: int, name: str, devices: range, *, age: float = 100.0, ends_in: float | None = None,
            remaining: float | None = None, stopping: bool = False) -> Holding:  # fmt: skip
    shares = tuple(DeviceShare(DeviceId(f"{name}-{i}"), MILLI) for i in devices)
    placed = Placement(0, NodeId(name), shares, 4_000, 100)
    ends = None if ends_in is None else NOW + ends_in
    return Holding(GangKey(JobId(str(job)), 0), A, (placed,), NOW - age, ends, remaining_s=remaining, known_at=NOW,
                   stopping=stopping)  # fmt: skip


def candidate(job: int, gpus: int, *, lasts: float | None = None, model: str | None = None) -> Candidate:
    bid = Bid(GangShape(1, Demand(gpus * MILLI, model, 1_000)))
    return Candidate(GangKey(JobId(str(job)), 0), A, QueueName("default"), 0, NOW, job, (bid,), lasts)


def forecast(nodes: tuple[NodeOffer, ...], *holdings: Holding, history: ServiceHistory | None = None) -> Forecast:
    snapshot = Snapshot(1, NOW, nodes, holdings, Amount(8_000, 64_000, 64_000))
    return Forecast(snapshot, history or ServiceHistory(), CONFIG)


def test_the_range_comes_from_the_ages_where_nothing_else_is_known() -> None:
    found = forecast((node("n", 0, 4),), holding(1, "n", range(4), age=300.0)).of(candidate(9, 4))
    assert found is not None
    assert [found.earliest, found.latest] == pytest.approx([NOW + 100, NOW + 900])


def test_a_declared_end_bounds_the_age() -> None:
    found = forecast((node("n", 0, 4),), holding(1, "n", range(4), age=300.0, ends_in=200.0)).of(candidate(9, 4))
    assert found is not None
    assert [found.earliest, found.latest] == pytest.approx([NOW + 100, NOW + 200])


def test_measured_progress_narrows_the_range() -> None:
    found = forecast((node("n", 0, 4),), holding(1, "n", range(4), age=300.0, remaining=80.0)).of(candidate(9, 4))
    assert found is not None
    assert (found.earliest, found.latest) == (NOW + 60, NOW + 100)


def test_who_is_being_stopped_gives_back_at_once() -> None:
    found = forecast((node("n", 0, 4),), holding(1, "n", range(4), stopping=True)).of(candidate(9, 4))
    assert found is not None
    assert (found.earliest, found.latest) == (NOW, NOW)


def test_those_ahead_take_first() -> None:
    # Two devices are free, two come free at 50. The two ahead (2 and 1 devices, 100 s each) leave one at 50.
    one = forecast((node("n", 2, 2),), holding(1, "n", range(2, 4), ends_in=50.0, remaining=1e9))
    one.add(candidate(2, 2, lasts=100.0))
    one.add(candidate(3, 1, lasts=100.0))
    found = one.of(candidate(9, 1))
    assert found is not None
    assert found.latest == NOW + 50
    # The next needs two. Slow: one is free at 50, the others at 100 (job 2). Quick, with 20 s for each of those ahead
    # (a quarter lives on for a third of the 60 s that are expected): job 3 starts at 20 and ends at 40.
    more = one.of(candidate(10, 2))
    assert more is not None
    assert [more.earliest, more.latest] == pytest.approx([NOW + 40, NOW + 100])


def test_other_models_are_not_in_the_way() -> None:
    one = forecast((node("n", 1, 0, "H100"), node("m", 1, 0, "A100")))
    one.add(candidate(2, 1, lasts=100.0, model="A100"))
    found = one.of(candidate(9, 1, model="H100"))
    assert found is not None
    assert found.latest == NOW


def test_what_is_larger_than_all_that_is_offered_has_no_forecast_and_holds_nobody_up() -> None:
    one = forecast((node("n", 2, 0),))
    assert one.of(candidate(9, 4)) is None
    one.add(candidate(9, 4))
    found = one.of(candidate(10, 2))
    assert found is not None
    assert found.latest == NOW


def test_the_history_of_the_narrowest_class_that_knows_enough_is_asked() -> None:
    own = tuple(float(100 * i) for i in range(1, 21))
    history = ServiceHistory({ServiceClass(A, 4): own, ServiceClass(None, None): (1.0,) * 50})
    # After 1,000 s of service 10 are left: 1,100 ... 2,000. Their quarters begin at the third and the eighth.
    assert residual_s(history, A, 4, 1_000.0, 0.25, CONFIG) == 1_300.0 - 1_000.0
    assert residual_s(history, A, 4, 1_000.0, 0.75, CONFIG) == 1_800.0 - 1_000.0
    # Longer than all that ended: the age decides again.
    assert residual_s(history, A, 4, 3_000.0, 0.75, CONFIG) == pytest.approx(9_000.0)
    assert residual_s(history, A, 2, 0.5, 0.25, CONFIG) == 0.5
