from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import hosts as module
from bench.hosts import PACKAGES, Host, HostFailed, Hosts, HostsUnavailable, ip
from tests import needs
from tests.waiting import wait_until

ECHO = """
import socket
server = socket.create_server(("", 7))
while True:
    peer, _ = server.accept()
    while data := peer.recv(65536):
        peer.sendall(data)
"""
ASK = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 7), timeout=float(sys.argv[2]))
peer.sendall(b"hello")
print(peer.recv(5).decode())
"""
COUNT = """
import os, sys, time
while True:
    with open(sys.argv[1], "a") as file:
        file.write("x")
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def installed() -> None:
    needs.root()
    for name, package in PACKAGES.items():
        needs.program(name, package=package)


@pytest.fixture(scope="module")
def group(installed: None) -> Iterator[Hosts]:
    with Hosts(["one", "two", "three"]) as hosts:
        for host in hosts.values():
            listen(host)
        yield hosts


def listen(host: Host) -> None:
    host.spawn([sys.executable, "-c", ECHO], host.directory / "echo.log")
    wait_until(lambda: answers(host, host), what=f"{host.name} to listen")


def answers(one: Host, other: Host, timeout_s: float = 0.5) -> bool:
    try:
        return one.run([sys.executable, "-c", ASK, other.address, str(timeout_s)]) == "hello\n"
    except HostFailed:
        return False


def grows(file: Path) -> bool:
    before = file.stat().st_size
    time.sleep(0.1)
    return file.stat().st_size > before


def exists(link: str) -> bool:
    return any(found["ifname"].startswith(link) for found in json.loads(ip("-json", "link", "show")))


def test_missing_programs_are_named_by_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert module.missing_packages() == ["hostname", "iproute2", "mount", "util-linux"]
    with pytest.raises(HostsUnavailable, match="apt-get install hostname iproute2 mount util-linux"):
        module.require()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostsUnavailable, match="as root"):
        module.require()


def test_hosts_have_names_addresses_processes_and_directories_of_their_own(group: Hosts) -> None:
    one, two = group["one"], group["two"]
    assert one.run(["hostname"]) == "one\n"
    assert (
        one.run(["sh", "-c", "echo $HOME $TMPDIR; pwd"])
        == f"{one.directory}/home {one.directory}/tmp\n{one.directory}\n"
    )
    assert one.run(["cat"], stdin="words") == "words"
    assert one.run([sys.executable, "-c", "import socket; print(socket.gethostbyname('two'))"]).strip() == two.address
    assert one.run(["sh", "-c", "readlink /proc/1/ns/net"]) != two.run(["sh", "-c", "readlink /proc/1/ns/net"])
    commands = one.run(["sh", "-c", "cat /proc/[0-9]*/comm"]).split()
    assert commands.count("python3") + commands.count("python") == 1, "its listener alone"
    assert len(one.processes()) == 1
    with pytest.raises(HostFailed, match=r"ended with 3: words"):
        one.run(["sh", "-c", "echo words >&2; exit 3"])
    with pytest.raises(HostFailed, match=r"within 0.1 s"):
        one.run(["sleep", "60"], timeout_s=0.1)


def test_the_boot_clocks_of_hosts_differ_by_days_and_their_wall_clocks_do_not(group: Hosts) -> None:
    code = "import time; print(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())"
    first = [float(word) for word in group["one"].run([sys.executable, "-c", code]).split()]
    second = [float(word) for word in group["three"].run([sys.executable, "-c", code]).split()]
    assert 2 * 86_400 <= second[0] - first[0] < 2 * 86_400 + 60
    assert 0 <= second[1] - first[1] < 60


def test_this_machine_reaches_its_hosts_and_they_reach_it(group: Hosts) -> None:
    with socket.create_connection((group["two"].address, 7), timeout=5) as peer:
        peer.sendall(b"hi")
        assert peer.recv(2) == b"hi"
    with socket.create_server((group.address, 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('outside', {port}), timeout=5).sendall(b'hi')"
        group["two"].run([sys.executable, "-c", code])
        peer, _ = server.accept()
        with peer:
            assert peer.recv(2) == b"hi"


def test_a_cut_host_is_alone_until_it_is_mended(group: Hosts) -> None:
    one, two, three = group.values()
    two.cut()
    assert not answers(one, two)
    assert not answers(two, one)
    assert answers(two, two)
    assert answers(one, three)
    two.mend()
    wait_until(lambda: answers(one, two), what="the network to be whole")
    assert answers(two, one)


def test_two_parted_hosts_both_reach_the_third(group: Hosts) -> None:
    one, two, three = group.values()
    group.part(one, two)
    assert not answers(one, two)
    assert not answers(two, one)
    assert answers(one, three)
    assert answers(three, two)
    group.rejoin(one, two)
    assert answers(one, two)


def test_a_lost_way_is_lost_in_one_direction_only(group: Hosts) -> None:
    one, two, _ = group.values()
    received: list[bytes] = []
    listener = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 9)); print(s.recv(9), flush=True)"
    send = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 9))"

    def hears(listening: Host, other: Host) -> bool:
        log = listening.directory / "heard.log"
        log.unlink(missing_ok=True)
        process = listening.spawn([sys.executable, "-c", listener], log)
        wait_until(lambda: ":0009" in listening.run(["cat", "/proc/net/udp"]), what="the listener")
        other.run([sys.executable, "-c", send, listening.address, "over"])
        listening.run([sys.executable, "-c", send, "127.0.0.1", "self"])
        assert process.wait(10) == 0
        received.append(log.read_bytes())
        return b"over" in received[-1]

    one.lose_way_to(two)
    try:
        assert hears(one, two)
        assert not hears(two, one)
    finally:
        one.find_way_to(two)
    assert hears(two, one)


def test_a_slow_host_takes_longer_until_it_hurries_again(group: Hosts) -> None:
    one, two, _ = group.values()

    def seconds(kib: int) -> float:
        code = (
            "import socket, sys, threading, time\n"
            "peer = socket.create_connection((sys.argv[1], 7)); size = int(sys.argv[2]); began = time.monotonic()\n"
            "threading.Thread(target=peer.sendall, args=(bytes(size),)).start(); got = 0\n"
            "while got < size: got += len(peer.recv(65536))\n"
            "print(time.monotonic() - began)"
        )
        return float(one.run([sys.executable, "-c", code, two.address, str(kib * 1024)]))

    two.slow(rate_kbit=1000)
    try:
        # 64 KiB both ways at 125,000 bytes a second; a bucket of 16 KiB is free.
        assert seconds(64) >= (64 - 16) * 1024 / 125_000
    finally:
        two.hurry()
    assert "tbf" not in one.run(["tc", "qdisc", "show"]) + two.run(["tc", "qdisc", "show"])


def test_a_paused_host_stands_still_and_goes_on_but_for_what_it_had_stopped_itself(group: Hosts) -> None:
    host = group["three"]
    going, stopped = host.directory / "going", host.directory / "stopped"
    processes = [
        host.spawn([sys.executable, "-c", COUNT, str(file)], host.directory / "log") for file in (going, stopped)
    ]
    wait_until(lambda: going.exists() and stopped.exists(), what="both to count")
    (pid,) = [pid for pid in host.processes() if os.fsencode(stopped) in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not grows(stopped), what="one to stop")
    assert grows(going)
    host.pause()
    assert not grows(going)
    host.resume()
    wait_until(lambda: grows(going), what="the other to go on")
    assert not grows(stopped)
    for found in host.processes():
        if os.fsencode(COUNT) in Path(f"/proc/{found}/cmdline").read_bytes():
            os.kill(found, signal.SIGKILL)
    for process in processes:
        process.send_signal(signal.SIGCONT)
        assert process.wait(10) == -signal.SIGKILL


def test_a_killed_host_loses_its_processes_and_starts_again_with_its_disk_and_address(group: Hosts) -> None:
    one, two, _ = group.values()
    (two.directory / "kept").write_text("kept")
    # When the first process started: the numbers of namespaces are used again.
    boot = two.run(["cut", "-d ", "-f22", "/proc/1/stat"])
    old = two.processes()
    two.kill()
    assert not any(Path(f"/proc/{pid}").exists() for pid in old)
    assert not answers(one, two)
    two.start()
    assert two.run(["cat", "kept"]) == "kept"
    assert two.run(["hostname"]) == "two\n"
    assert two.run(["cut", "-d ", "-f22", "/proc/1/stat"]) != boot
    listen(two)
    assert answers(one, two)


@pytest.mark.usefixtures("installed")
def test_a_host_that_cannot_start_says_why_and_leaves_nothing() -> None:
    hosts = Hosts(["no" * 40])
    with pytest.raises(HostFailed, match=r"ended with 1: hostname: name too long"), hosts:
        pass
    assert not hosts.directory.exists()
    assert not exists(hosts._uplink)


@pytest.mark.usefixtures("installed")
def test_nothing_is_left_after_the_block_even_when_it_fails() -> None:
    hosts = Hosts(["a"])
    with contextlib.suppress(ZeroDivisionError), hosts:
        hosts["a"].spawn(["sleep", "1000"], hosts.directory / "log")
        first, link = hosts["a"].first_pid, hosts._uplink
        wait_until(hosts["a"].processes, what="the process")
        assert exists(link)
        _ = 1 / 0
    assert not Path(f"/proc/{first}").exists()
    assert not hosts.directory.exists()
    assert not exists(link)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("killed", ["maker", "keeper"])
def test_nothing_is_left_after_sigkill_of_the_maker_or_the_keeper(killed: str) -> None:
    code = (
        "import json, sys\nfrom bench.hosts import Hosts\n"
        "with Hosts(['a']) as hosts:\n"
        "    sleeper = hosts['a'].spawn(['sleep', '1000'], hosts.directory / 'log')\n"
        "    while not hosts['a'].processes(): pass\n"
        "    print(json.dumps([hosts._keeper.pid, hosts['a'].processes(), hosts._uplink, str(hosts.directory)]))\n"
        "    sys.stdout.flush(); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=module.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        keeper, processes, link, directory = json.loads(maker.stdout.readline())
        os.kill(maker.pid if killed == "maker" else keeper, signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), what="its processes to end")
        wait_until(lambda: not exists(link), what="its network to go")
        if killed == "maker":
            wait_until(lambda: not Path(directory).exists(), what="its directory to go")
        maker.kill()
    subprocess.run(["rm", "-rf", directory], check=True)
