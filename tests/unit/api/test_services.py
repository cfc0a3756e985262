"""Services over HTTP: who may ask what, how bodies are refused, and how front ends are told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from corral.client import Client
from corral.model.errors import Conflict, InvalidField, NotFound
from corral.model.ids import TenantId
from corral.model.routes import FrontEndReport, RouteLoad, RoutingTable
from corral.model.tenant import Role
from corral.ports.pool import Principal
from corral.ports.services import Services
from tests.unit.api.conftest import Users, problem
from tests.unit.api.memory_pool import ADMIN, ALICE, BOB, NODE
from tests.unit.api.memory_services import MemoryServices
from tests.unit.api.serving import Served
from tests.waiting import wait_until

FRONT, CALLER = "front-secret", "caller-secret"


@pytest.fixture
def services(server: Served) -> Iterator[MemoryServices]:
    server.pool.principals[FRONT] = Principal(TenantId("default"), Role.FRONT, "t8")
    server.pool.principals[CALLER] = Principal(TenantId("alice"), Role.CALLER, "t9")
    made = MemoryServices()
    checked: Services = made
    server.app.state.services = checked
    yield made
    server.app.state.services = None


SMALL: dict[str, Any] = {"service": {"run": "serve", "replicas": "2-8"}}


def test_a_service_is_made_changed_and_removed(http: Users, services: MemoryServices) -> None:
    alice = http(ALICE)
    made = alice("PUT", "/v1/services/chat", json=SMALL)
    assert made.status_code == 200, made.text
    told = made.json()
    assert (told["name"], told["tenant"], told["replicas_max"], told["rollout"]) == ("chat", "alice", 8, None)
    assert told["revisions"][0]["spec"]["replica"] == {"script": "serve"}
    again = alice("PUT", "/v1/services/chat", json={**SMALL, "canary_percent": 10}).json()
    assert (again["rollout"]["revision"], again["rollout"]["canary_percent"]) == (2, 10)
    assert alice("POST", "/v1/services/chat/scale", json={"replicas": 5}).json()["wanted"] == 5
    widened = alice("POST", "/v1/services/chat/rollout/widen", json={"canary_percent": 50}).json()
    assert widened["rollout"]["canary_percent"] == 50
    assert alice("POST", "/v1/services/chat/rollout/widen").json()["rollout"]["canary_percent"] is None
    assert alice("POST", "/v1/services/chat/rollout/undo", json={"revision": 1}).json()["rollout"] is None
    assert alice("POST", "/v1/services/chat/rollout/undo").status_code == 200
    problem(alice("POST", "/v1/services/chat/rollout/widen"), 409, "CONFLICT")
    assert [one["name"] for one in alice("GET", "/v1/services").json()["services"]] == ["chat"]
    assert alice("DELETE", "/v1/services/chat").status_code == 204
    problem(alice("GET", "/v1/services/chat"), 404, "NOT_FOUND")


def test_foreign_services_are_not_there(http: Users, services: MemoryServices) -> None:
    http(ALICE)("PUT", "/v1/services/chat", json=SMALL)
    bob = http(BOB)
    assert bob("GET", "/v1/services").json() == {"services": []}
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/scale"),
        ("POST", "/rollout/widen"),
        ("POST", "/rollout/undo"),
    ):
        body = {"json": {"replicas": 1}} if path == "/scale" else {}
        problem(bob(method, f"/v1/services/chat{path}", **body), 404, "NOT_FOUND")
    assert len(http(ADMIN)("GET", "/v1/services").json()["services"]) == 1


@pytest.mark.parametrize("token", [NODE, FRONT, CALLER])
def test_tokens_of_machines_and_api_keys_do_not_change_services(
    http: Users, services: MemoryServices, token: str
) -> None:
    problem(http(token)("GET", "/v1/services"), 403, "FORBIDDEN")
    problem(http(token)("PUT", "/v1/services/chat", json=SMALL), 403, "FORBIDDEN")


@pytest.mark.parametrize(
    "body,status,code,field",
    [
        ({}, 422, "MISSING_FIELD", "service"),
        ({"service": {"run": "x", "replicas": "8-2"}}, 422, "INVALID_FIELD", "service.replicas"),
        ({"service": {"run": "x", "array": 3}}, 422, "INVALID_FIELD", "service.array"),
        ({"service": {"run": "x", "name": "other"}}, 422, "INVALID_FIELD", "service.name"),
        ({"service": {"run": "x", "trafic": {}}}, 422, "UNKNOWN_FIELD", "service.trafic"),
        ({"service": {"run": "x"}, "canary_percent": 0}, 422, "INVALID_FIELD", "canary_percent"),
    ],
)
def test_a_wrong_service_is_refused(
    http: Users, services: MemoryServices, body: dict[str, Any], status: int, code: str, field: str
) -> None:
    assert problem(http(ALICE)("PUT", "/v1/services/chat", json=body), status, code)["field"] == field
    assert services.specs == {}


def test_a_name_that_no_service_can_have_is_refused(http: Users, services: MemoryServices) -> None:
    found = problem(http(ALICE)("PUT", "/v1/services/Chat", json=SMALL), 422, "INVALID_FIELD")
    assert found["field"] == "service.name"


@pytest.mark.parametrize("replicas", [-1, 1_001, 1.5, None])
def test_a_wrong_number_of_replicas_is_refused(http: Users, services: MemoryServices, replicas: object) -> None:
    found = problem(http(ALICE)("POST", "/v1/services/chat/scale", json={"replicas": replicas}), 422, "INVALID_FIELD")
    assert found["field"] == "replicas"


def test_a_pool_without_services_says_so(http: Users) -> None:
    assert "has no services" in problem(http(ALICE)("GET", "/v1/services"), 404, "NOT_FOUND")["message"]


def test_only_an_admin_breaks_things(http: Users, services: MemoryServices) -> None:
    http(ALICE)("PUT", "/v1/services/chat", json=SMALL)
    body = {"json": {"what": "replica", "target": "2"}}
    problem(http(ALICE)("POST", "/v1/services/chat/drill", **body), 403, "FORBIDDEN")
    assert http(ADMIN)("POST", "/v1/services/chat/drill", **body).json() == {"hit": "replica 2"}


# ---- front ends ------------------------------------------------------------------------------------------------------

REPORT = FrontEndReport("f1", "http://127.0.0.1:7480", 1, "first")


def test_front_ends_report_and_people_see_them(http: Users, services: MemoryServices) -> None:
    said = msgspec.to_builtins(REPORT)
    problem(http(ALICE)("POST", "/v1/frontends", json=said), 403, "FORBIDDEN")
    assert http(FRONT)("POST", "/v1/frontends", json=said).status_code == 204
    assert services.reports == [REPORT]
    assert [one["name"] for one in http(ALICE)("GET", "/v1/frontends").json()["front_ends"]] == ["f1"]


def test_routes_are_told_to_front_ends_alone(http: Users, services: MemoryServices) -> None:
    for token in (ALICE, NODE, CALLER):
        problem(http(token)("GET", "/v1/routes"), 403, "FORBIDDEN")
    assert http(FRONT)("GET", "/v1/routes").json()["digest"] == "first"
    assert http(ADMIN)("GET", "/v1/routes").json()["digest"] == "first"


def test_who_knows_the_table_waits_for_the_next_one(server: Served, services: MemoryServices) -> None:
    with Client(server.url, FRONT) as client, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(client.routes, "first", 20.0)
        wait_until(lambda: services.waiting == 1, what="the front end to wait")
        server.do(lambda: services.tables.publish(RoutingTable(2, "second")))
        assert asked.result(10) == RoutingTable(2, "second")
        began = time.monotonic()
        assert client.routes("second", 0.05).digest == "second"
        assert time.monotonic() - began >= 0.05


def test_a_pool_that_stops_does_not_keep_front_ends_waiting(own_server: Served, own_http: Users) -> None:
    own_server.pool.principals[FRONT] = Principal(TenantId("default"), Role.FRONT, "t8")
    services = own_server.app.state.services = MemoryServices()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(own_http(FRONT), "GET", "/v1/routes?after=first")
        wait_until(lambda: services.waiting == 1, what="the front end to wait")
        own_server.stop()
        problem(asked.result(10), 503, "UNAVAILABLE")


# ---- the SDK ---------------------------------------------------------------------------------------------------------


def test_the_sdk_makes_and_changes_services(server: Served, services: MemoryServices) -> None:
    with Client(server.url, ALICE) as client:
        made = client.serve(
            name="chat", run=["serve", "--fast"], gpus=1, gpu_model="H100", replicas="2-8", workdir=None
        )
        assert (made.tenant, made.replicas_min, made.revisions[0].spec.replica.argv) == (
            "alice",
            2,
            ("serve", "--fast"),
        )
        assert made.revisions[0].spec.replica.gpu_model == "H100"
        spec = made.revisions[0].spec
        rollout = client.serve(spec, canary_percent=5).rollout
        assert rollout is not None
        assert rollout.canary_percent == 5
        assert client.scale("chat", 3).wanted == 3
        assert client.widen_rollout("chat").name == "chat"
        assert client.undo_rollout("chat").rollout is None
        with pytest.raises(Conflict):
            client.widen_rollout("chat", 20)
        assert [one.name for one in client.services()] == [client.service("chat").name]
        client.remove_service("chat")
        with pytest.raises(NotFound):
            client.service("chat")


def test_the_sdk_refuses_what_is_wrong_before_it_is_sent(server: Served, services: MemoryServices) -> None:
    with Client(server.url, ALICE) as client, pytest.raises(InvalidField) as caught:
        client.serve(name="chat", run="x", gpus=-1)
    assert caught.value.refusal.field == "gpus"


def test_the_sdk_of_a_front_end_reports_what_it_sees(server: Served, services: MemoryServices) -> None:
    with Client(server.url, FRONT) as client:
        report = msgspec.structs.replace(REPORT, loads=(RouteLoad("chat", waiting=2),))  # type: ignore[arg-type]
        client.report_front_end(report)
    assert services.reports == [report]
    with Client(server.url, ALICE) as client:
        assert client.front_ends()[0].name == "f1"
