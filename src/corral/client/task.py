"""What a program says to the pool in which it runs, and asks it. Standard library only: training programs import this.

A task's progress is one line in ``$CORRAL_TASK_DIR/progress``, ``STEP [TOTAL [SAVED]]`` with ``-`` for what is not
known, that is replaced as a whole: what is written here, any program can write without corral.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading

DIRECTORY = "CORRAL_TASK_DIR"
NAME = "progress"
STOP = "stop.json"

_lock = threading.Lock()
_saved: dict[str, float] = {}


def report_progress(
    step: float,
    total: float | None = None,
    checkpoint: bool = False,  # noqa: FBT001, FBT002 - a training program reads well either way
) -> None:
    """Say that ``step`` units of work are done, of ``total`` if that is known.

    ``step`` counts from the beginning of the job, over restarts: a program that goes on from step 500 says 500. With
    ``checkpoint`` the state at this step has just been saved. Outside a pool nothing happens, and a disk that is full
    stops no training. Of the processes that ``torchrun`` starts on a node the first one speaks. It costs one small
    file: call it once a second or once a step, not for every sample.

    Raises:
        ValueError: ``step`` or ``total`` is no finite number, negative, or (``total``) zero.
    """
    words = [_amount(step, "step")]
    if total is not None and not total > 0:
        raise ValueError(f"total must be above 0, not {total!r}")
    directory = os.environ.get(DIRECTORY)
    if not directory or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    with _lock:
        if checkpoint:
            _saved[directory] = float(step)
        saved = _saved.get(directory)
        if total is not None or saved is not None:
            words.append("-" if total is None else _amount(total, "total"))
        if saved is not None:
            words.append(repr(min(saved, float(step))))
        with contextlib.suppress(OSError):
            _replace(directory, " ".join(words) + "\n")


def stopping() -> bool:
    """Return whether this task is being stopped: to make room, for good, or because the pool goes down.

    A program that was sent its checkpoint signal saves itself and then asks: when this is true it should end, with
    whatever exit code; else the signal came for another reason (its time is nearly over, or contact was lost) and it
    may go on. Outside a pool it is never true.
    """
    directory = os.environ.get(DIRECTORY)
    return bool(directory) and os.path.exists(f"{directory}/{STOP}")  # noqa: PTH110 - pathlib is slow to import


def _amount(value: float, name: str) -> str:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} must be a finite number from 0, not {value!r}")
    return repr(number)


def _replace(directory: str, line: str) -> None:
    temporary = os.path.join(directory, f".{NAME}.{os.getpid()}")  # noqa: PTH118 - pathlib is slow to import
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    os.replace(temporary, os.path.join(directory, NAME))  # noqa: PTH105, PTH118 - the same
