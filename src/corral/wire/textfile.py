"""The text of a job file or batch script: read from disk, bounded, and checked to be text at all."""

from __future__ import annotations

import os
from pathlib import Path

from corral.model.errors import JobFileUnreadable
from corral.wire.document import printable

FILE_BYTES_MAX = 1024 * 1024


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file, one more than is allowed at most; raise ``JobFileUnreadable``."""
    name = os.fspath(path)
    if "\0" in name:
        raise JobFileUnreadable("a path must not hold a NUL byte")
    try:
        with Path(name).open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise JobFileUnreadable(f"cannot be read: {reason}", where=printable(name)) from None


def decoded(data: bytes, source: str) -> str:
    """Return the text of a file; raise ``JobFileUnreadable`` when it is larger than 1 MiB, binary or not UTF-8."""
    if len(data) > FILE_BYTES_MAX:
        raise JobFileUnreadable("is larger than 1 MiB", where=source, hint="mount data with file_mounts")
    zero = data.find(b"\0")
    if zero >= 0:
        raise JobFileUnreadable(f"is binary: byte {zero} is NUL", where=source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise JobFileUnreadable(f"is not UTF-8 at byte {error.start}", where=f"{source}:{line}") from None
