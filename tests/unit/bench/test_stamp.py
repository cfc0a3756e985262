from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from bench.stamp import make_stamp
from tests import needs


def test_the_compiled_program_notes_its_beginning(tmp_path: Path) -> None:
    needs.program("gcc")
    stamp = make_stamp(tmp_path)
    assert stamp.kind in {"static C program", "C program"}
    assert stamp.clock == time.CLOCK_BOOTTIME
    before = stamp.now_ns()
    subprocess.run(stamp.argv(tmp_path / "file"), check=True)
    assert before < stamp.wait(tmp_path / "file", 1) < stamp.now_ns()


def test_without_a_compiler_a_shell_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        stamp = make_stamp(tmp_path)
    assert stamp.kind == "sh and date"
    before = stamp.now_ns()
    subprocess.run(stamp.argv(tmp_path / "file"), check=True)
    assert before < stamp.wait(tmp_path / "file", 1) < stamp.now_ns()


def test_a_program_that_cannot_write_fails(tmp_path: Path) -> None:
    needs.program("gcc")
    stamp = make_stamp(tmp_path)
    assert subprocess.run(stamp.argv(tmp_path / "no" / "file"), check=False).returncode == 1
    with pytest.raises(TimeoutError, match="did not begin within 0 s"):
        stamp.wait(tmp_path / "no" / "file", 0)
