"""The setup of a task runs once for all tasks with the same marker: who comes second waits for the first."""
# ruff: noqa: PTH103, PTH104, PTH110, PTH120 -- a shim is forked from a process that never loads pathlib

from __future__ import annotations

import fcntl
import os
import signal

from corral.agent.shim import linux
from corral.agent.shim.signals import HANDLED


class SetupLock:
    """The lock beside a marker, ``<marker>.lock``.

    A lock of flock(2) belongs to the open file, not to a process. So a small waiting child can get it for the shim,
    which meanwhile hears its signals; and the setup script inherits the file: when the shim is killed, the lock lasts
    until the script and its children are gone too.
    """

    def __init__(self, marker: str) -> None:
        """Open the lock. Raises ``OSError``."""
        self._marker = marker
        os.makedirs(os.path.dirname(marker), exist_ok=True)
        self.file = os.open(f"{marker}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self) -> bool:
        """Take the lock if nobody has it."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def start_waiter(self) -> int:
        """Fork a process that ends when it has got the lock for this one; return its pid."""
        shim = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            pid = os.fork()
            if pid == 0:
                _wait_for(self.file, shim)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid

    def done(self) -> bool:
        """Return whether the setup was done: by whoever had the lock before."""
        return os.path.exists(self._marker)

    def mark_done(self, by: str) -> None:
        """Remember for all who come that the setup is done."""
        temporary = f"{self._marker}.{os.getpid()}.new"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, f"{by}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, self._marker)

    def release(self) -> None:
        """Let the next one in."""
        fcntl.flock(self.file, fcntl.LOCK_UN)
        os.close(self.file)


def _wait_for(file: int, shim: int) -> None:
    """Wait for the lock (in the child). Never returns."""
    exit_code = 1
    try:
        linux.die_with_parent()
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if os.getppid() == shim:
            fcntl.flock(file, fcntl.LOCK_EX)
            exit_code = 0
    finally:
        os._exit(exit_code)
