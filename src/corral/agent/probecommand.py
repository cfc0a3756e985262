"""Asking a replica by a command in its own environment. It has its time, and nothing of it is left afterwards."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

import msgspec

from corral.agent.shim.task_cgroup import TaskCgroup

PROBE_NAME = "CORRAL_PROBE_OF"
"""In the environment of every command that asks a replica: the directory of the replica."""

_TAIL_BYTES = 1000
_SHOWN_MAX = 200


class Place(msgspec.Struct, frozen=True):
    """Where the program of a replica runs: what of its ``spec.json`` a command needs to run beside it."""

    env: dict[str, str] = {}
    cwd: str = "/"
    cpus: tuple[int, ...] | None = None
    cgroup: dict[str, object] | None = None


class ProbeCommand:
    """One run of a command. ``run`` blocks and is called once, in a thread of its own; ``kill`` by anybody."""

    def __init__(self, argv: Sequence[str], place: Place, directory: str, timeout_s: float) -> None:
        self.over = False
        self._argv = list(argv)
        self._place = place
        self._directory = directory
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def run(self) -> str | None:
        """Run the command to its end; return what was not good about it, ``None`` for nothing."""
        deadline = time.monotonic() + self._timeout_s
        try:
            # A program on a file system that hangs hangs here; whoever started this thread does not wait for it.
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._place.cwd,
                env={**self._place.env, PROBE_NAME: self._directory},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self.over = True
            return f"{self._argv[0] if self._argv else 'no command'}: {error}"
        try:
            return self._watch(process, deadline)
        finally:
            self.over = True

    def kill(self) -> None:
        """End the command, and do not let it begin."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                _kill_group(self._process.pid)

    def _watch(self, process: subprocess.Popen[bytes], deadline: float) -> str | None:
        assert process.stdout is not None
        pidfd = os.pidfd_open(process.pid)
        try:
            with self._lock:
                self._process = process
                if self._killed:
                    _kill_group(process.pid)
            self._take_place(process.pid)
            ended, tail = _follow(process.stdout.fileno(), pidfd, deadline)
            with self._lock:
                # What it left goes with it; its number is nobody else's before it is reaped.
                _kill_group(process.pid)
                code = process.wait()
                self._process = None
        finally:
            os.close(pidfd)
            process.stdout.close()
        return self._fault(code, tail) if ended else f"{self._argv[0]}: it did not end within {self._timeout_s:g} s"

    def _take_place(self, pid: int) -> None:
        """Let the command count as one of the replica's own processes, as far as the machine allows."""
        with contextlib.suppress(OSError):
            if self._place.cpus:
                os.sched_setaffinity(pid, self._place.cpus)
        if self._place.cgroup is not None:
            TaskCgroup.existing(self._place.cgroup).admit(pid)

    def _fault(self, code: int, tail: bytes) -> str | None:
        if code == 0:
            return None
        lines = tail.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")[-_SHOWN_MAX:]
        how = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
        return f"{self._argv[0]}: {how}" + (f": {last}" if last else "")


def _follow(output: int, pidfd: int, deadline: float) -> tuple[bool, bytes]:
    """Follow a command until it has ended (or not in time); return whether it has, and the last of its output."""
    tail = b""
    poll = select.poll()
    poll.register(output, select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    while True:
        left_s = deadline - time.monotonic()
        ready = [file for file, _ in poll.poll(max(0.0, 1000 * left_s))]
        if output in ready:
            piece = os.read(output, 1 << 16)
            if not piece:
                poll.unregister(output)
            tail = (tail + piece)[-_TAIL_BYTES:]
        elif pidfd in ready:
            return True, tail
        if left_s <= 0 and pidfd not in ready:
            return False, tail


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
