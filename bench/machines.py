"""A corral pool of several machines made of namespaces: heads, nodes and, where asked, a PostgreSQL server.

``with Machines(nodes=2) as pool: pool.client().submit(...); pool.hosts["n1"].kill()``. Everything is started by the
product's own commands, and nothing is left after the block.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from bench import postgres
from bench.hosts import Host, HostFailed, Hosts
from bench.pool import corral
from corral.client import Client
from corral.model.errors import CorralError, DaemonNotRunning

START_LIMIT_S = 180.0
LEADER_LIMIT_S = 2.0
DATABASE_PORT = 5432


class HostedDatabase(postgres.Cluster):
    """A PostgreSQL server in a host."""

    def __init__(self, host: Host, bin_: Path) -> None:
        self._machine = host
        directory = host.directory / "pg"
        directory.mkdir()
        super().__init__(directory, bin_, host=host.address, port=DATABASE_PORT)

    def start(self) -> None:
        """Start it and return when it answers."""
        demoted = ["setpriv", f"--reuid={postgres.USER}", f"--regid={postgres.USER}", "--clear-groups", "--"]
        self._process = self._machine.spawn([*demoted, str(self._bin / "postgres"), "-D", str(self._data)], self._log)
        self.await_ready()

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop it: at once but cleanly (SIGINT), or as a crash does (SIGQUIT)."""
        if self._process is not None:
            self._machine.run(["kill", f"-{number}", (self._data / "postmaster.pid").read_text().split()[0]])
            self._process.wait(30.0)
            self._process = None


class Machines:
    """The pool. Hosts are called ``head1`` ..., ``n1`` ... and ``db``; heads are no nodes.

    ``settings`` are the lines of every head's ``config.toml``. ``environment`` goes to every command.
    """

    def __init__(
        self,
        *,
        nodes: int,
        gpus_per_node: int = 4,
        heads: int = 1,
        database: bool = False,
        settings: Mapping[str, float] | None = None,
        environment: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.heads = [f"head{number + 1}" for number in range(heads)]
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self.hosts = Hosts([*self.heads, *self.nodes, *(["db"] if database else [])])
        self._gpus = gpus_per_node
        self._settings = dict(settings or {})
        self._environment = {name: dict(values) for name, values in (environment or {}).items()}
        self._cleanup = contextlib.ExitStack()
        self._join: tuple[dict[str, str], str] = ({}, "")
        self.database: HostedDatabase | None = None
        self.store: str | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as cleanup:
            cleanup.enter_context(self.hosts)
            if "db" in self.hosts:
                self._start_database(self.hosts["db"])
            for head in self.heads:
                self.start_head(head)
            self._learn_all_heads()
            self.start_nodes(self.nodes)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    # ---- talking to it ---------------------------------------------------------------------------------------------

    def state_dir(self, name: str) -> Path:
        """Return the state directory of a machine."""
        return self.hosts[name].directory / "s"

    def corral(self, name: str, *arguments: str, timeout_s: float = 60.0, **environment: str) -> str:
        """Run the command line on a machine and return what it printed. Raises ``HostFailed``."""
        own = {"CORRAL_STATE_DIR": str(self.state_dir(name)), **self._environment.get(name, {}), **environment}
        return self.hosts[name].run([*corral(), *arguments], environment=own, timeout_s=timeout_s)

    def client(self, retry_s: float = 60.0) -> Client:
        """Return a client outside of all machines; it knows the first head, and through it the others."""
        return Client(state_dir=self.state_dir(self.heads[0]), retry_s=retry_s)

    def leader(self, timeout_s: float = LEADER_LIMIT_S) -> tuple[str, int]:
        """Return which head leads, and its epoch, as the heads themselves say; the newest epoch counts.

        Raises ``DaemonNotRunning`` when no head answers within ``timeout_s``.
        """

        def told(head: str) -> tuple[int, str] | None:
            return self._told_leader(head, timeout_s)

        with ThreadPoolExecutor(len(self.heads)) as threads:
            found = [answer for answer in threads.map(told, self.heads) if answer is not None]
        if not found:
            raise DaemonNotRunning("no head says who leads")
        epoch, name = max(found)
        return name, epoch

    def _told_leader(self, head: str, timeout_s: float) -> tuple[int, str] | None:
        try:
            with Client(state_dir=self.state_dir(head), retry_s=0.0, timeout_s=timeout_s) as client:
                status = client.status()
        except CorralError:
            return None
        named = (name for name in self.heads if f"//{self.hosts[name].address}:" in status.url)
        return next(((status.epoch, name) for name in named), None)

    def agent(self, node: str) -> int:
        """Return the process id of a node's agent, as this machine counts."""
        (path,) = self.state_dir(node).glob("nodes/*/agent.pid")
        return self.outside(node, int(json.loads(path.read_text())["pid"]))

    def shim(self, node: str, task: str) -> tuple[int, int]:
        """Return the process ids of a task's shim and of its program. ``task`` is JOB.GANG.RANK.INCARNATION."""
        (path,) = self.state_dir(node).glob(f"nodes/*/tasks/{task}/shim.json")
        said = json.loads(path.read_text())
        return self.outside(node, said["pid"]), self.outside(node, said["child_pid"])

    def named(self, name: str, word: str) -> list[int]:
        """Return the processes of a machine whose command line has a word in it."""
        return [pid for pid in self.hosts[name].processes() if word in command_line(pid)]

    def outside(self, name: str, inner: int) -> int:
        """Return the process id, as this machine counts, of a process that has the id ``inner`` in its host."""
        for pid in self.hosts[name].processes():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                if int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]) == inner:
                    return pid
        raise ProcessLookupError(f"no process {inner} in {name}")

    def last_words(self, name: str, lines: int = 8) -> str:
        """Return the end of every log of corral on a machine: they go with the machine."""
        said = []
        for log in sorted((self.state_dir(name) / "logs").glob("*.log")):
            said += [f"{name} {log.stem}: {line}" for line in log.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(said)

    # ---- starting --------------------------------------------------------------------------------------------------

    def start_head(self, name: str) -> None:
        """Start corral on a head, the first time or again."""
        state = self.state_dir(name)
        state.mkdir(mode=0o700, exist_ok=True)
        (state / "config.toml").write_text("".join(f"{key} = {value}\n" for key, value in self._settings.items()))
        store = ["--store", self.store] if self.store else []
        arguments = ["head", "--no-node", "--address", self.hosts[name].address, *store, "--json"]
        said = json.loads(self.corral(name, *arguments, timeout_s=START_LIMIT_S))
        if said["join"] is not None:
            self._learn_to_join(str(said["join"]))

    def _learn_to_join(self, command: str) -> None:
        token, _, rest = command.strip().partition(" ")
        variable, _, secret = token.partition("=")
        self._join = ({variable: secret}, rest.split()[-1])

    def _learn_all_heads(self) -> None:
        """Take the command to join with that names every head: a machine may come back when any of them leads."""
        deadline = time.monotonic() + START_LIMIT_S
        while self._join[1].count(",") < len(self.heads) - 1:
            if time.monotonic() > deadline:
                raise HostFailed(f"the command to join with names only {self._join[1]}")
            time.sleep(0.5)
            self._learn_to_join(self.corral(self.heads[0], "token", "join"))

    def start_nodes(self, names: Iterable[str]) -> None:
        """Let machines join, all at once, the first time or again. Raises ``HostFailed``."""
        failures: list[HostFailed] = []

        def start(name: str) -> None:
            try:
                self.start_node(name)
            except HostFailed as error:
                failures.append(error)

        threads = [threading.Thread(target=start, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def start_node(self, name: str) -> None:
        """Let a machine join. Raises ``HostFailed``."""
        environment, head = self._join
        shape = ["--simulated", "h100", "--gpus-per-node", str(self._gpus)]
        self.corral(name, "join", head, *shape, timeout_s=START_LIMIT_S, **environment)

    def return_node(self, name: str) -> None:
        """Let a machine that has been switched on join, as often as that takes: an init system would."""
        self._again(lambda: self.start_node(name))

    def return_head(self, name: str) -> None:
        """Start corral on a head that has been switched on, as often as that takes: an init system would."""
        self._again(lambda: self.start_head(name))

    def _again(self, start: Callable[[], None]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                return start()
            except HostFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)

    def _start_database(self, host: Host) -> None:
        bin_ = postgres.binaries()
        if bin_ is None:
            raise HostFailed("there is no PostgreSQL server: apt-get install postgresql")
        self.database = HostedDatabase(host, bin_)
        self.database.start()
        self.store = self.database.url(self.database.database())


def command_line(pid: int) -> str:
    """Return the command line of a process; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal a process; it may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
