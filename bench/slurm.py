"""A real Slurm of our own on this machine: one controller, several slurmd with fake GPUs, nothing outside a directory.

``with Slurm(Shape(), ...) as slurm: slurm.run(["sbatch", ...])``. Needs root and the Debian packages of `PACKAGES`; no
database. Several can run at once. All of its processes end with the block, jobs included.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from bench.processes import kill_carriers
from bench.slurm_config import Endpoint, Shape, cgroup_conf, gres_conf, node_name, slurm_conf

PACKAGES: Mapping[str, str] = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "srun": "slurm-client",
    "scontrol": "slurm-client",
    "munged": "munge",
    "mungekey": "munge",
}
"""The Debian package of each program; slurmctld and slurmd also need slurm-wlm-basic-plugins, which they depend on."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0


class SlurmUnavailable(Exception):
    """This machine cannot run the fixture. The message is one line and says what to do."""


class SlurmFailed(Exception):
    """A daemon of the fixture did not do what it should; the message ends with its log."""


def missing_packages() -> list[str]:
    """Return the Debian packages whose programs are not on this machine."""
    return sorted({package for name, package in PACKAGES.items() if shutil.which(name, path=SYSTEM_PATH) is None})


def require() -> None:
    """Raise ``SlurmUnavailable`` unless Slurm can be started here."""
    missing = missing_packages()
    if missing:
        raise SlurmUnavailable(
            f"no Slurm on this machine: apt-get install --no-install-recommends slurm-wlm-basic-plugins"
            f" {' '.join(missing)}"
        )
    if os.geteuid() != 0:
        raise SlurmUnavailable("slurmd starts jobs as their users and needs root: run this as root")


class Hosting(Protocol):
    """Where the daemons of a cluster live. Entered before and left after everything else."""

    def __enter__(self) -> Self:
        """Prepare the places."""

    def __exit__(self, *_: object) -> None:
        """Take them away."""

    def controller(self) -> Endpoint:
        """Return where the controller listens."""

    def node(self, index: int) -> Endpoint:
        """Return where the slurmd of a node listens."""

    def command(self, index: int, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` in the place of a node."""


class Ports:
    """All daemons on the loopback address, each on a free port of its own."""

    def __init__(self, nodes: int) -> None:
        self._count = nodes + 1
        self._ports: list[int] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as held:
            sockets = [held.enter_context(socket.socket()) for _ in range(self._count)]
            for taken in sockets:
                taken.bind(("127.0.0.1", 0))
            self._ports = [taken.getsockname()[1] for taken in sockets]
        return self

    def __exit__(self, *_: object) -> None:
        self._ports = []

    def controller(self) -> Endpoint:
        """Return where the controller listens."""
        return Endpoint(socket.gethostname(), "127.0.0.1", self._ports[0])

    def node(self, index: int) -> Endpoint:
        """Return where the slurmd of a node listens."""
        return Endpoint(socket.gethostname(), "127.0.0.1", self._ports[index + 1])

    def command(self, index: int, argv: Sequence[str]) -> list[str]:
        """Return ``argv``: every node is this machine."""
        return list(argv)


class Slurm:
    """A running cluster. ``environment`` is what its client programs need."""

    def __init__(self, shape: Shape, hosting: Hosting | None = None, *, directory: Path | None = None) -> None:
        self.shape = shape
        self._hosting = hosting or Ports(shape.nodes)
        self._parent = directory
        self._cleanup = contextlib.ExitStack()
        self._daemons: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.directory = Path()
        self.environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        require()
        with contextlib.ExitStack() as cleanup:
            self.directory = Path(tempfile.mkdtemp(prefix="bench-slurm-", dir=self._parent))
            cleanup.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self.environment = {
                "PATH": SYSTEM_PATH,
                "HOME": str(self.directory),
                "LANG": "C.UTF-8",
                "SLURM_CONF": str(self.directory / "slurm.conf"),
            }
            cleanup.enter_context(self._hosting)
            cleanup.callback(self._stop)
            self._write()
            self._start()
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> str:
        """Run a client program and return what it printed. Raises ``SlurmFailed`` with what it said."""
        try:
            ended = subprocess.run(
                argv,
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SlurmFailed(f"{' '.join(argv)} did not end within {timeout_s:g} s") from None
        if ended.returncode != 0:
            raise SlurmFailed(f"{' '.join(argv)} ended with {ended.returncode}: {ended.stderr.strip()}")
        return ended.stdout

    def version(self) -> str:
        """Return the version, as in ``22.05.8``."""
        return self.run(["sinfo", "--version"]).split()[-1]

    def unfinished(self) -> int:
        """Return how many jobs are pending, running or completing."""
        return len(self.run(["squeue", "--noheader", "--format=%A"]).split())

    def wait_until_idle(self, timeout_s: float, interval_s: float = 0.02) -> None:
        """Return once no job is left. Raises ``SlurmFailed`` after ``timeout_s``."""
        self._wait(lambda: self.unfinished() == 0, timeout_s, "the jobs did not end", interval_s)

    # ---- start -----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        # munged insists that everybody may walk to its socket.
        self.directory.chmod(0o755)
        for name in ("munge", "state", "spool", "pid", "log", "gpu"):
            (self.directory / name).mkdir(mode=0o755)
        for index in range(self.shape.nodes):
            (self.directory / "spool" / node_name(index)).mkdir(mode=0o755)
        for index in range(self.shape.gpus_per_node):
            # Only a device file makes Slurm number its GPUs. 1:3 is the null device.
            try:
                os.mknod(self.directory / "gpu" / f"gpu{index}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            except OSError as error:
                reason = error.strerror or str(error)
                raise SlurmUnavailable(f"device files for fake GPUs cannot be made here: {reason}") from error
        nodes = [self._hosting.node(index) for index in range(self.shape.nodes)]
        conf = slurm_conf(self.directory, self.shape, self._hosting.controller(), nodes)
        (self.directory / "slurm.conf").write_text(conf)
        (self.directory / "gres.conf").write_text(gres_conf(self.directory, self.shape))
        (self.directory / "cgroup.conf").write_text(cgroup_conf())

    def _start(self) -> None:
        munge = self.directory / "munge"
        self.run(["mungekey", "--create", "--keyfile", str(munge / "key")])
        places = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        flags = [f"--{flag}={munge / name}" for flag, name in places.items()]
        self._spawn("munged", ["munged", "--foreground", "--force", *flags])
        self._wait(lambda: self._answers(["munge", f"--socket={munge / 'socket'}", "--no-input"]), START_LIMIT_S)
        self._spawn("slurmctld", ["slurmctld", "-D"])
        for index in range(self.shape.nodes):
            self.start_node(index)
        self._wait(lambda: self._answers(["scontrol", "ping"]), START_LIMIT_S)
        self._wait(lambda: self._idle_nodes() == self.shape.nodes, START_LIMIT_S)

    def start_node(self, index: int) -> int:
        """Start the slurmd of a node; return its process id."""
        name = node_name(index)
        return self._spawn(f"slurmd-{name}", self._hosting.command(index, ["slurmd", "-D", "-N", name])).pid

    def _spawn(self, name: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.directory / "log" / f"{name}.out").open("ab") as out:
            daemon = subprocess.Popen(
                # The kernel ends them when this process dies without a chance to.
                ["setpriv", "--pdeathsig", "TERM", "--", *argv],
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._daemons.append((name, daemon))
        return daemon

    def _answers(self, argv: Sequence[str]) -> bool:
        try:
            self.run(argv, timeout_s=10)
        except SlurmFailed:
            return False
        return True

    def _idle_nodes(self) -> int:
        return len(self.run(["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"]).split())

    def _wait(
        self,
        predicate: Callable[[], bool],
        timeout_s: float,
        what: str = "the cluster did not come up",
        interval_s: float = 0.05,
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not predicate():
            for name, daemon in self._daemons:
                if daemon.poll() is not None:
                    raise SlurmFailed(f"{name} ended with {daemon.returncode}: {self._last_words(name)}")
            if time.monotonic() > deadline:
                raise SlurmFailed(f"{what} within {timeout_s:g} s: {self._last_words('slurmctld')}")
            time.sleep(interval_s)

    def _last_words(self, name: str) -> str:
        files = [self.directory / "log" / f"{name}{ending}" for ending in (".out", ".log")]
        text = "".join(file.read_text(errors="replace") for file in files if file.exists())
        return " | ".join(text.splitlines()[-5:])

    # ---- stop ------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        # The daemons leave the processes of jobs behind: these end first, while someone can still end them.
        if all(daemon.poll() is None for _, daemon in self._daemons):
            self._cancel_all()
        for _, daemon in reversed(self._daemons):
            daemon.terminate()
        deadline = time.monotonic() + STOP_LIMIT_S
        for _, daemon in self._daemons:
            try:
                daemon.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        kill_carriers(self.directory)

    def _cancel_all(self) -> None:
        with contextlib.suppress(SlurmFailed):
            jobs = self.run(["squeue", "--noheader", "--format=%A"], timeout_s=5).split()
            if jobs:
                self.run(["scancel", *jobs], timeout_s=STOP_LIMIT_S)
                self.wait_until_idle(STOP_LIMIT_S)


def main() -> None:
    """Start a cluster, print how to talk to it, and keep it until the end of standard input or Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        try:
            with Slurm(Shape()) as slurm:
                print(f"export SLURM_CONF={slurm.environment['SLURM_CONF']}", flush=True)
                sys.stdin.read()
        except (SlurmUnavailable, SlurmFailed) as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
