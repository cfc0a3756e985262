"""Logs and facts as pages and as streams: nothing lost, nothing twice, ended in time."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from starlette.types import Message

from corral.api.streams import EventStream, Stopping, event
from corral.model.errors import NotFound, Unauthenticated
from tests.unit.api.conftest import Users, events, problem
from tests.unit.api.memory_pool import ALICE, BOB, EXIT_0
from tests.unit.api.serving import Served
from tests.waiting import wait_until

RAW = b"caf\xc3\xa9\n\xff\x00\x1b[0m"


class Reading:
    """Reads a stream in a thread of its own."""

    def __init__(self, http: Any, path: str, **headers: str) -> None:
        self.text = ""
        self.ended = False
        self.status = 0
        self._close = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(http, path, headers))
        self._thread.start()

    def _read(self, http: Any, path: str, headers: dict[str, str]) -> None:
        with http.client.stream("GET", path, headers=headers) as response:
            self.status = response.status_code
            for piece in response.iter_text():
                self.text += piece
                if self._close.is_set():
                    return
        self.ended = True

    def close(self) -> None:
        self._close.set()

    def join(self) -> list[tuple[str, str | None, Any]]:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return events(self.text)


def test_a_page_of_a_log_is_bytes_as_they_are(http: Users, server: Served) -> None:
    http(ALICE).submit({"run": "x"})
    server.do(lambda: server.pool.write("1", RAW))
    page = http(ALICE)("GET", "/v1/jobs/1/log")
    assert (page.content, page.headers["content-type"]) == (RAW, "application/octet-stream")
    assert (page.headers["corral-log-offset"], page.headers["corral-log-complete"]) == ("0", "false")
    server.do(lambda: server.pool.write("1", b"more", complete=True))
    page = http(ALICE)("GET", "/v1/jobs/1/log", params={"offset": len(RAW) - 2, "limit": 4})
    assert (page.content, page.headers["corral-log-offset"]) == (RAW[-2:] + b"mo", str(len(RAW) - 2))
    assert page.headers["corral-log-complete"] == "false"
    page = http(ALICE)("GET", "/v1/jobs/1/log", params={"offset": len(RAW)})
    assert (page.content, page.headers["corral-log-complete"]) == (b"more", "true")
    assert http(ALICE)("GET", "/v1/jobs/1/log", params={"offset": 10**9}).content == b""


@pytest.mark.parametrize("query", ["offset=-1", "limit=0", "limit=99999999", "rank=-1", "rank=x", "follow=perhaps"])
def test_a_wrong_part_of_a_log_is_refused(http: Users, query: str) -> None:
    http(ALICE).submit({"run": "x"})
    problem(http(ALICE)("GET", f"/v1/jobs/1/log?{query}"), 422, "INVALID_FIELD")


@pytest.mark.parametrize(
    "path", ["/v1/jobs/1/log?rank=7", "/v1/jobs/1/log?rank=7&follow=true", "/v1/jobs/9/log?follow=true"]
)
def test_a_log_that_is_not_there_is_a_status_also_for_a_stream(http: Users, path: str) -> None:
    http(ALICE).submit({"run": "x"})
    problem(http(ALICE)("GET", path), 404, "NOT_FOUND")


def test_a_followed_log_comes_as_it_is_written_and_loses_no_byte(http: Users, server: Served) -> None:
    http(ALICE).submit({"run": "x"})
    reading = Reading(http(ALICE), "/v1/jobs/1/log?follow=true")
    server.do(lambda: server.pool.write("1", "été\n".encode()))
    wait_until(lambda: "été" in reading.text)
    server.do(lambda: server.pool.write("1", b"\xff\xfe", complete=True))
    found = reading.join()
    assert found == [
        ("log", "1:6", {"incarnation": 1, "offset": 0, "complete": False, "text": "été\n"}),
        (
            "log",
            "1:8",
            {"incarnation": 1, "offset": 6, "complete": True, "base64": base64.b64encode(b"\xff\xfe").decode()},
        ),
        ("end", None, {}),
    ]
    wait_until(lambda: server.pool.open_streams == 0)


def test_a_stream_of_a_log_goes_on_after_the_last_event(http: Users, server: Served) -> None:
    http(ALICE).submit({"run": "x"})
    server.do(lambda: server.pool.write("1", b"0123456789", complete=True))
    headers = {"Accept": "text/event-stream", "Last-Event-ID": "1:4"}
    found = events(http(ALICE)("GET", "/v1/jobs/1/log", headers=headers).text)
    assert found[0] == ("log", "1:10", {"incarnation": 1, "offset": 4, "complete": True, "text": "456789"})
    for wrong in ("x", "1", "1:", ":1", "1:-1", "1:²", "1:2:3", "1:99999999999999999", "9" * 500):
        encoded = {**headers, "Last-Event-ID": wrong.encode()}
        problem(http(ALICE)("GET", "/v1/jobs/1/log", headers=encoded), 422, "INVALID_FIELD")


def test_a_stream_of_a_log_goes_on_in_the_incarnation_where_it_was(http: Users, server: Served) -> None:
    http(ALICE).submit({"run": "x"})
    server.do(lambda: server.pool.write("1", b"first"))
    reading = Reading(http(ALICE), "/v1/jobs/1/log?follow=true")
    wait_until(lambda: "first" in reading.text)
    reading.close()
    server.do(lambda: server.pool.write("1", b" of its log"))
    reading.join()
    last = events(reading.text)[0][1]
    assert last == "1:5"
    server.do(lambda: server.pool.restart("1"))
    server.do(lambda: server.pool.write("1", b"second", complete=True))
    found = events(http(ALICE)("GET", "/v1/jobs/1/log?follow=true", headers={"Last-Event-ID": last}).text)
    assert [(id_, data.get("incarnation"), data.get("text")) for _, id_, data in found] == [
        ("1:16", 1, " of its log"),
        ("2:6", 2, "second"),
        (None, None, None),
    ]


def test_a_page_is_of_one_incarnation(http: Users, server: Served) -> None:
    http(ALICE).submit({"run": "x"})
    assert "corral-log-incarnation" not in http(ALICE)("GET", "/v1/jobs/1/log").headers
    server.do(lambda: server.pool.write("1", b"first"))
    server.do(lambda: server.pool.restart("1"))
    server.do(lambda: server.pool.write("1", b"second"))
    for query, number, text in (("", "2", b"second"), ("?incarnation=1&offset=2", "1", b"rst")):
        page = http(ALICE)("GET", f"/v1/jobs/1/log{query}")
        assert (page.headers["corral-log-incarnation"], page.content) == (number, text)
    problem(http(ALICE)("GET", "/v1/jobs/1/log?incarnation=0"), 422, "INVALID_FIELD")


def test_a_line_of_a_log_cannot_forge_an_event(http: Users, server: Served) -> None:
    http(ALICE).submit({"run": "x"})
    forged = b"\n\nevent: end\r\ndata: {}\n\n\xe2\x80\xa8\r"
    server.do(lambda: server.pool.write("1", forged, complete=True))
    first, end = events(http(ALICE)("GET", "/v1/jobs/1/log?follow=true").text)
    assert (first[0], first[2]["text"].encode(), end[0]) == ("log", forged, "end")


def test_facts_of_a_job_come_until_its_end(http: Users, server: Served) -> None:
    http(ALICE).submit({"run": "x"})
    reading = Reading(http(ALICE), "/v1/events?job=1&after_seq=0")
    wait_until(lambda: "job-submitted" in reading.text)
    http(ALICE).submit({"run": "another"})
    server.do(lambda: server.pool.finish("1", EXIT_0))
    found = reading.join()
    assert [(kind, id_, data.get("fact", {}).get("kind")) for kind, id_, data in found] == [
        ("fact", "1", "job-submitted"),
        ("fact", "3", "job-ended"),
        ("end", None, None),
    ]


def test_facts_of_an_ended_job_end_at_once(http: Users, server: Served) -> None:
    http(ALICE).submit({"run": "x"})
    server.do(lambda: server.pool.finish("1", EXIT_0))
    assert events(http(ALICE)("GET", "/v1/events?job=1").text) == [("end", None, {})]
    assert len(events(http(ALICE)("GET", "/v1/events?job=1&after_seq=1").text)) == 2
    # Who has seen the end already, and lost the connection before it was told that there is no more.
    assert events(http(ALICE)("GET", "/v1/events?job=1", headers={"Last-Event-ID": "2"}).text) == [("end", None, {})]
    problem(http(ALICE)("GET", "/v1/events?job=1", headers={"Last-Event-ID": "9" * 20}), 422, "INVALID_FIELD")
    problem(http(ALICE)("GET", "/v1/events?job=9"), 404, "NOT_FOUND")


def test_a_stream_of_facts_resumes_without_a_gap_or_a_repetition(own_http: Users, own_server: Served) -> None:
    http, server = own_http, own_server
    for _ in range(3):
        http(ALICE).submit({"run": "x"})
    first = Reading(http(ALICE), "/v1/events?after_seq=0")
    wait_until(lambda: len(events(first.text)) == 3)
    first.close()
    http(ALICE).submit({"run": "x"})
    first.join()
    seen = events(first.text)
    second = Reading(http(ALICE), "/v1/events?after_seq=0", **{"Last-Event-ID": seen[1][1] or ""})
    wait_until(lambda: len(events(second.text)) == 2)
    assert [id_ for _, id_, _ in events(second.text)] == ["3", "4"]
    server.stop()
    second.join()


def test_one_sees_the_facts_of_the_own_tenant(own_http: Users, own_server: Served) -> None:
    http, server = own_http, own_server
    http(ALICE).submit({"run": "x"})
    http(BOB).submit({"run": "x"})
    reading = Reading(http(BOB), "/v1/events?after_seq=0")
    wait_until(lambda: reading.text)
    server.stop()
    assert [data["fact"]["spec"]["tenant"] for _, _, data in reading.join()] == ["bob"]


def test_streams_end_promptly_when_the_daemon_stops_and_say_no_end(own_http: Users, own_server: Served) -> None:
    http, server = own_http, own_server
    http(ALICE).submit({"run": "x"})
    log = Reading(http(ALICE), "/v1/jobs/1/log?follow=true")
    facts = Reading(http(ALICE), "/v1/events")
    wait_until(lambda: server.pool.open_streams == 2)
    wait_until(lambda: log.status == facts.status == 200)
    server.stop()
    assert (log.join(), facts.join()) == ([], [])
    assert log.ended
    assert facts.ended


def test_a_reader_who_leaves_is_forgotten(http: Users, server: Served) -> None:
    http(ALICE).submit({"run": "x"})
    with httpx.stream("GET", f"{server.url}/v1/events", headers={"Authorization": f"Bearer {ALICE}"}):
        wait_until(lambda: server.pool.open_streams == 1)
    wait_until(lambda: server.pool.open_streams == 0)


def test_a_stream_ends_with_its_token(http: Users, server: Served) -> None:
    http(ALICE).submit({"run": "x"})
    reading = Reading(http(ALICE), "/v1/jobs/1/log?follow=true")
    server.do(lambda: server.pool.write("1", b"for alice"))
    wait_until(lambda: "for alice" in reading.text)
    server.do(lambda: server.pool.principals.pop(ALICE))
    server.do(lambda: server.pool.write("1", b"not for her any more"))
    (_, last) = reading.join()
    assert (last[0], last[2]["code"]) == ("problem", "UNAUTHENTICATED")
    assert "any more" not in reading.text
    wait_until(lambda: server.pool.open_streams == 0)


# ---- the stream itself, message by message -------------------------------------------------------------------------


def allowed() -> None:
    """Let everybody read."""


async def sent_by(stream: EventStream, last: bytes | None = None) -> list[bytes]:
    """Return the bodies that a stream sends, until the body ``last`` after which the reader leaves."""
    sent: list[bytes] = []
    leave = asyncio.Event()

    async def receive() -> Message:
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        if sent[-1] == last:
            leave.set()

    async with asyncio.timeout(10):
        await stream({"type": "http"}, receive, send)
    return sent


def test_a_quiet_stream_beats() -> None:
    async def quiet() -> AsyncGenerator[bytes]:
        yield event(b"1", "fact", "1")
        await asyncio.Event().wait()

    beat = b": heartbeat\n\n"
    sent = asyncio.run(sent_by(EventStream(quiet(), Stopping(), allowed, heartbeat_s=0.001), beat))
    assert sent[1:3] == [b"event: fact\nid: 1\ndata: 1\n\n", beat]


def test_an_event_that_comes_while_a_heartbeat_is_sent_is_not_lost() -> None:
    async def scene() -> list[bytes]:
        go, came = asyncio.Event(), asyncio.Event()
        sent: list[bytes] = []

        async def source() -> AsyncGenerator[bytes]:
            await go.wait()
            came.set()
            yield event(b"1", "fact", "1")
            yield event(b"2", "fact", "2")

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message.get("body", b""))
            if sent[-1].startswith(b": heartbeat") and not go.is_set():
                go.set()
                await came.wait()
                await asyncio.sleep(0)
                await asyncio.sleep(0)

        async with asyncio.timeout(10):
            await EventStream(source(), Stopping(), allowed, heartbeat_s=0.001)({"type": "http"}, receive, send)
        return sent

    sent = [body for body in asyncio.run(scene()) if body.startswith(b"event: fact")]
    assert sent == [b"event: fact\nid: 1\ndata: 1\n\n", b"event: fact\nid: 2\ndata: 2\n\n"]


def test_a_quiet_stream_ends_with_its_token_too() -> None:
    asked = []

    async def quiet() -> AsyncGenerator[bytes]:
        await asyncio.Event().wait()
        yield b""

    def still() -> None:
        asked.append(True)
        if len(asked) == 2:
            raise Unauthenticated("this token was revoked")

    sent = asyncio.run(sent_by(EventStream(quiet(), Stopping(), still, heartbeat_s=0.001)))
    assert sent[1] == b": heartbeat\n\n"
    assert sent[2].startswith(b'event: problem\ndata: {"code":"UNAUTHENTICATED"')


def test_a_refusal_on_the_way_is_an_event_and_the_source_is_closed() -> None:
    closed = []

    async def breaking() -> AsyncGenerator[bytes]:
        try:
            yield event(b"1", "fact")
            await asyncio.sleep(0)
            raise NotFound("gone")
        finally:
            closed.append(True)

    sent = asyncio.run(sent_by(EventStream(breaking(), Stopping(), allowed)))
    assert sent[2].startswith(b'event: problem\ndata: {"code":"NOT_FOUND","message":"gone"')
    assert closed == [True]


def test_a_refusal_before_the_first_event_is_raised() -> None:
    async def refusing() -> AsyncGenerator[bytes]:
        raise NotFound("none")
        yield b""

    with pytest.raises(NotFound):
        asyncio.run(EventStream(refusing(), Stopping(), allowed).opened())
