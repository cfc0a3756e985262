"""What the pool learns: rates by family, what claims are worth, how long gangs take. And that it is not forgotten."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.appmaster.core import AppMasterCore
from corral.control.book import Image
from corral.control.core import ControlCore
from corral.control.experience import CLASSES_MAX, FAMILIES_MAX, SAMPLES_MAX, Experience, ExperienceImage, _Sample
from corral.model.ask import JobAsk
from corral.model.experience import Measurement, ServiceClass, WorkSpec
from corral.model.ids import TenantId
from corral.model.job import Cause, JobSpec
from corral.model.resources import Demand, GangShape
from corral.ports.store import Recovered
from tests.unit.control.world import World

A, B = TenantId("a"), TenantId("b")
DEFAULT = TenantId("default")


def spec(tenant: TenantId = A, family: str | None = None, name: str = "net") -> JobSpec:
    return JobSpec(name, tenant, GangShape(1, Demand(1000)), work=WorkSpec(family=family))


def seen(
    units: float, seconds: float = 600.0, family: str = "net", model: str = "V100", devices: int = 1
) -> Measurement:
    return Measurement(family, model, devices, units, seconds)


def test_rates_are_those_of_the_family_of_the_tenant() -> None:
    learnt = Experience()
    assert learnt.rates(spec()) == ()
    learnt.measured(A, seen(1_200.0))
    [rate] = learnt.rates(spec())
    assert (rate.model, rate.devices) == ("V100", 1)
    assert rate.units_per_s == pytest.approx(2.0)
    [declared] = learnt.rates(spec(family="net", name="other"))
    assert declared.units_per_s == rate.units_per_s
    # Variance 0.1^2 (1 + 60 / 600), and 0.3^2 more for jobs that only have the same name.
    assert declared.confidence == pytest.approx(1 / (1 + 0.011 / 0.04))
    assert rate.confidence == pytest.approx(1 / (1 + 0.101 / 0.04))
    assert learnt.rates(spec(family="other")) == ()
    # Another tenant may call its jobs alike: that is its own affair.
    assert learnt.rates(spec(B)) == ()


def test_only_what_moves_a_rate_by_a_tenth_is_news() -> None:
    learnt = Experience()
    assert learnt.measured(A, seen(600.0))
    assert not learnt.measured(A, seen(600.0 * 1.15))
    # The mean of (0, ln 1.15, ln 1.3) is 0.134; with another ln 1.3 it is 0.166, which is not 0.1 more.
    assert [learnt.measured(A, seen(600.0 * 1.3)) for _ in range(2)] == [True, False]
    assert learnt.measured(A, seen(600.0, devices=2))
    assert not learnt.measured(A, seen(0.0, model="K80"))
    assert {(rate.model, rate.devices) for rate in learnt.rates(spec())} == {("V100", 1), ("V100", 2)}


def test_the_oldest_families_and_places_are_forgotten() -> None:
    learnt = Experience()
    for i in range(FAMILIES_MAX + 1):
        learnt.measured(A, seen(600.0, family=f"f{i}"))
    assert learnt.rates(spec(family="f0")) == ()
    assert learnt.rates(spec(family=f"f{FAMILIES_MAX}")) != ()
    for devices in range(1, 200):
        learnt.measured(A, seen(600.0, devices=devices))
    assert len(learnt.rates(spec())) == 64


def test_trust_follows_what_was_measured_against_what_was_claimed() -> None:
    learnt = Experience()
    assert learnt.trust() == {}
    learnt.audit(A, seen(600.0, seconds=600.0), claimed=2.0)
    # ln(1/2) x 0.2
    assert learnt.trust() == {A: pytest.approx(0.5**0.2)}
    for _ in range(30):
        learnt.audit(A, seen(600.0, seconds=600.0), claimed=2.0)
    assert learnt.trust()[A] == pytest.approx(0.5, rel=0.01)
    # Honesty is believed again after a while.
    for _ in range(30):
        learnt.audit(A, seen(600.0, seconds=600.0), claimed=1.0)
    assert learnt.trust()[A] == pytest.approx(1.0, rel=0.01)


@given(st.lists(st.tuples(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9), st.floats(0.001, 1e6)), max_size=30))
def test_trust_is_bounded_whatever_is_claimed(audits: list[tuple[float, float, float]]) -> None:
    learnt = Experience()
    for units, claimed, seconds in audits:
        learnt.audit(A, seen(units, seconds), claimed)
    assert all(0.1 - 1e-9 <= trust <= 1.0 for trust in learnt.trust().values())


def test_service_is_kept_by_class_sorted_and_the_newest_of_it() -> None:
    world = World(n1=4)
    for seconds, gpus in ((30.0, 1), (10.0, 2), (20.0, 1)):
        [job] = world.submit(JobAsk(argv=("x",), gpu_milli=1000 * gpus))
        world.start(job)
        world.now += seconds
        world.end(job)
    durations = world.core.book.experience.history().durations
    assert durations == {
        ServiceClass(DEFAULT, 1): (20.0, 30.0),
        ServiceClass(None, 1): (20.0, 30.0),
        ServiceClass(DEFAULT, 2): (10.0,),
        ServiceClass(None, 2): (10.0,),
        ServiceClass(None, None): (10.0, 20.0, 30.0),
    }
    assert world.replayed().book.experience.history() == world.core.book.experience.history()


def test_failures_count_and_cancellations_do_not() -> None:
    world = World(n1=4)
    failed, cancelled, never = world.submit(*[JobAsk(argv=("x",), gpu_milli=1000)] * 3)
    for job in (failed, cancelled):
        world.start(job)
    world.now += 7.0
    world.end(failed, code=1)
    world.end(cancelled, cause=Cause.CANCELLED)
    world.end(never, cause=Cause.EXEC_FAILED)
    assert world.core.book.experience.history().durations[ServiceClass(None, None)] == (7.0,)


def test_all_runs_of_a_gang_are_its_service() -> None:
    world = World(n1=4)
    [job] = world.submit(JobAsk(argv=("x",), gpu_milli=1000, max_restarts=1))
    world.start(job)
    world.now += 5.0
    world.end(job, code=1)
    world.advance(10.0)
    world.start(job)
    world.now += 8.0
    world.end(job)
    assert world.core.book.experience.history().durations[ServiceClass(None, None)] == (13.0,)


@given(st.lists(st.floats(0.001, 1e6), max_size=80))
def test_the_sample_is_that_of_the_newest(durations: list[float]) -> None:
    sample = _Sample(size=10)
    for seconds in durations:
        sample.add(seconds)
        assert list(sample.sorted()) == sorted(sample.newest)
    assert list(sample.newest) == durations[-10:]


def test_samples_and_classes_are_bounded() -> None:
    learnt = Experience()
    for i in range(SAMPLES_MAX + 10):
        learnt._note(A, 1, float(i + 1))
    sample = learnt.history().durations[ServiceClass(A, 1)]
    assert (len(sample), sample[0], sample[-1]) == (SAMPLES_MAX, 11.0, SAMPLES_MAX + 10.0)
    for devices in range(2, CLASSES_MAX + 10):
        learnt._note(A, devices, 1.0)
    durations = learnt.history().durations
    assert len(durations) == CLASSES_MAX
    assert ServiceClass(None, None) in durations
    assert ServiceClass(A, 1) not in durations


def test_what_was_learnt_comes_back_with_the_snapshot() -> None:
    learnt = Experience()
    learnt.measured(A, seen(600.0))
    learnt.audit(A, seen(600.0), 3.0)
    learnt._note(A, 2, 50.0)
    image = msgspec.msgpack.decode(msgspec.msgpack.encode(learnt.image()), type=ExperienceImage)
    again = Experience(image)
    assert again.rates(spec()) == learnt.rates(spec())
    assert again.trust() == learnt.trust()
    assert again.history() == learnt.history()
    # It is no news to it either.
    assert not again.measured(A, seen(600.0))


def test_a_tenant_that_is_removed_is_forgotten() -> None:
    learnt = Experience()
    for tenant in (A, B):
        learnt.measured(tenant, seen(600.0))
        learnt.audit(tenant, seen(600.0), 3.0)
        learnt._note(tenant, 2, 50.0)
    learnt.forget(A)
    assert learnt.rates(spec()) == ()
    assert learnt.trust().keys() == {B}
    assert {name.tenant for name in learnt.history().durations} == {B, None}


def test_snapshots_from_before_it_existed_still_load() -> None:
    world = World(n1=1)
    world.submit(JobAsk(argv=("x",), gpu_milli=1000))
    old = msgspec.msgpack.decode(world.core.image())
    del old["experience"]
    core = ControlCore(Recovered(1, msgspec.msgpack.encode(old), ()), world.config, AppMasterCore, 2)
    assert core.book.experience.history().durations == {}
    assert msgspec.msgpack.decode(core.image(), type=Image).experience == ExperienceImage()
    assert list(core.book.state.jobs) == ["1"]
