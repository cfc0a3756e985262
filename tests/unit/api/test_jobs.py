"""Jobs over HTTP."""

from __future__ import annotations

import threading

import httpx
import pytest

from corral.model.errors import StoreFull, Unavailable
from tests.unit.api.conftest import Users, problem
from tests.unit.api.memory_pool import ADMIN, ALICE, BOB, EXIT_0, EXIT_3, JOBS_MAX
from tests.unit.api.serving import Served
from tests.waiting import wait_until

JOB = {"run": ["true"], "name": "a", "resources": {"accelerators": "H100:2"}, "num_nodes": 2, "array": "0-2"}


def test_a_submit_answers_with_the_job_as_a_row(http: Users) -> None:
    response = http(ALICE).submit(JOB)
    assert response.status_code == 201
    (row,) = response.json()["jobs"]
    assert {name: row[name] for name in ("id", "name", "tenant", "state", "elements", "num_nodes", "gpu_milli")} == {
        "id": "1",
        "name": "a",
        "tenant": "alice",
        "state": "pending",
        "elements": 3,
        "num_nodes": 2,
        "gpu_milli": 2000,
    }


def test_the_same_key_gives_the_same_jobs_and_other_jobs_are_refused(http: Users, server: Served) -> None:
    alice = http(ALICE)
    first, again = alice.submit(JOB, key="k"), alice.submit(JOB, key="k")
    assert first.json() == again.json()
    assert len(server.pool.all) == 1
    problem(alice.submit({"run": "other"}, key="k"), 409, "IDEMPOTENCY_MISMATCH")
    assert http(BOB).submit(JOB, key="k").json()["jobs"][0]["id"] == "2"
    problem(alice.submit(JOB, key="k" * 256), 422, "INVALID_FIELD")


@pytest.mark.parametrize(
    "body,status,code,field,hint",
    [
        (
            {"jobs": [{"run": "x", "gpus": 1}]},
            422,
            "UNKNOWN_FIELD",
            "jobs[0].gpus",
            "did you mean resources.accelerators?",
        ),
        ({"jobs": [{"run": "x", "num_node": 1}]}, 422, "UNKNOWN_FIELD", "jobs[0].num_node", "did you mean num_nodes?"),
        ({"jobs": [{"run": "x", "num_nodes": -1}]}, 422, "INVALID_FIELD", "jobs[0].num_nodes", None),
        ({"jobs": [{}]}, 422, "MISSING_FIELD", "jobs[0].run", "say what to run"),
        ({"job": []}, 422, "UNKNOWN_FIELD", "job", "did you mean jobs?"),
        ([], 422, "INVALID_FIELD", None, None),
        (
            {"jobs": [{"run": "x", "name": "a", "after": "b"}, {"run": "x", "name": "b", "after": "a"}]},
            422,
            "DEPENDENCY_CYCLE",
            "jobs[1].after",
            None,
        ),
        ({"jobs": [{"run": "x", "name": "a"}, {"run": "x", "name": "a"}]}, 422, "DUPLICATE_NAME", "jobs[1].name", None),
        ({"jobs": [{"run": "x", "file_mounts": {"../a": "/b"}}]}, 422, "PATH_UNSAFE", "jobs[0].file_mounts.../a", None),
    ],
)
def test_a_wrong_job_is_refused_and_nothing_is_admitted(
    http: Users, server: Served, body: object, status: int, code: str, field: str | None, hint: str | None
) -> None:
    found = problem(http()("POST", "/v1/jobs", json=body), status, code)
    assert (found["field"], found["hint"], found["retryable"]) == (field, hint, False)
    assert server.pool.all == {}


def test_all_that_is_wrong_is_told_at_once(http: Users) -> None:
    found = problem(http().submit({"run": "x", "grace": "soon", "priority": "high"}), 422, "INVALID_FIELD")
    assert [other["field"] for other in found["also"]] == ["jobs[0].priority"]


def test_too_many_jobs_say_when_to_come_again(http: Users) -> None:
    for _ in range(JOBS_MAX // 100):
        assert http().submit(*[{"run": "x"}] * 100).status_code == 201
    response = http().submit({"run": "x"})
    assert problem(response, 429, "TOO_MANY_JOBS")["retryable"] is True
    assert int(response.headers["retry-after"]) > 0


def test_jobs_are_listed_by_pages(http: Users, server: Served) -> None:
    alice = http(ALICE)
    alice.submit(*[{"run": "x"}] * 5)
    server.do(lambda: server.pool.finish("2", EXIT_0))
    first = alice("GET", "/v1/jobs", params={"limit": 3}).json()
    assert ([row["id"] for row in first["jobs"]], first["next_before"], first["total_live"]) == (["5", "4", "3"], 3, 4)
    second = alice("GET", "/v1/jobs", params={"limit": 3, "before": 3, "finished": True}).json()
    assert [(row["id"], row["exit_code"]) for row in second["jobs"]] == [("2", 0), ("1", None)]
    assert alice("GET", "/v1/jobs", params={"live": False}).json()["jobs"] == []


@pytest.mark.parametrize(
    "query,field",
    [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("before=-1", "before"),
        ("state=done", "state"),
        ("since=nan", "since"),
    ],
)
def test_a_wrong_query_is_refused(http: Users, query: str, field: str) -> None:
    assert problem(http()("GET", f"/v1/jobs?{query}"), 422, "INVALID_FIELD")["field"] == field


def test_an_unknown_parameter_names_the_nearest(http: Users) -> None:
    found = problem(http()("GET", "/v1/jobs?limt=5"), 422, "UNKNOWN_FIELD")
    assert (found["field"], found["hint"]) == ("limt", "did you mean limit?")


def test_a_job_is_read_by_number_and_name_with_some_of_its_gangs(http: Users) -> None:
    http(ALICE).submit(JOB)
    whole = http(ALICE)("GET", "/v1/jobs/a").json()
    assert (whole["id"], whole["spec"]["name"], list(whole["gangs"])) == ("1", "a", ["0", "1", "2"])
    assert [task["rank"] for task in whole["gangs"]["0"]["tasks"]] == [0, 1]
    part = http(ALICE)("GET", "/v1/jobs/1", params={"gangs_from": 1, "gangs_max": 1}).json()
    assert list(part["gangs"]) == ["1"]
    row = http(ALICE)("GET", "/v1/jobs/1/summary").json()
    assert (row["counts"], row["progress"]) == ({"pending": 3}, None)


def test_what_a_job_waits_for_and_costs(http: Users) -> None:
    http(ALICE).submit(JOB)
    assert http(ALICE)("GET", "/v1/jobs/1/why").json()["constraints"][0]["blocks"] == ["too few free devices"]
    receipt = http(ALICE)("GET", "/v1/jobs/1/receipt").json()
    assert (receipt["gpu_hours"], receipt["idle_share"]) == (0.25, None)


def test_the_history_of_a_job_is_its_facts(http: Users, server: Served) -> None:
    http(ALICE).submit(JOB)
    http(BOB).submit(JOB)
    server.do(lambda: server.pool.finish("1", EXIT_3))
    entries = http(ALICE)("GET", "/v1/jobs/1/history").json()["entries"]
    assert [(entry["seq"], entry["fact"]["kind"]) for entry in entries] == [(1, "job-submitted"), (3, "job-ended")]


def test_a_cancelled_job_is_a_row_and_an_ended_one_a_conflict(http: Users, server: Served) -> None:
    http(ALICE).submit(JOB)
    assert http(ALICE)("DELETE", "/v1/jobs/a").json()["id"] == "1"
    assert server.pool.all["1"].cancelled_by == "t1"
    server.do(lambda: server.pool.finish("1", EXIT_0))
    problem(http(ALICE)("DELETE", "/v1/jobs/1"), 409, "CONFLICT")


def test_a_wait_ends_with_the_job_or_with_its_time(http: Users, server: Served) -> None:
    http(ALICE).submit(JOB)
    assert http(ALICE)("GET", "/v1/jobs/1/wait", params={"timeout_s": 0}).json()["state"] == "pending"
    answers: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(http(ALICE)("GET", "/v1/jobs/1/wait")))
    waiting.start()
    server.do(lambda: server.pool.finish("1", EXIT_3))
    waiting.join(10)
    assert (answers[0].json()["state"], answers[0].json()["exit_code"]) == ("failed", 3)


def test_a_long_wait_does_not_hold_up_the_end_of_the_daemon(own_http: Users, own_server: Served) -> None:
    http, server = own_http, own_server
    http(ALICE).submit(JOB)
    answers: list[httpx.Response] = []
    waiting = threading.Thread(
        target=lambda: answers.append(http(ALICE)("GET", "/v1/jobs/1/wait", params={"timeout_s": 3600}))
    )
    waiting.start()
    wait_until(lambda: server.pool.waiting == 1)
    server.stop()
    waiting.join(10)
    assert problem(answers[0], 503, "UNAVAILABLE")["retryable"] is True


@pytest.mark.parametrize("path", ["", "/summary", "/wait", "/why", "/receipt", "/history", "/log", "/log?follow=true"])
def test_a_foreign_job_is_not_there(http: Users, path: str) -> None:
    http(ALICE).submit(JOB)
    problem(http(BOB)("GET", f"/v1/jobs/1{path}"), 404, "NOT_FOUND")
    assert http(ADMIN)(
        "GET", f"/v1/jobs/1{path.partition('?')[0]}", params={"timeout_s": 0} if path == "/wait" else {}
    ).is_success


def test_a_foreign_job_is_not_cancelled_listed_or_submitted(http: Users, server: Served) -> None:
    http(ALICE).submit(JOB)
    problem(http(BOB)("DELETE", "/v1/jobs/1"), 404, "NOT_FOUND")
    for query in ("", "?tenant=alice", "?tenant=bob", "?tenant=nobody"):
        assert http(BOB)("GET", f"/v1/jobs{query}").json()["jobs"] == []
    assert http(ALICE)("GET", "/v1/jobs?tenant=bob").json() == {"jobs": [], "next_before": None, "total_live": 0}
    assert len(http(ALICE)("GET", "/v1/jobs?tenant=alice").json()["jobs"]) == 1
    problem(http(BOB).submit({"run": "x", "tenant": "alice"}), 403, "FORBIDDEN")
    assert http(ADMIN).submit({"run": "x", "tenant": "alice"}).json()["jobs"][0]["tenant"] == "alice"
    assert len(server.pool.all) == 2


def test_faults_are_told_apart(http: Users, server: Served) -> None:
    server.pool.broken = Unavailable("the pool starts")
    response = http()("GET", "/v1/jobs/1")
    assert problem(response, 503, "UNAVAILABLE")["retryable"] is True
    assert response.headers["retry-after"] == "1"
    server.pool.broken = StoreFull("the disk is full")
    assert problem(http()("GET", "/v1/jobs/1"), 500, "STORE_FULL")["message"] == "the disk is full"
    server.pool.broken = ZeroDivisionError("secret")
    found = problem(http()("GET", "/v1/jobs/1"), 500, "CORRAL")
    assert found["message"] == "the pool made a mistake (ZeroDivisionError)"
    server.pool.broken = None
    assert http().submit(JOB).status_code == 201
