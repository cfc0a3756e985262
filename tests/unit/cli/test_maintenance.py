"""`maintenance start` returns when an outage may begin, and never before."""

from __future__ import annotations

import pytest

from corral.cli.commands import maintenance as module
from corral.cli.commands.maintenance import prepared, words
from corral.model.errors import Conflict, Unavailable
from corral.model.ids import NodeId
from corral.model.report import MaintenanceReport

N1, N2 = NodeId("n1"), NodeId("n2")
BEGUN = MaintenanceReport(active=True, until=1800.0, left_s=1800.0, missing=(N1, N2))
HALF = MaintenanceReport(active=True, until=1800.0, left_s=1799.0, ready=(N1,), missing=(N2,))
READY = MaintenanceReport(active=True, until=1800.0, left_s=1798.0, ready=(N1, N2))
OVER = MaintenanceReport(active=False)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)


def test_it_waits_for_the_last_node() -> None:
    looks = iter([BEGUN, HALF, READY])
    assert prepared(BEGUN, lambda: next(looks), 30.0) == READY


def test_who_is_missing_in_the_end_is_named() -> None:
    with pytest.raises(Unavailable, match=r"1 node has no long lease yet: n2"):
        prepared(HALF, lambda: HALF, 0.0)


@pytest.mark.parametrize("before", [[], [HALF]])
def test_one_that_is_over_allows_no_outage(before: list[MaintenanceReport]) -> None:
    looks = iter([*before, OVER])
    with pytest.raises(Conflict, match="ended before every node was prepared"):
        prepared(BEGUN, lambda: next(looks), 30.0)


def test_who_may_still_hold_a_long_lease_of_one_that_is_over_is_named() -> None:
    assert words(OVER) == "no maintenance is under way"
    kept = MaintenanceReport(active=False, holding=(N1, N2))
    assert words(kept) == "no maintenance is under way; may still hold the long lease of the last one: n1, n2"
