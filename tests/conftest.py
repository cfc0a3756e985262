"""Fixtures that every test may use."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from bench import postgres
from tests import needs

# Deterministic: the same tree gives the same verdict. No deadline: a busy machine is no bug.
settings.register_profile("corral", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("corral")


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """Give a private directory with a short path: the path of a unix socket must fit into 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[postgres.Cluster]:
    """Give a PostgreSQL server of this test process. Who stops it starts it again."""
    if postgres.binaries() is None:
        needs.unmet("needs a PostgreSQL server: apt-get install postgresql")
    with postgres.running() as cluster:
        yield cluster


@pytest.fixture
def database_url(postgres_cluster: postgres.Cluster) -> str:
    """Give the URL of a new empty database."""
    return postgres_cluster.url(postgres_cluster.database())
