"""Machines made of namespaces on this one, to be killed, cut off, slowed and paused: what real chaos needs.

``with Hosts(["head", "n1", "n2"]) as hosts: hosts["n1"].run([...])``. Each host has its own network (one interface on
a common bridge), process ids, host name, boot clock and directory; they share the kernel, the wall clock and the rest
of the file system. Needs root, iproute2 and util-linux. Several groups can run at once; nothing of one is left after
the block, or after the death of the process that made it, SIGKILL included (:mod:`bench.hosts_keeper`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from bench.namespaces import children_of, doors, inside, signal_all, state_of

PACKAGES: Mapping[str, str] = {
    "ip": "iproute2",
    "bridge": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
}
"""The Debian package of each program that this module runs."""
ROOT = Path(__file__).resolve().parents[1]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STOP_LIMIT_S = 10.0
# The first process of a host: it says that it is ready, then waits for orphans, which become its children.
FIRST = """
set -e
hostname "$0"
mount --bind "$1" /etc/hosts
ip link set lo up
echo ready
exec >/dev/null 2>&1
while :; do sleep 86400 & wait $! || :; done
"""
NOWHERE = "02:00:00:00:00:00"
"""A link address that no interface has."""


class HostsUnavailable(Exception):
    """This machine cannot make hosts. The message is one line and says what to do."""


class HostFailed(Exception):
    """A command in a host failed; the message is what it said."""


def missing_packages() -> list[str]:
    """Return the Debian packages whose programs are not on this machine."""
    return sorted({package for name, package in PACKAGES.items() if shutil.which(name, path=SYSTEM_PATH) is None})


def require() -> None:
    """Raise ``HostsUnavailable`` unless hosts can be made here."""
    if os.geteuid() != 0:
        raise HostsUnavailable("network namespaces are made by root: run this as root")
    if missing := missing_packages():
        raise HostsUnavailable(f"hosts need more programs: apt-get install {' '.join(missing)}")


class Host:
    """One machine. It is on, or off after :meth:`kill`; its directory is its disk and stays."""

    def __init__(self, group: Hosts, name: str, address: str, boot_offset_s: int) -> None:
        self._group = group
        self._boot_offset_s = boot_offset_s
        self._already_stopped: frozenset[int] = frozenset()
        self._spawned: list[subprocess.Popen[bytes]] = []
        self._port = f"p-{name}"
        self.name = name
        self.address = address
        self.directory = group.directory / name
        self.first_pid = 0

    @property
    def environment(self) -> dict[str, str]:
        """Return what its commands get as environment: nothing of this process but where programs are."""
        return {
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), SYSTEM_PATH)),
            "HOME": str(self.directory / "home"),
            "TMPDIR": str(self.directory / "tmp"),
            "LANG": "C.UTF-8",
        }

    # ---- power -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Switch the host on: the same name, addresses and disk, no processes, another boot."""
        assert not self.first_pid, f"{self.name} is on"
        for folder in ("home", "tmp"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        clock = ["--time", "--boottime", str(self._boot_offset_s), "--monotonic", str(self._boot_offset_s)]
        spaces = ["--mount", "--uts", "--pid", "--net", *clock, "--fork", "--mount-proc"]
        first = ["sh", "-c", FIRST, self.name, str(self._group.directory / "hosts")]
        self.first_pid = self._group.ask_keeper({"start": [*spaces, "--", *first]})
        switch, digits = self._group.switch_pid, ipaddress.IPv4Address(self.address).packed
        mac = "02:" + ":".join(f"{byte:02x}" for byte in (1, *digits))
        there = ["peer", "name", self._port, "netns", str(switch)]
        ip("link", "add", "eth0", "address", mac, "netns", str(self.first_pid), "type", "veth", *there)
        self._group.in_switch("ip", "link", "set", self._port, "master", "bridge", "up")
        self.in_network("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.in_network("ip", "link", "set", "eth0", "up")

    def kill(self) -> None:
        """Switch the host off at once, like a pulled plug: none of its processes sees it coming, all are gone."""
        assert self.first_pid, f"{self.name} is off"
        first, self.first_pid, self._already_stopped = self.first_pid, 0, frozenset()
        self._group.ask_keeper({"end": first})
        self.forget_spawned()
        # The kernel removes the cable some time after the last process: another start must not find it.
        with contextlib.suppress(HostFailed):
            self._group.in_switch("ip", "link", "del", self._port)

    # ---- commands --------------------------------------------------------------------------------------------------

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` in this host."""
        spaces = ["--mount", "--uts", "--pid", "--net", "--time"]
        return ["nsenter", f"--target={self.first_pid}", *spaces, f"--wd={self.directory}", "--", *argv]

    def run(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        stdin: str = "",
    ) -> str:
        """Run a program to its end and return what it printed. Raises ``HostFailed`` with what it said."""
        environment = {**self.environment, **(environment or {})}
        return _printed(self.command(argv), environment=environment, timeout_s=timeout_s, stdin=stdin)

    def spawn(
        self, argv: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program that goes on, in a session of its own; what it says is appended to ``log``.

        The process returned is the ``nsenter`` outside of the host, which ends as the program does.
        """
        with log.open("ab") as out:
            process = subprocess.Popen(
                self.command(argv),
                env={**self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._spawned.append(process)
        return process

    def forget_spawned(self) -> None:
        """Wait for what was spawned, once the host is off."""
        for process in self._spawned:
            process.wait()
        self._spawned.clear()

    def in_network(self, *argv: str) -> None:
        """Run a program of this machine in the host's network. Raises ``HostFailed``."""
        _printed(["nsenter", f"--target={self.first_pid}", "--net", "--", *argv])

    # ---- processes -------------------------------------------------------------------------------------------------

    def processes(self) -> list[int]:
        """Return the ids, as this machine counts them, of the processes in the host, its first one left out."""
        return inside(self.first_pid)

    def pause(self) -> None:
        """Stop every process of the host, as when a machine hangs as a whole. Returns when all are stopped."""
        assert not self._already_stopped, f"{self.name} is paused"
        # What was stopped before stays so at the end of the pause: the host itself had reasons.
        self._already_stopped = frozenset({0, *(pid for pid in self.processes() if state_of(pid) == "T")})
        deadline = time.monotonic() + STOP_LIMIT_S
        while going := [pid for pid in self.processes() if state_of(pid) not in "TZX"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {going} of {self.name} do not stop")
            signal_all(going, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the processes that :meth:`pause` stopped go on."""
        stopped, self._already_stopped = self._already_stopped, frozenset()
        signal_all([pid for pid in self.processes() if pid not in stopped], signal.SIGCONT)
        # A door that goes on lets what it runs go on.
        signal_all([pid for pid in doors(self.first_pid) if not stopped.intersection(children_of(pid))], signal.SIGCONT)

    # ---- network ---------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Drop every frame from and to the host in the bridge, silently."""
        self._group.in_switch("bridge", "link", "set", "dev", self._port, "state", "0")

    def mend(self) -> None:
        """Undo :meth:`cut`."""
        self._group.in_switch("bridge", "link", "set", "dev", self._port, "state", "3")

    def slow(self, rate_kbit: int) -> None:
        """Bound what the host sends and what it receives by a rate each; frames that wait longer than 1 s are lost."""
        bucket = ["root", "tbf", "rate", f"{rate_kbit}kbit", "burst", "16kb", "latency", "1s"]
        self.in_network("tc", "qdisc", "replace", "dev", "eth0", *bucket)
        self._group.in_switch("tc", "qdisc", "replace", "dev", self._port, *bucket)

    def hurry(self) -> None:
        """Undo :meth:`slow`."""
        self.in_network("tc", "qdisc", "del", "dev", "eth0", "root")
        self._group.in_switch("tc", "qdisc", "del", "dev", self._port, "root")

    def lose_way_to(self, other: Host) -> None:
        """Drop what this host sends to another one, silently; the other direction stays as it is."""
        # Frames to an address that nobody has: sending succeeds and nothing arrives, as behind a broken switch.
        self.in_network(
            "ip", "neighbour", "replace", other.address, "lladdr", NOWHERE, "nud", "permanent", "dev", "eth0"
        )

    def find_way_to(self, other: Host) -> None:
        """Undo :meth:`lose_way_to`."""
        self.in_network("ip", "neighbour", "del", other.address, "dev", "eth0")


class Hosts(Mapping[str, Host]):
    """A group of hosts, all on, at addresses of one network that this machine belongs to as well.

    Their boot clocks differ by days, so that a comparison of two machines' clocks cannot pass unnoticed.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._hosts: dict[str, Host] = {}
        self._keeper: subprocess.Popen[str] | None = None
        self._uplink = f"crl{secrets.token_hex(4)}"
        self.directory = Path()
        self.network = ipaddress.IPv4Network("0.0.0.0/0")
        self.switch_pid = 0

    def __enter__(self) -> Self:
        require()
        self.directory = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
        self.directory.chmod(0o755)
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "bench.hosts_keeper", str(self.directory)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self._make_network()
            for number, name in enumerate(self._names):
                host = Host(self, name, str(self.network[number + 10]), (number + 1) * 86_400)
                self._hosts[name] = host
                host.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def address(self) -> str:
        """Return the address of this machine in the network of the hosts."""
        return str(self.network[1])

    def close(self) -> None:
        """Kill all hosts and remove their disks and network. May be called twice."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        with contextlib.suppress(HostFailed):
            ip("link", "del", self._uplink)
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()
        for host in self._hosts.values():
            host.forget_spawned()

    def part(self, one: Host, other: Host) -> None:
        """Drop everything between two hosts, silently; both go on to talk to others."""
        one.lose_way_to(other)
        other.lose_way_to(one)

    def rejoin(self, one: Host, other: Host) -> None:
        """Undo :meth:`part`."""
        one.find_way_to(other)
        other.find_way_to(one)

    # ---- what hosts ask for ----------------------------------------------------------------------------------------

    def ask_keeper(self, request: Mapping[str, object]) -> int:
        """Return the keeper's answer. Raises ``HostFailed`` when it has ended."""
        keeper = self._keeper
        assert keeper is not None, "the hosts are closed"
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        print(json.dumps(request), file=keeper.stdin, flush=True)
        line = keeper.stdout.readline()
        if not line:
            raise HostFailed("the keeper of the hosts has ended; standard error says why")
        answer = json.loads(line)
        if isinstance(answer, str):
            raise HostFailed(answer)
        return int(answer)

    def in_switch(self, *argv: str) -> None:
        """Run a program in the network namespace of the bridge. Raises ``HostFailed``."""
        _printed(["nsenter", f"--target={self.switch_pid}", "--net", "--", *argv])

    def _make_network(self) -> None:
        self.network = _free_network()
        names = "".join(f"{self.network[number + 10]} {name}\n" for number, name in enumerate(self._names))
        (self.directory / "hosts").write_text(f"127.0.0.1 localhost\n{self.network[1]} outside\n{names}")
        waits = ["--net", "--fork", "--", "sh", "-c", "echo ready; exec sleep infinity"]
        self.switch_pid = self.ask_keeper({"start": waits})
        self.in_switch("ip", "link", "add", "bridge", "type", "bridge")
        self.in_switch("ip", "link", "set", "bridge", "up")
        ip("link", "add", self._uplink, "type", "veth", "peer", "name", "uplink", "netns", str(self.switch_pid))
        self.in_switch("ip", "link", "set", "uplink", "master", "bridge", "up")
        ip("address", "add", f"{self.address}/24", "dev", self._uplink)
        ip("link", "set", self._uplink, "up")


def ip(*arguments: str) -> str:
    """Run ``ip`` on this machine and return what it printed. Raises ``HostFailed``."""
    return _printed(["ip", *arguments])


def _free_network() -> ipaddress.IPv4Network:
    taken = [
        ipaddress.ip_interface(address["local"] + "/" + str(address["prefixlen"])).network
        for link in json.loads(ip("-json", "-4", "address", "show"))
        for address in link.get("addr_info", ())
    ]
    while True:
        network = ipaddress.IPv4Network((f"10.{random.randrange(64, 128)}.{random.randrange(256)}.0", 24))
        if not any(network.overlaps(other) for other in taken):
            return network


def _printed(
    argv: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout_s: float = 30.0, stdin: str = ""
) -> str:
    environment = environment or {"PATH": SYSTEM_PATH}
    try:
        ended = subprocess.run(
            argv, env=environment, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise HostFailed(f"{' '.join(argv)} did not end within {timeout_s:g} s") from None
    if ended.returncode != 0:
        raise HostFailed(f"{' '.join(argv)} ended with {ended.returncode}: {ended.stderr.strip()}")
    return ended.stdout
