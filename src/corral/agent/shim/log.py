"""The log of a task: bytes as they come, in files of bounded size, cut at line ends.

``log`` is the newest file (there is none before the first byte), ``log.1`` the one before, and so on. A file is closed
at the first line end after it has reached its size; a line longer than ``LINE_BYTES_MAX`` beyond that is cut.
``log.start`` (written at each rotation) holds the offset of the first byte of ``log``, counted from the task's first
byte, and the inode it speaks of: with it a reader finds any offset while files move (see ``log_reader``).
"""

from __future__ import annotations

import errno
import os

NAME = "log"
START_NAME = "log.start"
LINE_BYTES_MAX = 64 << 10
_CHUNK_BYTES = 1 << 20
# One call moves at most this much, so that a chatty task cannot keep its shim from looking at the clock.
_PUMP_BYTES_MAX = 16 << 20
_NO_SPLICE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class LogWriter:
    """Moves bytes from a pipe to the log files of an open directory.

    :meth:`pump` raises ``OSError`` when the disk takes no more; what is still in the pipe stays there.

    Attributes:
        total_bytes: Bytes written since the task began, those rotated away included.
        lost_bytes: Bytes that were taken from the pipe and thrown away by :meth:`discard`.
    """

    def __init__(self, directory: int, max_bytes: int, files: int) -> None:
        self.total_bytes = 0
        self.lost_bytes = 0
        self._directory = directory
        self._max_bytes = max_bytes
        self._line_bytes_max = min(LINE_BYTES_MAX, max_bytes)
        self._files = files
        self._size = 0
        self._splices = True
        self._held = b""
        # Made with the first byte: most of the cost of a task that says nothing would be its files.
        self._file = -1

    def pump(self, pipe: int) -> bool:
        """Move what is in the non-blocking ``pipe``; return whether there may be more."""
        moved = 0
        while moved < _PUMP_BYTES_MAX:
            if self._size >= self._max_bytes + self._line_bytes_max:
                # The disk was full when this was tried before.
                self._rotate()
            self._write_held()
            room = self._max_bytes - self._size
            try:
                count = self._splice(pipe, room) if self._may_splice(room) else self._copy(pipe, room)
            except BlockingIOError:
                return False
            if count == 0:
                return False
            moved += count
        return True

    def note(self, text: str) -> None:
        """Take a line of the shim's own; the next :meth:`pump` writes it."""
        self._held += text.encode(errors="replace") + b"\n"

    def discard(self, pipe: int) -> None:
        """Empty the pipe without writing, because the disk does not take it."""
        self.lost_bytes += len(self._held)
        self._held = b""
        while True:
            try:
                data = os.read(pipe, _CHUNK_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            self.lost_bytes += len(data)

    def _may_splice(self, room: int) -> bool:
        return self._splices and room > 0 and self._file >= 0

    def _splice(self, pipe: int, room: int) -> int:
        try:
            count = os.splice(pipe, self._file, min(room, _CHUNK_BYTES), flags=os.SPLICE_F_NONBLOCK)
        except OSError as error:
            if error.errno not in _NO_SPLICE:
                raise
            self._splices = False
            return self._copy(pipe, room)
        self._size += count
        self.total_bytes += count
        return count

    def _copy(self, pipe: int, room: int) -> int:
        """Move one piece through memory: up to the size of the file, and then on to the next line end."""
        self._held = os.read(pipe, min(room, LINE_BYTES_MAX) if room > 0 else room + self._line_bytes_max)
        count = len(self._held)
        self._write_held()
        return count

    def _write_held(self) -> None:
        """Write what was taken from the pipe, rotating where it is due. What the disk refuses stays held."""
        while self._held:
            room = self._max_bytes - self._size
            if room > 0:
                self._write(min(room, len(self._held)))
                continue
            # The size is reached: on to the end of the line, but not for ever.
            beyond = room + self._line_bytes_max
            end = self._held.find(b"\n", 0, beyond) + 1
            written = self._write(end or min(beyond, len(self._held)))
            if written in (end, beyond):
                self._rotate()

    def _write(self, count: int) -> int:
        if self._file < 0:
            self._file = self._create(NAME)
        written = os.write(self._file, self._held[:count])
        self._held = self._held[written:]
        self._size += written
        self.total_bytes += written
        return written

    def _create(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return os.open(name, flags, 0o644, dir_fd=self._directory)

    def _rotate(self) -> None:
        """Begin a new file. Everything that needs space comes before anything that moves."""
        fresh = self._create(f".{NAME}.new")
        try:
            start = os.open(
                f".{START_NAME}.new",
                os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
                0o644,
                dir_fd=self._directory,
            )
            try:
                os.write(start, f"{self.total_bytes} {os.fstat(fresh).st_ino}\n".encode())
            finally:
                os.close(start)
        except OSError:
            os.close(fresh)
            raise
        for number in range(self._files - 1, 0, -1):
            older = f"{NAME}.{number}"
            newer = f"{NAME}.{number - 1}" if number > 1 else NAME
            try:
                self._rename(newer, older)
            except FileNotFoundError:
                continue
        self._rename(f".{NAME}.new", NAME)
        self._rename(f".{START_NAME}.new", START_NAME)
        os.close(self._file)
        self._file, self._size = fresh, 0

    def _rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._directory, dst_dir_fd=self._directory)
