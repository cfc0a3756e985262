"""What a node notes of the heads, and whom it asks next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corral.model.errors import CorralError, HeadUnreachable, MachineCloned, NotLeader, Unauthenticated
from corral.ports.membership import HeadPlace, JoinAsk, Joined, Versions
from corral.runtime.machines import rejoining
from corral.runtime.machines.cluster import ClusterFile, Head, load_cluster, save_cluster
from corral.runtime.machines.rejoining import note_heads, rejoin
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, save_pool

ONE, TWO, THREE = (f"https://10.0.0.{number}:7420" for number in (1, 2, 3))


def joined(*heads: HeadPlace) -> Joined:
    return Joined(gcs="10.0.0.1:7421", ray_token="r", heads=heads, node_token="", connected=True, clock=0.0)


@pytest.mark.parametrize(
    "told, expected",
    [
        ((HeadPlace(ONE, "A"), HeadPlace(TWO, "B")), [("https://head:7420", "A"), (TWO, "B")]),
        # A certificate for all heads.
        ((HeadPlace(ONE, "A"), HeadPlace(TWO, "A")), [("https://head:7420", "A"), (TWO, "A")]),
        ((HeadPlace("https://head:7420", "A"), HeadPlace(TWO, "A")), [("https://head:7420", "A"), (TWO, "A")]),
        ((HeadPlace(ONE, "A"),), [("https://head:7420", "A")]),
    ],
)
def test_every_head_is_known_once(tmp_path: Path, told: tuple[HeadPlace, ...], expected: list[tuple[str, str]]) -> None:
    paths = StatePaths(tmp_path)
    note_heads(paths, joined(*told), Head("https://head:7420", "A"), "n1")
    known = load_cluster(paths.cluster)
    assert [(head.url, head.certificate) for head in known.heads] == expected
    announced = json.loads(paths.daemon.read_text())
    assert [announced["url"], *(head["url"] for head in announced["heads"])] == [url for url, _ in expected]


@pytest.mark.parametrize(
    "first, expected, asked",
    [
        (None, None, 1),
        (HeadUnreachable("silent"), None, 2),
        (NotLeader("another one leads"), None, 2),
        # Who leads is believed; who stands by behind it would say less.
        (Unauthenticated("unknown token"), Unauthenticated, 1),
        (MachineCloned("it is there already"), MachineCloned, 1),
    ],
)
def test_the_next_head_is_asked_unless_one_that_leads_refuses(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: CorralError | None,
    expected: type[CorralError] | None,
    asked: int,
) -> None:
    paths = StatePaths(tmp_path)
    save_cluster(paths.cluster, ClusterFile(gcs="", heads=(Head(ONE), Head(TWO)), node="n1"))
    paths.node_token.write_text("secret")
    save_pool(paths.pool, PoolFile(host="127.0.0.1", fork_socket="", agents={}, address="10.0.0.7"))
    urls: list[str] = []

    def join_at(head: Head, secret: str, ask: JoinAsk) -> Joined:
        urls.append(head.url)
        assert (secret, ask.node, ask.address) == ("secret", "n1", "10.0.0.7")
        assert ask.incarnation
        if head.url == ONE and first is not None:
            raise first
        return joined(HeadPlace(head.url, ""), HeadPlace(THREE, ""))

    monkeypatch.setattr(rejoining, "join_at", join_at)
    monkeypatch.setattr(rejoining, "own_versions", lambda: Versions("1", "3.11.2", "2.60.0"))
    if expected is not None:
        with pytest.raises(expected):
            rejoin(paths)
        assert len(load_cluster(paths.cluster).heads) == 2
    else:
        assert rejoin(paths).gcs == "10.0.0.1:7421"
        assert [head.url for head in load_cluster(paths.cluster).heads] == [urls[-1], THREE]
    assert urls == [ONE, TWO][:asked]
