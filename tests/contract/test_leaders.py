"""What every database must do for controllers that want to lead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.model.errors import StateUnusable, StoreConflict
from corral.ports.leadership import Answer, Candidate, Claim, Head, LeaderRow, Look, Renew, Resign
from corral.ports.store import Batch
from corral.storage import PostgresStore, SqliteStore, SqlStore
from tests.unit.storage.samples import lost

A = Candidate("run-a", "place-a", "https://a:7420")
B = Candidate("run-b", "place-b", "https://b:7420")
Another = Callable[[], SqlStore]


@pytest.fixture(params=["sqlite", "postgres"])
def another(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Another]:
    """Give a maker of stores on one and the same database."""
    made: list[SqlStore] = []
    url = request.getfixturevalue("database_url") if request.param == "postgres" else ""

    def make() -> SqlStore:
        store: SqlStore = PostgresStore(url) if url else SqliteStore(tmp_path / "corral.db")
        store.open()
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


def test_the_first_claim_is_done_and_the_row_names_the_holder(another: Another) -> None:
    store = another()
    assert store.leaders.campaign(A, Look()) == Answer(LeaderRow(), done=True)
    first = LeaderRow(1, 1, "run-a", "place-a", "https://a:7420")
    assert store.leaders.campaign(A, Claim(LeaderRow())) == Answer(first, done=True)
    assert another().leaders.campaign(B, Look()) == Answer(first, done=True)


def test_a_claim_on_a_row_that_has_changed_is_not_done(another: Another) -> None:
    leaders = another().leaders
    seen = leaders.campaign(A, Claim(LeaderRow())).row
    renewed = leaders.campaign(A, Renew(1))
    assert renewed == Answer(LeaderRow(1, 2, "run-a", "place-a", "https://a:7420"), done=True)
    assert leaders.campaign(B, Claim(seen)) == Answer(renewed.row, done=False)
    taken = leaders.campaign(B, Claim(renewed.row))
    assert taken == Answer(LeaderRow(2, 3, "run-b", "place-b", "https://b:7420"), done=True)
    assert leaders.campaign(A, Renew(1)) == Answer(taken.row, done=False)
    assert leaders.campaign(A, Resign(1)) == Answer(taken.row, done=False)


def test_who_resigned_holds_nothing(another: Another) -> None:
    leaders = another().leaders
    leaders.campaign(A, Claim(LeaderRow()))
    gone = leaders.campaign(A, Resign(1))
    assert gone == Answer(LeaderRow(1, 2), done=True)
    assert not leaders.campaign(A, Renew(1)).done
    assert leaders.campaign(B, Claim(gone.row)).row.epoch == 2


def test_of_many_claims_at_once_one_is_done(another: Another) -> None:
    stores, done = [another() for _ in range(6)], []
    gate = threading.Barrier(len(stores))

    def claim(index: int) -> None:
        gate.wait()
        answer = stores[index].leaders.campaign(Candidate(f"run-{index}"), Claim(LeaderRow()))
        done.append(answer.done)

    threads = [threading.Thread(target=claim, args=(index,)) for index in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [False] * 5 + [True]
    assert stores[0].leaders.campaign(A, Look()).row.epoch == 1


def test_a_claim_ends_the_writing_of_the_leader_before(another: Another) -> None:
    store = another()
    row = store.leaders.campaign(A, Claim(LeaderRow())).row
    assert store.append(0, 1, Batch((lost(1.0),))) == 1
    assert store.leaders.campaign(A, Renew(1)).done
    assert store.append(1, 1, Batch((lost(2.0),))) == 2
    row = store.leaders.campaign(B, Look()).row
    assert store.leaders.campaign(B, Claim(row)).done
    with pytest.raises(StoreConflict):
        store.append(2, 1, Batch((lost(3.0),)))
    assert another().append(2, 2, Batch((lost(4.0),))) == 3


def test_a_start_without_a_campaign_leaves_no_holder(another: Another) -> None:
    store = another()
    store.leaders.campaign(A, Claim(LeaderRow()))
    assert store.acquire_leadership() == 2
    assert store.leaders.campaign(A, Renew(1)) == Answer(LeaderRow(2, 2), done=False)


def test_heads_are_seen_by_each_other_with_their_age(another: Another) -> None:
    one, other = another().leaders, another().leaders
    a = Head("place-a", "a", "https://a:7420", "0.4", "digest-a", "-----BEGIN")
    b = Head("place-b", "b", "https://b:7420", "0.4")
    (alone,) = one.appear(a)
    assert 0.0 <= alone.seen_s < 60.0
    found = other.appear(b)
    assert [head.name for head in found] == ["a", "b"]
    moved = Head("place-a", "a", "https://a:9999", "0.5", "digest-a", "-----BEGIN")
    assert [head.url for head in one.appear(moved)] == ["https://a:9999", "https://b:7420"]
    assert [(head.place, head.token_digest, head.certificate) for head in one.appear(moved)] == [
        ("place-a", "digest-a", "-----BEGIN"),
        ("place-b", "", ""),
    ]


def test_only_the_leader_publishes(another: Another) -> None:
    leaders = another().leaders
    leaders.campaign(A, Claim(LeaderRow()))
    leaders.publish(1, "engine", "10.0.0.1:6379")
    leaders.publish(1, "engine", "10.0.0.2:6379")
    leaders.publish(1, "other", "x")
    assert leaders.published() == {"engine": "10.0.0.2:6379", "other": "x"}
    leaders.publish(1, "other", "")
    with pytest.raises(StoreConflict, match="epoch 0 is over"):
        leaders.publish(0, "engine", "elsewhere")
    assert another().leaders.published() == {"engine": "10.0.0.2:6379"}


def test_a_closed_store_says_so(another: Another) -> None:
    store = another()
    store.close()
    with pytest.raises(StateUnusable, match="not open"):
        store.leaders.campaign(A, Look())
