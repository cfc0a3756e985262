from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from corral.agent import usage
from corral.agent.members import Members
from corral.agent.processes import ProcessStat, read_stat
from tests.unit.agent.words import key
from tests.waiting import wait_until

BUSY = "import time; held = bytearray(60 << 20)\nwhile time.process_time() < 0.5: pass\nprint(flush=True); input()"


def test_a_task_s_processes_are_measured_together(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 123)
    (tmp_path / "progress").write_text("1\n2.5 10 2\n")
    # In place of the shim: a process with one child.
    shim = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert shim.stdout is not None
        shim.stdout.readline()
        sample = usage.sample(key(), 1, tmp_path, shim.pid, usage.Halts())
        assert sample.rss_mib is not None
        assert sample.cpu_s is not None
        assert 60 <= sample.rss_mib <= 200
        assert 0.4 <= sample.cpu_s <= 10.0
        assert (sample.progress, sample.progress_total, sample.checkpointed_at) == (2.5, 10.0, 2.0)
        assert sample.log_bytes == 123
        members = Members()
        members.add("1.0.0.1", shim.pid)
        assert members.known() == []
        [child] = members.refresh()
        assert members.known() == [child]
        assert sample.halted is None
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: state_of(child) == "T", what="the child to be stopped")
        stopped = usage.sample(key(), 1, tmp_path, shim.pid, usage.Halts())
        assert stopped.halted == "its main process is stopped by a signal"
        os.kill(child, signal.SIGCONT)
        assert members.remove("1.0.0.1") == {child}
        assert members.refresh() == []
    finally:
        shim.communicate(b"\n", timeout=10)
    gone = usage.sample(key(), 1, tmp_path, shim.pid, usage.Halts())
    assert (gone.rss_mib, gone.cpu_s) == (None, None)


def test_a_process_that_waits_in_the_kernel_for_long_is_told() -> None:
    halts, name = usage.Halts(), (key(), 1)
    waiting, running = (ProcessStat(7, state, 1, 7, 100, 5, 7) for state in "DS")
    assert halts.look(name, waiting, 50.0) is None
    assert halts.look(name, waiting, 59.0) is None
    assert halts.look(name, waiting, 60.0) == "its main process has waited in the kernel (state D) for 10 s"
    # One look at it at work, and all begins anew.
    assert halts.look(name, running, 61.0) is None
    assert halts.look(name, waiting, 62.0) is None
    assert halts.look(name, waiting, 71.0) is None
    halts.forget_others(set())
    assert halts.look(name, waiting, 73.0) is None
    assert halts.look(name, None, 90.0) is None


def state_of(pid: int) -> str:
    stat = read_stat(pid)
    return "" if stat is None else stat.state


def test_a_child_is_known_before_anybody_looks() -> None:
    members = Members()
    members.add("1.0.0.1", os.getpid(), 77)
    assert members.known() == [77]


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"", None),
        (b"\n \n", None),
        (b"0.25", (0.25, None, None)),
        (b"0\n", (0.0, None, None)),
        (b"3 100\n", (3.0, 100.0, None)),
        (b"3 100 2\n", (3.0, 100.0, 2.0)),
        (b"3 - 2\n", (3.0, None, 2.0)),
        (b"3 0\n", (3.0, None, None)),
        (b"3 100 7\n", (3.0, 100.0, 3.0)),
        (b"1 2 3 4\n", None),
        (b"step 7\n", None),
        (b"nan", None),
        (b"inf 3", None),
        (b"-1", None),
        (b"5 nan 4", (5.0, None, 4.0)),
        (b"done", None),
        (b"\xff\xfe", None),
        (b"9\n" * 10_000 + b"10 20\n", (10.0, 20.0, None)),
    ],
)
def test_progress_is_the_last_line(tmp_path: Path, content: bytes, expected: tuple[float | None, ...] | None) -> None:
    path = tmp_path / "progress"
    path.write_bytes(content)
    assert usage.read_progress(path) == expected


def test_a_progress_file_that_is_none_holds_nobody_up(tmp_path: Path) -> None:
    assert usage.read_progress(tmp_path / "missing") is None
    os.mkfifo(tmp_path / "pipe")
    assert usage.read_progress(tmp_path / "pipe") is None
    assert usage.read_progress(tmp_path) is None


def test_available_memory_is_what_the_kernel_says() -> None:
    def agrees() -> bool:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = usage.memory_available_mib()
        return available is not None and abs(available - int(fields["MemAvailable"].split()[0]) // 1024) <= 64

    wait_until(agrees)
