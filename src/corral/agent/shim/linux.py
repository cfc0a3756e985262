"""Calls of the Linux kernel that the standard library lacks, and the clock that counts suspended time."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Sequence

# Numbers of prctl(2), from <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def become_subreaper() -> None:
    """Make orphaned descendants children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Get SIGKILL when the parent of this process dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def boottime_s() -> float:
    """Return CLOCK_BOOTTIME in seconds: it never jumps, and goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def take_place(cpus: Sequence[int] | None, oom_score_adj: int) -> list[str]:
    """Bind this process to ``cpus`` and take its place in the order of the out-of-memory killer; children inherit both.

    Returns what was refused, in words for people.
    """
    refused = []
    if cpus is not None:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            refused.append(f"not bound to CPUs {list(cpus)}: {error.strerror}")
    wanted = b"%d\n" % oom_score_adj
    file = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.read(file, 16) != wanted:
            os.write(file, wanted)
    except OSError as error:
        refused.append(f"oom_score_adj stays as it was: {error.strerror}")
    finally:
        os.close(file)
    return refused
