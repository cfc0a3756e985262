"""A pool in memory behind a real server, and raw HTTP to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from tests.unit.api.memory_pool import ADMIN, MemoryPool
from tests.unit.api.serving import Served, served


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Served]:
    with served(MemoryPool()) as running:
        yield running


@pytest.fixture
def server(shared_server: Served) -> Served:
    """Give a server with a fresh pool. Starting one costs more than most tests."""
    shared_server.use(MemoryPool())
    return shared_server


@pytest.fixture
def own_server() -> Iterator[Served]:
    """Give a server that the test may stop."""
    with served(MemoryPool()) as running:
        yield running


class Http:
    """Raw requests with a token."""

    def __init__(self, url: str, token: str | None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.client = httpx.Client(base_url=url, headers=headers, timeout=10, trust_env=False)

    def __call__(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        return self.client.request(method, path, **kwargs)

    def submit(self, *jobs: Mapping[str, object], key: str | None = None) -> httpx.Response:
        headers = {"Idempotency-Key": key} if key else {}
        return self("POST", "/v1/jobs", json={"jobs": list(jobs)}, headers=headers)


class Users:
    """One `Http` for each token."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open: list[Http] = []

    def __call__(self, token: str | None = ADMIN) -> Http:
        self._open.append(Http(self._url, token))
        return self._open[-1]

    def close(self) -> None:
        for http in self._open:
            http.client.close()


@pytest.fixture
def http(server: Served) -> Iterator[Users]:
    users = Users(server.url)
    yield users
    users.close()


@pytest.fixture
def own_http(own_server: Served) -> Iterator[Users]:
    users = Users(own_server.url)
    yield users
    users.close()


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Return a problem document after checking that it is a whole one."""
    found: dict[str, Any] = response.json()
    assert (response.status_code, found["code"], found["status"]) == (status, code, status), found
    assert response.headers["content-type"] == "application/problem+json"
    assert set(found) == {"code", "message", "field", "hint", "where", "retryable", "status", "also"}
    assert found["message"].isprintable()
    return found


def events(text: str) -> list[tuple[str, str | None, Any]]:
    """Return (event, id, data) of a stream's text."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return found
