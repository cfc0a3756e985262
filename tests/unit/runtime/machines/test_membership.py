"""Who is let in, under which name, and who is forgotten."""

from __future__ import annotations

import asyncio
import functools
import platform
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corral.control.access import digest_of
from corral.model.errors import ClockSkew, Forbidden, MachineCloned, NodeNameTaken, VersionMismatch
from corral.model.ids import DEFAULT_TENANT, GangKey, JobId, NodeId, TenantId
from corral.model.report import NodeReport
from corral.model.resources import Amount, NodeSpec
from corral.model.state import LEFT
from corral.model.tenant import Role, Token
from corral.ports.membership import JoinAsk, Versions
from corral.ports.pool import Principal
from corral.runtime.machines import membership
from corral.runtime.machines.cluster import ClusterFile, Head, load_cluster, save_cluster
from corral.runtime.machines.jointoken import JoinToken, parse_join_token, write_join_token
from corral.runtime.machines.membership import PoolMembership, check_versions
from corral.runtime.machines.tls import fingerprint, own_certificate
from corral.runtime.machines.tokens import machine_tokens, node_of
from corral.runtime.paths import StatePaths

OURS = Versions("0.1.0", "3.11.2", "2.60.0")
JOINER = Principal(DEFAULT_TENANT, Role.JOIN, "j")
N1 = NodeId("n1")


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that awaits."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Registry:
    """Nodes and tokens, as the pool would keep them."""

    def __init__(self) -> None:
        self.known: dict[NodeId, NodeReport] = {}
        self.issued: dict[str, Token] = {}
        self.secrets: dict[str, str] = {}
        self.cordons: list[tuple[NodeId, str, bool]] = []

    def add(self, node: NodeId, **changes: Any) -> None:
        spec = NodeSpec(id=node, hostname=node, address="10.0.0.2", cpus_milli=1000, memory_mib=1024)
        report = NodeReport(
            spec, "up", cordoned=False, cordon_reason="", age_s=0.0, held=Amount(), devices=(), gangs=()
        )
        self.known[node] = replace(report, **changes)

    async def nodes(self, who: Principal) -> tuple[NodeReport, ...]:
        assert who.role is Role.ADMIN
        return tuple(self.known.values())

    async def cordon(self, who: Principal, node: NodeId, reason: str, *, drain: bool = False) -> None:
        self.cordons.append((node, reason, drain))
        draining = self.known[node].draining or drain
        self.known[node] = replace(self.known[node], cordoned=True, cordon_reason=reason, draining=draining)

    async def uncordon(self, who: Principal, node: NodeId) -> None:
        self.known[node] = replace(self.known[node], cordoned=False, cordon_reason="", draining=False)

    async def remove_node(self, who: Principal, node: NodeId) -> None:
        del self.known[node]

    async def tokens(self, who: Principal) -> tuple[Token, ...]:
        await asyncio.sleep(0)
        return tuple(self.issued.values())

    async def issue_token(self, who: Principal, tenant: TenantId, role: Role, label: str) -> tuple[Token, str]:
        await asyncio.sleep(0)
        name = f"t{len(self.secrets)}"
        self.secrets[name] = f"secret-{name}"
        self.issued[name] = Token(name, digest_of(self.secrets[name]), tenant, role, 0.0, label)
        return self.issued[name], self.secrets[name]

    async def revoke_token(self, who: Principal, token_id: str) -> None:
        del self.issued[token_id]


class Pool:
    """A membership, what it needs, and what a test changes."""

    def __init__(self, root: Path) -> None:
        paths = self.paths = StatePaths(root)
        save_cluster(paths.cluster, ClusterFile(gcs="10.0.0.1:7421", heads=(Head("https://10.0.0.1:7420", "PEM"),)))
        paths.ray_token.parent.mkdir()
        paths.ray_token.write_text("ray-secret\n")
        self.registry = Registry()
        self.connected: frozenset[NodeId] = frozenset()
        self.membership = PoolMembership(self.registry, paths, OURS, lambda: self.connected, lambda: 1000.0)

    def asked(self, **changes: Any) -> JoinAsk:
        return replace(JoinAsk(node=N1, machine="m1", versions=OURS, clock=1000.0), **changes)

    def bearer(self) -> Principal:
        """Return who has the one node token that is valid now."""
        (token,) = self.registry.issued.values()
        return Principal(token.tenant, token.role, token.id)


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool(tmp_path)


@in_a_loop
async def test_a_machine_gets_what_it_has_to_know(pool: Pool) -> None:
    joined = await pool.membership.join(JOINER, pool.asked())
    assert (joined.gcs, joined.ray_token, joined.connected) == ("10.0.0.1:7421", "ray-secret", False)
    assert [(head.url, head.certificate) for head in joined.heads] == [("https://10.0.0.1:7420", "PEM")]
    (token,) = pool.registry.issued.values()
    assert (token.role, node_of(token), token.digest) == (Role.NODE, N1, digest_of(joined.node_token))


@in_a_loop
async def test_a_node_that_asks_again_gets_no_new_token_and_not_for_another(pool: Pool) -> None:
    await pool.membership.join(JOINER, pool.asked())
    pool.connected = frozenset({N1})
    again = await pool.membership.join(pool.bearer(), pool.asked(clock=5000.0))
    assert (again.node_token, again.connected, again.clock) == ("", True, 1000.0)
    with pytest.raises(Forbidden, match="not that of node n2"):
        await pool.membership.join(pool.bearer(), pool.asked(node=NodeId("n2")))
    with pytest.raises(Forbidden, match="not that of node n2"):
        await pool.membership.leave(pool.bearer(), NodeId("n2"))


@in_a_loop
async def test_a_machine_that_joins_anew_gets_a_token_and_its_old_one_is_refused(pool: Pool) -> None:
    first = await pool.membership.join(JOINER, pool.asked())
    second = await pool.membership.join(JOINER, pool.asked())
    assert first.node_token != second.node_token
    assert [token.digest for token in pool.registry.issued.values()] == [digest_of(second.node_token)]


@in_a_loop
async def test_a_name_belongs_to_the_machine_that_is_connected_under_it(pool: Pool) -> None:
    await pool.membership.join(JOINER, pool.asked())
    await pool.membership.join(JOINER, pool.asked(machine="m2"))
    pool.connected = frozenset({N1})
    with pytest.raises(NodeNameTaken, match="another machine is in the pool as n1"):
        await pool.membership.join(JOINER, pool.asked(machine="m3"))
    await pool.membership.join(JOINER, pool.asked(machine="m2"))


@pytest.mark.parametrize("clock, words", [(1002.1, "2.1 s ahead of"), (990.0, "10.0 s behind")])
@in_a_loop
async def test_a_clock_that_is_off_is_refused_before_there_is_a_token(pool: Pool, clock: float, words: str) -> None:
    with pytest.raises(ClockSkew, match=words):
        await pool.membership.join(JOINER, pool.asked(clock=clock))
    assert pool.registry.issued == {}
    await pool.membership.join(JOINER, pool.asked(clock=1001.9))


@pytest.mark.parametrize(
    "theirs, words",
    [
        (Versions("0.2.0", "3.11.2", "2.60.0"), r"corral 0.2.0 \(the head has 0.1.0\)"),
        (Versions("0.1.0", "3.12.2", "2.60.0"), r"Python 3.12.2 \(the head has 3.11.2\)"),
        (Versions("0.1.0", "3.11.2", "2.59.0"), r"Ray 2.59.0 \(the head has 2.60.0\)"),
        (Versions("0.2.0", "3.9.1", "2.1.0"), r"corral 0.2.0 .*, Ray 2.1.0 .*, Python 3.9.1 "),
    ],
)
def test_every_difference_that_matters_is_named(theirs: Versions, words: str) -> None:
    with pytest.raises(VersionMismatch, match=words):
        check_versions(OURS, theirs)


def test_the_patch_level_of_python_may_differ() -> None:
    check_versions(OURS, Versions("0.1.0", "3.11.9", "2.60.0"))


@in_a_loop
async def test_a_node_that_leaves_gets_nothing_new_and_is_forgotten_when_it_is_gone(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "FORGET_EVERY_S", 0.001)
    await pool.membership.join(JOINER, pool.asked())
    pool.registry.add(N1)
    assert await pool.membership.leave(pool.bearer(), N1) == 0
    assert (pool.registry.known[N1].cordoned, pool.registry.known[N1].cordon_reason) == (True, LEFT)
    (watching,) = pool.membership._watching.values()
    async with asyncio.timeout(10):
        await watching
    assert pool.registry.known == {}
    assert pool.registry.issued == {}, "what a machine that left has in its files opens nothing"
    await asyncio.sleep(0)
    assert pool.membership._watching == {}


@in_a_loop
async def test_who_leaves_may_ask_often_how_far_it_is_and_the_journal_does_not_grow(pool: Pool) -> None:
    await pool.membership.join(JOINER, pool.asked())
    pool.registry.add(N1, gangs=(GangKey(JobId("7"), 0),))
    for drain in (False, True, True, False, True):
        assert await pool.membership.leave(pool.bearer(), N1, drain=drain) == 1
    assert pool.registry.cordons == [(N1, LEFT, False), (N1, LEFT, True)]
    await pool.membership.end()


@in_a_loop
async def test_who_leads_next_forgets_the_nodes_that_left_before(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "FORGET_EVERY_S", 0.001)
    pool.registry.add(N1, cordoned=True, cordon_reason=LEFT)
    pool.registry.add(NodeId("n2"), cordoned=True, cordon_reason="fan")
    pool.registry.add(NodeId("n3"))
    await pool.membership.resume()
    (watching,) = pool.membership._watching.values()
    async with asyncio.timeout(10):
        await watching
    assert pool.registry.known.keys() == {"n2", "n3"}


@in_a_loop
async def test_nobody_is_forgotten_by_who_leads_no_more(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "FORGET_EVERY_S", 0.001)
    pool.registry.add(N1)
    await pool.membership.leave(Principal(DEFAULT_TENANT, Role.ADMIN, "a"), N1)
    await pool.membership.end()
    assert pool.membership._watching == {}
    assert N1 in pool.registry.known


@in_a_loop
async def test_a_name_is_not_given_away_while_tasks_of_a_silent_machine_may_run_under_it(pool: Pool) -> None:
    await pool.membership.join(JOINER, pool.asked(machine="m1"))
    pool.registry.add(N1, gangs=(GangKey(JobId("7"), 0),))
    before = dict(pool.registry.issued)
    with pytest.raises(NodeNameTaken, match="may still run as n1"):
        await pool.membership.join(JOINER, pool.asked(machine="m2"))
    assert pool.registry.issued == before, "the machine is still the node"
    await pool.membership.join(JOINER, pool.asked(machine="m1"))
    pool.registry.add(N1)
    await pool.membership.join(JOINER, pool.asked(machine="m2"))


@in_a_loop
async def test_the_head_s_own_node_is_nobody_else_even_while_its_agent_is_away(pool: Pool) -> None:
    await pool.membership.join(JOINER, pool.asked(machine="m1"))
    cluster = load_cluster(pool.paths.cluster)
    save_cluster(pool.paths.cluster, replace(cluster, node=N1))
    with pytest.raises(NodeNameTaken, match="another machine is in the pool as n1"):
        await pool.membership.join(JOINER, pool.asked(machine="m2"))


@in_a_loop
async def test_of_two_machines_that_ask_for_one_name_at_once_one_gets_it(pool: Pool) -> None:
    asks = [pool.asked(machine="m1"), pool.asked(machine="m2")]
    joined = await asyncio.gather(*(pool.membership.join(JOINER, ask) for ask in asks))
    (token,) = pool.registry.issued.values()
    valid = [one for one in joined if digest_of(one.node_token) == token.digest]
    assert len(valid) == 1


@in_a_loop
async def test_a_node_that_leaves_is_not_forgotten_while_it_is_heard_or_has_tasks(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "FORGET_EVERY_S", 0.001)
    monkeypatch.setattr(membership, "FORGET_S", 0.02)
    await pool.membership.join(JOINER, pool.asked())
    for heard, gangs in ((frozenset({N1}), ()), (frozenset(), (GangKey(JobId("7"), 0),))):
        pool.connected = heard
        pool.registry.add(N1, gangs=gangs)
        assert await pool.membership.leave(pool.bearer(), N1) == len(gangs)
        (watching,) = pool.membership._watching.values()
        async with asyncio.timeout(10):
            await watching
        assert N1 in pool.registry.known


@in_a_loop
async def test_a_node_that_comes_back_stays_and_gets_work_again(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "FORGET_EVERY_S", 0.001)
    await pool.membership.join(JOINER, pool.asked())
    pool.registry.add(N1)
    await pool.membership.leave(pool.bearer(), N1)
    (watching,) = pool.membership._watching.values()
    await pool.membership.join(JOINER, pool.asked())
    assert not pool.registry.known[N1].cordoned
    async with asyncio.timeout(10):
        await watching
    assert N1 in pool.registry.known


@in_a_loop
async def test_a_cordon_of_an_administrator_outlives_joining(pool: Pool) -> None:
    pool.registry.add(N1, cordoned=True, cordon_reason="fan")
    await pool.membership.join(JOINER, pool.asked())
    assert pool.registry.known[N1].cordoned


def test_a_head_keeps_its_tokens_and_replaces_those_that_are_refused(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    issued = [fact.token for fact in machine_tokens(paths, "n1", {}, 5.0)]
    assert [(token.role, node_of(token)) for token in issued] == [(Role.JOIN, None), (Role.NODE, N1)]
    join_secret, node_secret = paths.join_token.read_text().strip(), paths.node_token.read_text().strip()
    assert [token.digest for token in issued] == [digest_of(join_secret), digest_of(node_secret)]
    assert {place.stat().st_mode & 0o777 for place in (paths.join_token, paths.node_token)} == {0o600}
    # Every head that has led has one of its own: people see whose.
    assert issued[0].label == f"join of head {platform.node()}"
    known = {token.digest: token for token in issued}
    assert machine_tokens(paths, "n1", known, 6.0) == []
    renamed = known | {issued[0].digest: replace(issued[0], label="join")}
    assert machine_tokens(paths, "n1", renamed, 6.0) == []
    (renewed,) = machine_tokens(paths, "n1", {digest_of(node_secret): issued[1]}, 6.0)
    assert renewed.token.role is Role.JOIN
    assert paths.join_token.read_text().strip() != join_secret


def test_the_file_of_the_join_token_names_the_certificate_of_the_head(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    certificate = own_certificate(tmp_path / "tls", "10.0.0.1")[0].read_text()
    (issued,) = machine_tokens(paths, None, {}, 5.0)
    assert machine_tokens(paths, None, {issued.token.digest: issued.token}, 6.0, certificate) == []
    whole = parse_join_token(paths.join_token.read_text())
    assert whole.fingerprints == (fingerprint(certificate),)
    assert digest_of(whole.secret) == issued.token.digest
    # That of another head beside it stays.
    write_join_token(paths.join_token, JoinToken(whole.secret, ("0" * 64, *whole.fingerprints)))
    assert machine_tokens(paths, None, {issued.token.digest: issued.token}, 7.0, certificate) == []
    assert len(parse_join_token(paths.join_token.read_text()).fingerprints) == 2


FIRST = {"machine": "m1", "incarnation": "boot-1:space-1", "address": "10.0.0.2"}


@pytest.mark.parametrize("age_s, changes, refused", [
    # The same machine, with its agent or its supervisor started anew.
    (0.5, {}, False),
    # Started anew itself, so quickly that it seems to be heard still; or with another address, and silent by now.
    (0.5, {"incarnation": "boot-2:space-1"}, False),
    (10.0, {"incarnation": "boot-2:space-1", "address": "10.0.0.9"}, False),
    (None, {"incarnation": "boot-2:space-1", "address": "10.0.0.9"}, False),
    # It has got another address while it runs.
    (0.5, {"address": "10.0.0.9"}, False),
    # A copy of its disk in another machine, or of its directory in another container of the same.
    (0.5, {"incarnation": "boot-2:space-1", "address": "10.0.0.9"}, True),
    (0.5, {"incarnation": "boot-1:space-2", "address": "10.0.0.9"}, True),
])  # fmt: skip
@in_a_loop
async def test_a_copy_of_a_machine_s_state_is_refused_while_the_machine_is_heard(
    age_s: float | None, changes: dict[str, str], refused: bool, tmp_path: Path
) -> None:
    pool = Pool(tmp_path)
    await pool.membership.join(JOINER, pool.asked(**FIRST))
    (before,) = pool.registry.issued
    pool.registry.add(N1, age_s=age_s)
    node = pool.registry.known[N1]
    pool.registry.known[N1] = replace(node, spec=replace(node.spec, **FIRST))
    ask = pool.asked(**{**FIRST, **changes})
    for who in (pool.bearer(), JOINER):
        if refused:
            with pytest.raises(MachineCloned, match=r"n1 is heard at 10\.0\.0\.2, and this machine at 10\.0\.0\.9"):
                await pool.membership.join(who, ask)
            # The machine's own token is good as before.
            assert list(pool.registry.issued) == [before]
        else:
            await pool.membership.join(who, ask)
