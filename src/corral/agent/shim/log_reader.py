"""Reading a task's log by offset while its shim writes and rotates it. For the agent, not for the shim."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from corral.agent.shim import log

# A reader that meets a rotation tries again; that it happens this often in a row means that the files are moved
# faster than they are opened, and then what was opened last is as good as anything.
_ATTEMPTS = 20


class LogPiece(NamedTuple):
    """``data`` begins at byte ``offset`` of the log; ``end`` is the offset after the newest byte that is there."""

    offset: int
    data: bytes
    end: int


class _OpenFile(NamedTuple):
    descriptor: int
    inode: int
    size: int


def read_log(directory: Path, offset: int, limit: int) -> LogPiece:
    """Return up to ``limit`` bytes of the log of the task ``directory`` from ``offset`` on.

    Offsets count from the task's first byte, over rotations. What was rotated away is skipped: then the answer's
    ``offset`` is larger than the one asked for. A task that has no log yet has an empty one.
    """
    start, files = _open_all(directory)
    try:
        position = where = max(offset, start)
        pieces: list[bytes] = []
        for file in files:
            # Only the newest file grows: it is read to where it ended when it was opened, like the others.
            while (room := min(limit - position + where, start + file.size - position)) > 0:
                piece = os.pread(file.descriptor, room, position - start)
                if not piece:
                    break
                pieces.append(piece)
                position += len(piece)
            start += file.size
        return LogPiece(where, b"".join(pieces), start)
    finally:
        _close(files)


def _open_all(directory: Path) -> tuple[int, list[_OpenFile]]:
    """Return the offset of the first byte that is kept, and all files, the oldest first, as at one moment."""
    attempts = 0
    while True:
        attempts += 1
        anchor = _anchor(directory)
        files = _open_files(directory)
        inodes = [file.inode for file in files]
        if attempts == _ATTEMPTS or (len(set(inodes)) == len(files) and _anchor(directory) == anchor):
            break
        _close(files)
    start, inode = anchor
    if inode is None:
        return start, files
    # While a rotation is under way the file that ``log.start`` speaks of has moved already: its inode tells which.
    known = inodes.index(inode) if inode in inodes else len(files) - 1
    return start - sum(file.size for file in files[: max(known, 0)]), files


def _anchor(directory: Path) -> tuple[int, int | None]:
    """Return an offset and the inode of the file that begins there; before the first rotation that is the oldest."""
    try:
        start, inode = (directory / log.START_NAME).read_text().split()
    except FileNotFoundError:
        return 0, None
    return int(start), int(inode)


def _open_files(directory: Path) -> list[_OpenFile]:
    numbers = [
        int(number)
        for name in os.listdir(directory)  # noqa: PTH208 -- names are all that is wanted
        if (number := name.removeprefix(f"{log.NAME}.")).isdecimal() and name != number
    ]
    names = [f"{log.NAME}.{number}" for number in sorted(numbers, reverse=True)] + [log.NAME]
    files = []
    # The newest first: a file that moves on meanwhile is met twice, and that shows.
    for name in reversed(names):
        try:
            descriptor = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        status = os.fstat(descriptor)
        files.append(_OpenFile(descriptor, status.st_ino, status.st_size))
    return files[::-1]


def _close(files: list[_OpenFile]) -> None:
    for file in files:
        os.close(file.descriptor)
