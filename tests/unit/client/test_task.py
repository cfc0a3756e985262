"""What a task says and asks: progress is read back as the agent reads it; nothing happens outside a pool."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import corral
from corral.agent.shim.handle import TaskHandle
from corral.agent.usage import Progress, read_progress
from corral.client.task import report_progress, stopping


@pytest.fixture
def task_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRAL_TASK_DIR", str(tmp_path))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return tmp_path


def test_what_is_reported_is_what_the_agent_reads(task_dir: Path) -> None:
    path = task_dir / "progress"
    report_progress(1)
    assert read_progress(path) == Progress(1.0)
    report_progress(2, 10)
    assert read_progress(path) == Progress(2.0, 10.0)
    report_progress(3, 10, checkpoint=True)
    assert read_progress(path) == Progress(3.0, 10.0, 3.0)
    report_progress(4)
    assert read_progress(path) == Progress(4.0, None, 3.0)
    report_progress(1.5e6, 1e9)
    assert read_progress(path) == Progress(1.5e6, 1e9, 3.0)
    # It began anew from an older state: no checkpoint is ahead of it.
    report_progress(2, 10)
    assert read_progress(path) == Progress(2.0, 10.0, 2.0)
    assert [file.name for file in task_dir.iterdir()] == ["progress"]


def test_outside_a_pool_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CORRAL_TASK_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    report_progress(1, 2, checkpoint=True)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_nothing_stops_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_TASK_DIR", "/proc/self/there/is/no/such/directory")
    report_progress(1, 2)


def test_the_first_process_of_a_node_speaks(task_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    report_progress(1)
    assert read_progress(task_dir / "progress") is None
    monkeypatch.setenv("LOCAL_RANK", "0")
    report_progress(1)
    assert read_progress(task_dir / "progress") == Progress(1.0)


@pytest.mark.parametrize(
    "step,total", [(-1, None), (float("nan"), None), (float("inf"), None), (1, 0), (1, -2), (1, float("nan"))]
)
def test_numbers_that_are_none_are_faults_of_the_program(task_dir: Path, step: float, total: float | None) -> None:
    with pytest.raises(ValueError):
        report_progress(step, total)
    assert list(task_dir.iterdir()) == []


def test_threads_may_report_at_once(task_dir: Path) -> None:
    def many(first: int) -> None:
        for step in range(first, first + 200):
            report_progress(step, 10_000)
            found = read_progress(task_dir / "progress")
            assert found is not None
            seen.append(found.total)

    seen: list[float | None] = []
    threads = [threading.Thread(target=many, args=(1_000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [10_000.0] * 800


def test_a_task_is_stopping_once_its_shim_was_told(task_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stopping() is False
    TaskHandle(task_dir).stop("preempted", 1.0, 60.0)
    assert stopping() is True
    monkeypatch.delenv("CORRAL_TASK_DIR")
    assert stopping() is False


def test_a_program_that_reports_loads_the_standard_library_alone() -> None:
    assert (corral.report_progress, corral.stopping) == (report_progress, stopping)
    code = (
        "import corral, sys; before = set(sys.stdlib_module_names); corral.report_progress(1); corral.stopping();"
        "print(sorted({m.partition('.')[0] for m in sys.modules} - before - {'corral', '__main__'}))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(Path(corral.__file__).parents[1])},
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == "[]\n"
