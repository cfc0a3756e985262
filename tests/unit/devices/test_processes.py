from __future__ import annotations

import os
import pwd

import pytest

from corral.devices.processes import foreign_processes, merged, mib, owner_of
from corral.model.resources import ForeignProcess


@pytest.mark.parametrize("value,expected", [(None, None), (0, 0), (1, 1), (1 << 20, 1), ((1 << 20) + 1, 2)])
def test_memory_is_rounded_up_and_unknown_stays_unknown(value: int | None, expected: int | None) -> None:
    assert mib(value) == expected


def test_a_process_that_is_listed_twice_counts_once_with_its_largest_known_memory() -> None:
    assert merged([(1, None), (2, 5), (1, 7), (2, 3), (3, None), (2, None), (3, None)]) == {1: 7, 2: 5, 3: None}


def test_owners() -> None:
    assert owner_of(os.getpid()) == pwd.getpwuid(os.getuid()).pw_name
    assert owner_of(4_000_001) is None


def test_foreign_are_all_but_the_own() -> None:
    assert foreign_processes({9: 1, 4_000_001: None, 8: 2}, {8, 9}) == (ForeignProcess(4_000_001, None, None),)
