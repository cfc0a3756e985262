"""Admission: defaults worked out by hand, and one clear refusal for everything that is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.model.ask import JobAsk
from corral.model.errors import Refusal, by_code
from corral.model.experience import WorkSpec
from corral.model.ids import JobId, QueueName, TenantId
from corral.model.job import CheckpointSpec, Dependency, DependencyKind, Fencing, JobSpec
from corral.model.resources import Demand, GangShape, NodeSpec
from corral.model.tenant import Queue, Quota, Tenant
from corral.policy.admission import AdmissionDefaults, admit
from corral.policy.inventory import Inventory
from tests.unit.policy.building import node_spec

OK = JobAsk(argv=("python", "train.py"))
POOL = [node_spec("node-0"), node_spec("node-1"), node_spec("node-2", 4, "A100-SXM4-80GB", cpus=16, memory=32_000)]


def ask(base: JobAsk = OK, /, *, pool: list[NodeSpec] = POOL, **fields: Any) -> JobSpec | Refusal:
    context = {
        "tenant": fields.pop("of", Tenant(TenantId("a"))),
        "queue": fields.pop("to", Queue(QueueName("default"))),
        "capacity": Inventory.of(pool),
        "defaults": fields.pop("defaults", AdmissionDefaults()),
        "pending_jobs": fields.pop("pending_jobs", 0),
        "resolved_after": fields.pop("resolved_after", ()),
    }
    return admit(replace(base, **fields), **context)


def demand(**fields: Any) -> Demand:
    spec = ask(**fields)
    assert isinstance(spec, JobSpec), spec
    return spec.shape.demand


def refusal(**fields: Any) -> Refusal:
    answer = ask(**fields)
    assert isinstance(answer, Refusal), answer
    assert answer.code in by_code()
    line = answer.line()
    assert line
    assert "\n" not in line
    assert len(line) < 400
    return answer


def test_a_plain_command_gets_all_defaults() -> None:
    spec = ask()
    assert spec == JobSpec(
        name="python",
        tenant=TenantId("a"),
        # node-2 has less memory than the others: 64,000 MiB for 64 CPUs count, but 1 GiB is the least.
        shape=GangShape(1, Demand(0, None, 1_000, 1_024)),
        argv=("python", "train.py"),
    )


def test_what_is_said_is_kept() -> None:
    spec = ask(
        JobAsk(
            name="sweep",
            script="echo hi",
            setup="pip list",
            gpu_milli=2_000,
            gpu_model="H100",
            cpus_milli=500,
            memory_mib=77,
            num_nodes=2,
            envs={"A": "1"},
            workdir="/srv",
            file_mounts={"in/data": "/data"},
            indices=(3, 5),
            points=({"LR": "1"}, {"LR": "2"}),
            max_duration_s=60.0,
            grace_s=3.0,
            max_restarts=2,
            priority=-7,
            data=("x", "y", "x"),
            fencing=Fencing.NONE,
            lease_s=30.0,
            checkpoint=CheckpointSpec("USR2", 300.0),
        ),
        resolved_after=(Dependency(JobId("3"), DependencyKind.ENDED),),
    )
    assert spec == JobSpec(
        name="sweep",
        tenant=TenantId("a"),
        shape=GangShape(2, Demand(2_000, "H100", 500, 77)),
        script="echo hi",
        setup="pip list",
        envs={"A": "1"},
        workdir="/srv",
        file_mounts={"in/data": "/data"},
        indices=(3, 5),
        points=({"LR": "1"}, {"LR": "2"}),
        is_array=True,
        max_duration_s=60.0,
        grace_s=3.0,
        max_restarts=2,
        priority=-7,
        after=(Dependency(JobId("3"), DependencyKind.ENDED),),
        data=("x", "y"),
        fencing=Fencing.NONE,
        lease_s=30.0,
        checkpoint=CheckpointSpec("USR2", 300.0),
    )


def test_cpus_and_memory_follow_the_devices() -> None:
    # node-0 and node-1: 64 CPUs and 64,000 MiB for 8 devices; node-2: 16 and 32,000 for 4.
    assert demand(gpu_milli=2_000, gpu_model="H100") == Demand(2_000, "H100", 16_000, 16_000)
    assert demand(gpu_milli=2_000, gpu_model="A100") == Demand(2_000, "A100", 8_000, 16_000)
    # Without a model it has to fit on every kind: 4 CPUs and 8,000 MiB per device.
    assert demand(gpu_milli=1_000) == Demand(1_000, None, 4_000, 8_000)
    assert demand(gpu_milli=250, gpu_model="H100") == Demand(250, "H100", 2_000, 2_000)
    # Only nodes that have enough devices count.
    assert demand(gpu_milli=8_000) == Demand(8_000, None, 64_000, 64_000)
    assert demand(gpu_milli=1_000, cpus_milli=100) == Demand(1_000, None, 100, 8_000)


def test_jobs_without_gpus_fit_small_nodes_by_default() -> None:
    small = [node_spec("node-0", 0, cpus=0.5, memory=512)]
    assert demand(pool=small) == Demand(0, None, 500, 512)


def test_memory_follows_the_cpus_of_the_largest_node_that_fits() -> None:
    # 23 GiB (23,552 MiB) for 8 CPUs.
    one = [node_spec("node-0", 0, cpus=8, memory=23_552)]
    assert demand(pool=one) == Demand(0, None, 1_000, 2_944)
    assert demand(pool=one, cpus_milli=4_000) == Demand(0, None, 4_000, 11_776)
    assert demand(pool=one, cpus_milli=8_000) == Demand(0, None, 8_000, 23_552)
    assert demand(pool=one, cpus_milli=100) == Demand(0, None, 100, 1_024)
    assert demand(pool=one, cpus_milli=4_000, memory_mib=5) == Demand(0, None, 4_000, 5)
    # The largest in memory has too few CPUs for 8: a quarter of 32 CPUs with 64,000 MiB.
    two = [node_spec("big", 0, cpus=4, memory=100_000), node_spec("wide", 0, cpus=32, memory=64_000)]
    assert demand(pool=two, cpus_milli=2_000) == Demand(0, None, 2_000, 50_000)
    assert demand(pool=two, cpus_milli=8_000) == Demand(0, None, 8_000, 16_000)
    # Two ranks of 4 CPUs do not fit on it either: both fit with an eighth of the other's memory.
    assert demand(pool=two, cpus_milli=4_000, num_nodes=2) == Demand(0, None, 4_000, 8_000)
    assert refusal(pool=two, cpus_milli=64_000).code == "UNSCHEDULABLE"


def test_all_devices_of_a_node_can_be_filled_with_defaulted_jobs() -> None:
    odd = [node_spec("node-0", 7, cpus=20, memory=10_000)]
    one = demand(pool=odd, gpu_milli=1_000)
    assert (one.cpus_milli * 7 <= 20_000, one.memory_mib * 7 <= 10_000) == (True, True)


def test_points_make_an_array_and_indices_name_its_elements() -> None:
    spec = ask(points=({"X": "1"}, {"X": "2"}))
    assert isinstance(spec, JobSpec)
    assert (spec.indices, spec.is_array, spec.gangs) == ((0, 1), True, 2)
    spec = ask(indices=(7,))
    assert isinstance(spec, JobSpec)
    assert (spec.indices, spec.is_array) == ((7,), True)


@pytest.mark.parametrize(
    "fields, name",
    [
        ({"argv": ("/usr/bin/env", "x")}, "env"),
        ({"argv": ("./train run.sh",)}, "job"),
        ({"argv": ("123",)}, "job"),
        ({"argv": (), "script": "  python -m x\n"}, "python"),
        ({"argv": (), "script": "(cd x; y)"}, "job"),
    ],
)
def test_jobs_are_named_after_their_program(fields: dict[str, Any], name: str) -> None:
    spec = ask(**fields)
    assert isinstance(spec, JobSpec)
    assert spec.name == name


HUGE = 10**400
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"argv": ()}, "MISSING_FIELD", "run"),
    ({"argv": (), "script": " \n"}, "MISSING_FIELD", "run"),
    ({"argv": ("", "x")}, "MISSING_FIELD", "run"),
    ({"script": "x"}, "INVALID_FIELD", "run"),
    ({"argv": ("a\0b",)}, "INVALID_FIELD", "run"),
    ({"argv": ("\ud800",)}, "INVALID_FIELD", "run"),
    ({"argv": ("a" * 131_072,)}, "INVALID_FIELD", "run"),
    ({"argv": ("a" * 100_000,) * 11}, "INVALID_FIELD", "run"),
    ({"argv": (), "script": "a" * 1_048_577}, "INVALID_FIELD", "run"),
    ({"setup": "a\0"}, "INVALID_FIELD", "setup"),
    ({"name": ""}, "INVALID_FIELD", "name"),
    ({"name": "a b"}, "INVALID_FIELD", "name"),
    ({"name": "12.3"}, "INVALID_FIELD", "name"),
    ({"name": "a" * 129}, "INVALID_FIELD", "name"),
    ({"name": "../x"}, "INVALID_FIELD", "name"),
    ({"gpu_milli": -1}, "INVALID_FIELD", "resources.accelerators"),
    ({"gpu_milli": 1_500}, "INVALID_FIELD", "resources.accelerators"),
    ({"gpu_milli": HUGE}, "INVALID_FIELD", "resources.accelerators"),
    ({"gpu_model": "H100"}, "INVALID_FIELD", "resources.accelerators"),
    ({"gpu_model": "--", "gpu_milli": 1_000}, "INVALID_FIELD", "resources.accelerators"),
    ({"cpus_milli": 0}, "INVALID_FIELD", "resources.cpus"),
    ({"cpus_milli": -5}, "INVALID_FIELD", "resources.cpus"),
    ({"cpus_milli": HUGE}, "INVALID_FIELD", "resources.cpus"),
    ({"memory_mib": 0}, "INVALID_FIELD", "resources.memory"),
    ({"num_nodes": 0}, "INVALID_FIELD", "num_nodes"),
    ({"num_nodes": -3}, "INVALID_FIELD", "num_nodes"),
    ({"num_nodes": HUGE}, "INVALID_FIELD", "num_nodes"),
    ({"priority": 1_001}, "INVALID_FIELD", "priority"),
    ({"priority": -1_001}, "INVALID_FIELD", "priority"),
    ({"max_restarts": -1}, "INVALID_FIELD", "max_restarts"),
    ({"max_duration_s": 0.0}, "INVALID_FIELD", "max_duration"),
    ({"max_duration_s": float("nan")}, "INVALID_FIELD", "max_duration"),
    ({"max_duration_s": float("inf")}, "INVALID_FIELD", "max_duration"),
    ({"max_duration_s": 1e12}, "INVALID_FIELD", "max_duration"),
    ({"grace_s": -1.0}, "INVALID_FIELD", "grace"),
    ({"lease_s": 1.0}, "INVALID_FIELD", "lease"),
    ({"checkpoint": CheckpointSpec(grace_s=81.0)}, "INVALID_FIELD", "checkpoint.grace"),
    ({"checkpoint": CheckpointSpec(grace_s=60.0), "lease_s": 69.0}, "INVALID_FIELD", "checkpoint.grace"),
    ({"checkpoint": CheckpointSpec(grace_s=-1.0)}, "INVALID_FIELD", "checkpoint.grace"),
    ({"checkpoint": CheckpointSpec(signal="SIGUSR1")}, "INVALID_FIELD", "checkpoint.signal"),
    ({"checkpoint": CheckpointSpec(path="a\0")}, "PATH_UNSAFE", "checkpoint.path"),
    ({"indices": ()}, "INVALID_FIELD", "array"),
    ({"indices": tuple(range(10_001))}, "INVALID_FIELD", "array"),
    ({"points": ({},) * 10_001}, "INVALID_FIELD", "array"),
    ({"indices": (1, 2, 1)}, "INVALID_FIELD", "array"),
    ({"indices": (-1,)}, "INVALID_FIELD", "array"),
    ({"indices": (1, 2), "points": ({},)}, "INVALID_FIELD", "array"),
    ({"points": ({"1X": "a"},)}, "INVALID_FIELD", "array[0].1X"),
    ({"envs": {"A-B": "1"}}, "INVALID_FIELD", "envs.A-B"),
    ({"envs": {"": "1"}}, "INVALID_FIELD", "envs."),
    ({"envs": {"CORRAL_JOB": "1"}}, "INVALID_FIELD", "envs.CORRAL_JOB"),
    ({"envs": {"A": "x\0"}}, "INVALID_FIELD", "envs.A"),
    ({"envs": {f"A{i}": "x" for i in range(1_001)}}, "INVALID_FIELD", "envs"),
    ({"envs": {f"A{i}": "x" * 100_000 for i in range(11)}}, "INVALID_FIELD", "envs"),
    ({"workdir": ""}, "INVALID_FIELD", "workdir"),
    ({"workdir": "a\0"}, "PATH_UNSAFE", "workdir"),
    ({"file_mounts": {"../x": "/a"}}, "PATH_UNSAFE", "file_mounts.../x"),
    ({"file_mounts": {"a/../../x": "/a"}}, "PATH_UNSAFE", "file_mounts.a/../../x"),
    ({"file_mounts": {"/etc/x": "/a"}}, "PATH_UNSAFE", "file_mounts./etc/x"),
    ({"file_mounts": {"~/x": "/a"}}, "PATH_UNSAFE", "file_mounts.~/x"),
    ({"file_mounts": {".": "/a"}}, "PATH_UNSAFE", "file_mounts.."),
    ({"file_mounts": {"a\0": "/a"}}, "PATH_UNSAFE", "file_mounts"),
    ({"file_mounts": {"x": "/a\0"}}, "PATH_UNSAFE", "file_mounts.x"),
    ({"data": ("a/b",)}, "INVALID_FIELD", "data"),
    ({"data": ("..",)}, "INVALID_FIELD", "data"),
    ({"data": ("",)}, "INVALID_FIELD", "data"),
    ({"resolved_after": (Dependency(JobId("3")),) * 2}, "INVALID_FIELD", "after"),
    ({"gpu_milli": 1_000, "gpu_model": "H10"}, "UNSCHEDULABLE", "resources.accelerators"),
    ({"gpu_milli": 9_000}, "UNSCHEDULABLE", "resources.accelerators"),
    ({"gpu_milli": 8_000, "gpu_model": "A100"}, "UNSCHEDULABLE", "resources.accelerators"),
    ({"gpu_milli": 500_000}, "UNSCHEDULABLE", "resources.accelerators"),
    ({"gpu_milli": 8_000, "num_nodes": 3}, "UNSCHEDULABLE", "num_nodes"),
    ({"cpus_milli": 65_000}, "UNSCHEDULABLE", "resources.cpus"),
    ({"memory_mib": 64_001}, "UNSCHEDULABLE", "resources.memory"),
    ({"gpu_milli": 1_000, "gpu_model": "A100", "cpus_milli": 17_000}, "UNSCHEDULABLE", "resources.cpus"),
    ({"gpu_milli": 1_000, "pool": [node_spec("node-0", 0)]}, "UNSCHEDULABLE", "resources.accelerators"),
    ({"pool": []}, "UNAVAILABLE", "resources"),
]


@pytest.mark.parametrize("fields, code, field", WRONG, ids=lambda x: str(x)[:40] if not isinstance(x, dict) else None)
def test_everything_wrong_has_one_refusal(fields: dict[str, Any], code: str, field: str) -> None:
    answer = refusal(**fields)
    assert (answer.code, answer.field) == (code, field)


def test_an_idempotent_task_needs_no_lease_and_so_no_room_for_its_grace() -> None:
    assert isinstance(ask(checkpoint=CheckpointSpec(grace_s=600.0), fencing=Fencing.NONE), JobSpec)
    assert isinstance(ask(checkpoint=CheckpointSpec(grace_s=80.0)), JobSpec)


def test_the_nearest_model_and_the_pool_are_named() -> None:
    line = refusal(gpu_milli=1_000, gpu_model="H1OO").line()
    assert "did you mean H100?" in line
    assert "16 H100" in line
    assert "A100-SXM4-80GB" in refusal(gpu_milli=1_000, gpu_model="a10").line()
    assert "ask for at most 8 per node" in refusal(gpu_milli=9_000, gpu_model="h100").line()


def test_limits_of_tenant_and_queue_are_quota_errors() -> None:
    small = Tenant(TenantId("a"), limit=Quota(gpu_milli=4_000))
    assert refusal(of=small, gpu_milli=2_000, num_nodes=3).code == "QUOTA_EXCEEDED"
    assert isinstance(ask(of=small, gpu_milli=2_000, num_nodes=2), JobSpec)
    narrow = Queue(QueueName("q"), limit=Quota(cpus_milli=2_000))
    answer = refusal(to=narrow, cpus_milli=3_000)
    assert (answer.code, answer.field) == ("QUOTA_EXCEEDED", "resources.cpus")
    assert "queue q" in answer.line()
    # An array may be larger than the limit: its elements run one after the other.
    assert isinstance(ask(of=small, gpu_milli=4_000, gpu_model="H100", indices=tuple(range(50))), JobSpec)


def test_too_many_jobs_are_refused_for_now() -> None:
    one = Tenant(TenantId("a"), jobs_max=3)
    answer = refusal(of=one, pending_jobs=3)
    assert answer.code == "TOO_MANY_JOBS"
    assert by_code()[answer.code].retryable
    assert isinstance(ask(of=one, pending_jobs=2), JobSpec)
    assert refusal(defaults=AdmissionDefaults(jobs_max=5), pending_jobs=5).code == "TOO_MANY_JOBS"


@given(
    st.builds(
        JobAsk,
        name=st.none() | st.text(max_size=5),
        argv=st.lists(st.text(max_size=4), max_size=3).map(tuple),
        script=st.none() | st.text(max_size=4),
        gpu_milli=st.integers(),
        gpu_model=st.none() | st.text(max_size=5) | st.just("H100"),
        cpus_milli=st.none() | st.integers(),
        memory_mib=st.none() | st.integers(),
        num_nodes=st.integers(),
        envs=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        file_mounts=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        indices=st.none() | st.lists(st.integers(), max_size=3).map(tuple),
        max_duration_s=st.none() | st.floats(),
        grace_s=st.none() | st.floats(),
        max_restarts=st.none() | st.integers(),
        priority=st.integers(),
        data=st.lists(st.text(max_size=3), max_size=2).map(tuple),
        lease_s=st.none() | st.floats(),
        gpu_counts=st.lists(st.integers(), max_size=3).map(tuple),
        node_counts=st.lists(st.integers(), max_size=3).map(tuple),
        restart_cost_s=st.none() | st.floats(),
        work=st.none()
        | st.builds(
            WorkSpec,
            st.none() | st.floats(),
            st.none() | st.text(max_size=3),
            st.dictionaries(st.text(max_size=5), st.floats(), max_size=2),
        ),
        appmaster=st.none() | st.text(max_size=5),
    )
)
def test_no_ask_breaks_admission(wild: JobAsk) -> None:
    answer = ask(wild)
    if isinstance(answer, Refusal):
        assert answer.code in by_code()
        assert "\n" not in answer.line()
