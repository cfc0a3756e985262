"""A term: one controller's time as the leader, wired from the journal to the pool that the API serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from corral.appmaster.core import AppMasterCore
from corral.control.access import digest_of
from corral.control.core import ControlCore
from corral.control.inputs import Administer
from corral.control.pool import ControllerPool, Identity
from corral.control.serving import ControllerServices
from corral.control.shell import ControlShell
from corral.model.errors import CorralError, StateUnusable
from corral.model.events import NodeRemoved, TokenIssued
from corral.model.ids import DEFAULT_TENANT, NodeId
from corral.model.tenant import Role, Token
from corral.ports.faults import FaultPoints
from corral.ports.leadership import Head
from corral.runtime.fronting.frontfile import ensure_front
from corral.runtime.leading.announcing import certificate_of
from corral.runtime.leading.clock import SteadyClock
from corral.runtime.leading.engines import make_engine
from corral.runtime.leading.faults import FileFaults, NoFaults
from corral.runtime.leading.fencing import with_power_fence
from corral.runtime.leading.filestore import lay_tree, make_blobs, make_files
from corral.runtime.leading.places import Places
from corral.runtime.machines.membership import PoolMembership, make_membership
from corral.runtime.machines.tokens import local_token, machine_tokens
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile
from corral.runtime.settings import Settings, control_config
from corral.runtime.solving.planning import PlannerProcess
from corral.runtime.solving.proposers import ProposerProcesses
from corral.runtime.solving.solver import SolverProcess
from corral.storage import SqlStore

APPENDED_S = 10.0
PRUNE_S = 3_600.0
ADMITTED = "admitted "
log = logging.getLogger("corral.daemon")


@contextlib.contextmanager
def writing(paths: StatePaths) -> Iterator[None]:
    """Raise ``StateUnusable`` where the state directory cannot be written."""
    try:
        yield
    except OSError as error:
        raise StateUnusable(f"cannot write in {paths.root}: {error.strerror or error}") from error


class Term:
    """The state is read when it is made; then ``start``, and ``retire`` and ``end`` whatever ``control`` ended with."""

    def __init__(self, store: SqlStore, asked: PoolFile, paths: StatePaths, settings: Settings, epoch: int) -> None:
        self._store = store
        self._asked = asked
        self._paths = paths
        self._settings = settings
        recovered = store.recover()
        blobs = make_blobs(asked, paths, store)
        ports = range(settings.port_first, settings.port_last + 1)
        config = replace(control_config(settings, leases=asked.engine != "local"), port_start=secrets.choice(ports))
        core = ControlCore(recovered, config, AppMasterCore, epoch)
        self.shell = ControlShell(
            core,
            store,
            with_power_fence(make_engine(asked, paths, epoch), settings, self._leads),
            SteadyClock(core.book.state.at),
            self._faults(),
            last_seq=recovered.entries[-1].seq if recovered.entries else recovered.snapshot_seq,
            solver=SolverProcess(config.scheduling),
            proposers=ProposerProcesses(
                paths.jobs, config.scheduling, lay=None if blobs is None else partial(lay_tree, blobs)
            ),
        )
        self._first_inputs()
        self.files = make_files(asked, settings, paths, store, self.shell, blobs)
        self.membership: PoolMembership | None = None
        self._places: Places | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def _leads(self) -> bool:
        return self.shell.valid()

    def _faults(self) -> FaultPoints:
        directory = self._asked.fault_dir
        return FileFaults(Path(directory)) if directory else NoFaults()

    def _first_inputs(self) -> None:
        state, now = self.shell.core.book.state, self.shell.clock.now()
        known = {token.digest for token in state.tokens.values()}
        with writing(self._paths):
            digest = digest_of(local_token(self._paths, known))
        if digest not in known:
            self._admit(digest, "local")
        if self._asked.role == "head":
            own = next(iter(self._asked.agents), None)
            with writing(self._paths):
                known_tokens = {token.digest: token for token in state.tokens.values()}
                certificate = certificate_of(self._asked.tls_cert)
                issued = machine_tokens(self._paths, own, known_tokens, now, certificate)
            for fact in issued:
                self.shell.tell(Administer(fact))
            # Which machines are nodes is not for this one to say.
            return
        expected = self._asked.agents.keys()
        for name, held in state.held.items():
            if name not in expected and not held.gangs:
                self.shell.tell(Administer(NodeRemoved(at=now, node=NodeId(name), by="local")))

    def _admit(self, digest: str, label: str) -> None:
        now = self.shell.clock.now()
        token = Token(secrets.token_hex(4), digest, DEFAULT_TENANT, Role.ADMIN, now, label)
        self.shell.tell(Administer(TokenIssued(at=now, token=token, by="local")))

    def serve(self, identity: Identity) -> None:
        """Make what the API serves: ``pool``, ``files``, ``membership`` and ``services``. Comes before ``start``."""
        planner = PlannerProcess(self.shell.core.book.config)
        self.pool = ControllerPool(self.shell, self._store, identity, planner, self.files)
        self.services = ControllerServices(self.shell, self.files, self._front)
        self.membership = make_membership(self._asked, self._paths, self.pool, self.shell.engine)
        if self._asked.role == "head":
            leaders = self._store.leaders if self._asked.store is not None else None
            self._places = Places(self._paths, self._asked, identity.url, leaders)

    def _front(self) -> None:
        ensure_front(self._paths, self._settings)

    async def start(self, valid: Callable[[], bool] = lambda: True) -> asyncio.Task[None]:
        """Begin; return the task of the controller, which ends when it is told to or cannot go on."""
        self.shell.valid = valid
        if self._places is not None:
            with writing(self._paths):
                await self.shell.read(self._places.settle, self.shell.core.book.epoch)
            self._tasks.append(asyncio.create_task(self._places.keep(self.shell.core.book.epoch), name="places"))
        await self.shell.engine.start(self.shell.hear)
        if self.membership is not None:
            await self.membership.resume()
        if self.shell.core.book.state.services:
            try:
                await asyncio.to_thread(self._front)
            except CorralError as error:
                log.warning("this head is no front end: %s", error)
        control = asyncio.create_task(self.shell.run(), name="control")
        self._tasks = [control, *self._tasks, asyncio.create_task(self._prune(), name="prune")]
        return control

    async def _prune(self) -> None:
        while True:
            try:
                await self.shell.prune(self._settings.history_retention_s)
                if self.files is not None:
                    await self.files.keep_house(time.time())
            except CorralError as error:
                log.warning("what is old stays for now: %s", error)
            await asyncio.sleep(PRUNE_S)

    async def know_heads(self, heads: Sequence[Head]) -> None:
        """Make the local token of every head one of the pool, once: a token that was revoked stays revoked.

        Raises the errors of the store.
        """
        if self._places is not None:
            with writing(self._paths):
                await self.shell.read(self._places.know, heads)
        leaders, book = self._store.leaders, self.shell.core.book
        published = await self.shell.read(leaders.published)
        for head in heads:
            name = f"{ADMITTED}{head.place}"
            if not head.token_digest or published.get(name) == head.token_digest:
                continue
            await self.shell.read(leaders.publish, book.epoch, name, head.token_digest)
            if head.token_digest not in {token.digest for token in book.state.tokens.values()}:
                self._admit(head.token_digest, f"head {head.name}")

    def retire(self) -> None:
        """Take nobody in any more, and let the streams end."""
        self.shell.accepting = False
        self.shell.feed.close()

    async def end(self) -> None:
        """Finish what is under way to the journal, but not for ever, and let go of everything."""
        self.shell.end()
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=APPENDED_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.membership is not None:
            await self.membership.end()
        await self.shell.engine.stop()
        await self.shell.close()
        if self.files is not None:
            self.files.close()
