from __future__ import annotations

import json

import pytest

from corral.serving.relay.http import Events, Problem, Request, head, piece


def test_a_request_goes_on_without_what_belongs_to_its_connection() -> None:
    headers = [
        (b"host", b"chat"),
        (b"connection", b"keep-alive"),
        (b"transfer-encoding", b"chunked"),
        (b"expect", b"100-continue"),
        (b"x-corral-service", b"chat"),
        (b"accept", b"*/*"),
    ]
    assert Request(b"POST", b"/x", headers, b"hi").sent_to_replica("secret") == (
        b"POST /x HTTP/1.1\r\nhost: chat\r\naccept: */*\r\nX-Corral-Front-End-Token: secret\r\n"
        b"content-length: 2\r\n\r\nhi"
    )
    assert Request(b"GET", b"/x", []).sent_to_replica(None) == b"GET /x HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    "method, headers, idempotent",
    [
        (b"GET", [], True),
        (b"DELETE", [], True),
        (b"POST", [], False),
        (b"PATCH", [], False),
        (b"POST", [(b"idempotency-key", b"1")], True),
    ],
)
def test_what_may_be_sent_twice(method: bytes, headers: list[tuple[bytes, bytes]], idempotent: bool) -> None:
    assert Request(method, b"/", headers).idempotent is idempotent


def test_a_head_and_pieces_are_written_as_the_standard_says() -> None:
    assert head(200, [(b"a", b"b")]) == b"HTTP/1.1 200 OK\r\na: b\r\n\r\n"
    assert head(299, []) == b"HTTP/1.1 299 -\r\n\r\n"
    assert piece(b"x" * 16) == b"10\r\n" + b"x" * 16 + b"\r\n"


def test_a_problem_is_in_the_words_of_who_asks() -> None:
    problem = Problem(503, "NO_REPLICA", "none", 2)
    top, _, body = problem.answer().partition(b"\r\n\r\n")
    assert b"retry-after: 2" in top
    assert json.loads(body) == {"code": "NO_REPLICA", "message": "none", "status": 503}
    _, _, body = problem.answer(openai=True).partition(b"\r\n\r\n")
    assert json.loads(body) == {"error": {"message": "none", "type": "server_error", "code": "NO_REPLICA"}}
    assert problem.answer(head_only=True).endswith(b"\r\n\r\n")


def test_only_whole_events_pass() -> None:
    events = Events()
    assert events.feed(b"data: 1\n") == b""
    assert events.feed(b"\ndata: 2\n\nda") == b"data: 1\n\ndata: 2\n\n"
    assert events.feed(b"ta: 3\r\n\r\n") == b"data: 3\r\n\r\n"
    assert events.feed(b"data: 4") == b""
    assert events.rest() == b"data: 4"
    assert events.rest() == b""
