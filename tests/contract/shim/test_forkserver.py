"""The fork server: at most one fork per directory, and nobody's garbage harms anybody."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from corral.agent.shim.client import ForkClient, start
from corral.model.errors import EngineFault
from tests.contract.shim.shimworld import ShimWorld, child_of
from tests.waiting import wait_until


def connect(world: ShimWorld) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(20)
    sock.connect(str(world.socket_path))
    return sock


def answers(sock: socket.socket, count: int) -> list[dict[str, object]]:
    received = b""
    while received.count(b"\n") < count:
        data = sock.recv(1 << 16)
        assert data, received
        received += data
    return [json.loads(line) for line in received.splitlines()]


def test_one_of_twenty_requests_forks(world: ShimWorld) -> None:
    handle = world.prepare(script="echo once >> witness; sleep 0.2")

    def ask(_: int) -> tuple[int | None, str]:
        with ForkClient(world.socket_path) as client:
            reply = client.launch(handle.directory)
            return reply.pid, reply.code

    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(ask, range(20)))
    assert sorted(code for _, code in replies) == [""] + ["already-forked"] * 19
    world.end(handle)
    assert (world.directory / "witness").read_text() == "once\n"
    assert world.client.launch(handle.directory).code == "already-forked"


def test_two_servers_fork_once_too(world: ShimWorld) -> None:
    second = start(world.directory / "g.sock", log=world.directory / "g.log")
    handles = [world.prepare(number, script="echo once >> witness$CORRAL_TASK") for number in range(20)]
    with ForkClient(world.directory / "g.sock") as client, ThreadPoolExecutor(2) as pool:
        for handle in handles:
            replies = list(
                pool.map(lambda asked, handle=handle: asked.launch(handle.directory), (world.client, client))
            )
            assert sorted(reply.code for reply in replies) == ["", "already-forked"]
        client.stop()
    for handle in handles:
        world.end(handle)
    assert [path.read_text() for path in sorted(world.directory.glob("witness*"))] == ["once\n"] * 20
    assert second.wait(20) == 0


def test_forked_is_locked_from_its_first_moment(world: ShimWorld) -> None:
    handles = [world.prepare(number, argv=["true"]) for number in range(50)]
    seen: list[bool] = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: [world.client.launch(handle.directory) for handle in handles])
        for handle in handles:
            wait_until(handle.was_forked, interval_s=0)
            # Either it lives, or it has recorded its end: a dead shim without a status would be a lost task.
            seen.append(handle.shim_lives() or handle.status() is not None)
    assert all(seen)


@pytest.mark.parametrize(
    "line",
    [
        b"\x00\xff\xfe garbage",
        b"",
        b"[]",
        b"7",
        b'{"op": "launch"',
        b'{"op": "fly"}',
        b'{"op": ["launch"]}',
        b'{"dir": "/"}',
        b"[" * 60_000,
        b'{"op": "launch", "dir": 5}',
        b'{"op": "launch", "dir": "relative"}',
        b'{"op": "launch", "dir": "/no/such/directory"}',
        b'{"op": "launch", "dir": "/etc/passwd"}',
        b'{"op": "launch", "dir": "/\\u0000"}',
        b'{"op": "launch", "dir": "/\\ud800"}',
        b'{"op": "launch", "dir": "' + b"/x" * 5000 + b'"}',
        b'{"op": "launch", "dir": "/"}',
    ],
    ids=range(17),
)
def test_a_wrong_request_gets_an_answer_and_harms_nobody(world: ShimWorld, line: bytes) -> None:
    with connect(world) as sock:
        sock.sendall(line + b"\n" + b'{"op": "ping"}\n')
        refused, fine = answers(sock, 2)
    assert refused["ok"] is False
    assert refused["code"] in ("bad-request", "bad-directory", "bad-spec")
    assert refused["message"]
    assert fine["ok"] is True
    assert world.run(argv=["true"])["exit_code"] == 0


def test_a_line_without_end_is_cut_off(world: ShimWorld) -> None:
    with connect(world) as sock:
        sock.sendall(b"x" * 100_000)
        (refused,) = answers(sock, 1)
        assert (refused["ok"], refused["code"]) == (False, "bad-request")
        assert sock.recv(10) == b""
    assert world.client.ping() == world.server.pid


def test_a_client_that_goes_away_harms_nobody(world: ShimWorld) -> None:
    for _ in range(20):
        with connect(world) as sock:
            sock.sendall(b'{"op": "ping"}\n{"op": "pi')
    handle = world.prepare(argv=["true"])
    with connect(world) as sock:
        sock.sendall(json.dumps({"op": "launch", "dir": str(handle.directory)}).encode() + b"\n")
    assert world.end(handle)["exit_code"] == 0


def test_a_client_that_does_not_listen_harms_nobody(world: ShimWorld) -> None:
    with connect(world) as sock:
        sock.setblocking(False)
        sent = 0
        # Until the server has had enough of it, or takes no more.
        while sent < 20 << 20:
            try:
                sent += sock.send(b'{"op": "ping"}\n' * 1000)
            except BlockingIOError:
                break
            except (BrokenPipeError, ConnectionResetError):
                break
        assert world.client.ping() == world.server.pid
    assert world.run(argv=["true"])["exit_code"] == 0


def test_requests_in_one_go_are_answered_in_order(world: ShimWorld) -> None:
    handles = [world.prepare(number, argv=["true"]) for number in range(40)]
    lines = [json.dumps({"op": "launch", "dir": str(handle.directory)}).encode() + b"\n" for handle in handles]
    with connect(world) as sock:
        sock.sendall(b"".join(lines))
        pids = [answer["pid"] for answer in answers(sock, 40)]
    for handle, pid in zip(handles, pids, strict=True):
        world.end(handle)
        assert (handle.shim() or {})["pid"] == pid


def test_a_request_may_come_in_pieces(world: ShimWorld) -> None:
    with connect(world) as sock:
        for byte in b'{"op": "ping"}\n':
            sock.send(bytes([byte]))
        assert answers(sock, 1)[0]["ok"] is True


def test_a_bad_spec_is_refused_and_may_be_mended(world: ShimWorld) -> None:
    handle = world.prepare(argv=["true"], log_files=-1)
    reply = world.client.launch(handle.directory)
    assert (reply.pid, reply.code) == (None, "bad-spec")
    assert reply.message == "log_files must be an integer from 1 to 1000"
    assert not handle.was_forked()
    assert world.run(argv=["true"])["exit_code"] == 0


def test_many_clients_may_be_connected(world: ShimWorld) -> None:
    clients = [ForkClient(world.socket_path) for _ in range(100)]
    handles = [world.prepare(number, argv=["true"]) for number in range(100)]
    for client, handle in zip(clients, handles, strict=True):
        assert client.launch(handle.directory).pid is not None
    for client, handle in zip(clients, handles, strict=True):
        world.end(handle)
        client.close()


def test_the_socket_is_private(world: ShimWorld) -> None:
    assert stat.S_IMODE(world.socket_path.stat().st_mode) == 0o600


def test_it_keeps_nothing_that_it_inherited(state_dir: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    path = state_dir / "f.sock"
    server = subprocess.Popen(
        [sys.executable, "-m", "corral.agent.forkserver", "--socket", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        env={**os.environ, "SECRET": "x"},
    )
    os.close(writer)
    wait_until(lambda: server.poll() is not None or reachable(path))
    # Our end is at its end as soon as nobody holds the other one.
    assert os.read(reader, 1) == b""
    os.close(reader)
    environment = Path(f"/proc/{server.pid}/environ").read_bytes()
    assert b"SECRET" not in environment
    assert os.getsid(server.pid) == server.pid
    assert Path(f"/proc/{server.pid}/cwd").readlink() == Path("/")
    with ForkClient(path) as client:
        assert client.ping() == server.pid
        client.stop()
    assert server.wait(20) == 0
    assert not path.exists()


def reachable(path: Path) -> bool:
    try:
        ForkClient(path).close()
    except EngineFault:
        return False
    return True


def test_a_second_server_does_not_take_a_living_socket(world: ShimWorld) -> None:
    with pytest.raises(EngineFault, match="exit code 1"):
        start(world.socket_path, log=world.directory / "second.log")
    said = (world.directory / "second.log").read_text()
    assert said == f"corral fork server: a fork server answers at {world.socket_path}\n"
    assert world.client.ping() == world.server.pid


def test_a_stale_socket_is_replaced(world: ShimWorld) -> None:
    world.server.kill()
    world.server.wait()
    world.client.close()
    assert world.socket_path.exists()
    world.restart_server()
    assert world.run(argv=["true"])["exit_code"] == 0


def test_sigterm_ends_it_properly(world: ShimWorld) -> None:
    handle = world.launch(argv=["sleep", "600"])
    child_of(handle)
    world.server.send_signal(signal.SIGTERM)
    assert world.server.wait(20) == 0
    assert not world.socket_path.exists()
    assert handle.shim_lives()


@pytest.mark.parametrize("arguments", [[], ["--socket"], ["--port", "5"], ["--socket", "a", "b"]])
def test_wrong_usage_is_told(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "corral.agent.forkserver", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "usage: python -m corral.agent.forkserver --socket PATH\n"


def test_a_path_too_long_for_a_socket_is_told(state_dir: Path) -> None:
    command = [sys.executable, "-m", "corral.agent.forkserver", "--socket", str(state_dir / ("x" * 120))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("corral fork server: a socket path has at most 107 bytes: ")


def test_a_fault_names_the_server(state_dir: Path) -> None:
    with pytest.raises(EngineFault, match=r"nobody\.sock cannot be used: No such file"):
        ForkClient(state_dir / "nobody.sock")
