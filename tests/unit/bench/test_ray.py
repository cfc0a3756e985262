from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.pool import Pool
from bench.ray import RayPool

ROOT = Path(__file__).resolve().parents[3]


def test_it_starts_a_head_of_its_own_and_touches_no_other() -> None:
    pool = RayPool()
    assert pool.start_command == "head"
    assert Pool().start_command == "up"
    # Any free port everywhere: another head may run on this machine.
    assert [pool.flags[pool.flags.index(name) + 1] for name in ("--port", "--gcs-port", "--ray-ports")] == ["0"] * 3
    assert not any(name.startswith("CORRAL_") for name in pool.environment)


def test_no_jobs_are_refused() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "bench.ray", "--jobs", "0"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert said.stderr.splitlines()[-1].endswith("error: --jobs must be at least 1")
