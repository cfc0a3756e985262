"""Who hears of which fact, and what becomes of those who listen too slowly."""

from __future__ import annotations

import asyncio

import pytest

from corral.control import feed as module
from corral.control.feed import Feed, Subscriber
from corral.model.events import Fact, GangEnded, JobCancelRequested, JobEnded, NodeCordoned
from corral.model.ids import JobId, NodeId, TenantId
from corral.model.job import JobState
from corral.ports.store import JournalEntry

OWNERS = {JobId("1"): TenantId("a"), JobId("2"): TenantId("b")}


def gang_ended(job: str, gang: int) -> Fact:
    return GangEnded(at=1.0, job=JobId(job), gang=gang, incarnation=1, state=JobState.SUCCEEDED)


def job_ended(job: str) -> Fact:
    return JobEnded(at=1.0, job=JobId(job), state=JobState.SUCCEEDED)


FACTS = [
    gang_ended("1", 0),
    gang_ended("1", 1),
    JobCancelRequested(at=1.0, job=JobId("1"), by="me"),
    job_ended("1"),
    gang_ended("2", 0),
    NodeCordoned(at=1.0, node=NodeId("n1"), by="me"),
]


def publish(feed: Feed, facts: list[Fact], first: int = 1) -> None:
    feed.publish([JournalEntry(first + i, 1, fact) for i, fact in enumerate(facts)], OWNERS.get)


def heard(subscriber: Subscriber) -> list[int | None]:
    entries = [subscriber.queue.get_nowait() for _ in range(subscriber.queue.qsize())]
    return [entry.seq if entry is not None else None for entry in entries]


def test_everybody_hears_what_is_theirs_and_nothing_else() -> None:
    feed = Feed()
    everything = feed.subscribe(None, None)
    tenant = feed.subscribe(None, TenantId("a"))
    job = feed.subscribe(JobId("1"), None)
    gang = feed.subscribe(JobId("1"), None, 1)
    foreign = feed.subscribe(JobId("1"), TenantId("b"))
    gone = feed.subscribe(None, None)
    feed.unsubscribe(gone)
    publish(feed, FACTS)
    assert heard(everything) == [1, 2, 3, 4, 5, 6]
    # The whole end of a job, and none of the pool's own facts.
    assert heard(tenant) == [1, 2, 3, 4]
    assert heard(job) == [1, 2, 3, 4]
    assert heard(gang) == [2, 3, 4]
    assert heard(foreign) == []
    assert heard(gone) == []


def test_who_is_too_slow_is_ended_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKLOG_MAX", 3)
    feed = Feed()
    slow, quick = feed.subscribe(None, None), feed.subscribe(JobId("2"), None)
    publish(feed, [gang_ended("1", i) for i in range(4)])
    # What it has heard so far has no gap: it goes on after that, from the journal.
    assert heard(slow) == [None]
    publish(feed, [gang_ended("2", 0)], first=5)
    assert (heard(slow), heard(quick)) == ([], [5])


def test_closing_ends_everybody_after_what_they_had(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed()
    one, none = feed.subscribe(None, None), feed.subscribe(None, None)
    publish(feed, FACTS[:1])
    none.queue.get_nowait()
    feed.close()
    publish(feed, FACTS[:1], first=2)
    assert (heard(one), heard(none)) == ([1, None], [None])


def test_waiting_for_an_end_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        feed = Feed()
        first, second, other = feed.ended(JobId("1")), feed.ended(JobId("1")), feed.ended(JobId("2"))
        feed.forget(JobId("1"), second)
        publish(feed, FACTS[:4])
        assert (first.done(), second.done(), other.done()) == (True, False, False)
        feed.forget(JobId("1"), first)
        feed.forget(JobId("2"), other)
        assert feed._ended == {}

    asyncio.run(scenario())
