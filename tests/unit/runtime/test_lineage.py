"""Children of the daemon end with it, whatever they are at and though nobody closes their input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.e2e.livepool import alive
from tests.waiting import wait_until

PARENT = "import subprocess, sys; child = subprocess.Popen(sys.argv[1:]); print(child.pid, flush=True); child.wait()"


@pytest.mark.parametrize("module", ["corral.runtime.solving.solver", "corral.runtime.solving.planning"])
def test_a_child_ends_with_its_parent(module: str) -> None:
    reading, writing = os.pipe()
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    command = (sys.executable, "-c", PARENT, sys.executable, "-m", module)
    with subprocess.Popen(command, stdin=reading, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            # It is nicer than usual once it has tied itself to its parent.
            wait_until(lambda: os.getpriority(os.PRIO_PROCESS, child) > usual, what="the child to work")
            parent.kill()
            wait_until(lambda: not alive(child), what="the child to end")
        finally:
            if alive(child):
                os.kill(child, signal.SIGKILL)
            os.close(reading)
            os.close(writing)
