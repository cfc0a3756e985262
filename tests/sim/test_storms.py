"""Storms pass, two runs of one seed are the same, and seeds that found something once find nothing any more.

``make sim SEEDS=200`` lets many pass; a seed that fails is added to ``seeds/failed.txt`` with what it found.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from corral.sim.__main__ import main, seeds_of
from corral.sim.storm.storm import Storm

FAILED = Path(__file__).with_name("seeds") / "failed.txt"


def failed_once() -> list[int]:
    lines = FAILED.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("seed", range(1_000, 1_006))
def test_a_storm_passes_and_its_second_run_is_the_same(seed: int) -> None:
    first, second = Storm(seed).run(), Storm(seed).run()
    assert first.failure == ""
    assert first == second
    assert first.jobs > 0
    assert sum(first.faults.values()) > 0


@pytest.mark.parametrize("seed", failed_once())
def test_a_seed_that_failed_once_passes(seed: int) -> None:
    assert Storm(seed).run().failure == ""


def digests(hash_seed: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-m", "corral.sim", "--seeds", "20-27", "--workers", "1"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    return re.findall(r"\[([0-9a-f]{16})\]", ended.stdout)


def test_the_course_does_not_depend_on_the_seed_of_hashes() -> None:
    first = digests("1")
    assert len(set(first)) == 8
    assert digests("2") == first


def test_a_trace_shows_what_happens_and_the_last_line_says_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1000", "--trace"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert any(" leads with epoch 1" in line for line in said)
    assert any(" begins (" in line for line in said)
    assert said[-1].startswith("seed 1000: ok")


def test_seeds_are_a_count_or_ranges() -> None:
    assert seeds_of("3") == (0, 1, 2)
    assert seeds_of("5-7") == (5, 6, 7)
    assert seeds_of("9,5-6") == (9, 5, 6)
    assert seeds_of("9,") == (9,)
    with pytest.raises(ValueError, match="invalid literal"):
        seeds_of("five")
