"""Why and by when a task ends, as pure decisions."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

# The causes that a status can name; a stop order may bring others (gang-stopped, device-failed ...).
EXITED = "exited"
SIGNAL = "signal"
MAX_DURATION = "max-duration"
CANCELLED = "cancelled"
EXEC_FAILED = "exec-failed"
SETUP_FAILED = "setup-failed"
LAUNCH_FAILED = "launch-failed"
LEASE_EXPIRED = "lease-expired"
MEMORY = "memory"
# SIGTERM that no stop order explains: a machine that shuts down sends it to every process.
NODE_LOST = "node-lost"
# The shim itself failed.
SHIM_LOST = "shim-lost"

# Ends that are the program's own: the log needs no word about them.
OWN = (EXITED, SIGNAL)

_WORDS_MAX = 1000
_REASON = re.compile(r"[a-z][a-z0-9-]{0,31}")


class Ending:
    """The end of one task: the first cause counts, the earliest deadline counts.

    Attributes:
        cause: Why the task ends, ``None`` while nothing ends it.
        message: The same in words.
        kill_at: When everything that is left is killed (CLOCK_BOOTTIME seconds), ``None`` while nobody said so.
        terminate_at: Before that moment an end that was asked for sends no SIGTERM: the task saves itself.
    """

    def __init__(self) -> None:
        self.cause: str | None = None
        self.message = ""
        self.kill_at: float | None = None
        self.terminate_at = float("-inf")

    def settle(self, cause: str, message: str) -> None:
        """Name the cause of an end that has come; a cause that was named before stays."""
        if self.cause is None:
            self.cause, self.message = cause, message

    def request(self, cause: str, message: str, now: float, grace_s: float, *, saving_s: float = 0.0) -> None:
        """Ask for the end: SIGTERM after ``saving_s``, SIGKILL ``grace_s`` later.

        A later request can only bring it forward.
        """
        self.settle(cause, message)
        moment = now + saving_s
        self.terminate_at = moment if self.kill_at is None else min(self.terminate_at, moment)
        self.kill_by(moment + grace_s)

    def saving(self, now: float) -> bool:
        """Return whether the end was asked for and the task still has time to save itself undisturbed."""
        return self.kill_at is not None and now < min(self.terminate_at, self.kill_at)

    def kill_by(self, moment: float) -> None:
        """Bring the killing forward to ``moment``."""
        self.kill_at = moment if self.kill_at is None else min(self.kill_at, moment)


class StopOrder(NamedTuple):
    """Why and how a task is to end: after ``saving_s`` for a checkpoint SIGTERM, after ``grace_s`` SIGKILL."""

    cause: str
    message: str
    grace_s: float
    saving_s: float = 0.0


def read_stop(order: dict[str, object] | None, grace_s: float) -> StopOrder:
    """Return a stop order (``stop.json``); ``None`` stands for its absence.

    An order without a usable grace gets ``grace_s``, one without a usable reason is a cancellation. It may bring words
    of its own.
    """
    if order is None:
        message = "SIGTERM came without a stop order, as when the machine shuts down"
        return StopOrder(NODE_LOST, message, grace_s)
    reason = order.get("reason")
    cause = reason if isinstance(reason, str) and _REASON.fullmatch(reason) else CANCELLED
    given, saving = _seconds(order.get("grace_s")), _seconds(order.get("saving_s"))
    words = order.get("message")
    message = " ".join(words.split())[:_WORDS_MAX] if isinstance(words, str) else ""
    return StopOrder(cause, message or f"stopped: {cause}", grace_s if given is None else given, saving or 0.0)


def _seconds(given: object) -> float | None:
    usable = isinstance(given, int | float) and not isinstance(given, bool) and given >= 0
    return float(given) if usable else None  # type: ignore[arg-type] # checked above


def describe_exit(code: int | None) -> str:
    """Return in words how a process ended: its exit code, minus the signal that killed it, ``None`` if it never ran."""
    if code is None:
        return "it never ran"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def describe_fault(error: Exception) -> str:
    """Return an exception with the lines that it came through; the traceback module is not loaded in a shim."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{type(error).__name__}: {error} ({' > '.join(places)})"
