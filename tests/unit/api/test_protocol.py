"""What comes before a request is known is bounded in bytes and in time; what is no request is answered all the same."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from corral.api import protocol
from tests.unit.api.conftest import Users
from tests.unit.api.memory_pool import ADMIN
from tests.unit.api.serving import Served

LINE = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n"


@contextmanager
def connected(server: Served) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        yield raw


def told(raw: socket.socket) -> tuple[int, Any]:
    """Return (status, problem) of the answer after which the connection ends."""
    answer = b""
    while piece := raw.recv(65536):
        answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Content-Type: application/problem+json" in head
    assert b"Connection: close" in head
    return int(head.split()[1]), json.loads(body)


def refused_at(server: Served, pieces: Iterable[bytes]) -> tuple[int, Any] | None:
    """Send pieces until the connection is ended; return the answer, ``None`` when it was lost with the connection."""
    with connected(server) as raw:
        try:
            for piece in pieces:
                raw.sendall(piece)
        except OSError:
            pass
        else:
            raise AssertionError("everything was taken")
        try:
            return told(raw)
        except OSError:
            return None


@pytest.mark.parametrize("begin", [b"GET /", LINE + b"X: ", b"", LINE + b"X-"])
def test_a_head_without_end_is_not_kept(server: Served, http: Users, begin: bytes) -> None:
    answer = refused_at(server, [begin, *([b"a" * 65_536 if begin else b"\r\n" * 32_768] * 1_000)])
    assert answer is None or (answer[0], answer[1]["code"]) == (431, "USAGE")
    assert http()("GET", "/v1/status").status_code == 200


def test_very_many_headers_are_not_kept(server: Served) -> None:
    many = b"".join(b"X-%d: %s\r\n" % (i, b"b" * 1_000) for i in range(60))
    answer = refused_at(server, [LINE, *([many] * 1_000)])
    assert answer is None or answer[0] == 431


def test_a_large_head_that_ends_is_read(http: Users) -> None:
    assert http()("GET", "/v1/status", headers={"X-Long": "x" * 40_000}).status_code == 200


@pytest.mark.parametrize("begun", [b"", b"GET /v1/hea", LINE + b"X: y\r\n"])
def test_a_head_that_does_not_come_ends_the_connection(
    own_server: Served, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_S_MAX", 0.2)
    with connected(own_server) as raw:
        raw.sendall(begun)
        status, problem = told(raw)
    assert (status, problem["message"]) == (408, "the request's head did not come within 0.2 s")


def test_a_kept_connection_may_be_idle_but_not_dally(own_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(own_server) as raw:
        raw.sendall(LINE + b"\r\n")
        assert b"200 OK" in raw.recv(65536)
        monkeypatch.setattr(protocol, "HEAD_S_MAX", 0.2)
        raw.sendall(b"GET /v1/health HT")
        assert told(raw)[0] == 408


def test_requests_on_the_heels_of_a_large_body_are_read(server: Served) -> None:
    body = b'{"jobs": [{"run": "x"}]}'.ljust(200_000)
    common = b"Host: x\r\nAuthorization: Bearer %s\r\n" % ADMIN.encode()
    first = b"POST /v1/jobs HTTP/1.1\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
        common,
        len(body),
    )
    with connected(server) as raw:
        raw.sendall(first + body + b"GET /v1/status HTTP/1.1\r\n")
        raw.sendall(common + b"Connection: close\r\n\r\n")
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
    assert answer.count(b"HTTP/1.1 201 Created") == answer.count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00\xff" * 100 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01" + b"\x00" * 300,
        b"GET \xff / x\r\n\r\n",
    ],
)
def test_what_is_not_http_is_answered_with_a_problem(server: Served, junk: bytes) -> None:
    with connected(server) as raw:
        raw.sendall(junk)
        status, problem = told(raw)
    assert (status, problem["code"], problem["message"]) == (400, "USAGE", "invalid http request received")


def test_a_body_without_a_token_is_refused_before_it_comes(server: Served) -> None:
    with connected(server) as raw:
        raw.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n")
        answer = raw.recv(65536)
    assert b" 401 Unauthorized" in answer
    assert b"UNAUTHENTICATED" in answer
