"""Fault points kill where a file says so, once, and nowhere else."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from corral.ports.faults import FaultPoint
from corral.runtime.leading.faults import FileFaults, NoFaults

REACH = """
import pathlib, sys
from corral.ports.faults import FaultPoint
from corral.runtime.leading.faults import FileFaults
faults = FileFaults(pathlib.Path(sys.argv[1]))
for point in FaultPoint:
    print(point.value, faults.armed(point), flush=True)
    faults.reach(point)
"""


def reach_all(folder: Path) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, "-c", REACH, str(folder)], stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_an_armed_point_kills_once(tmp_path: Path) -> None:
    points = list(FaultPoint)
    (tmp_path / points[2].value).touch()
    code, lines = reach_all(tmp_path)
    assert code == -signal.SIGKILL
    assert lines == [f"{points[0].value} False", f"{points[1].value} False", f"{points[2].value} True"]
    assert list(tmp_path.iterdir()) == []
    code, lines = reach_all(tmp_path)
    assert (code, len(lines)) == (0, len(points))


def test_production_passes_every_point(tmp_path: Path) -> None:
    for faults in (NoFaults(), FileFaults(tmp_path / "missing")):
        for point in FaultPoint:
            assert not faults.armed(point)
            faults.reach(point)
