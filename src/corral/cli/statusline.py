"""One line at the bottom of a terminal that says what is being waited for; plain lines now and then elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

from corral.cli.terminal import safe

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
BAR_CELLS = 20
REDRAW_S = 0.1
REPEAT_S = 30.0


def bar(done: int, total: int, cells: int = BAR_CELLS) -> str:
    """Return a bar of ``cells`` characters, full when all is done."""
    full = cells if total <= 0 else min(cells, done * cells // total)
    return "█" * full + "░" * (cells - full)


class StatusLine:
    """Draws on standard error. ``show`` may be called as often as one likes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._tty = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = False
        self._drawn_at = 0.0
        self._said = ""
        self._said_at: float | None = None
        self._frame = 0

    @property
    def live(self) -> bool:
        """Return whether the line is redrawn in place."""
        return self._tty

    def show(self, text: str) -> None:
        """Say what is being waited for. Without a terminal only what is new, at most twice a minute."""
        now = time.monotonic()
        if not self._tty:
            if text != self._said and (self._said_at is None or now - self._said_at >= REPEAT_S):
                self._stream.write(f"{safe(text)}\n")
                self._stream.flush()
                self._said, self._said_at = text, now
            return
        if self._drawn and now - self._drawn_at < REDRAW_S:
            return
        self._frame = (self._frame + 1) % len(FRAMES)
        from rich.cells import set_cell_size

        width = shutil.get_terminal_size().columns - 1
        line = set_cell_size(safe(f"{FRAMES[self._frame]} {text}"), width).rstrip()
        self._stream.write(f"\r\x1b[K{line}")
        self._stream.flush()
        self._drawn, self._drawn_at = True, now

    def clear(self) -> None:
        """Remove the line, so that something else can be printed."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False
