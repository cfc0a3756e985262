"""One pool of several machines for all tests that leave it whole: it takes half a minute to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.machines import Machines
from tests.e2e.netns.crowd import Crowd, crowd_on, machines

WRONG_CLOCK = Path(__file__).with_name("wrongclock")


@pytest.fixture(scope="session")
def clock_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the file that says how wrong the wall clock of n5 is, such as ``+10`` (seconds)."""
    file = tmp_path_factory.mktemp("clock") / "offset"
    file.write_text("+0")
    return file


@pytest.fixture(scope="session")
def five(clock_file: Path) -> Iterator[Machines]:
    """Give five nodes, two heads and their database, every one on a machine of its own."""
    clock = {"PYTHONPATH": str(WRONG_CLOCK), "WRONG_CLOCK": str(clock_file)}
    with machines(nodes=5, heads=2, database=True, environment={"n5": clock}) as pool:
        yield pool


@pytest.fixture
def crowd(five: Machines) -> Iterator[Crowd]:
    """Give tasks before a witness, on a pool that is whole before and after."""
    with crowd_on(five) as found:
        for node in five.nodes:
            found.await_state(node, "up")
        yield found
