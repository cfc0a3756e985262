"""Where the logs of a job's tasks come together on standard output.

One task alone: its bytes as they come. Several: line by line, each line begins with the name of its task. A terminal
gets what :mod:`corral.cli.terminal` lets through; a pipe or file gets the bytes of the tasks unchanged.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO, Protocol

from corral.cli.terminal import LogFilter

PREFIX_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95)
LINE_BYTES_MAX = 1 << 16
"""A longer line is cut into several, so that one task without line ends does not fill the memory."""


class LogWriter(Protocol):
    """Takes the logs of tasks, known by their names."""

    def write(self, task: str, data: bytes) -> None:
        """Take the next bytes of a task's log."""

    def end(self, task: str) -> None:
        """Finish a task's log: nothing more comes."""


class _Out:
    """Standard output, written at once."""

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout.buffer

    def put(self, data: bytes) -> None:
        """Write and flush."""
        if data:
            self._stream.write(data)
            self._stream.flush()


class SingleWriter:
    """The log of one task."""

    def __init__(self, *, tty: bool, colours: bool, stream: BinaryIO | None = None) -> None:
        self._out = _Out(stream)
        self._filter = LogFilter(colours=colours) if tty else None

    def write(self, task: str, data: bytes) -> None:
        """Pass bytes on."""
        self._out.put(data if self._filter is None else self._filter.feed(data).encode(errors="replace"))

    def end(self, task: str) -> None:
        """Put colours back."""
        if self._filter is not None:
            self._out.put(self._filter.end().encode(errors="replace"))


class PrefixWriter:
    """The logs of several tasks, line by line."""

    def __init__(self, *, tty: bool, colours: bool, stream: BinaryIO | None = None) -> None:
        self._out = _Out(stream)
        self._tty = tty
        self._colours = colours
        self._rests: dict[str, bytes] = {}
        self._numbers: dict[str, int] = {}

    def write(self, task: str, data: bytes) -> None:
        """Print every line that is complete now."""
        lines = (self._rests.get(task, b"") + data).split(b"\n")
        rest = lines.pop()
        while len(rest) > LINE_BYTES_MAX:
            lines.append(rest[:LINE_BYTES_MAX])
            rest = rest[LINE_BYTES_MAX:]
        self._rests[task] = rest
        self._out.put(b"".join(self._line(task, line) for line in lines))

    def end(self, task: str) -> None:
        """Print an unfinished last line."""
        rest = self._rests.pop(task, b"")
        if rest:
            self._out.put(self._line(task, rest))

    def _line(self, task: str, line: bytes) -> bytes:
        number = self._numbers.setdefault(task, len(self._numbers))
        if not self._tty:
            return task.encode() + b" | " + line + b"\n"
        # A progress bar rewrites its line after a carriage return: what it says last counts.
        shown = LogFilter(colours=self._colours)
        text = shown.feed(line.rstrip(b"\r").rpartition(b"\r")[2]) + shown.end()
        name = f"\x1b[{PREFIX_COLOURS[number % len(PREFIX_COLOURS)]}m{task} |\x1b[0m" if self._colours else f"{task} |"
        return f"{name} {text}\n".encode(errors="replace")


def log_writer(*, several: bool) -> LogWriter:
    """Return the writer for standard output as it is."""
    tty = sys.stdout.isatty()
    colours = tty and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return PrefixWriter(tty=tty, colours=colours) if several else SingleWriter(tty=tty, colours=colours)
