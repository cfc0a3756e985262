"""What a supervisor that was killed left behind on its state directory.

Its children get SIGTERM from the kernel when it dies, but one that is stopped or stuck stays, and so does what a killed
child of it had started. They are known by what only they have on their command lines; the fork server, which looks like
a task's shim, by its socket. Tasks are none of them: they are to outlive everything.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from pathlib import Path

from corral.model.errors import DaemonStartFailed
from corral.runtime.paths import StatePaths

OF_DIRECTORY = (
    b"corral.runtime.daemon",
    b"corral.runtime.ray.bridge",
    b"corral.runtime.ray.node",
    b"corral.runtime.fronting.process",
)
RELAY = b"corral.serving.relay.main"
PROXIES = (b"haproxy", b"keepalived")
AGENT = b"corral.runtime.agent"
FORK_SERVER = b"corral.agent.forkserver"
END_S = 5.0
KILLED_S = 5.0
POLL_S = 0.1


class _Marks:
    """What only processes of one state directory have on their command lines."""

    def __init__(self, paths: StatePaths) -> None:
        self._root = os.fsencode(paths.root)
        self._nodes = os.fsencode(paths.nodes) + b"/"
        self._fork_socket = os.fsencode(paths.fork_socket)
        self._run = os.fsencode(paths.run) + b"/"
        self._front = os.fsencode(paths.front_folder) + b"/"
        self._ray = tuple(os.fsencode(folder) for folder in (paths.ray_temp, paths.gcs_temp))
        self._any = (self._root, self._run, *self._ray)

    def listener(self) -> int | None:
        """Return the process that listens as the fork server, ``None`` when nobody does (unix(7), SO_PEERCRED)."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(self._fork_socket)
            except OSError:
                return None
            size = struct.calcsize("3i")
            return int(struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])

    def fit(self, pid: int) -> bool:
        """Return whether a process is one of this directory, and no task."""
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        if not any(mark in line for mark in self._any):
            return False
        words = line.split(b"\0")
        if any(module in words for module in OF_DIRECTORY):
            return self._root in words
        if AGENT in words:
            return any(word.startswith(self._nodes) for word in words)
        if RELAY in words:
            return any(word.startswith(self._run) for word in words)
        if words[0].rpartition(b"/")[2] in PROXIES:
            return any(self._front in word for word in words)
        if FORK_SERVER in words:
            return self._fork_socket in words and pid == self.listener()
        return any(self._of_ray(word) for word in words)

    def _of_ray(self, word: bytes) -> bool:
        """Return whether a word names one of Ray's sessions here, or the folder of them."""
        value = word.rpartition(b"=")[2]
        return any(value.startswith(folder + b"/session_") or word == b"--temp-dir=" + folder for folder in self._ray)


def orphans(paths: StatePaths) -> list[int]:
    """Return the processes of a pool on this state directory that are no tasks, where no supervisor lives."""
    return _find(_Marks(paths))


def end_orphans(paths: StatePaths) -> int:
    """End them: SIGTERM, a few seconds, SIGKILL; return how many there were.

    Only where no supervisor lives and none can start meanwhile. Raises ``DaemonStartFailed`` when some do not end.
    """
    marks = _Marks(paths)
    found = _find(marks)
    left = found
    for how, limit_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, KILLED_S)):
        left = _until_none(marks, left, how, limit_s)
    if left:
        raise DaemonStartFailed(
            f"processes {', '.join(map(str, left))}, which a supervisor that was killed left behind, do not end"
        )
    return len(found)


def _until_none(marks: _Marks, left: list[int], how: signal.Signals, limit_s: float) -> list[int]:
    """Send a signal to each of them once, those that appear meanwhile included, and wait; return who is left then."""
    deadline, told = time.monotonic() + limit_s, set[int]()
    while left and time.monotonic() < deadline:
        for pid in left:
            if pid not in told:
                told.add(pid)
                _tell(marks, pid, how)
        time.sleep(POLL_S)
        left = _find(marks)
    return left


def _find(marks: _Marks) -> list[int]:
    """Return the processes of this user that fit, this one left out."""
    found = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid() and marks.fit(int(entry.name)):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def _tell(marks: _Marks, pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            # Looked at again when it is held: then it is not another one's.
            if marks.fit(pid):
                signal.pidfd_send_signal(process, how)
                if how is signal.SIGTERM:
                    # One that was stopped would not hear it.
                    signal.pidfd_send_signal(process, signal.SIGCONT)
        finally:
            os.close(process)
