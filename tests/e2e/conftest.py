"""Pools for end-to-end tests: real daemons, agents and processes on simulated devices."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import UP, Corral


def pool_on(directory: Path) -> Iterator[Corral]:
    corral = Corral(directory)
    try:
        started = corral(*UP)
        assert started.code == 0, started.err
        yield corral
    finally:
        corral("down", "--force")
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def corral() -> Iterator[Corral]:
    """Give one pool of 2 simulated nodes with 4 GPUs each to all tests that leave it as they found it."""
    yield from pool_on(Path(tempfile.mkdtemp(prefix="c", dir="/tmp")))


@pytest.fixture
def own() -> Iterator[Corral]:
    """Give a pool of its own to a test that stops it."""
    yield from pool_on(Path(tempfile.mkdtemp(prefix="c", dir="/tmp")))
