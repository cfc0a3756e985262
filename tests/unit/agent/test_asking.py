"""Asking replicas over the network, with real servers that answer well, badly, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from corral.agent.asking import HEAD_BYTES_MAX, Door, connect, get, trusting
from tests.unit.agent.certificates import Authority

HOST = "127.0.0.1"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answering(raw: bytes, asked: list[bytes] | None = None) -> Serve:
    """Return a server that reads a request, answers so, and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if asked is not None:
            asked.append(request)
        writer.write(raw)
        await writer.drain()
        writer.close()

    return serve


async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept, and never answer."""
    await reader.read()
    writer.close()


async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close the connection without a word."""
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


def ask(serve: Serve, path: str = "/health", *, timeout_s: float = 20.0, token: str = "") -> str | None:
    async def scenario() -> str | None:
        server = await asyncio.start_server(serve, HOST, 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            fault = await get(Door(HOST, port, token), path, timeout_s)
            return None if fault is None else fault.replace(str(port), "PORT")

    return asyncio.run(asyncio.wait_for(scenario(), 30.0))


@pytest.mark.parametrize(
    "raw, fault",
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", None),
        (b"HTTP/1.0 204 No Content\r\n\r\n", None),
        (b"HTTP/1.1 302 Found\r\nLocation: /login\r\n\r\n", None),
        (b"HTTP/1.1 399 What\r\n\r\n", None),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\nbody", None),
        (b"HTTP/1.1 200\r\n\r\n", None),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP 400 Bad Request"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\nloading", "HTTP 503 Service Unavailable"),
        (b"HTTP/1.1 99 Small\r\n\r\n", "the answer is not HTTP: 'HTTP/1.1 99 Small'"),
        (b"HTTP/2 200\r\n\r\n", "the answer is not HTTP: 'HTTP/2 200'"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "the answer is not HTTP: 'SSH-2.0-OpenSSH_9.2'"),
        (b"\x00\xff\xfe\r\n\r\n", "the answer is not HTTP: '\\x00\ufffd\ufffd'"),
        (b"HTTP/1.1 200 OK\r\n", "it closed the connection after 17 bytes"),
        (b"x" * (HEAD_BYTES_MAX + 5000), "its headers are larger than 64 KB"),
    ],
)
def test_200_to_399_is_good_and_nothing_else(raw: bytes, fault: str | None) -> None:
    assert ask(answering(raw)) == (None if fault is None else f"GET http://127.0.0.1:PORT/health: {fault}")


def test_a_body_of_any_size_does_not_matter() -> None:
    assert ask(answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 3_000_000)) is None


def test_a_replica_that_never_answers_has_its_time() -> None:
    assert ask(mute, timeout_s=0.2) == "GET http://127.0.0.1:PORT/health: no answer in 0.2 s"


def test_a_replica_that_hangs_up_is_not_good() -> None:
    assert ask(rude) == "GET http://127.0.0.1:PORT/health: it closed the connection after 0 bytes"


def test_a_request_is_one_that_every_server_understands_and_shows_the_token() -> None:
    asked: list[bytes] = []
    assert ask(answering(b"HTTP/1.1 200 OK\r\n\r\n", asked), "/a/b?c=%20d", token="t0ken") is None
    lines = asked[0].decode().split("\r\n")
    assert lines[0] == "GET /a/b?c=%20d HTTP/1.1"
    assert any(line.startswith("Host: 127.0.0.1:") for line in lines)
    assert {"Connection: close", "X-Corral-Front-End-Token: t0ken"} <= set(lines)
    ask(answering(b"HTTP/1.1 200 OK\r\n\r\n", asked))
    assert b"X-Corral" not in asked[1]


@pytest.mark.parametrize("path", ["health", "", "/a b", "/a\r\nX: y", "/\u00e4"])
def test_a_path_that_is_none_is_not_sent(path: str) -> None:
    assert ask(mute, path) == f"{path!r} is no path that can be asked for"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def test_a_port_that_takes_connections_is_good() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        assert asyncio.run(connect(Door(HOST, port), 20.0)) is None
        # A name is looked up as well.
        assert asyncio.run(connect(Door("localhost", port), 20.0)) is None


def test_a_port_without_a_program_is_not() -> None:
    port = free_port()
    assert asyncio.run(connect(Door(HOST, port), 20.0)) == f"port 127.0.0.1:{port}: connection refused"
    assert asyncio.run(get(Door("::1", port), "/", 20.0)) == f"GET http://[::1]:{port}/: connection refused"


def test_a_backlog_that_is_full_has_its_time() -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        held = [socket.socket() for _ in range(8)]
        try:
            for one in held:
                one.setblocking(False)
                one.connect_ex((HOST, port))
            assert asyncio.run(connect(Door(HOST, port), 0.2)) == f"port 127.0.0.1:{port}: no connection in 0.2 s"
        finally:
            for one in held:
                one.close()


def test_a_node_without_an_address_says_so() -> None:
    fault = asyncio.run(connect(Door("no-such-host.invalid", 80), 20.0))
    assert fault == "port no-such-host.invalid:80: the address of the node cannot be found"


class Guarded:
    """The files of a replica with mutual TLS, and a server that asks for a certificate of its authority."""

    def __init__(self, directory: Path, replica: str, authority: str) -> None:
        self.directory = directory
        directory.mkdir()
        key, _, cert = replica.partition("-----BEGIN CERTIFICATE-----")
        (directory / "key.pem").write_text(key)
        (directory / "cert.pem").write_text("-----BEGIN CERTIFICATE-----" + cert)
        (directory / "ca.pem").write_text(authority)

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(self.directory / "cert.pem"), str(self.directory / "key.pem"))
        context.load_verify_locations(str(self.directory / "ca.pem"))
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def ask(self, server: ssl.SSLContext) -> str | None:
        """Ask a server that takes one connection; it may be refused while it shakes hands."""
        with socket.create_server((HOST, 0)) as listener:

            def serve() -> None:
                taken, _ = listener.accept()
                with taken, contextlib.suppress(OSError), server.wrap_socket(taken, server_side=True) as secure:
                    secure.recv(1 << 16)
                    secure.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

            thread = threading.Thread(target=serve)
            thread.start()
            port = listener.getsockname()[1]
            fault = asyncio.run(get(Door(HOST, port, tls=trusting(str(self.directory))), "/", 20.0))
            thread.join(20.0)
            return None if fault is None else fault.replace(str(port), "PORT")


def test_a_replica_behind_mutual_tls_is_asked_with_the_certificate_of_its_service(tmp_path: Path) -> None:
    ours, others = Authority("ours"), Authority("others")
    replica = Guarded(tmp_path / "ours", ours.issue("replica"), ours.pem)
    assert replica.ask(replica.server()) is None
    foreign = Guarded(tmp_path / "others", others.issue("replica"), others.pem)
    fault = replica.ask(foreign.server())
    assert fault is not None
    assert fault.startswith("GET https://127.0.0.1:PORT/: its certificate is not that of its service")


def test_a_replica_that_speaks_no_tls_is_not_good(tmp_path: Path) -> None:
    ours = Authority("ours")
    files = Guarded(tmp_path / "ours", ours.issue("replica"), ours.pem)

    async def scenario() -> str | None:
        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(plain, HOST, 0) as listening:
            door = Door(HOST, listening.sockets[0].getsockname()[1], tls=trusting(str(files.directory)))
            return await get(door, "/", 20.0)

    fault = asyncio.run(asyncio.wait_for(scenario(), 30.0))
    assert fault is not None
    assert "TLS failed: " in fault
