"""Which jobs `ps` shows: own ones are found among many of others, and what is left out is said."""

from __future__ import annotations

import pytest

from corral.cli import listing
from corral.cli.listing import Listing
from corral.client import Client
from corral.client.client import user_name
from corral.model.ask import JobAsk
from corral.model.errors import StoreAway
from corral.ports.pool import JobPage, Principal
from corral.ports.store import JobQuery
from tests.unit.api.conftest import server, shared_server
from tests.unit.api.memory_pool import ALICE, EXIT_0, MemoryPool
from tests.unit.api.serving import Served

__all__ = ["server", "shared_server"]
OTHERS = JobAsk(argv=("x",), user="somebody else")


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 3)
    monkeypatch.setattr(listing, "PAGE_MAX", 7)


def shown(client: Client, *, everybody: bool = False, limit: int = 100, state: str | None = None) -> list[str]:
    found = Listing(client, everybody=everybody, state=state, tenant=None, limit=limit, now=100.0).rows()
    return [job.id for job in found.jobs]


def test_own_jobs_are_found_behind_many_of_others(server: Served) -> None:
    with Client(server.url, ALICE) as client:
        mine = client.submit(run="x")
        client.submit_all([OTHERS] * 30)
        assert client.summary(mine.id).user == user_name()
        assert shown(client, limit=1) == [mine.id]
        assert shown(client, limit=1, state="pending") == [mine.id]


def test_all_that_was_asked_for_is_shown_however_many_pages_it_takes(server: Served) -> None:
    with Client(server.url, ALICE) as client:
        client.submit_all([OTHERS] * 25)
        assert shown(client, everybody=True) == [str(number) for number in range(25, 0, -1)]
        found = Listing(client, everybody=True, state=None, tenant=None, limit=20, now=100.0).rows()
        assert (len(found.jobs), found.next_before, found.total_live) == (20, 6, 25)


def test_what_waits_comes_before_what_ended(server: Served) -> None:
    with Client(server.url, ALICE) as client:
        for _ in range(3):
            client.submit(run="x")
        server.do(lambda: server.pool.finish("2", EXIT_0))
        assert shown(client) == ["3", "1", "2"]
        assert shown(client, state="succeeded") == ["2"]


class Away(MemoryPool):
    """A pool whose database is away: finished jobs cannot be read."""

    async def jobs(self, who: Principal, query: JobQuery, *, live: bool, finished: bool) -> JobPage:
        if finished:
            raise StoreAway("the database does not answer")
        return await super().jobs(who, query, live=live, finished=finished)


def test_while_the_database_is_away_what_is_live_is_shown_and_that_more_is_missing(server: Served) -> None:
    server.use(Away())
    with Client(server.url, ALICE, retry_s=0.0) as client:
        client.submit(run="x")
        found = Listing(client, everybody=True, state=None, tenant=None, limit=20, now=100.0)
        assert [job.id for job in found.rows().jobs] == ["1"]
        assert found.unread is not None
        with pytest.raises(StoreAway):
            shown(client, state="succeeded")
