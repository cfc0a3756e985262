"""Gives a wrong wall clock to the agent of a machine: Python imports this first where ``PYTHONPATH`` names its folder.

``WRONG_CLOCK`` is the file from which libfaketime reads how wrong it is. Only the agent is started anew under it.
"""

from __future__ import annotations

import os
import select
import sys
import time
from typing import SupportsIndex

LIBRARY = "libfaketime.so.1"


def _sleep(seconds: float | SupportsIndex) -> None:
    select.select([], [], [], float(seconds))


if "corral.runtime.agent" in sys.orig_argv and "WRONG_CLOCK" in os.environ:
    if LIBRARY not in os.environ.get("LD_PRELOAD", ""):
        wrong = {
            "LD_PRELOAD": f"/usr/$LIB/faketime/{LIBRARY}",
            "FAKETIME_TIMESTAMP_FILE": os.environ["WRONG_CLOCK"],
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **wrong})
    # libfaketime 0.9.10 refuses the sleep of Python when it is told to leave the monotonic clock alone.
    time.sleep = _sleep
