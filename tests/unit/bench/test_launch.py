from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.launch import percentile, ratios
from bench.processes import carriers
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "values, percent, expected",
    [
        ([7.0], 99, 7.0),
        ([3.0, 1.0, 2.0, 4.0], 50, 2.0),
        ([3.0, 1.0, 2.0, 4.0], 51, 3.0),
        ([float(n) for n in range(1, 51)], 99, 50.0),
        ([float(n) for n in range(1, 201)], 99, 198.0),
    ],
)
def test_the_percentile_is_the_nearest_rank(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_ratios_compare_throughput_and_the_two_submit_commands() -> None:
    ours: dict[str, float | int | str] = {"noop_jobs_per_s": 150.0, "cli_submit_to_start_ms_median": 100.0}
    theirs: dict[str, float | int | str] = {"slurm_noop_jobs_per_s": 60.0, "slurm_sbatch_ms_median": 800.0}
    assert ratios(ours, theirs) == {"throughput_ratio": 2.5, "latency_ratio": 0.125}


@pytest.fixture
def place() -> Iterator[Path]:
    # Short, unlike tmp_path: sockets lie here.
    with tempfile.TemporaryDirectory(prefix="test-launch-") as name:
        yield Path(name)


def test_an_interrupted_run_leaves_neither_processes_nor_files(tmp_path: Path, place: Path) -> None:
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as said,
        subprocess.Popen(
            [sys.executable, "-m", "bench.launch", "--json"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(place)},
            stdout=subprocess.PIPE,
            stderr=said,
        ) as run,
    ):
        wait_until(lambda: "is up" in errors.read_text() or run.poll() is not None, 60, what="the pool of the run")
        assert len(carriers(place)) > 5, errors.read_text()
        run.send_signal(signal.SIGINT)
        printed, _ = run.communicate(timeout=60)
    assert (run.returncode, printed) == (130, b"")
    assert carriers(place) == []
    assert list(place.iterdir()) == []
