"""Blobs and logs in a directory, for a pool with one controller.

A blob is a file of its name below the first two digits of it; its modification time is when it was used last. It is
flushed under another name and then renamed: what is there is whole. A log is a file per start of a task: a line with
the offset of its first byte, then its bytes. Room is left on the disk for the journal beside them, without which the
pool would stop: files can be sent again.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final

from corral.model.errors import StateUnusable, StoreFull
from corral.model.files import LogPiece
from corral.model.ids import TaskKey
from corral.ports.engine import LogChunk
from corral.wire.trees import name_of

_FLUSHERS: Final = 8
_FRESH_S: Final = 60.0
"""A blob that was used less long ago is not marked as used again."""

ROOM_BYTES: Final = 1 << 30
ROOM_SHARE: Final = 0.05
"""What is left free: a GiB, of a small disk a twentieth."""

_HEAD_BYTES: Final = 17
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DirectoryBlobs:
    """Implements ``ports.files.BlobStore``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sweeping = Lock()
        # Flushes that are under way together cost little more than one.
        self._flushers = ThreadPoolExecutor(_FLUSHERS, thread_name_prefix="blobs")

    def put(self, blobs: Sequence[bytes]) -> None:
        """Keep blobs durably."""
        named = {name_of(blob): blob for blob in blobs}
        new = self.missing(named)
        if not new:
            return
        with _faults(self._root):
            _leave_room(self._root, sum(len(named[name]) for name in new))
            list(self._flushers.map(lambda name: self._write(name, named[name]), new))
            folders = {self._path(name).parent for name in new}
            for folder in (*folders, self._root, self._root.parent):
                _flush_directory(folder)

    def get(self, names: Sequence[str], bytes_max: int | None = None) -> list[bytes | None]:
        """Return blobs, ``None`` for those that are not there; the first that fit."""
        found: list[bytes | None] = []
        size = 0
        with _faults(self._root):
            for name in names:
                try:
                    blob = self._path(name).read_bytes()
                except FileNotFoundError:
                    found.append(None)
                    continue
                size += len(blob)
                if found and bytes_max is not None and size > bytes_max:
                    break
                found.append(blob)
        return found

    def missing(self, names: Collection[str]) -> set[str]:
        """Return those that are not there; mark the others as used."""
        absent: set[str] = set()
        now = time.time()
        with _faults(self._root):
            for name in names:
                path = self._path(name)
                try:
                    # Else it could go between the look and the mark.
                    with self._sweeping:
                        if now - path.stat().st_mtime > _FRESH_S:
                            os.utime(path)
                except FileNotFoundError:
                    absent.add(name)
        return absent

    def sweep(self, unused_since: float) -> int:
        """Delete what was not used since a time."""
        gone = 0
        with _faults(self._root):
            for path in self._files():
                with suppress(FileNotFoundError), self._sweeping:
                    if path.stat().st_mtime < unused_since:
                        path.unlink()
                        gone += 1
        return gone

    def close(self) -> None:
        """Let the threads go."""
        self._flushers.shutdown(wait=False)

    def names(self) -> list[str]:
        """Return the names of all blobs; those that are being written are not there yet."""
        with _faults(self._root):
            return sorted(path.name for path in self._files() if path.name.startswith(path.parent.name))

    def _files(self) -> Iterator[Path]:
        if self._root.is_dir():
            for folder in self._root.iterdir():
                if folder.is_dir():
                    yield from folder.iterdir()

    def _path(self, name: str) -> Path:
        return self._root / name[:2] / name

    def _write(self, name: str, blob: bytes) -> None:
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_name(f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(blob)
                file.flush()
                os.fsync(file.fileno())
            new.rename(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise


class DirectoryLogs:
    """Implements ``ports.files.LogStore``. Of each log about the last ``bytes_max`` are kept; they are not flushed."""

    def __init__(self, root: Path, bytes_max: int) -> None:
        self._root = root
        self._bytes_max = bytes_max
        self._lock = Lock()

    def append(self, piece: LogPiece) -> int:
        """Add a piece and return the offset of the end of what is kept."""
        path = self._path(piece.task, piece.incarnation)
        with self._lock, _faults(self._root):
            _leave_room(self._root, len(piece.data))
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
                start, end = _bounds(file.read(_HEAD_BYTES), file.seek(0, os.SEEK_END))
                data = piece.data
                if start < 0 or piece.offset > end:
                    start = end = piece.offset
                    _restart(file.fileno(), start, b"")
                data = data[max(0, end - piece.offset) :]
                file.seek(0, os.SEEK_END)
                file.write(data)
                file.flush()
                end += len(data)
                if end - start > 2 * self._bytes_max:
                    kept = os.pread(file.fileno(), self._bytes_max, _HEAD_BYTES + end - start - self._bytes_max)
                    _restart(file.fileno(), end - len(kept), kept)
        if piece.complete:
            with _faults(self._root):
                path.with_name(f"{path.name}.whole").touch(mode=0o600)
        return end

    def read(self, task: TaskKey, incarnation: int, offset: int, limit: int) -> LogChunk | None:
        """Return up to ``limit`` bytes from ``offset`` on, ``None`` when there is no such log."""
        path = self._path(task, incarnation)
        with self._lock, _faults(self._root):
            try:
                with path.open("rb") as file:
                    start, end = _bounds(file.read(_HEAD_BYTES), file.seek(0, os.SEEK_END))
                    if start < 0:
                        return None
                    first = max(start, offset)
                    file.seek(_HEAD_BYTES + first - start)
                    data = file.read(min(limit, max(0, end - first)))
            except FileNotFoundError:
                return None
            whole = path.with_name(f"{path.name}.whole").exists()
        return LogChunk(first, data, complete=whole and first + len(data) >= end)

    def sweep(self, unused_since: float) -> int:
        """Delete logs that nothing was added to since a time."""
        gone = 0
        with _faults(self._root):
            for folder in self._root.iterdir() if self._root.is_dir() else ():
                for path in folder.iterdir() if folder.is_dir() else ():
                    if path.stat().st_mtime < unused_since:
                        path.unlink(missing_ok=True)
                        gone += not path.name.endswith(".whole")
                with suppress(OSError):
                    folder.rmdir()
        return gone

    def _path(self, task: TaskKey, incarnation: int) -> Path:
        return self._root / task.job / f"{task.gang}.{task.rank}.{incarnation}"


def _bounds(head: bytes, size: int) -> tuple[int, int]:
    """Return the offsets of the first byte and after the last of a log's file, (-1, -1) of one that was just made."""
    if len(head) < _HEAD_BYTES:
        return -1, -1
    start = int(head)
    return start, start + size - _HEAD_BYTES


def _restart(file: int, start: int, data: bytes) -> None:
    """Write a log's file anew, in place. A crash meanwhile costs the log, which the node then sends again."""
    os.ftruncate(file, 0)
    os.pwrite(file, b"%016d\n" % start + data, 0)


def _leave_room(root: Path, size: int) -> None:
    """Raise ``StoreFull`` when the disk would have too little left after ``size`` more bytes."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    disk = os.statvfs(root)
    room = min(ROOM_BYTES, ROOM_SHARE * disk.f_blocks * disk.f_frsize)
    if disk.f_bavail * disk.f_frsize - size < room:
        raise StoreFull(f"the disk under {root} is nearly full: what is left of it is for the journal")


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _faults(root: Path) -> Iterator[None]:
    """Say in the words of the error tree what the disk refused."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFull(f"the disk under {root} is full") from error
        raise StateUnusable(f"files cannot be kept in {root}: {error.strerror or error}") from error
