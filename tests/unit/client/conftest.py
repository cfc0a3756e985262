"""Clients of a pool in memory behind a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from corral.client import Client
from tests.unit.api.conftest import own_server, server, shared_server
from tests.unit.api.memory_pool import ADMIN, ALICE
from tests.unit.api.serving import Served

__all__ = ["own_server", "server", "shared_server"]


@pytest.fixture(autouse=True)
def _no_pool_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CORRAL_URL", "CORRAL_TOKEN", "CORRAL_STATE_DIR", "CORRAL_CA_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def alice(server: Served) -> Iterator[Client]:
    with Client(server.url, ALICE) as client:
        yield client


@pytest.fixture
def admin(server: Served) -> Iterator[Client]:
    with Client(server.url, ADMIN) as client:
        yield client
