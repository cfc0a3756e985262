"""Why a job waits, and the line in which it does."""

from __future__ import annotations

from corral.control import explaining
from corral.control.inputs import Administer, Cancel, Quiesce, Solved
from corral.model.ask import AfterAsk, JobAsk
from corral.model.events import NodeCordoned, QueueSet, TenantSet
from corral.model.ids import JobId, NodeId, QueueName, TenantId
from corral.model.job import DependencyKind, JobState
from corral.model.tenant import Queue, Tenant
from tests.unit.control.rounding import asked, house
from tests.unit.control.world import World

A = TenantId("a")


def tenants(world: World, *names: str) -> None:
    for name in names:
        world.tell(Administer(TenantSet(at=0.0, tenant=Tenant(TenantId(name)), by="t"), create=True))


def verdict(world: World, job: str, gang: int | None = None, viewer: TenantId | None = None) -> str:
    return explaining.why(world.core, world.job(job), gang, world.now, viewer).verdict


def test_one_line_for_everything_but_a_wait_for_room() -> None:
    world = World(n1=2, n2=2)
    (first,) = world.submit(JobAsk(name="one", argv=("x",), gpu_milli=1000, num_nodes=2))
    assert verdict(world, first) == "starts on n1, n2"
    for rank in (0, 1):
        world.start(first, rank=rank)
    assert verdict(world, first) == "runs on n1, n2"
    world.gone("n2")
    assert verdict(world, first) == "runs on n1, n2; n2 does not answer, silent for 0 s"
    (second,) = world.submit(JobAsk(name="two", argv=("x",), gpu_milli=1000, after=(AfterAsk(first),)))
    assert verdict(world, second) == "waits for job 1 to succeed"
    waits = (AfterAsk(first, DependencyKind.ENDED), AfterAsk(second, DependencyKind.FAILED))
    (both,) = world.submit(JobAsk(argv=("x",), gpu_milli=1000, after=waits))
    assert verdict(world, both) == "waits for job 1 to end and job 2 to fail"
    world.tell(Cancel(JobId(both), "me"))
    world.tell(Cancel(JobId(first), "me"))
    assert verdict(world, first) == "is being stopped (cancelled)"
    world.tell(Quiesce(stop_tasks=False))
    (third,) = world.submit(JobAsk(argv=("x",), gpu_milli=1000))
    assert verdict(world, third) == "the pool is stopping and starts nothing more"
    done = world.job(third)
    world.tell(Cancel(JobId(third), "me"))
    report = explaining.why(world.core, done, None, world.now, None)
    assert (report.verdict, report.state, report.pending_gangs) == ("cancelled by me", JobState.CANCELLED, 0)


def test_an_array_is_what_its_elements_made_of_it_and_an_element_has_its_own_words() -> None:
    world = World(n1=4)
    (job,) = world.submit(JobAsk(argv=("x",), gpu_milli=1000, indices=(0, 1, 2)))
    for gang in range(3):
        world.start(job, gang)
    for gang, code in ((0, 0), (1, 0)):
        world.end(job, gang, code=code)
    assert verdict(world, job, 1) == "element 1 ended well"
    one = world.job(job)
    world.end(job, 2, code=3)
    report = explaining.why(world.core, one, None, world.now, None)
    assert report.state is JobState.FAILED
    assert report.verdict == "1 of 3 elements failed (2); element 2: rank 0 on n1 exited with code 3"
    first = explaining.why(world.core, one, 0, world.now, None)
    assert (first.state, first.verdict) == (JobState.SUCCEEDED, "element 0 ended well")
    last = explaining.why(world.core, one, 2, world.now, None)
    assert (last.state, last.verdict) == (JobState.FAILED, "element 2: rank 0 on n1 exited with code 3")


def test_why_looks_at_what_waits_and_names_nodes_that_are_away() -> None:
    world = World(n1=1, n2=1, n3=1)
    for name in ("n2", "n3"):
        world.gone(name)
    world.now += 4.0
    world.tell(Administer(NodeCordoned(at=0.0, node=NodeId("n3"), by="me", reason="new disk")))
    world.submit(JobAsk(argv=("x",), gpu_milli=1000, cpus_milli=1000, memory_mib=1, indices=(0, 1)))
    report = explaining.why(world.core, world.job("1"), None, world.now, None)
    assert (report.gang, report.pending_gangs, report.shortfall, report.position) == (1, 1, 1, 1)
    assert {c.node: c.blocks for c in report.constraints} == {
        "n1": ("0 of 1 GPUs are free, 1 are needed",),
        "n2": ("silent for 4 s",),
        "n3": ("cordoned: new disk",),
    }
    assert verdict(world, "1", 0) == "starts on n1"
    # One element has a device, and is placed there: it counts as running.
    assert report.notes == ("of 2 elements of the array 1 run and 1 wait",)
    assert explaining.why(world.core, world.job("1"), 1, world.now, None).notes == ()


def test_the_queue_shows_tenants_their_own_names_only() -> None:
    world = World(n1=1)
    tenants(world, "a", "b")
    world.tell(Administer(QueueSet(at=0.0, queue=Queue(QueueName("q")), by="t"), create=True))
    for name, tenant in (("holder", "a"), ("mine", "a"), ("theirs", "b")):
        world.submit(JobAsk(name=name, argv=("x",), tenant=tenant, queue="q", gpu_milli=1000))
    world.now += 5.0
    lines = explaining.queue(world.core, world.now, 10, A)
    assert {(line.tenant, line.name, str(line.key)) for line in lines} == {("a", "mine", "2.0"), ("b", "", "-.0")}
    assert [line.waited_s for line in lines] == [5.0, 5.0]
    assert [line.position for line in explaining.queue(world.core, world.now, 1, None)] == [1]


def test_a_round_without_a_plan_is_told_to_who_waits_until_one_has_a_plan() -> None:
    world = house(n1=1)
    plan, world.solver = world.solver, None
    world.submit(asked())
    world.submit(asked())
    world.advance(10.5)
    version = world.markets[-1].snapshot.version
    fault = "a round took more than 120 s; its process was killed"
    world.tell(Solved(version, fault=fault))

    def notes(job: str) -> tuple[str, ...]:
        return explaining.why(world.core, world.job(job), None, world.now, A).notes

    world.now += 7.0
    assert notes("1") == (), "a job that runs waits for no round"
    assert notes("2") == (f"the last global round gave no plan 7 s ago, only what is free is given out: {fault}",)
    world.solver = plan
    world.advance(20.0)
    assert notes("2") == ()


def test_nodes_that_alone_fit_and_are_kept_away_are_the_reason() -> None:
    world = World(n1=0, n2=2, n3=2)
    world.tell(Administer(NodeCordoned(at=0.0, node=NodeId("n2"), by="me", reason="new disk")))
    world.gone("n3")
    world.now += 4.0
    world.submit(JobAsk(argv=("x",), gpu_milli=2000, cpus_milli=1000, memory_mib=1))
    report = explaining.why(world.core, world.job("1"), None, world.now, None)
    away = "waits for nodes n2 (cordoned: new disk), n3 (silent for 4 s), without which it fits nowhere"
    assert report.verdict == away
    assert report.cheapest_change == "`corral nodes uncordon n2`: it fits there"
    assert [line.reason for line in explaining.queue(world.core, world.now, 9, None)] == [away]
    # Two ranks need the silent one too: uncordoning alone would not start it.
    world.submit(JobAsk(argv=("x",), gpu_milli=2000, num_nodes=2, cpus_milli=1000, memory_mib=1))
    assert explaining.why(world.core, world.job("2"), None, world.now, None).cheapest_change is None
    # What fits on a node that is offered does not wait for those.
    world.submit(JobAsk(argv=("x",), cpus_milli=1000, memory_mib=1))
    assert verdict(world, "3") == "starts on n1"
