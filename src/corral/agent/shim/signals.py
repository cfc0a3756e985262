"""Signals as something to poll: each one that arrives is a byte in a pipe."""

from __future__ import annotations

import os
import signal

HANDLED = (signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1)
_READ_MAX = 4096


def _ignore(_number: int, _frame: object) -> None:
    """Let the interpreter write the number to the pipe: that is all that is wanted."""


class SignalPipe:
    """Collects :data:`HANDLED`. They must be blocked when this is made, and are let through from then on."""

    def __init__(self) -> None:
        self.file, sender = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        for number in HANDLED:
            signal.signal(number, _ignore)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def take(self) -> frozenset[int]:
        """Return the signals that arrived since the last call."""
        try:
            return frozenset(os.read(self.file, _READ_MAX))
        except BlockingIOError:
            return frozenset()
