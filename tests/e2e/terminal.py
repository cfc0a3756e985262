"""A command at a terminal of its own: what it prints as a person would see it arrive, and keys pressed in answer."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

CTRL_C = b"\x03"


class Terminal:
    """Runs a program with a pseudo terminal as its standard streams."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, columns: int = 80, lines: int = 24
    ) -> None:
        self.shown = b""
        self.exit_code: int | None = None
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            try:
                # Whoever runs the tests in the background ignores them, and children inherit that.
                for number in (signal.SIGINT, signal.SIGQUIT):
                    signal.signal(number, signal.SIG_DFL)
                os.execvpe(arguments[0], list(arguments), {**environment, "TERM": "xterm-256color"})
            finally:
                os._exit(126)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.exit_code is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._fd)

    def press(self, keys: bytes) -> None:
        """Type something."""
        os.write(self._fd, keys)

    def wait_for(self, text: bytes, timeout_s: float = 30.0) -> None:
        """Return once ``text`` has been shown."""
        deadline = time.monotonic() + timeout_s
        while text not in self.shown:
            assert self._read(deadline), f"{text!r} was not shown within {timeout_s:g} s: {self.shown!r}"

    def wait(self, timeout_s: float = 30.0) -> int:
        """Return the exit code once the program has ended (negative: the signal)."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline):
            pass
        _, status = os.waitpid(self._pid, 0)
        self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code

    def _read(self, deadline: float) -> bool:
        """Take what is shown next; return False at the end."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more was shown in time: {self.shown!r}"
        try:
            data = os.read(self._fd, 65_536)
        except OSError:  # EIO: the program has closed its end
            return False
        self.shown += data
        return bool(data)
