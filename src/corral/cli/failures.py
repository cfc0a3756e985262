"""How an error becomes an exit code and exactly one line on standard error."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from corral.model.errors import CorralError, Refusal

SIGNAL_BASE = 128
"""A process that was ended by signal ``n`` has the exit code 128 + n (POSIX shells)."""


class ExitCode(IntEnum):
    """The exit codes of every command but `run` and `--wait`, which give back the code of the job."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    DENIED = 4
    NOT_FOUND = 5
    CONFLICT = 6


def exit_code(error: CorralError) -> ExitCode:
    """Return the exit code of an error's category."""
    from corral.model.errors import Category

    return {
        Category.USAGE: ExitCode.USAGE,
        Category.UNAVAILABLE: ExitCode.UNAVAILABLE,
        Category.DENIED: ExitCode.DENIED,
        Category.NOT_FOUND: ExitCode.NOT_FOUND,
        Category.CONFLICT: ExitCode.CONFLICT,
        Category.FAULT: ExitCode.FAILED,
    }[error.category]


def error_line(refusal: Refusal) -> str:
    """Return ``error[CODE]: message (hint)``: one line, free of control characters."""
    from corral.cli.terminal import safe

    return f"error[{refusal.code}]: {safe(' '.join(refusal.line().split()))}"


def did_you_mean(word: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """Return the hint that names the nearest right name, else ``otherwise``."""
    from corral.wire.document import nearest

    name = nearest(word, known)
    return f"did you mean {name}?" if name else otherwise


def record_fault(text: str, state_dir: Path) -> Path | None:
    """Append a traceback to the log of the command line; return its path, or ``None`` when it cannot be written."""
    from datetime import datetime

    path = state_dir / "logs" / "cli.log"
    stamp = datetime.now().astimezone().isoformat(timespec="seconds")
    try:
        if not path.parent.is_dir():
            return None
        with path.open("a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"{stamp}\n{text}\n")
    except OSError:
        return None
    return path
