"""The index of candidates against a plain list, and the order in which a cursor gives them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.model.ids import GangKey, TenantId
from corral.model.offer import Candidate
from corral.policy.cursor import FOREVER, Cursor
from corral.policy.pending import Line, PendingIndex, kind_of
from tests.unit.policy.building import DEFAULT, candidate, shape

A = TenantId("a")


STEPS = st.tuples(
    st.integers(0, 9), st.sampled_from("ab"), st.integers(0, 2), st.sampled_from([-0.5, 0.0, 3.25]), st.booleans()
)


@given(st.lists(STEPS, max_size=40))
def test_the_index_holds_what_was_added_and_not_removed(steps: list[tuple[int, str, int, float, bool]]) -> None:
    index = PendingIndex()
    plain: dict[GangKey, Candidate] = {}
    for number, tenant, priority, urgency, remove in steps:
        one = candidate(number, shape(1 + priority), tenant=tenant, priority=priority, lasts=float(priority) or None)
        one = replace(one, urgency=urgency)
        if remove:
            assert index.remove(one.key) == plain.pop(one.key, None)
        else:
            index.update(one)
            plain[one.key] = one
        assert len(index) == len(plain)
    assert {c.key: c for c in index} == plain
    for tenant in "ab":
        mine = [c for c in plain.values() if c.tenant == tenant]
        lines = list(index.lines(TenantId(tenant)))
        assert index.count(TenantId(tenant)) == len(mine) == sum(len(line) for line in lines)
        for line in lines:
            members = [entry[4] for entry in line.entries]
            assert members == sorted(members, key=lambda c: (-c.priority, c.urgency, c.order))
            assert line.shortest_s == min((c.max_duration_s or FOREVER) for c in members)
    assert set(index.tenants()) == {c.tenant for c in plain.values()}


def test_a_candidate_needs_a_bid_and_unknown_ones_are_no_fault() -> None:
    index = PendingIndex()
    with pytest.raises(ValueError, match="has no bid"):
        index.add(replace(candidate(1), bids=()))
    assert index.remove(candidate(1).key) is None
    assert index.get(candidate(1).key) is None
    assert candidate(1).key not in index


def test_equal_shapes_share_a_line_and_retries_have_their_own() -> None:
    index = PendingIndex([candidate(1), candidate(2), candidate(3, avoid=["n"]), candidate(4, shape(2))])
    assert sorted(len(line) for line in index.lines(A)) == [1, 1, 2]


def line_of(*durations: float | None) -> Line:
    line = Line(DEFAULT, kind_of(candidate(0)))
    for number, lasts in enumerate(durations):
        line.add(candidate(number, lasts=lasts))
    return line


def heads(line: Line, longest_s: float, scan: int = 100) -> list[int]:
    cursor, found = Cursor(line, 0), []
    done: set[GangKey] = set()
    while (head := cursor.head(longest_s, done, scan)) is not None:
        done.add(head.key)
        found.append(int(head.key.job))
    assert cursor.closed
    return found


def test_a_cursor_passes_over_what_lasts_too_long() -> None:
    line = line_of(None, 50.0, 10.0, 60.0, 20.0)
    assert heads(line, FOREVER) == [0, 1, 2, 3, 4]
    assert heads(line, 50.0) == [1, 2, 4]
    assert heads(line, 9.0) == []


def test_behind_the_scanned_ones_the_shortest_is_taken() -> None:
    line = line_of(None, None, 30.0, 10.0, 20.0)
    assert heads(line, 30.0, scan=2)[0] == 3


def test_a_hesitant_candidate_does_not_hold_up_its_line() -> None:
    cursor = Cursor(line_of(None, None), 0)
    cursor.hesitant = lambda c: c.key.job == "0"
    head = cursor.head(FOREVER, set(), 100)
    assert head is not None
    assert head.key.job == "1"
