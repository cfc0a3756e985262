from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from corral.engines.ray.pieces import CALL_BYTES_MAX, Outbox


def test_what_is_small_travels_together_in_order() -> None:
    outbox = Outbox()
    outbox.put(1, b"a")
    outbox.put(2, b"b")
    outbox.put(1, b"")
    assert outbox.size == 2
    assert outbox.take() == [(1, b"a"), (2, b"b"), (1, b"")]
    assert not outbox
    assert outbox.size == 0


def test_what_is_large_is_cut_to_calls() -> None:
    outbox = Outbox()
    data = random.Random(4).randbytes(2 * CALL_BYTES_MAX + 5)
    outbox.put(3, data)
    outbox.put(4, b"next")
    calls = []
    while outbox:
        calls.append(outbox.take())
    assert [[(tunnel, len(piece)) for tunnel, piece in call] for call in calls] == [
        [(3, CALL_BYTES_MAX)],
        [(3, CALL_BYTES_MAX)],
        [(3, 5), (4, 4)],
    ]
    assert b"".join(piece for call in calls for tunnel, piece in call if tunnel == 3) == data


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3 * CALL_BYTES_MAX)), max_size=8))
def test_no_call_is_too_large_and_nothing_is_lost(puts: list[tuple[int, int]]) -> None:
    outbox = Outbox()
    for tunnel, size in puts:
        outbox.put(tunnel, bytes([tunnel]) * size)
    assert outbox.size == sum(size for _, size in puts)
    taken: list[tuple[int, int]] = []
    while outbox:
        call = outbox.take()
        assert sum(len(data) for _, data in call) <= CALL_BYTES_MAX
        taken += [(tunnel, len(data)) for tunnel, data in call]
    for tunnel in range(3):
        assert sum(size for who, size in taken if who == tunnel) == sum(size for who, size in puts if who == tunnel)
    assert [tunnel for tunnel, size in taken if not size] == [tunnel for tunnel, size in puts if not size]
