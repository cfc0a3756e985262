"""What a setup left in the directory in which it ran, for a task that works in a copy of that directory.

What the setup made is shared: the copy gets links to it, so an environment of gigabytes is there once. What the setup
changed of the files that were there before is copied, for those are the task's own.
"""
# ruff: noqa: PTH114, PTH211 -- a shim is forked from a process that never loads pathlib

from __future__ import annotations

import os
import stat

UNTOUCHED_NS = 946_684_800 * 10**9
"""The modification time (2000-01-01) of the files among which a setup runs: what it changes has another one."""

_COPY_BYTES = 1 << 20


def take_over(base: str, work: str) -> None:
    """Show in ``work`` what a setup did in ``base``, of which it was a copy before. Raises ``OSError``."""
    waiting = [(base, work)]
    while waiting:
        here, there = waiting.pop()
        with os.scandir(here) as entries:
            for entry in entries:
                target = f"{there}/{entry.name}"
                status = entry.stat(follow_symlinks=False)
                if not os.path.lexists(target):
                    os.symlink(entry.path, target)
                elif stat.S_ISDIR(status.st_mode) and not os.path.islink(target):
                    waiting.append((entry.path, target))
                elif stat.S_ISREG(status.st_mode) and status.st_mtime_ns != UNTOUCHED_NS:
                    _copy(entry.path, target, stat.S_IMODE(status.st_mode))


def _copy(source: str, target: str, mode: int) -> None:
    new = f"{target}.corral-new"
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writer = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            while data := os.read(reader, _COPY_BYTES):
                while data:
                    data = data[os.write(writer, data) :]
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    os.rename(new, target)  # noqa: PTH104
