"""The guard of replicas, in front of real servers and as plain calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, MutableMapping
from typing import Any

import pytest

from corral import guard
from corral.guard import AsgiGuard, WsgiGuard, admits
from corral.model.routes import GUARD_HEADER


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_FRONT_END_TOKEN", "s3cret")


def test_it_speaks_of_the_header_that_front_ends_send() -> None:
    assert guard.HEADER == GUARD_HEADER


@pytest.mark.parametrize("shown", [None, "", "S3cret", "s3cret ", "s3cre", b"s3cret\n", "\u00e9", "\udcff"])
def test_strangers_are_not_admitted(shown: str | bytes | None) -> None:
    assert not admits(shown)


def test_front_ends_are_and_without_a_token_everybody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert admits("s3cret")
    assert admits(b"s3cret")
    monkeypatch.delenv("CORRAL_FRONT_END_TOKEN")
    assert admits(None)
    assert admits("anything")


Message = MutableMapping[str, Any]


def through(kind: str, *headers: tuple[bytes, bytes]) -> tuple[list[Message], list[Message]]:
    """Return the scopes that reached the application, and what was sent."""
    reached: list[Message] = []
    sent: list[Message] = []

    async def app(scope: Message, _receive: object, _send: object) -> None:
        reached.append(scope)

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(AsgiGuard(app)({"type": kind, "headers": list(headers)}, receive, send))
    return reached, sent


def test_an_asgi_application_sees_front_ends_only_and_not_their_token() -> None:
    accept = (b"accept", b"*/*")
    reached, sent = through("http", accept, (b"X-Corral-Front-End-Token", b"s3cret"))
    assert reached == [{"type": "http", "headers": [accept]}]
    assert sent == []
    reached, sent = through("http", accept, (b"x-corral-front-end-token", b"wrong"))
    assert reached == []
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 403


def test_two_tokens_are_none() -> None:
    name = b"x-corral-front-end-token"
    assert through("http", (name, b"s3cret"), (name, b"s3cret"))[0] == []


def test_a_web_socket_of_a_stranger_is_closed_before_it_opens() -> None:
    reached, sent = through("websocket")
    assert (reached, sent) == ([], [{"type": "websocket.close", "code": 1008}])
    assert through("websocket", (b"x-corral-front-end-token", b"s3cret"))[0] != []


def test_the_life_of_an_application_is_nobody_s_request() -> None:
    assert through("lifespan")[0] == [{"type": "lifespan", "headers": []}]


def test_a_wsgi_application_sees_front_ends_only_and_not_their_token() -> None:
    reached: list[dict[str, Any]] = []
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def app(environ: dict[str, Any], _start: object) -> Iterable[bytes]:
        reached.append(environ)
        return [b"hello"]

    def start(status: str, headers: list[tuple[str, str]]) -> None:
        started.append((status, headers))

    guarded = WsgiGuard(app)
    assert guarded({"PATH_INFO": "/", "HTTP_X_CORRAL_FRONT_END_TOKEN": "s3cret"}, start) == [b"hello"]
    assert reached == [{"PATH_INFO": "/"}]
    body = b"".join(guarded({"PATH_INFO": "/"}, start))
    assert len(reached) == 1
    assert started == [
        ("403 Forbidden", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]),
    ]
