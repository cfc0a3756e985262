"""Fixtures of the tests of the runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.runtime.ground import Ground


@pytest.fixture
def ground(state_dir: Path) -> Iterator[Ground]:
    """Give a prepared state directory; what is started on it ends with the test."""
    found = Ground(state_dir)
    yield found
    found.close()
