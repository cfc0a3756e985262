"""Pools for end-to-end tests: real daemons, agents and processes on simulated devices."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.command import UP, Corral
from tests.e2e.livepool import LivePool


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


@contextmanager
def live_pool() -> Iterator[LivePool]:
    # Short: the path of a unix socket must fit into 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    pool = LivePool(directory / "s")
    try:
        yield pool
    finally:
        pool.end()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_pool() -> Iterator[LivePool]:
    with live_pool() as pool:
        pool.up(nodes=2, gpus=4)
        yield pool


@pytest.fixture
def shared(shared_pool: LivePool) -> Iterator[LivePool]:
    """Give a running pool of 2 simulated nodes with 4 GPUs each to a test that breaks nothing in it."""
    yield shared_pool
    shared_pool.cancel_all()


@pytest.fixture
def pool() -> Iterator[LivePool]:
    """Give a pool of its own, which is not up yet, to a test that breaks it."""
    with live_pool() as pool:
        yield pool
