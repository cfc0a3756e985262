"""The daemon as a process: starts, restarts, tokens, ports, ends and what it refuses to start on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from corral.model.errors import (
    IllegalTransition,
    InvalidField,
    PortTaken,
    StoreFull,
    Unauthenticated,
    Unavailable,
)
from corral.model.events import JobEnded
from corral.model.ids import JobId
from corral.model.job import JobState
from corral.model.tenant import Role, Tenant
from corral.ports.store import Batch
from corral.runtime.daemon import Daemon, fault_of
from corral.runtime.leading.serving import bind
from corral.runtime.poolfile import load_pool, save_pool
from corral.storage import SqliteStore
from tests.unit.runtime.ground import Ground, kill
from tests.waiting import wait_until


def test_it_serves_until_told_to_end_and_comes_back_as_it_was(ground: Ground) -> None:
    ground.write()
    first = ground.daemon()
    assert ground.announced() == first.pid
    port, secret = ground.port(), ground.paths.token.read_text()
    assert ground.paths.token.stat().st_mode & 0o777 == 0o600
    with ground.client() as admin:
        assert admin.status().pid == first.pid
        admin.set_tenant(Tenant("a", 2.0), create=True)  # type: ignore[arg-type]
    assert ground.end(first) == 0
    second = ground.daemon()
    assert ground.announced(first.pid) == second.pid
    # Clients know the port; the token is the same.
    assert (ground.port(), ground.paths.token.read_text()) == (port, secret)
    kill(second.pid)
    ground.code(second)
    third = ground.daemon()
    ground.announced(second.pid)
    with ground.client() as admin:
        assert {report.tenant.id: report.tenant.weight for report in admin.tenants()} == {"a": 2.0, "default": 1.0}
        assert admin.status().epoch == 3
    assert ground.end(third) == 0
    assert not ground.paths.failure.exists()


def test_a_revoked_local_token_stays_revoked(ground: Ground) -> None:
    ground.write()
    first = ground.daemon()
    ground.announced()
    old = ground.paths.token.read_text().strip()
    with ground.client() as admin:
        _, other = admin.issue_token("default", role=Role.ADMIN, label="desk")
        (local,) = [token for token in admin.tokens() if token.label == "local"]
    with ground.client(other) as desk:
        desk.revoke_token(local.id)
    with ground.client(old) as revoked, pytest.raises(Unauthenticated):
        revoked.tokens()
    ground.end(first)
    second = ground.daemon()
    ground.announced(first.pid)
    assert ground.paths.token.read_text().strip() != old
    with ground.client(old) as revoked, pytest.raises(Unauthenticated):
        revoked.tokens()
    with ground.client() as admin:
        assert sorted(token.label for token in admin.tokens()) == ["desk", "local"]
    ground.end(second)


def test_stopping_through_the_api_ends_a_daemon_without_supervisor(ground: Ground) -> None:
    ground.write()
    daemon = ground.daemon()
    ground.announced()
    # A pid file of a supervisor that is not its parent is none of its business.
    ground.paths.supervisor_pid.write_text("1\n")
    with ground.client() as admin:
        assert admin.stop() == 0
    assert ground.code(daemon) == 0


def spoilt_pool(ground: Ground) -> None:
    ground.paths.pool.write_text('{"host": 1}')


def no_pool(ground: Ground) -> None:
    ground.paths.pool.unlink()


def spoilt_settings(ground: Ground) -> None:
    (ground.paths.root / "config.toml").write_text("jobs_max = 0\n")


def spoilt_store(ground: Ground) -> None:
    ground.paths.store.write_bytes(b"no database")


def journal_that_does_not_fold(ground: Ground) -> None:
    store = SqliteStore(ground.paths.store)
    store.open()
    fact = JobEnded(at=1.0, job=JobId("7"), state=JobState.FAILED)
    store.append(0, store.acquire_leadership(), Batch((fact,)))
    store.close()


def spoilt_certificate(ground: Ground) -> None:
    pem = ground.paths.root / "x.pem"
    pem.write_text("no certificate")
    save_pool(ground.paths.pool, replace(load_pool(ground.paths.pool), tls_cert=str(pem), tls_key=str(pem)))


@pytest.mark.parametrize(
    "spoil, code",
    [
        (spoilt_pool, "STATE_UNUSABLE"),
        (no_pool, "STATE_UNUSABLE"),
        (spoilt_settings, "INVALID_FIELD"),
        (spoilt_store, "STORE_CORRUPT"),
        (journal_that_does_not_fold, "ILLEGAL_TRANSITION"),
        (spoilt_certificate, "STATE_UNUSABLE"),
    ],
)
def test_what_cannot_be_started_on_is_said_once_and_for_all(
    ground: Ground, spoil: Callable[[Ground], None], code: str
) -> None:
    ground.write()
    spoil(ground)
    assert ground.code(ground.daemon()) == 78
    failure = ground.failure()
    assert (failure["code"], failure["fatal"]) == (code, True)
    assert "\n" not in failure["message"]
    assert "Traceback" not in ground.log("daemon")


def taken_port() -> socket.socket:
    return bind("127.0.0.1", 0, tls=False, insecure=False)


def test_a_restart_whose_port_is_taken_takes_another_unless_one_was_asked_for(ground: Ground) -> None:
    with taken_port() as other:
        taken = other.getsockname()[1]
        ground.write()
        pool = load_pool(ground.paths.pool)
        save_pool(ground.paths.pool, replace(pool, bound_port=taken))
        listener = Daemon(ground.paths.root)._bind()
        assert listener.getsockname()[1] not in (0, taken)
        listener.close()
        save_pool(ground.paths.pool, replace(pool, port=taken, bound_port=taken))
        with pytest.raises(Unavailable, match=str(taken)):
            Daemon(ground.paths.root)._bind()
        # At the first start it is for good: the administrator has to choose.
        save_pool(ground.paths.pool, replace(pool, port=taken))
        with pytest.raises(PortTaken):
            Daemon(ground.paths.root)._bind()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_of_this_machine_is_named(host: str) -> None:
    with pytest.raises(InvalidField, match="--host"):
        bind(host, None, tls=True, insecure=False)


def test_a_fault_of_the_store_is_told_and_a_bug_of_ours_is_started_over() -> None:
    async def scenario() -> None:
        async def end(error: Exception | None) -> None:
            if error is not None:
                raise error

        faults = []
        for error in (None, StoreFull("full"), IllegalTransition("does not fit")):
            task = asyncio.ensure_future(end(error))
            await asyncio.wait({task})
            faults.append(fault_of(task))
        assert faults[0] is None
        assert isinstance(faults[1], StoreFull)
        assert type(faults[2]) is RuntimeError
        cancelled = asyncio.ensure_future(asyncio.Event().wait())
        cancelled.cancel()
        await asyncio.wait({cancelled})
        assert fault_of(cancelled) is None  # type: ignore[arg-type]

    asyncio.run(scenario())


def test_nodes_that_are_not_asked_for_any_more_are_forgotten(ground: Ground) -> None:
    ground.write(agents=True, nodes=2)
    supervisor = ground.supervisor()
    old = ground.announced()
    with ground.client() as admin:
        wait_until(lambda: admin.status().nodes_up == 2, 30.0)
    assert ground.end(supervisor) == 0
    ground.write()
    ground.daemon()
    ground.announced(old)
    with ground.client() as admin:
        wait_until(lambda: admin.status().nodes == 0)
