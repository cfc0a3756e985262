"""Nodes, tenants, queues, tokens, usage and the end of the daemon over HTTP."""

from __future__ import annotations

import threading

import pytest

from corral.model.ids import NodeId, TenantId
from corral.model.job import JobState
from corral.model.plan import NewNodes, PlanAsk
from tests.unit.api.conftest import Users, problem
from tests.unit.api.memory_pool import ADMIN, ALICE, MemoryPool
from tests.unit.api.serving import Served, served


def test_what_the_pool_looks_like(http: Users) -> None:
    alice = http(ALICE)
    assert alice("GET", "/v1/status").json()["models"] == {"H100": 1}
    (node,) = alice("GET", "/v1/nodes").json()["nodes"]
    assert (node["spec"]["id"], node["devices"][0]["state"]["memory_used_mib"]) == ("n0", 12)
    assert node["devices"][0]["state"]["power_w"] is None
    alice.submit({"run": "x", "name": "a"})
    (line,) = alice("GET", "/v1/queue?limit=5").json()["lines"]
    assert (line["key"], line["name"]) == ({"job": "1", "gang": 0}, "a")


def test_the_ledger_looks_back_up_to_a_week(http: Users) -> None:
    alice = http(ALICE)
    found = alice("GET", "/v1/ledger?hours=2").json()
    assert (found["lines"][0]["tenant"], found["lines"][0]["active_s"]) == ("alice", 7_200)
    assert found["preemptions"][0]["preemption"] == {
        "kind": "room",
        "beneficiary": "9",
        "tenant": "bob",
        "lost_s": 30.0,
    }
    assert problem(alice("GET", "/v1/ledger?hours=169"), 422, "INVALID_FIELD")["field"] == "hours"


def test_a_plan_is_asked_for_in_one_body(http: Users, server: Served) -> None:
    body = {
        "jobs": [{"name": "try", "run": "x", "num_gpus": 2}],
        "weights": {"alice": 2.5},
        "drain": ["n0"],
        "add": [{"count": 4, "like": "n0"}, {"count": 1}],
        "horizon_s": 3_600,
    }
    report = http()("POST", "/v1/plan", json=body).json()
    assert (report["submitted"][0]["start"], report["submitted"][0]["end"], report["until"]) == (5.0, None, 3_601.0)
    (asked,) = server.pool.planned
    assert asked == PlanAsk(
        submit=asked.submit,
        weights={TenantId("alice"): 2.5},
        drain=(NodeId("n0"),),
        add=(NewNodes(4, NodeId("n0")), NewNodes(1)),
        horizon_s=3_600.0,
    )
    assert (asked.submit[0].name, asked.submit[0].gpu_milli) == ("try", 2_000)


@pytest.mark.parametrize(
    "body,field",
    [
        ({"weights": {"alice": 0}}, "weights.alice"),
        ({"add": [{"count": 0}]}, "add[0].count"),
        ({"horizon_s": 1}, "horizon_s"),
        ({"jobs": [{"run": "x", "num_gpus": -1}]}, "jobs[0].num_gpus"),
        ({"drian": ["n0"]}, "drian"),
    ],
)
def test_a_wrong_plan_names_its_field(http: Users, body: dict[str, object], field: str) -> None:
    refused = http()("POST", "/v1/plan", json=body)
    assert (refused.status_code, refused.json()["field"]) == (422, field)


def test_a_pool_that_no_machine_can_join_makes_no_token_for_that(http: Users) -> None:
    before = http()("GET", "/v1/tokens").json()
    problem(http()("POST", "/v1/tokens", json={"tenant": "default", "role": "join"}), 409, "CONFLICT")
    assert http()("GET", "/v1/tokens").json() == before


def test_a_node_is_emptied(http: Users) -> None:
    assert http()("POST", "/v1/nodes/n0/cordon", json={"reason": "new driver", "drain": True}).status_code == 204
    assert http()("GET", "/v1/nodes").json()["nodes"][0]["draining"] is True
    assert http()("POST", "/v1/nodes/n0/uncordon").status_code == 204
    assert http()("GET", "/v1/nodes").json()["nodes"][0]["draining"] is False


def test_a_node_is_cordoned_with_a_reason(http: Users) -> None:
    assert http()("POST", "/v1/nodes/n0/cordon", json={"reason": "new driver"}).status_code == 204
    assert http()("GET", "/v1/nodes").json()["nodes"][0]["cordon_reason"] == "new driver"
    assert http()("POST", "/v1/nodes/n0/uncordon").status_code == 204
    assert http()("POST", "/v1/nodes/n0/cordon").status_code == 204
    problem(http()("POST", "/v1/nodes/n9/cordon"), 404, "NOT_FOUND")
    problem(http()("DELETE", "/v1/nodes/n0"), 409, "CONFLICT")
    problem(http()("POST", "/v1/nodes/n0/cordon", json={"reson": "x"}), 422, "UNKNOWN_FIELD")


def test_a_maintenance_is_started_looked_at_and_stopped(http: Users) -> None:
    assert http(ALICE)("GET", "/v1/maintenance").json()["active"] is False
    started = http()("POST", "/v1/maintenance", json={"duration_s": 1800, "reason": "new disks"})
    assert started.status_code == 200
    assert started.json() == {
        "active": True,
        "started_at": 50.0,
        "until": 1850.0,
        "left_s": 1800.0,
        "by": "me",
        "reason": "new disks",
        "ready": [],
        "missing": ["n0"],
        "holding": [],
    }
    assert http()("GET", "/v1/maintenance").json() == started.json()
    assert http()("DELETE", "/v1/maintenance").json()["active"] is False
    problem(http()("DELETE", "/v1/maintenance"), 409, "CONFLICT")
    for wrong in (0, 59, 7 * 86_400 + 1, "1800 s", None):
        problem(http()("POST", "/v1/maintenance", json={"duration_s": wrong}), 422, "INVALID_FIELD")


def test_tenants_are_added_changed_and_removed(http: Users) -> None:
    admin = http()
    new = {"id": "vision", "weight": 2, "limit": {"gpu_milli": 4000}}
    assert admin("POST", "/v1/tenants", json=new).status_code == 204
    problem(admin("POST", "/v1/tenants", json=new), 422, "DUPLICATE_NAME")
    assert admin("PUT", "/v1/tenants/vision", json={"weight": 3}).status_code == 204
    report = admin("GET", "/v1/tenants").json()["tenants"][-1]
    assert (report["tenant"]["weight"], report["tenant"]["limit"]) == (3.0, {"gpu_milli": None, "cpus_milli": None})
    assert admin("DELETE", "/v1/tenants/vision").status_code == 204
    problem(admin("PUT", "/v1/tenants/vision", json={}), 404, "NOT_FOUND")
    assert [r["tenant"]["id"] for r in http(ALICE)("GET", "/v1/tenants").json()["tenants"]] == ["alice"]


@pytest.mark.parametrize(
    "body,code,field,message",
    [
        ({}, "MISSING_FIELD", "id", "is missing"),
        ({"id": "a b"}, "INVALID_FIELD", "id", '"a b" is not a name'),
        ({"id": 5}, "INVALID_FIELD", "id", 'must be a valid string, not "5"'),
        ({"id": "a", "weight": -1}, "INVALID_FIELD", "weight", 'must be greater than 0, not "-1"'),
        ({"id": "a", "weight": "heavy"}, "INVALID_FIELD", "weight", "must be a valid number"),
        ({"id": "a", "wieght": 1}, "UNKNOWN_FIELD", "wieght", "unknown field"),
        ({"id": "a", "limit": {"gpus": 1}}, "UNKNOWN_FIELD", "limit.gpus", "unknown field"),
        ({"id": "a", "limit": {"gpu_milli": 1.5}}, "INVALID_FIELD", "limit.gpu_milli", "must be a valid integer"),
        ({"id": "a", "limit": 5}, "INVALID_FIELD", "limit", "must be a JSON object"),
        ({"id": "a", "jobs_max": 10**30}, "INVALID_FIELD", "jobs_max", "must be less than"),
        ([], "INVALID_FIELD", None, "must be a JSON object"),
    ],
)
def test_a_wrong_tenant_is_refused(http: Users, body: object, code: str, field: str | None, message: str) -> None:
    found = problem(http()("POST", "/v1/tenants", json=body), 422, code)
    assert found["field"] == field
    assert found["message"].startswith(message)


def test_a_name_in_a_path_follows_the_same_rule(http: Users) -> None:
    assert problem(http()("PUT", "/v1/tenants/12", json={}), 422, "INVALID_FIELD")["field"] == "name"
    assert problem(http()("PUT", "/v1/queues/a%20b", json={}), 422, "INVALID_FIELD")["field"] == "name"


def test_queues_are_added_changed_and_removed(http: Users) -> None:
    admin = http()
    assert admin("POST", "/v1/queues", json={"name": "night", "priority": -3}).status_code == 204
    assert admin("PUT", "/v1/queues/night", json={"paused": True, "limit": {"gpu_milli": 1}}).status_code == 204
    assert admin("GET", "/v1/queues").json()["queues"][-1] == {
        "name": "night",
        "priority": 0,
        "limit": {"gpu_milli": 1, "cpus_milli": None},
        "paused": True,
    }
    assert admin("DELETE", "/v1/queues/night").status_code == 204
    problem(admin("DELETE", "/v1/queues/night"), 404, "NOT_FOUND")


def test_a_token_opens_the_pool_until_it_is_revoked(http: Users) -> None:
    admin = http()
    made = admin("POST", "/v1/tokens", json={"tenant": "alice", "label": "laptop"})
    assert made.status_code == 201
    token, secret = made.json()["token"], made.json()["secret"]
    assert (token["tenant"], token["role"], token["label"]) == ("alice", "user", "laptop")
    assert admin("GET", "/v1/tokens").json() == {"tokens": [token]}
    assert http(secret)("GET", "/v1/status").status_code == 200
    assert admin("DELETE", f"/v1/tokens/{token['id']}").status_code == 204
    problem(http(secret)("GET", "/v1/status"), 401, "UNAUTHENTICATED")
    problem(admin("POST", "/v1/tokens", json={"tenant": "alice", "role": "king"}), 422, "INVALID_FIELD")


def test_usage_is_told_by_hour(http: Users) -> None:
    (row,) = http(ALICE)("GET", "/v1/usage?since=0&until=7200").json()["rows"]
    assert (row["tenant"], row["hour"], row["gpu_milli_s"]) == ("alice", 3600, 1.5)
    assert problem(http()("GET", "/v1/usage?since=5&until=4"), 422, "INVALID_FIELD")["field"] == "until"
    assert problem(http()("GET", "/v1/usage?since=5"), 422, "MISSING_FIELD")["field"] == "until"
    problem(http()("GET", "/v1/usage?since=nan&until=4"), 422, "INVALID_FIELD")


@pytest.mark.parametrize(
    "method,path,body",
    [
        ("POST", "/v1/nodes/n0/cordon", None),
        ("POST", "/v1/nodes/n0/uncordon", None),
        ("DELETE", "/v1/nodes/n0", None),
        ("POST", "/v1/maintenance", {"duration_s": 600}),
        ("DELETE", "/v1/maintenance", None),
        ("POST", "/v1/tenants", {"id": "x"}),
        ("PUT", "/v1/tenants/alice", {"weight": 99}),
        ("DELETE", "/v1/tenants/bob", None),
        ("POST", "/v1/queues", {"name": "x"}),
        ("PUT", "/v1/queues/default", {}),
        ("DELETE", "/v1/queues/default", None),
        ("POST", "/v1/tokens", {"tenant": "alice", "role": "admin"}),
        ("DELETE", "/v1/tokens/t0", None),
        ("POST", "/v1/stop", {"tasks": "stop"}),
    ],
)
def test_a_user_does_not_change_the_pool(http: Users, method: str, path: str, body: object) -> None:
    problem(http(ALICE)(method, path, **({"json": body} if body is not None else {})), 403, "FORBIDDEN")


def test_the_daemon_stops_after_the_answer_and_not_with_live_tasks_unless_told() -> None:
    pool, stopped = MemoryPool(), threading.Event()
    with served(pool, on_stop=stopped.set) as server:
        users = Users(server.url)
        admin = users(ADMIN)
        admin.submit({"run": "x"})
        server.do(lambda: setattr(pool.all["1"], "state", JobState.RUNNING))
        problem(admin("POST", "/v1/stop"), 409, "JOBS_RUNNING")
        problem(admin("POST", "/v1/stop", json={"tasks": "kill"}), 422, "INVALID_FIELD")
        assert (pool.stopped_tasks, stopped.is_set()) == (None, False)
        assert admin("POST", "/v1/stop", json={"tasks": "leave"}).json() == {"tasks_left": 1}
        assert stopped.wait(10)
        assert pool.stopped_tasks is False
        assert admin("POST", "/v1/stop", json={"tasks": "stop"}).json() == {"tasks_left": 0}
        users.close()


def test_a_pool_that_somebody_else_stops_says_so(http: Users) -> None:
    problem(http()("POST", "/v1/stop"), 409, "CONFLICT")
