"""What every store must do, whatever database carries it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.model.errors import StateUnusable, StoreConflict
from corral.model.events import FactCodec
from corral.model.ids import JobId, TenantId
from corral.ports.store import Batch, JobQuery, Recovered, Store, UsageRow
from corral.storage import PostgresStore, SqliteStore
from tests.unit.storage.samples import ended, finished, lost, placed

Another = Callable[[], Store]


@pytest.fixture(params=["sqlite", "postgres"])
def another(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Another]:
    """Give a maker of stores on one and the same database."""
    made: list[Store] = []
    url = request.getfixturevalue("database_url") if request.param == "postgres" else ""

    def make() -> Store:
        store: Store = PostgresStore(url) if url else SqliteStore(tmp_path / "corral.db")
        store.open()
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(another: Another) -> Store:
    return another()


def test_a_new_store_is_empty(store: Store) -> None:
    assert store.recover() == Recovered(0, None, ())
    assert store.entries_after(0, 10) == []
    assert store.finished_jobs(JobQuery()) == []
    assert store.usage(0, 10**10, None) == []
    assert store.prune(entries_before=1e12, keep_jobs=()) == 0


def test_what_was_appended_is_there_after_a_restart_in_order(store: Store, another: Another) -> None:
    epoch = store.acquire_leadership()
    facts = (placed(1.0), ended(2.0, message="héllo\0\n"), lost(3.0))
    assert store.append(0, epoch, Batch(facts[:2])) == 2
    assert store.append(2, epoch, Batch(facts[2:])) == 3
    store.close()
    recovered = another().recover()
    assert (recovered.snapshot_seq, recovered.snapshot) == (0, None)
    assert [(entry.seq, entry.epoch) for entry in recovered.entries] == [(1, epoch), (2, epoch), (3, epoch)]
    assert tuple(entry.fact for entry in recovered.entries) == facts


def test_opening_and_closing_twice_does_nothing_and_a_closed_store_says_so(store: Store) -> None:
    store.open()
    store.close()
    store.close()
    with pytest.raises(StateUnusable, match="not open"):
        store.recover()
    with pytest.raises(StateUnusable, match="not open"):
        store.append(0, 1, Batch(()))
    store.open()
    assert store.acquire_leadership() == 1


def test_each_leader_gets_a_higher_epoch_also_after_a_restart(store: Store, another: Another) -> None:
    assert [store.acquire_leadership(), another().acquire_leadership(), store.acquire_leadership()] == [1, 2, 3]
    store.close()
    assert another().acquire_leadership() == 4


def test_a_deposed_leader_is_refused_and_leaves_nothing(store: Store, another: Another) -> None:
    old = store.acquire_leadership()
    assert store.append(0, old, Batch((lost(1.0),))) == 1
    other = another()
    new = other.acquire_leadership()
    with pytest.raises(StoreConflict, match=f"entry 1 of epoch {new}.*expected entry 1 of epoch {old}"):
        store.append(1, old, Batch((lost(2.0),), finished=(finished(1),), usage=(UsageRow(TenantId("a"), 0, 1, 1),)))
    assert other.append(1, new, Batch((lost(3.0),))) == 2
    assert [entry.fact.at for entry in store.recover().entries] == [1.0, 3.0]
    assert store.finished_jobs(JobQuery()) == []
    assert store.usage(0, 1, None) == []


@pytest.mark.parametrize("expected", [0, 1, 3])
def test_an_append_that_expects_another_end_is_refused(store: Store, expected: int) -> None:
    epoch = store.acquire_leadership()
    store.append(0, epoch, Batch((lost(1.0), lost(2.0))))
    with pytest.raises(StoreConflict):
        store.append(expected, epoch, Batch((lost(3.0),)))
    assert store.append(2, epoch, Batch((lost(3.0),))) == 3


def test_only_one_of_two_racing_writers_wins_each_place(store: Store, another: Another) -> None:
    epoch = store.acquire_leadership()
    stores, lost_races = (another(), another()), [0, 0]

    def write(which: int) -> None:
        last = 0
        while last < 60:
            try:
                last = stores[which].append(last, epoch, Batch((lost(float(which)),)))
            except StoreConflict:
                lost_races[which] += 1
                last = max(entry.seq for entry in stores[which].recover().entries)

    threads = [threading.Thread(target=write, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = store.recover().entries
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert {entry.fact.at for entry in entries} <= {0.0, 1.0}


def test_a_batch_without_facts_can_still_carry_rows(store: Store) -> None:
    epoch = store.acquire_leadership()
    assert store.append(0, epoch, Batch((), usage=(UsageRow(TenantId("a"), 3600, 1.0, 2.0),))) == 0
    assert store.usage(0, 7200, None) == [UsageRow(TenantId("a"), 3600, 1.0, 2.0)]


def test_recovery_takes_the_newest_snapshot_and_what_came_after(store: Store, another: Another) -> None:
    epoch = store.acquire_leadership()
    store.append(0, epoch, Batch(tuple(lost(float(at)) for at in range(1, 8))))
    for seq in (2, 4, 6):
        store.save_snapshot(seq, b"state after %d" % seq)
    store.close()
    recovered = another().recover()
    assert (recovered.snapshot_seq, recovered.snapshot) == (6, b"state after 6")
    assert [entry.seq for entry in recovered.entries] == [7]


def test_a_snapshot_at_the_very_end_leaves_no_entries_and_can_be_replaced(store: Store) -> None:
    epoch = store.acquire_leadership()
    store.append(0, epoch, Batch((lost(1.0),)))
    store.save_snapshot(1, b"first")
    store.save_snapshot(1, b"second")
    assert store.recover() == Recovered(1, b"second", ())


def test_a_snapshot_ahead_of_the_journal_is_refused(store: Store) -> None:
    with pytest.raises(StoreConflict, match="ahead of the journal"):
        store.save_snapshot(1, b"from another world")
    assert store.recover() == Recovered(0, None, ())


def test_pruning_keeps_what_the_older_snapshot_needs_and_the_live_jobs(store: Store) -> None:
    epoch = store.acquire_leadership()
    facts = [ended(float(seq), job="live" if seq % 2 else "done") for seq in range(1, 11)]
    facts[3] = lost(4.0)
    store.append(0, epoch, Batch(tuple(facts)))
    assert store.prune(entries_before=1e9, keep_jobs=()) == 0, "no snapshot covers anything"
    store.save_snapshot(6, b"older")
    assert store.prune(entries_before=1e9, keep_jobs=()) == 0, "a second one must be there to fall back to"
    store.save_snapshot(9, b"newer")
    assert store.prune(entries_before=5.0, keep_jobs=[JobId("live"), JobId("unknown")]) == 2
    assert [entry.seq for entry in store.entries_after(0, 100)] == [1, 3, 5, 6, 7, 8, 9, 10]
    assert store.prune(entries_before=1e9, keep_jobs=()) == 4
    assert [entry.seq for entry in store.entries_after(0, 100)] == [7, 8, 9, 10]
    assert [entry.seq for entry in store.recover().entries] == [10]
    assert store.append(10, epoch, Batch((lost(11.0),))) == 11


def test_pruning_never_takes_the_last_entry(store: Store, another: Another) -> None:
    epoch = store.acquire_leadership()
    store.append(0, epoch, Batch((lost(1.0), lost(2.0))))
    store.save_snapshot(1, b"one")
    store.save_snapshot(2, b"two")
    store.append(2, epoch, Batch(()))
    store.save_snapshot(2, b"two again")
    assert store.prune(entries_before=1e9, keep_jobs=()) == 1
    store.close()
    again = another()
    assert again.recover() == Recovered(2, b"two again", ())
    assert again.append(2, again.acquire_leadership(), Batch((lost(3.0),))) == 3


def test_pruning_many_rows_takes_several_steps(store: Store) -> None:
    epoch = store.acquire_leadership()
    count = 11_000
    store.append(0, epoch, Batch(tuple(ended(1.0, job=str(seq % 3)) for seq in range(1, count + 1))))
    store.save_snapshot(count - 1, b"a")
    store.save_snapshot(count, b"b")
    kept = sum(1 for seq in range(1, count) if seq % 3 == 1)
    assert store.prune(entries_before=2.0, keep_jobs=[JobId("1")]) == count - 1 - kept
    assert len(store.entries_of_job(JobId("1"))) == kept
    assert store.entries_of_job(JobId("0")) == []
    assert [entry.seq for entry in store.entries_of_job(JobId("2"))] == [count]


def test_the_entries_of_a_job_and_a_page_of_entries(store: Store) -> None:
    epoch = store.acquire_leadership()
    store.append(0, epoch, Batch((placed(1.0, "7"), lost(2.0), ended(3.0, "8"), ended(4.0, "7"), ended(5.0, "77"))))
    assert [(entry.seq, FactCodec.encode(entry.fact)) for entry in store.entries_of_job(JobId("7"))] == [
        (1, FactCodec.encode(placed(1.0, "7"))),
        (4, FactCodec.encode(ended(4.0, "7"))),
    ]
    assert store.entries_of_job(JobId("9")) == []
    assert [entry.seq for entry in store.entries_after(1, 2)] == [2, 3]
    assert store.entries_after(5, 2) == []


def test_a_finished_job_comes_back_as_it_was(store: Store) -> None:
    jobs = (finished(1, key="k1"), finished(2, state="cancelled"))
    store.append(0, store.acquire_leadership(), Batch((), finished=jobs))
    assert store.finished_job(JobId("1")) == jobs[0]
    assert store.finished_job(JobId("2")) == jobs[1]
    assert store.finished_job(JobId("3")) is None


def test_finished_jobs_are_found_newest_first_by_every_filter(store: Store) -> None:
    jobs = (
        finished(1, tenant="a", name="x", state="failed", ended_at=30.0),
        finished(2, tenant="b", name="x", ended_at=20.0),
        finished(3, tenant="a", name="y", ended_at=10.0),
        finished(10, tenant="a", name="x", ended_at=40.0),
    )
    store.append(0, store.acquire_leadership(), Batch((), finished=jobs))

    def numbers(query: JobQuery) -> list[int]:
        found = store.finished_jobs(query)
        assert all(job.document == b"" for job in found)
        return [job.number for job in found]

    assert numbers(JobQuery()) == [10, 3, 2, 1]
    assert numbers(JobQuery(tenant=TenantId("a"))) == [10, 3, 1]
    assert numbers(JobQuery(name="x", limit=2)) == [10, 2]
    assert numbers(JobQuery(state="failed")) == [1]
    assert numbers(JobQuery(since=20.0)) == [10, 2, 1]
    assert numbers(JobQuery(before=3)) == [2, 1]
    assert numbers(JobQuery(tenant=TenantId("a"), name="x", state="succeeded", since=35.0, before=11)) == [10]


def test_a_job_cannot_finish_twice_and_the_refused_batch_leaves_nothing(store: Store) -> None:
    epoch = store.acquire_leadership()
    store.append(0, epoch, Batch((lost(1.0),), finished=(finished(1),)))
    with pytest.raises(StoreConflict):
        store.append(1, epoch, Batch((lost(2.0),), finished=(finished(2), finished(1))))
    assert [job.number for job in store.finished_jobs(JobQuery())] == [1]
    assert store.append(1, epoch, Batch((lost(2.0),), finished=(finished(2),))) == 2


def test_usage_is_added_up_by_tenant_and_hour(store: Store) -> None:
    a, b = TenantId("a"), TenantId("b")
    epoch = store.acquire_leadership()
    store.append(0, epoch, Batch((), usage=(UsageRow(a, 3600, 1.5, 10.0, 0.5), UsageRow(b, 3600, 2.0, 20.0))))
    store.append(0, epoch, Batch((), usage=(UsageRow(a, 3600, 0.25, 1.0), UsageRow(a, 7200, 8.0, 0.0))))
    first, second = UsageRow(a, 3600, 1.75, 11.0, 0.5), UsageRow(a, 7200, 8.0, 0.0)
    assert store.usage(0, 10_000, None) == [first, UsageRow(b, 3600, 2.0, 20.0), second]
    assert store.usage(0, 10_000, a) == [first, second]
    assert store.usage(3600, 7200, a) == [first]
    assert store.usage(3601, 7200, None) == []


def test_readers_in_other_threads_see_whole_batches(store: Store) -> None:
    epoch = store.acquire_leadership()
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            seen.append(len(store.recover().entries))

    reader = threading.Thread(target=read)
    reader.start()
    for batch in range(50):
        store.append(batch * 4, epoch, Batch(tuple(lost(1.0) for _ in range(4))))
    done.set()
    reader.join()
    assert all(count % 4 == 0 for count in seen)
    assert seen == sorted(seen)


def test_a_batch_that_is_in_its_place_already_is_not_written_again(store: Store) -> None:
    epoch = store.acquire_leadership()
    batch = Batch((lost(1.0), lost(2.0)), finished=(finished(1),), usage=(UsageRow(TenantId("a"), 0, 1.0, 2.0),))
    assert store.append(0, epoch, batch) == 2
    assert store.append(0, epoch, batch) == 2
    assert [entry.seq for entry in store.recover().entries] == [1, 2]
    assert store.usage(0, 1, None) == [UsageRow(TenantId("a"), 0, 1.0, 2.0)]
    with pytest.raises(StoreConflict):
        store.append(0, epoch, Batch((lost(1.0),)))
    with pytest.raises(StoreConflict):
        store.append(1, epoch, Batch((lost(1.0),)))
    assert store.append(2, epoch, Batch((lost(3.0),))) == 3
    with pytest.raises(StoreConflict):
        store.append(0, epoch, batch)


def test_a_batch_of_another_epoch_is_not_taken_for_ones_own(store: Store) -> None:
    old = store.acquire_leadership()
    store.append(0, old, Batch((lost(1.0),)))
    new = store.acquire_leadership()
    with pytest.raises(StoreConflict):
        store.append(0, old, Batch((lost(1.0),)))
    with pytest.raises(StoreConflict):
        store.append(0, new, Batch((lost(1.0),)))
