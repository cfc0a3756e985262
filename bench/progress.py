"""How a benchmark talks and ends: progress on standard error, a tidy end on Ctrl-C and on SIGTERM."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


def end_tidily_on_signals() -> None:
    """Turn the first SIGINT or SIGTERM into ``KeyboardInterrupt``, ignore later ones: cleaning up is done."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
