"""What the programs of the demo share: reading the environment, ending cleanly, writing files whole or not at all.

Only light modules of the standard library are imported here: a small task must cost little more than an interpreter.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_TERMINATED = 128 + signal.SIGTERM


def program() -> str:
    """Name of the running program, the first word of its messages."""
    return Path(sys.argv[0]).stem


def refuse(message: str, code: int = EXIT_USAGE) -> NoReturn:
    """End the program with one line on standard error."""
    sys.stderr.write(f"{program()}: {message}\n")
    sys.exit(code)


def say(message: str) -> None:
    """One line of progress, visible at once in the log of the task."""
    print(message, flush=True)


def text(name: str, default: str | None = None) -> str:
    """Value of an environment variable; without a default the variable must be set."""
    value = os.environ.get(name) or default
    if value is None:
        refuse(f"the environment variable {name} is not set")
    return value


def choice(name: str, options: Sequence[str], default: str | None = None) -> str:
    """Value of an environment variable that must be one of the options."""
    value = text(name, default)
    if value not in options:
        refuse(f"{name}={value!r} is none of {', '.join(options)}")
    return value


def number(name: str, default: float | None = None, *, at_least: float = 0.0) -> float:
    """Finite number in an environment variable."""
    value = text(name, None if default is None else str(default))
    try:
        parsed = float(value)
    except ValueError:
        refuse(f"{name}={value!r} is not a number")
    if not at_least <= parsed < float("inf"):
        refuse(f"{name}={value!r} must be a finite number, at least {at_least:g}")
    return parsed


def integer(name: str, default: int | None = None, *, at_least: int = 0, below: int | None = None) -> int:
    """Whole number in an environment variable, `at_least <= value < below`."""
    value = text(name, None if default is None else str(default))
    try:
        parsed = int(value)
    except ValueError:
        refuse(f"{name}={value!r} is not a whole number")
    if parsed < at_least or (below is not None and parsed >= below):
        limits = f"at least {at_least}" if below is None else f"from {at_least} to {below - 1}"
        refuse(f"{name}={value!r} must be {limits}")
    return parsed


def directory(name: str, default: str | None = None) -> Path:
    """Existing directory named by an environment variable."""
    path = Path(text(name, default))
    if not path.is_dir():
        refuse(f"{name}={str(path)!r} is not a directory")
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file durably: readers see the old content or all of the new one, even after a crash."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def hold_until(moment_s: float) -> None:
    """Keep the task, and so its devices, until the monotonic clock shows this moment.

    On a real GPU this time passes inside the device while the host's CPU is idle; a simulated device has none to spend.
    """
    remaining_s = moment_s - time.monotonic()
    if remaining_s > 0:
        time.sleep(remaining_s)


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(sys.stderr.fileno(), f"{program()}: asked to stop by SIGTERM\n".encode())
    sys.exit(EXIT_TERMINATED)


def run(main: Callable[[], None]) -> None:
    """Run a program: SIGTERM unwinds it with exit code 143, a file or network error becomes one line."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        main()
    except OSError as error:
        refuse(str(error), EXIT_FAILED)
