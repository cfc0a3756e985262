"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """In a fresh child: get a signal when the thread that started it ends, with or without its process (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, how, 0, 0, 0)
