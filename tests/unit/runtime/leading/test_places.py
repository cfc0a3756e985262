"""Where the GCS and the heads are, as a leader keeps it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from corral.model.errors import StoreAway
from corral.ports.leadership import Answer, Ask, Candidate, Head
from corral.runtime.leading import places as module
from corral.runtime.leading.places import GCS, RAY_TOKEN, Places
from corral.runtime.machines.cluster import load_cluster
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile
from tests.waiting import wait_until_async

OTHER = "10.0.0.9:7421"
OWN = "10.0.0.1:7421"
SECOND = Head("place-2", "h2", "https://10.0.0.2:7420", "0.1.0", "", "PEM2")


class Leaders:
    """What heads publish; ``away`` lets that many publications fail."""

    def __init__(self, **published: str) -> None:
        self.words = {name.replace("_", "-"): word for name, word in published.items()}
        self.away = 0

    def campaign(self, me: Candidate, ask: Ask) -> Answer:
        raise AssertionError("nobody campaigns")

    def appear(self, me: Head) -> tuple[Head, ...]:
        return ()

    def publish(self, epoch: int, name: str, word: str) -> None:
        if self.away:
            self.away -= 1
            raise StoreAway("the database does not answer")
        self.words[name] = word

    def published(self) -> dict[str, str]:
        return dict(self.words)


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    found = StatePaths(tmp_path)
    found.ray_token.parent.mkdir()
    found.ray_token.write_text("mine")
    return found


def places(paths: StatePaths, leaders: Leaders | None) -> Places:
    own = "10.0.0.1"
    asked = PoolFile(host=own, fork_socket="/f", agents={"n1": ""}, address=own, gcs_port=7421, role="head")
    return Places(paths, asked, "https://10.0.0.1:7420", leaders)


def kept(found: Places, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Play a scenario while a leader of epoch 1 keeps the GCS."""

    async def whole() -> None:
        keeping = asyncio.create_task(found.keep(1))
        try:
            await asyncio.wait_for(scenario(), 20.0)
            assert not keeping.done()
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping

    asyncio.run(whole())


def test_the_first_leader_says_where_the_gcs_is_and_which_token_is_rays(paths: StatePaths) -> None:
    leaders = Leaders()
    places(paths, leaders).settle(1)
    assert leaders.words == {GCS: OWN, RAY_TOKEN: "mine"}
    assert load_cluster(paths.cluster).gcs == OWN


def test_a_leader_takes_over_what_was_published(paths: StatePaths) -> None:
    places(paths, Leaders(gcs=OTHER, ray_token="theirs")).settle(2)
    assert load_cluster(paths.cluster).gcs == OTHER
    assert paths.ray_token.read_text() == "theirs"


def test_one_head_alone_has_the_gcs_itself(paths: StatePaths) -> None:
    places(paths, None).settle(1)
    assert load_cluster(paths.cluster).gcs == OWN


def test_a_silent_gcs_is_moved_whatever_goes_wrong_meanwhile(
    paths: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    monkeypatch.setattr(module, "MOVE_FIRST_S", 0.0)
    monkeypatch.setattr(module, "answers", lambda _: False)
    leaders = Leaders(gcs=OTHER, ray_token="mine")
    found = places(paths, leaders)
    found.settle(1)
    paths.cluster.write_bytes(b"{ damaged")
    leaders.away = 2

    async def scenario() -> None:
        await asyncio.to_thread(found.settle, 1)
        await wait_until_async(lambda: leaders.words[GCS] == OWN)
        await wait_until_async(lambda: load_cluster(paths.cluster).gcs == OWN)

    kept(found, scenario)
    assert leaders.away == 0


def test_heads_that_become_known_do_not_bring_the_old_gcs_back(paths: StatePaths) -> None:
    leaders = Leaders(gcs=OTHER, ray_token="mine")
    found = places(paths, leaders)
    found.settle(1)
    found._take(1, OTHER)
    found.know([SECOND])
    known = load_cluster(paths.cluster)
    assert known.gcs == OWN
    assert [head.url for head in known.heads] == ["https://10.0.0.1:7420", SECOND.url]
    assert paths.heads_pem.read_text() == "PEM2"
