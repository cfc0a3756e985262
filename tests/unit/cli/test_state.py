"""`state export` overwrites nothing that it was not told to."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.cli.commands.state import check_free
from corral.model.errors import Conflict


def test_a_file_that_is_there_is_not_replaced_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "pool"
    check_free(file)
    file.symlink_to("nowhere")
    with pytest.raises(Conflict, match="pool is there already"):
        check_free(file)
