"""Objects of version 1: what the server writes, the client reads as the same value; what is accepted is described."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from pydantic import ValidationError

from corral.model import errors, job, offer, report, resources, tenant
from corral.model.ask import JobAsk
from corral.model.errors import CorralError, InvalidField, Refusal, Stale, TooManyJobs, Unauthenticated, UsageError
from corral.model.experience import WorkSpec
from corral.model.files import JobFiles, Returned
from corral.model.ids import DeviceId, GangKey, JobId, NodeId, QueueName, TenantId
from corral.ports.store import UsageRow
from corral.wire.request import FIELDS, document_of
from corral.wire.v1 import jobs, problem, reports, requests, tenants
from corral.wire.v1.base import Answer
from tests.unit.wire.test_request import asks

DEVICE = resources.DeviceSpec(DeviceId("GPU-1"), "H100", "nvidia", 81_920, 3, 1, simulated=True)
SEEN = resources.DeviceState(
    DEVICE.uuid, resources.Health.SUSPECT, 12, 99.5, 70.0, 350.25, 79, "XID 79", (1, 2),
    (resources.ForeignProcess(7, None, "root"),),
)  # fmt: skip
NODE = resources.NodeSpec(NodeId("n0"), "host", "10.0.0.1", 64_000, 65_536, (DEVICE,), "r1", simulated=True)
AMOUNT = resources.Amount(1_500, 4_000, 1_024)
SHAPE = resources.GangShape(2, resources.Demand(1_500, "H100", 4_000, 1_024))
PLACED = resources.Placement(0, NodeId("n0"), (resources.DeviceShare(DEVICE.uuid, 500),), 1_000, 64, 29_500)
KEY = GangKey(JobId("12"), 3)
EXIT = job.TaskExit(job.Cause.SIGNAL, None, 9, "killed", 1.5, 2.5, 0.25, 100, 4_096)
TASKS = (
    job.Task(0, job.TaskState.FAILED, PLACED, 1.5, 2.5, EXIT),
    job.Task(1, job.TaskState.CANCELLED, None, None, 3.0, job.TaskExit(job.Cause.GANG_STOPPED, signal=15)),
)
GANG = job.Gang(
    0,
    TASKS,
    job.JobState.FAILED,
    4,
    1.0,
    1.1,
    1.2,
    1.3,
    job.StopReason.RANK_ENDED,
    2,
    1,
    (NodeId("n1"),),
    7.5,
    2.5,
    3.5,
    4.5,
    3,
    offer.Bid(SHAPE, offer.Locality.RACK, (offer.Preference(NodeId("n1"), 2.0),), 3.0, 0.5, 60.0, 30.0, 5.0, 600.0),
    (Returned(0, 4, "cd" * 32, 2.5, 10),),
    (Returned(1, 4, "ef" * 32, 2.5, 20),),
)
SPEC = job.JobSpec(
    name="train",
    tenant=TenantId("vision"),
    shape=SHAPE,
    script="python train.py",
    setup="pip install .",
    queue=QueueName("night"),
    envs={"A": "1"},
    workdir="/src",
    file_mounts={"a": "/b"},
    indices=(7,),
    points=({"C": "0.1"},),
    is_array=True,
    max_duration_s=60.0,
    max_restarts=3,
    shapes=(SHAPE,),
    work=WorkSpec(100.0, "resnet", {"V100:4": 2.5}),
    appmaster="mine:propose",
    after=(job.Dependency(JobId("3"), job.DependencyKind.ENDED),),
    data=("s1",),
    fencing=job.Fencing.NONE,
    checkpoint=job.CheckpointSpec("TERM", 5.0, "ck"),
    files=JobFiles("ab" * 32, True, ("a",)),
    outputs=("out/*.json",),
)
JOB = job.Job(
    JobId("12"),
    SPEC,
    1.0,
    {0: GANG},
    job.JobState.FAILED,
    2.0,
    3.0,
    "t1",
    "why",
    "me",
    0,
    (JobId("3"),),
    exit_code=137,
    exit_cause=job.Cause.SIGNAL,
)
ESTIMATE = report.StartEstimate(5.0, None, "a guess")
WHY = report.WhyReport(
    JobId("12"), 3, job.JobState.PENDING, "waits", SHAPE, 4, 3, 1,
    (report.NodeConstraint(NodeId("n0"), 0, AMOUNT, AMOUNT, ("full",),
                           (report.Holder(JobId("9"), 0, TenantId("x"), 1, 2, None),)),),
    report.ShareArithmetic(TenantId("x"), 2.0, 0.5, 0.25, 0.3, 1, 2), ("quota",),
    offer.Reservation(KEY, TenantId("x"), (PLACED,), None, 4.0), True, ESTIMATE, "fewer GPUs", 9,
    report.PriceTerms(5.0, "tenure", 1.5, 8.0, 0.001, {"H100": 0.25}, 9.0), report.ForecastQuality(40, 0.5, 12.0),
    SHAPE, ("its own proposer is silent",),
)  # fmt: skip
RECEIPT = report.Receipt(
    JobId("12"), "train", TenantId("x"), job.JobState.FAILED, 1.0, 2.0, 3.0, 1.0, 1.0, 0.5, 0.1, 0.25, 1, 2, 3,
    "signal", 137, (NodeId("n0"),), 0.5, 100, simulated=True,
)  # fmt: skip
NODE_REPORT = report.NodeReport(
    NODE, "up", True, "upgrade", 0.25, AMOUNT, (report.DeviceReport(DEVICE, SEEN, "XID 79", 500, (KEY,)),), (KEY,),
    1.5, 9, 0.1,
)  # fmt: skip
STATUS = report.PoolStatus(
    "1", 2, "http://x", 3.0, 4.0, 5, 6, 7, 8, 9, 10, 11, AMOUNT, AMOUNT, 12, 13, 14, 15, False, 0.5, {"H100": 9}
)
TENANT = tenant.Tenant(TenantId("x"), 2.0, tenant.Quota(1, None), tenant.Quota(None, 2), 5)
QUEUE = tenant.Queue(QueueName("night"), -3, tenant.Quota(4, 5), paused=True)


@pytest.mark.parametrize(
    "kind,value",
    [
        (jobs.Job, JOB),
        (reports.WhyReport, WHY),
        (reports.Receipt, RECEIPT),
        (reports.NodeReport, NODE_REPORT),
        (reports.PoolStatus, STATUS),
        (reports.QueueLine, report.QueueLine(1, KEY, "n", TenantId("x"), "q", 2, SHAPE, 3.0, "why", ESTIMATE)),
        (tenants.TenantReport, report.TenantReport(TENANT, 0.5, 0.25, 0.3, AMOUNT, 1, 2)),
        (tenants.Queue, QUEUE),
        (tenants.UsageRow, UsageRow(TenantId("x"), 3600, 1.5, 2.5, 0.5)),
    ],
)
def test_what_is_written_reads_back_as_the_same_value(kind: type[Answer], value: object) -> None:
    assert msgspec.json.decode(kind.of(value).json_bytes(), type=type(value)) == value


@pytest.mark.parametrize(
    "kind,model,left_out",
    [
        # The request digest and the idempotency key are the controller's own.
        (jobs.Job, job.Job, {"idempotency_key", "request_digest"}),
        (jobs.JobSpec, job.JobSpec, set()),
        (jobs.Gang, job.Gang, set()),
        (jobs.Task, job.Task, set()),
        (jobs.TaskExit, job.TaskExit, set()),
        (jobs.JobSummary, report.JobSummary, set()),
        (jobs.JobRows, report.JobRows, set()),
        (reports.WhyReport, report.WhyReport, set()),
        (reports.Receipt, report.Receipt, set()),
        (reports.NodeReport, report.NodeReport, set()),
        (reports.DeviceReport, report.DeviceReport, set()),
        (reports.PoolStatus, report.PoolStatus, set()),
        (reports.QueueLine, report.QueueLine, set()),
        (tenants.TenantReport, report.TenantReport, set()),
        (tenants.Tenant, tenant.Tenant, set()),
        (tenants.Queue, tenant.Queue, set()),
        (tenants.Token, tenant.Token, {"digest"}),
    ],
)
def test_no_field_of_the_model_is_forgotten(kind: type[Answer], model: type, left_out: set[str]) -> None:
    assert set(kind.model_fields) == {field.name for field in msgspec.structs.fields(model)} - left_out


def test_a_row_says_what_became_of_a_job() -> None:
    row = msgspec.json.decode(jobs.JobSummary.of(JOB).json_bytes(), type=report.JobSummary)
    assert (row.id, row.elements, row.counts, row.restarts, row.moves) == ("12", 1, {"failed": 1}, 2, 1)
    assert (row.exit_cause, row.exit_code) == ("signal", 137)


def test_a_row_of_a_job_that_runs_names_its_nodes_and_no_code() -> None:
    task = job.Task(0, job.TaskState.RUNNING, PLACED)
    running = msgspec.structs.replace(
        JOB,
        state=job.JobState.RUNNING,
        gangs={0: job.Gang(0, (task, task), job.JobState.RUNNING)},
        exit_code=None,
        exit_cause=None,
    )
    row = jobs.JobSummary.of(running)
    assert (row.nodes, row.exit_code, row.exit_cause) == (["n0"], None, None)


def test_a_row_of_an_elastic_job_shows_the_size_that_it_got_and_how_far_it_is() -> None:
    small = resources.GangShape(1, resources.Demand(4_000, "H100", 4_000, 1_024))
    spec = msgspec.structs.replace(SPEC, shapes=(SHAPE, small))
    task = job.Task(0, job.TaskState.RUNNING, PLACED)
    gang = job.Gang(0, (task,), job.JobState.RUNNING, bid=offer.Bid(small))
    waiting = msgspec.structs.replace(JOB, spec=spec, state=job.JobState.PENDING, gangs={0: job.Gang(0, ())})
    row = jobs.JobSummary.of(waiting)
    assert (row.num_nodes, row.gpu_milli, row.progress) == (2, 1_500, None)
    row = jobs.JobSummary.of(msgspec.structs.replace(waiting, gangs={0: gang}), 0.25)
    assert (row.num_nodes, row.gpu_milli, row.progress) == (1, 4_000, 0.25)
    over = msgspec.structs.replace(gang, tasks=(job.Task(0, job.TaskState.SUCCEEDED, PLACED),), ended_at=5.0)
    earlier = msgspec.structs.replace(over, index=1, bid=offer.Bid(SHAPE), ended_at=4.0)
    row = jobs.JobSummary.of(msgspec.structs.replace(waiting, gangs={0: over, 1: earlier}))
    assert (row.num_nodes, row.gpu_milli) == (1, 4_000)
    later = msgspec.structs.replace(earlier, ended_at=6.0)
    row = jobs.JobSummary.of(msgspec.structs.replace(waiting, gangs={0: over, 1: later}))
    assert (row.num_nodes, row.gpu_milli) == (2, 1_500)


def test_a_row_of_a_finished_job_without_its_gangs_has_its_code_and_cause() -> None:
    row = jobs.JobSummary.of(msgspec.structs.replace(JOB, gangs={}, exit_code=143, exit_cause=job.Cause.MAX_DURATION))
    assert (row.exit_code, row.exit_cause, row.counts, row.elements) == (143, "max-duration", {}, 1)


def test_a_token_is_written_without_its_digest() -> None:
    token = tenant.Token("t1", "d" * 64, TenantId("x"), tenant.Role.USER, 1.0, "laptop")
    assert b"d" * 64 not in tenants.Token.of(token).json_bytes()


def test_requests_become_the_model() -> None:
    said = {"weight": 2.0, "guaranteed": {"gpu_milli": 1}, "limit": {"cpus_milli": 2}, "jobs_max": 5}
    assert tenants.TenantRequest.model_validate(said).to_model("x") == TENANT
    said = {"priority": -3, "limit": {"gpu_milli": 4, "cpus_milli": 5}, "paused": True}
    assert tenants.QueueRequest.model_validate(said).to_model("night") == QUEUE


@pytest.mark.parametrize("name", ["", "12", "a b", "../x", "a/b", "x" * 129, "\n"])
def test_a_name_of_a_tenant_follows_the_rule_of_the_job_file(name: str) -> None:
    with pytest.raises(ValidationError):
        tenants.NewTenant(id=name)
    with pytest.raises(InvalidField):
        tenants.checked_name(name)


# ---- the schema of a job -------------------------------------------------------------------------------------------


def test_the_schema_of_a_job_has_the_fields_that_are_read() -> None:
    assert list(requests.JobRequest.model_fields) == [*FIELDS, "files", "user"]


@given(asks())
def test_the_schema_of_a_job_is_not_narrower_than_what_is_read(ask: JobAsk) -> None:
    requests.JobRequest.model_validate(document_of(ask))


# ---- problem documents ---------------------------------------------------------------------------------------------


def test_a_problem_says_everything_that_is_wrong() -> None:
    error = InvalidField("must be a number", field="jobs[0].priority", hint="write 3", where="a:1:2")
    error.also = (Refusal("UNKNOWN_FIELD", "unknown field", "x"),)
    assert problem.Problem.of_error(error).model_dump() == {
        "code": "INVALID_FIELD",
        "message": "must be a number",
        "field": "jobs[0].priority",
        "hint": "write 3",
        "where": "a:1:2",
        "retryable": False,
        "status": 422,
        "also": [
            {
                "code": "UNKNOWN_FIELD",
                "message": "unknown field",
                "field": "x",
                "hint": None,
                "where": None,
                "retryable": False,
            }
        ],
    }


@pytest.mark.parametrize(
    "error,status,retryable",
    [
        (UsageError("x"), 400, False),
        (InvalidField("x"), 422, False),
        (Unauthenticated("x"), 401, False),
        (errors.Forbidden("x"), 403, False),
        (errors.NotFound("x"), 404, False),
        (errors.Conflict("x"), 409, False),
        (Stale("x"), 409, True),
        (TooManyJobs("x"), 429, True),
        (errors.Unavailable("x"), 503, True),
        (errors.StoreFull("x"), 500, False),
        (CorralError("x"), 500, False),
    ],
)
def test_the_status_follows_from_code_and_category(error: CorralError, status: int, retryable: bool) -> None:
    found = problem.Problem.of_error(error)
    assert (found.status, found.retryable) == (status, retryable)


def test_every_code_has_a_status() -> None:
    for kind in errors.by_code().values():
        assert 400 <= problem.status_of(kind("x")) <= 503
