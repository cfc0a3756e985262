from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import signal, time
from bench.progress import end_tidily_on_signals
end_tidily_on_signals()
try:
    print("ready", flush=True)
    while True:
        time.sleep(100)
except KeyboardInterrupt as interrupt:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    print("ended by", interrupt, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_interrupts_and_later_ones_do_not(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(number)
        rest, _ = program.communicate(timeout=20)
    assert (program.returncode, rest) == (0, f"ended by {number.name}\n")
