"""Services as the API asks for them, over a real store: who may, what is told of them, and what front ends get."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.control.guarding import make_secrets
from corral.control.serving import ControllerServices
from corral.model.ask import JobAsk
from corral.model.errors import Conflict, DuplicateName, Forbidden, InvalidField, NotFound
from corral.model.events import ServiceSet
from corral.model.ids import DEFAULT_TENANT, ServiceName, TenantId
from corral.model.messages import Heartbeat, Readiness
from corral.model.routes import BackendLoad, FrontEndReport, RouteLoad
from corral.model.service import Guard, ReplicaPhase, ServiceSpec, Traffic
from corral.model.tenant import Role
from corral.ports.pool import Principal
from corral.ports.services import Services
from tests.unit.control.house import ADMIN, START, House, live, user
from tests.unit.control.serving import WEB, spec

FRONT = Principal(DEFAULT_TENANT, Role.FRONT, "front")
ANNS = replace(spec(replicas=(2, 4)), tenant=TenantId(""))


async def opened(house: House, *nodes: str) -> Services:
    await house.start(*nodes)
    await house.tenant("ann")
    return ControllerServices(house.shell)


async def ready(house: House, *jobs: str) -> None:
    """Let replicas begin and answer their probes."""
    for number in jobs:
        await house.running_task(number)
        gang = house.job(number).gangs[0]
        told = Readiness(house.job(number).task_key(0, 0), gang.incarnation, ready=True, since=START)
        beat = Heartbeat(node=gang.placements[0].node, sent_boottime_s=START, wall_s=START, readiness=(told,))
        house.shell.tell(beat)
        await house.until(partial(lambda job: job in serving(house), number), f"replica {number} to serve")


def serving(house: House) -> list[str]:
    replicas = house.shell.core.book.state.services[WEB].replicas.values()
    return [one.job for one in replicas if one.phase is ReplicaPhase.SERVING]


def test_a_service_is_told_with_its_replicas_and_their_load(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        services = await opened(house, "n1", "n2")
        ann = user("ann")
        made = await services.set_service(ann, replace(ANNS, traffic=Traffic(listen=8_000)))
        assert (made.name, made.tenant, made.stable, made.wanted, made.ready) == ("web", "ann", 1, 2, 0)
        assert made.revisions[0].by == "ann/token-of-ann"
        await ready(house, "1")
        await services.report(
            FRONT,
            FrontEndReport(
                "f1", "http://10.0.0.9:7480", 1, "old", (RouteLoad(WEB, 10, 1, backends=(BackendLoad("r1-1", True),)),)
            ),
        )
        await house.until(lambda: house.shell.core.services.traffic.front_ends, "the report")
        told = await services.service(ann, WEB)
        first, second = told.replicas
        placed = house.job("1").gangs[0].placements[0]
        assert (first.job, first.ordinal, first.phase, first.state, first.ready) == (
            "1", 1, ReplicaPhase.SERVING, "running", True,
        )  # fmt: skip
        assert (first.node, first.address) == (placed.node, f"127.0.0.1:{placed.port}")
        assert first.load == BackendLoad("r1-1", True)
        assert (second.ready, second.load) == (None, None)
        assert (told.ready, told.waits_for) == (1, "replicas are starting")
        assert told.load is not None
        assert (told.load.requests, told.load.errors) == (10, 1)
        assert told.urls == ("http://10.0.0.9:7480/web/", "http://10.0.0.9:8000/")
        (front,) = await services.front_ends(ann)
        assert (front.name, front.current) == ("f1", False)
        await house.stop()

    live(scenario, state_dir)


def test_foreign_services_are_not_found_and_their_names_are_taken(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        services = await opened(house, "n1")
        await house.tenant("bob")
        ann, bob = user("ann"), user("bob")
        await services.set_service(ann, ANNS)
        with pytest.raises(DuplicateName):
            await services.set_service(bob, ANNS)
        with pytest.raises(Forbidden):
            await services.set_service(bob, replace(ANNS, tenant=TenantId("ann")))
        assert await services.services(bob) == ()
        assert [one.name for one in await services.services(ADMIN)] == ["web"]
        for act in (
            services.service(bob, WEB),
            services.scale(bob, WEB, 1),
            services.widen(bob, WEB, None),
            services.undo(bob, WEB),
            services.remove_service(bob, WEB),
        ):
            with pytest.raises(NotFound):
                await act
        with pytest.raises(Forbidden):
            await services.drill(ann, WEB, "replica", None)
        # An administrator who names no tenant means the one that has the service.
        assert (await services.set_service(ADMIN, ANNS)).tenant == "ann"
        assert len((await services.service(ADMIN, WEB)).revisions) == 1
        await house.stop()

    live(scenario, state_dir)


def test_a_rollout_is_widened_given_up_and_brought_out_again(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        services = await opened(house, "n1")
        ann, first = user("ann"), ANNS
        with pytest.raises(Conflict, match="is new"):
            await services.set_service(ann, first, 10)
        await services.set_service(ann, first)
        second = replace(first, replica=JobAsk(argv=("other",), gpu_milli=1000))
        told = await services.set_service(ann, second, 10)
        assert told.rollout is not None
        assert (told.rollout.revision, told.rollout.canary_percent) == (2, 10)
        told = await services.widen(ann, WEB, None)
        assert told.rollout is not None
        assert told.rollout.canary_percent is None
        told = await services.undo(ann, WEB)
        assert (told.rollout, told.stable, told.message) == (None, 1, "undone by ann/token-of-ann")
        with pytest.raises(Conflict, match="no revision of service web is being brought out"):
            await services.widen(ann, WEB, 50)
        with pytest.raises(Conflict, match="has no revision before 1"):
            await services.undo(ann, WEB)
        with pytest.raises(Conflict, match="is the one that serves"):
            await services.undo(ann, WEB, 1)
        with pytest.raises(NotFound, match="does not keep revision 7"):
            await services.undo(ann, WEB, 7)
        told = await services.undo(ann, WEB, 2)
        assert told.rollout is not None
        assert (told.rollout.revision, told.revisions[-1].spec.replica.argv) == (3, ("other",))
        await house.stop()

    live(scenario, state_dir)


def test_it_is_scaled_and_removed(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        services = await opened(house, "n1")
        ann = user("ann")
        await services.set_service(ann, ANNS)
        assert (await services.scale(ann, WEB, 3)).wanted == 3
        await house.until(lambda: len(house.shell.core.book.state.services[WEB].replicas) == 3, "three replicas")
        with pytest.raises(InvalidField):
            await services.scale(ann, WEB, 5_000)
        await services.remove_service(ann, WEB)
        with pytest.raises(Conflict, match="is being removed"):
            await services.set_service(ann, ANNS)

        async def gone() -> bool:
            house.hands.at += 1.0
            return WEB not in house.shell.core.book.state.services

        async with asyncio.timeout(30):
            while not await gone():
                house.engine.beat("n1")
                await asyncio.sleep(0.01)
        with pytest.raises(NotFound):
            await services.service(ann, WEB)
        await house.stop()

    live(scenario, state_dir)


def test_front_ends_wait_for_the_next_table(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        services = await opened(house, "n1")
        ann = user("ann")
        for who in (ann, Principal(DEFAULT_TENANT, Role.CALLER, "c")):
            with pytest.raises(Forbidden):
                await services.table(who, None, 0.0)
            with pytest.raises(Forbidden):
                await services.report(who, FrontEndReport("f", "a", 1, "d"))
        await services.set_service(ann, ANNS)
        table = await services.table(FRONT, None, 10.0)
        assert [route.service for route in table.routes] == ["web"]
        waiting = asyncio.create_task(services.table(FRONT, table.digest, 10.0))
        await ready(house, "1")
        changed = await waiting
        assert [backend.name for backend in changed.routes[0].backends] == ["r1-1"]
        assert (await services.table(FRONT, changed.digest, 0.0)).digest == changed.digest
        await house.stop()

    live(scenario, state_dir)


def test_a_drill_kills_a_replica_without_a_word(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        services = await opened(house, "n1")
        await services.set_service(ADMIN, spec())
        await ready(house, "1")
        with pytest.raises(Conflict, match="has no replica '9' that runs"):
            await services.drill(ADMIN, WEB, "replica", "9")
        with pytest.raises(InvalidField):
            await services.drill(ADMIN, WEB, "coffee", None)
        assert await services.drill(ADMIN, WEB, "replica", "1") == "replica 1 (job 1) on n1"
        state = house.shell.core.book.state
        await house.until(lambda: "1" not in state.jobs, "the replica to end")
        assert WEB in state.services
        await house.stop()

    live(scenario, state_dir)


def test_no_history_shows_the_secrets_of_a_service(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        services = await opened(house, "n1")
        await services.set_service(ADMIN, spec())
        secret = house.shell.core.book.state.services[WEB].secrets.token
        assert len(secret) >= 32
        facts = []
        async for change in house.pool.changes(ADMIN, None, 0):
            facts.append(change.entry.fact)
            if isinstance(change.entry.fact, ServiceSet):
                break
        assert secret not in repr(facts)
        told = await services.service(ADMIN, WEB)
        assert secret not in repr(told)
        await house.stop()

    live(scenario, state_dir)


# ---- secrets ---------------------------------------------------------------------------------------------------------


def test_two_services_have_different_tokens_and_no_certificates_unless_they_need_them() -> None:
    one, other = make_secrets(spec()), make_secrets(spec())
    assert one.token != other.token
    assert (one.authority_pem, one.replica_pem, one.front_end_pem) == ("", "", "")


def guarded(name: str) -> ServiceSpec:
    return replace(spec(), name=ServiceName(name), traffic=Traffic(guard=Guard.MTLS))


def shake_hands(server_pem: str, client_pem: str, authority: str, folder: Path) -> None:
    """Let a replica and a front end talk TLS in memory. Raises ``ssl.SSLError``."""
    folder.mkdir()
    (folder / "server.pem").write_text(server_pem)
    (folder / "client.pem").write_text(client_pem)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for side, name in ((server, "server"), (client, "client")):
        side.load_cert_chain(folder / f"{name}.pem")
        side.load_verify_locations(cadata=authority)
        side.verify_mode = ssl.CERT_REQUIRED
        side.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(to_client, to_server, server_hostname="web")
    callee = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (caller, callee, caller, callee, caller):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    callee.write(b"x")
    assert caller.read(1) == b"x"


def test_with_mutual_tls_a_replica_and_a_front_end_know_each_other_and_nobody_else(tmp_path: Path) -> None:
    mine, foreign = make_secrets(guarded("web")), make_secrets(guarded("web"))
    authority = mine.for_replica().authority_pem
    assert "PRIVATE KEY" not in authority
    shake_hands(mine.replica_pem, mine.front_end_pem, authority, tmp_path / "a")
    # A replica's agent asks it with the replica's own certificate.
    shake_hands(mine.replica_pem, mine.replica_pem, authority, tmp_path / "b")
    with pytest.raises(ssl.SSLError):
        shake_hands(mine.replica_pem, foreign.front_end_pem, authority, tmp_path / "c")
    with pytest.raises(ssl.SSLError):
        shake_hands(mine.front_end_pem, mine.front_end_pem, authority, tmp_path / "d")
