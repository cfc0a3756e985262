"""Calls when things go wrong: nobody there, a daemon that restarts, connections that break, other servers, TLS."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from corral.client import Client, calls, follow
from corral.client.transport import Broken, NotSent, PlainTransport, Reply, Stream, blocks
from corral.model.errors import CorralError, DaemonNotRunning, PlanTooLarge, StateUnusable, Unauthenticated, Unavailable
from corral.model.ids import NodeId
from corral.model.plan import PlanAsk
from tests.unit.api.memory_pool import ALICE, EXIT_0, MemoryPool
from tests.unit.api.serving import Served, served
from tests.waiting import wait_until


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def port_of(server: Served) -> int:
    return int(server.url.rpartition(":")[2])


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Serve raw answers, one for each connection, and keep what was asked."""
    asked: list[bytes] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for answer in answers:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(65536))
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


def moved(pool: MemoryPool) -> MemoryPool:
    """Return a pool with the same jobs, as a daemon that was started again has it."""
    again = MemoryPool()
    again.all, again.facts, again.logs, again.keys = pool.all, pool.facts, pool.logs, pool.keys
    return again


def announce(server: Served, state_dir: Path) -> None:
    """Say where a daemon answers, in one step as the daemon does."""
    (state_dir / "daemon.tmp").write_text(json.dumps({"url": server.url, "pid": os.getpid()}))
    (state_dir / "daemon.tmp").rename(state_dir / "daemon.json")


def test_nobody_there_says_how_to_start_a_pool() -> None:
    with (
        Client(f"http://127.0.0.1:{free_port()}", "t", retry_s=0.0) as client,
        pytest.raises(DaemonNotRunning, match=r"no pool answers at http://127.0.0.1:.*start one with `corral up`"),
    ):
        client.status()


def test_a_stale_state_directory_says_so_at_once(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / "daemon.json").write_text(json.dumps({"url": f"http://127.0.0.1:{free_port()}", "pid": ended.pid}))
    (tmp_path / "token").write_text("t")
    # Nobody is left who could start the daemon again: an hour of patience must not be used.
    with Client(state_dir=tmp_path, retry_s=3_600.0) as client, pytest.raises(DaemonNotRunning, match="corral up"):
        client.status()


def test_calls_outlast_a_restart_of_the_daemon_on_another_port(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(ALICE)
    (tmp_path / "supervisor.pid").write_text(str(os.getpid()))

    with Client(state_dir=tmp_path, retry_s=60.0) as client:
        with served(MemoryPool()) as first:
            announce(first, tmp_path)
            handle = client.submit(run="x")
            pool = first.pool
        found: list[str] = []
        calling = threading.Thread(target=lambda: found.append(client.submit(run="y").id))
        calling.start()
        with served(moved(pool)) as second:
            announce(second, tmp_path)
            calling.join(60)
            assert found == ["2"]
            assert client.summary(handle.id).id == "1"


def test_a_daemon_that_is_being_started_is_waited_for(tmp_path: Path, server: Served) -> None:
    (tmp_path / "supervisor.pid").write_text(str(os.getpid()))
    (tmp_path / "token").write_text(ALICE)
    with Client(state_dir=tmp_path, retry_s=0.05) as client, pytest.raises(DaemonNotRunning, match="no pool runs on"):
        client.status()
    with Client(state_dir=tmp_path, retry_s=60.0) as client:
        found: list[int] = []
        calling = threading.Thread(target=lambda: found.append(client.status().nodes))
        calling.start()
        announce(server, tmp_path)
        calling.join(60)
        assert found == [1]


def test_streams_go_on_where_they_were_after_a_restart() -> None:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", ALICE, retry_s=60.0) as client:
        with served(MemoryPool(), port) as first:
            handle = client.submit(run="x")
            first.do(lambda: first.pool.write("1", b"before\n"))
            log, facts = handle.logs(follow=True), client.events(after_seq=0)
            assert (next(log).data, next(facts).seq) == (b"before\n", 1)
            pool = first.pool
        with served(moved(pool), port) as second:
            second.do(lambda: second.pool.write("1", b"after\n", complete=True))
            second.do(lambda: second.pool.finish("1", EXIT_0))
            assert [chunk.data for chunk in log] == [b"after\n"]
            assert next(facts).seq == 2
            facts.close()


def test_a_log_goes_on_where_it_was_though_its_task_was_started_again() -> None:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", ALICE, retry_s=60.0) as client:
        with served(MemoryPool(), port) as first:
            handle = client.submit(run="x")
            first.do(lambda: first.pool.write("1", b"0123"))
            log = handle.logs(follow=True)
            assert next(log).data == b"0123"
            pool = first.pool
        pool.logs["1"] = [bytearray(b"0123456"), bytearray(b"again")]
        with served(moved(pool), port) as second:
            second.do(lambda: second.pool.write("1", b"", complete=True))
            assert [(chunk.incarnation, chunk.offset, chunk.data) for chunk in log] == [
                (1, 4, b"456"),
                (2, 0, b"again"),
            ]


def test_a_stream_that_was_quiet_for_long_goes_on_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    hours_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + hours_s[0], sleep=time.sleep)
    monkeypatch.setattr(calls, "time", clock)
    monkeypatch.setattr(follow, "time", clock)
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", ALICE, retry_s=60.0) as client:
        with served(MemoryPool(), port) as first:
            handle = client.submit(run="x")
            log = handle.logs(follow=True)
            found: list[bytes] = []
            reading = threading.Thread(target=lambda: found.append(next(log).data))
            reading.start()
            wait_until(lambda: first.pool.open_streams == 1, what="the stream")
            hours_s[0] = 7_200.0
            pool = first.pool
        with served(moved(pool), port) as second:
            second.do(lambda: second.pool.write("1", b"after\n", complete=True))
            reading.join(60)
            assert found == [b"after\n"]
            log.close()


def test_a_stream_gives_up_when_nobody_comes_back() -> None:
    with served(MemoryPool()) as server, Client(server.url, ALICE, retry_s=0.05) as client:
        client.submit(run="x")
        facts = client.events(after_seq=0)
        assert next(facts).seq == 1
        server.stop()
        with pytest.raises(DaemonNotRunning):
            next(facts)


def test_a_pool_that_starts_is_waited_for(server: Served) -> None:
    with Client(server.url, ALICE, retry_s=60.0) as client:
        client.submit(run="x")
        server.pool.broken = Unavailable("the pool starts")
        found: list[str] = []
        calling = threading.Thread(target=lambda: found.append(client.summary("1").id))
        calling.start()
        server.pool.broken = None
        calling.join(60)
        assert found == ["1"]


def test_a_pool_that_does_not_come_up_is_told(server: Served) -> None:
    with Client(server.url, ALICE, retry_s=0.05) as client:
        client.submit(run="x")
        server.pool.broken = Unavailable("the pool starts")
        with pytest.raises(Unavailable, match="the pool starts"):
            client.summary("1")


def test_what_cannot_be_answered_at_all_is_asked_once(server: Served) -> None:
    with Client(server.url, ALICE, retry_s=0.5) as client:
        server.pool.broken = PlanTooLarge("no answer within 120 s")
        server.pool.planned.clear()
        with pytest.raises(PlanTooLarge):
            client.plan(PlanAsk(drain=(NodeId("n0"),)))
        assert len(server.pool.planned) == 1


def test_a_kept_connection_that_the_pool_closed_is_not_used_again(own_server: Served) -> None:
    port = port_of(own_server)
    with Client(own_server.url, ALICE, retry_s=0.0) as client:
        client.submit(run="x")
        own_server.stop()
        with served(MemoryPool(), port):
            assert client.submit(run="x").id == "1"


BROKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"


def test_a_read_is_repeated_when_the_connection_breaks() -> None:
    whole = b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\nConnection: close\r\n\r\n{"rows": []}'.replace(b"11", b"12")
    with answering(b"", BROKEN, whole) as (url, asked), Client(url, "t", retry_s=60.0) as client:
        assert client.usage(0, 1) == ()
        assert len(asked) == 3


def test_a_submit_is_repeated_with_the_same_key() -> None:
    body = b'{"jobs":[{"id":"7","name":"a"}]}'
    whole = b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
    with answering(b"", whole) as (url, asked), Client(url, "t", retry_s=60.0) as client:
        assert client.submit(run="x").id == "7"
    keys = [next(line for line in request.split(b"\r\n") if line.startswith(b"Idempotency-Key")) for request in asked]
    assert keys[0] == keys[1]
    assert len(keys[0]) > 40


def test_what_must_not_happen_twice_is_not_repeated() -> None:
    with answering(BROKEN, b"") as (url, asked), Client(url, "t", retry_s=60.0) as client:
        with pytest.raises(Unavailable, match="whether the call was carried out is unknown"):
            client.issue_token("alice")
        assert len(asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\nContent-Type: text/html\r\n\r\nnope",
        b'HTTP/1.1 400 Bad\r\nContent-Length: 15\r\n\r\n{"error": "no"}',
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_another_server_at_the_address_is_told(answer: bytes) -> None:
    with (
        answering(answer) as (url, _),
        Client(url, "t", retry_s=0.0) as client,
        pytest.raises(DaemonNotRunning, match="is no pool of corral"),
    ):
        client.status()


def test_what_is_no_http_at_the_address_is_told() -> None:
    with (
        answering(b"SSH-2.0-OpenSSH\r\n") as (url, _),
        Client(url, "t", retry_s=0.0) as client,
        pytest.raises(Unavailable),
    ):
        client.status()


def test_an_answer_that_is_not_understood_is_told_as_such() -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    with answering(whole) as (url, _), Client(url, "t", retry_s=0.0) as client:
        with pytest.raises(CorralError) as caught:
            client.status()
        assert caught.value.code == "DAEMON_NOT_RUNNING"


def test_an_error_of_a_newer_pool_keeps_its_code_in_words() -> None:
    body = b'{"code": "FROM_THE_FUTURE", "message": "no", "also": [{"code": "X", "message": "y"}], "new": 1}'
    answer = b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with answering(answer) as (url, _), Client(url, "t") as client:
        with pytest.raises(CorralError, match="no") as caught:
            client.status()
        assert [refusal.message for refusal in caught.value.also] == ["y"]


@pytest.mark.parametrize("token", ["a b", "a\nb", "ü"])
def test_a_token_that_no_header_can_carry_is_refused(server: Served, token: str) -> None:
    with Client(server.url, token) as client, pytest.raises(Unauthenticated):
        client.status()


def test_a_damaged_state_directory_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "daemon.json").write_text(json.dumps({"url": "nonsense", "pid": 1}))
    (tmp_path / "token").write_text("t")
    with Client(state_dir=tmp_path) as client, pytest.raises(StateUnusable):
        client.status()


class Canned:
    """A transport that answers with what ``answer`` makes of (method, URL)."""

    def __init__(self, answer: Callable[[str, str], bytes]) -> None:
        self.answer = answer

    def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float) -> Reply:
        return Reply(200, {}, self.answer(method, url))

    def stream(self, url: str, headers: Mapping[str, str], idle_timeout_s: float) -> Stream:
        raise NotSent("no streams here")

    def close(self) -> None:
        pass


def test_another_transport_can_be_given() -> None:
    asked: list[tuple[str, str]] = []

    def answer(method: str, url: str) -> bytes:
        asked.append((method, url))
        return b'{"rows": []}'

    assert Client("http://h:1", "t", transport=Canned(answer)).usage(0, 1) == ()
    assert asked == [("GET", "http://h:1/v1/usage?since=0&until=1")]


def test_a_call_keeps_its_address_while_another_one_loses_it() -> None:
    def answer(method: str, url: str) -> bytes:
        assert url.startswith("http://h:1/v1/")
        if method == "GET":
            raise NotSent("nobody there")
        with pytest.raises(DaemonNotRunning):
            client.status()  # what another thread does meanwhile
        raise Broken("cut off")

    client = Client("http://h:1", "t", retry_s=0.0, transport=Canned(answer))
    with pytest.raises(Unavailable, match="the connection to http://h:1 broke: cut off"):
        client.issue_token("alice")


def test_the_token_is_looked_up_again_when_it_is_refused(tmp_path: Path, server: Served) -> None:
    announce(server, tmp_path)
    (tmp_path / "token").write_text("of a pool that was removed")
    with Client(state_dir=tmp_path) as client:
        with pytest.raises(Unauthenticated):
            client.status()
        (tmp_path / "token").write_text(ALICE)
        assert client.status().nodes == 1


def test_a_stream_is_read_in_whatever_pieces_it_comes() -> None:
    class Pieces:
        status = 200
        headers: Mapping[str, str] = {}

        def __init__(self, text: bytes, size: int) -> None:
            self.pieces = [text[i : i + size] for i in range(0, len(text), size)]

        def read(self) -> bytes:
            return self.pieces.pop(0) if self.pieces else b""

        def close(self) -> None:
            pass

    text = ": beat\n\nevent: log\r\nid: 3\r\ndata: é\r\n\r\n\n\ndata: x\n\ndata: cut off".encode()
    for size in (1, 2, 7, 1000):
        assert list(blocks(Pieces(text, size))) == [["event: log", "id: 3", "data: é"], ["data: x"]]


def test_the_two_kinds_of_failure_are_told_apart() -> None:
    transport = PlainTransport()
    with pytest.raises(NotSent):
        transport.request("GET", f"http://127.0.0.1:{free_port()}/x", {}, None, 1.0)
    with answering(b"") as (url, _), pytest.raises(Broken):
        transport.request("GET", f"{url}/x", {}, None, 1.0)
    with answering(b"") as (url, _), pytest.raises(Broken):
        transport.stream(f"{url}/x", {}, 1.0)
