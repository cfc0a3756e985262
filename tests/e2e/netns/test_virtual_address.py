"""Two machines hold one address in turn: real keepalived, real links, and its processes killed."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.hosts import PACKAGES, Host, HostFailed, Hosts
from tests import needs
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200), pytest.mark.xdist_group("netns")]
HOLDER = Path(__file__).with_name("holder.py")
LIMIT_S = 30.0


class Pair:
    """The two of them, and a third machine that calls."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.address = hosts["one"].address.rpartition(".")[0] + ".200"
        for name, peer, priority in (("one", "two", 150), ("two", "one", 100)):
            self.start(name, peer, priority)

    def start(self, name: str, peer: str, priority: int) -> None:
        host = self.hosts[name]
        arguments = [str(host.directory / "f"), host.address, self.hosts[peer].address, str(priority)]
        host.spawn([sys.executable, str(HOLDER), *arguments, f"{self.address}/24"], host.directory / "holder.log")

    def answers(self) -> str | None:
        """Return who answers at the address, as a third machine sees it."""
        ask = f"exec 3<>/dev/tcp/{self.address}/8080 && cat <&3"
        try:
            return self.hosts["caller"].run(["timeout", "0.3", "bash", "-c", ask]).strip() or None
        except HostFailed:
            return None

    def await_holder(self, name: str) -> None:
        wanted = self.hosts[name].address
        wait_until(lambda: self.answers() == wanted, LIMIT_S, 0.02, what=f"{name} to answer at {self.address}")

    def holders(self) -> list[str]:
        """Return the machines on whose interface the address is."""
        return [name for name in ("one", "two") if f" {self.address}/" in self.said(self.hosts[name])]

    def said(self, host: Host) -> str:
        return host.run(["ip", "-o", "address", "show", "dev", "eth0"])

    def kill(self, name: str, word: str) -> None:
        """Kill the processes of a machine whose command line has a word in it."""
        host = self.hosts[name]
        for pid in host.processes():
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if word in line and "holder.py" not in line:
                host.run(["kill", f"-{signal.SIGKILL}", self.inner(pid)])

    @staticmethod
    def inner(pid: int) -> str:
        status = Path(f"/proc/{pid}/status").read_text()
        return next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    needs.root()
    for name, package in {**PACKAGES, "keepalived": "keepalived"}.items():
        needs.program(name, package=package)
    with Hosts(["one", "two", "caller"]) as hosts:
        yield Pair(hosts)


def test_who_is_well_has_the_address_and_only_one_has_it(pair: Pair) -> None:
    pair.await_holder("one")
    assert pair.holders() == ["one"]
    (pair.hosts["one"].directory / "f" / "ill").touch()
    pair.await_holder("two")
    wait_until(lambda: pair.holders() == ["two"], LIMIT_S, what="one holder")
    (pair.hosts["one"].directory / "f" / "ill").unlink()
    pair.await_holder("one")
    wait_until(lambda: pair.holders() == ["one"], LIMIT_S, what="one holder")


def test_a_cut_link_moves_it(pair: Pair) -> None:
    pair.await_holder("one")
    pair.hosts["one"].cut()
    pair.await_holder("two")
    pair.hosts["one"].mend()
    pair.await_holder("one")
    wait_until(lambda: pair.holders() == ["one"], LIMIT_S, what="one holder")


def test_a_killed_keepalived_leaves_no_second_holder(pair: Pair) -> None:
    pair.await_holder("one")
    pair.kill("one", "keepalived")
    doubled: float | None = None
    deadline = time.monotonic() + LIMIT_S
    # It comes back and takes it again; in between the other one may have it, both never for long.
    while pair.answers() is None or len(pair.holders()) != 1:
        both = len(pair.holders()) == 2
        doubled = (doubled or time.monotonic()) if both else None
        assert doubled is None or time.monotonic() - doubled < 5.0, "two machines hold the address"
        assert time.monotonic() < deadline
    pair.await_holder("one")
