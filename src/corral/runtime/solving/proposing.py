"""The process of one job's own proposer: ``python -m corral.runtime.solving.proposing MODULE:FUNCTION [DIRECTORY]``.

It reads questions from standard input and writes answers to standard output, one JSON document a line; what the user's
code prints goes to standard error. Nothing of corral is loaded here but this file, and nothing of the pool is known to
it but the questions. It ends with its input, with its parent, and on the first answer that cannot be given.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any, TextIO

MEMORY_BYTES = 4 << 30
"""Address space: numpy with its threads needs one or two GiB of it, a proposal next to nothing."""
FILE_BYTES = 16 << 20
FILES = 256
NICENESS = 10
_PR_SET_PDEATHSIG = 1

Propose = Callable[[dict[str, Any], dict[str, Any]], object]


def confine() -> None:
    """Limit what user code can take, and die with the daemon."""
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, most = resource.getrlimit(limit)
        allowed = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(limit, (allowed, allowed))
    os.nice(NICENESS)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def load(entry_point: str) -> Propose:
    """Return the function ``module:name`` (names with dots go into classes). Raises what importing it raises."""
    module, _, path = entry_point.partition(":")
    found = reduce(getattr, path.split("."), importlib.import_module(module))
    if not callable(found):
        raise TypeError(f"{entry_point} is no function")
    return found


def serve(propose: Propose, questions: TextIO, answers: TextIO) -> None:
    """Answer questions until the input ends. What the user's code raises ends it, and stands in the log."""
    for line in questions:
        question = json.loads(line)
        answer = propose(question["offer"], question["job"])
        bids = list(answer) if isinstance(answer, list | tuple) else answer
        # A number of numpy or torch is as good as one of Python.
        answers.write(json.dumps({"bids": bids}, default=float) + "\n")
        answers.flush()


def main(arguments: list[str]) -> int:
    """Entry point of the process."""
    entry_point, directory = arguments[0], (arguments[1] if len(arguments) > 1 else None)
    confine()
    questions = os.fdopen(os.dup(0))
    answers = os.fdopen(os.dup(1), "w")
    # What the user's code reads and prints must not come between the lines.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    if directory is not None:
        os.chdir(directory)
        sys.path.insert(0, directory)
    serve(load(entry_point), questions, answers)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
