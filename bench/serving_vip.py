"""A virtual address between two machines made of namespaces: how long nobody answers at it, and two have it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from bench.hosts import ROOT, Host, HostFailed, Hosts
from bench.progress import say
from bench.serving_holder import PORT
from bench.serving_pool import until

DRILLS = 20
STEADY_S = 1.0
LIMIT_S = 30.0


class Pair:
    """Two front ends' parts at one address, and a third machine that calls it."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.address = hosts["one"].address.rpartition(".")[0] + ".200"
        for name, peer, priority in (("one", "two", 150), ("two", "one", 100)):
            host = hosts[name]
            words = [str(host.directory / "f"), host.address, hosts[peer].address, str(priority), f"{self.address}/24"]
            self._spawn(host, "bench.serving_holder", *words)
        self.heard = hosts["caller"].directory / "heard"
        self._spawn(hosts["caller"], "bench.serving_caller", self.address, str(PORT), str(self.heard))

    @staticmethod
    def _spawn(host: Host, module: str, *words: str) -> None:
        log = host.directory / "log"
        host.spawn([sys.executable, "-m", module, *words], log, environment={"PYTHONPATH": str(ROOT)})

    def answers(self) -> list[tuple[float, str]]:
        """Return when it was asked and who answered, whole lines only."""
        lines = self.heard.read_text().rpartition("\n")[0].splitlines() if self.heard.exists() else []
        return [(float(at), who) for at, _, who in (line.partition(" ") for line in lines)]

    def held(self, name: str) -> list[tuple[float, float]]:
        """Return the times within which a machine had the address."""
        lines = (self.hosts[name].directory / "f" / "holds").read_text().splitlines()
        spans, since = [], None
        for at, _, on in (line.partition(" ") for line in lines):
            if on == "1":
                since = float(at)
            elif since is not None:
                spans.append((since, float(at)))
                since = None
        return [*spans, *([(since, time.time())] if since is not None else [])]

    def until_steady(self, name: str, after: float = 0.0) -> None:
        """Return once this machine alone has answered for a while, all of it after a fault."""
        own = self.hosts[name].address

        def steady() -> bool:
            now = time.time()
            late = [who for at, who in self.answers()[-300:] if at > now - STEADY_S]
            return now - STEADY_S > after and len(late) > 20 and set(late) == {own}

        until(steady, f"{name} to answer alone", LIMIT_S, 0.1)

    def silence(self, since: float) -> float:
        """Return the longest time after a fault within which nobody answered, up to the first steady answers."""
        times = [since, *(at for at, _ in self.answers() if at > since)]
        return max((after - before for before, after in pairwise(times)), default=float("inf"))

    # ---- faults ----------------------------------------------------------------------------------------------------

    def unplug(self) -> float:
        """Take the cable out of the first machine: both ends have no carrier."""
        at = time.time()
        self.hosts.in_switch("ip", "link", "set", self.port, "down")
        return at

    def plug(self) -> None:
        """Put it back."""
        self.hosts.in_switch("ip", "link", "set", self.port, "up")

    @property
    def port(self) -> str:
        """Return the first machine's port at the switch."""
        return f"p-{self.hosts['one'].name}"

    def kill(self, *words: str) -> float:
        """Kill the processes of the first machine whose command line has all these words."""
        host = self.hosts["one"]
        found = [pid for pid in host.processes() if all(word in _line(pid) for word in words)]
        if not found:
            raise HostFailed(f"no process {words} is there to be killed")
        at = time.time()
        host.run(["kill", f"-{signal.SIGKILL}", *(_inner(pid) for pid in found)])
        return at


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _inner(pid: int) -> str:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]


class Drill(msgspec.Struct, frozen=True):
    """One fault: its kind, how long nobody answered, how long two had the address."""

    kind: str
    silent_s: float
    double_s: float


def both(one: Sequence[tuple[float, float]], two: Sequence[tuple[float, float]], since: float) -> float:
    """Return the longest time within which both had it, of those that ended after ``since``."""
    shared = [min(a[1], b[1]) - max(a[0], b[0], since) for a in one for b in two]
    return max([0.0, *shared])


def drill(pair: Pair, kind: str, fault: Callable[[], float], undo: Callable[[], None]) -> Drill:
    """Do it once, and wait until all is as before."""
    pair.until_steady("one")
    at = fault()
    if kind == "link":
        pair.until_steady("two", at)
    undo()
    # Also the way back may leave nobody answering, or two: both count.
    pair.until_steady("one", at)
    time.sleep(STEADY_S)
    found = Drill(kind, pair.silence(at), both(pair.held("one"), pair.held("two"), at))
    say(f"{kind}: nobody for {found.silent_s:.2f} s, two for {found.double_s:.2f} s")
    return found


def virtual_address(count: int = DRILLS) -> dict[str, object]:
    """Unplug the holder, and kill its keepalived and its proxy in turn, so many times each."""
    with Hosts(["one", "two", "caller"]) as hosts:
        pair = Pair(hosts)
        found = []
        for number in range(count):
            found.append(drill(pair, "link", pair.unplug, pair.plug))
            if number % 2:
                found.append(drill(pair, "keepalived", lambda: pair.kill("keepalived", "--dont-fork"), _nothing))
            else:
                found.append(drill(pair, "proxy", lambda: pair.kill("serving_holder", "answer"), _nothing))
    by_kind = {kind: [one.silent_s for one in found if one.kind == kind] for kind in ("link", "keepalived", "proxy")}
    return {
        "vip_link_s_max": max(by_kind["link"]),
        "vip_process_s_max": max(by_kind["keepalived"] + by_kind["proxy"]),
        "vip_double_s_max": max(one.double_s for one in found),
        "vip_silent_s": {kind: [round(one, 2) for one in sorted(times)] for kind, times in by_kind.items()},
    }


def _nothing() -> None:
    """Leave it to the machine's own supervision."""
