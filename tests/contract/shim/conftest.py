from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.shim.shimworld import ShimWorld


@pytest.fixture
def world(state_dir: Path) -> Iterator[ShimWorld]:
    """Give a fork server; afterwards no process of any task may be left."""
    with ShimWorld(state_dir) as made:
        yield made
