"""A controller that stands by: where it sends callers, what it answers all the same, and how it becomes the leader."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from corral.api.app import serve_pool
from corral.api.elsewhere import Elsewhere
from corral.client import Client
from tests.unit.api.conftest import Http
from tests.unit.api.memory_pool import ADMIN, MemoryPool
from tests.unit.api.serving import Served


@pytest.fixture
def http(own_server: Served) -> Iterator[Http]:
    found = Http(own_server.url, ADMIN)
    yield found
    found.client.close()


def stand_by(server: Served, leader: str) -> None:
    server.do(lambda: serve_pool(server.app, Elsewhere(lambda: leader)))


def test_callers_are_sent_to_the_leader_with_path_and_query(own_server: Served, http: Http) -> None:
    stand_by(own_server, "https://leader:7420")
    found = http("GET", "/v1/jobs/a%20b?limit=3&x=%26")
    assert found.status_code == 307
    assert found.headers["Location"] == "https://leader:7420/v1/jobs/a%20b?limit=3&x=%26"
    problem = json.loads(found.content)
    assert (problem["code"], problem["retryable"]) == ("NOT_LEADER", True)
    assert http.submit({"run": "true"}).status_code == 307
    # Whoever has no token learns no more than where to show one.
    assert http("GET", "/v1/status", headers={"Authorization": ""}).status_code == 307


def test_without_a_leader_they_are_told_to_come_again(own_server: Served, http: Http) -> None:
    stand_by(own_server, "")
    found = http("GET", "/v1/status")
    assert (found.status_code, found.headers["Retry-After"]) == (503, "1")
    assert json.loads(found.content)["code"] == "NOT_LEADER"
    assert "Location" not in found.headers


def test_health_and_the_description_are_answered_by_any_controller(own_server: Served, http: Http) -> None:
    stand_by(own_server, "")
    assert http("GET", "/v1/health").json()["leads"] is False
    assert http("GET", "/v1/openapi.json").status_code == 200
    own_server.do(lambda: serve_pool(own_server.app, MemoryPool()))
    assert http("GET", "/v1/health").json()["leads"] is True


def test_a_stream_of_a_leader_that_is_deposed_breaks_off_to_be_resumed(own_server: Served, http: Http) -> None:
    with http.client.stream("GET", "/v1/events") as events:
        assert events.status_code == 200
        stand_by(own_server, "https://leader:7420")
        assert b"event: end" not in b"".join(events.iter_raw())


def test_a_client_of_two_heads_gets_its_answer_from_the_one_that_leads(own_server: Served, server: Served) -> None:
    stand_by(own_server, server.url)
    with Client(token=ADMIN, urls=(own_server.url, server.url)) as client:
        assert client.status().version
