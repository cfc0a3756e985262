"""The shell around the control core: one loop that turns inputs into durable facts and only then lets anything go.

    inbox -> core.handle ... core.settle -> core.drain -> one compare-and-append -> answers, commands, subscribers
                                                                                 -> a market to solve somewhere else

While an append is under way the inbox fills; the next batch takes all of it (group commit). When the store fails, the
loop stops: nothing was acknowledged, and the state is rebuilt from the journal at the next start. From the moment in
which a batch is handed to the core until it is appended, memory is ahead of the journal: no snapshot is taken then.

A database that is away is waited for: the batch is appended again until it is there (a store knows a batch that it has
already), whoever waits longer than ``AWAY_ANSWER_S`` is refused, and nobody new is taken in. Heartbeats are
acknowledged only while this controller's own lease is valid, for a task's lease runs from what is acknowledged; nor is
any node fenced without it, for what needs no fact is not stopped by the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from corral.control.core import Answer, ControlCore, Input
from corral.control.feed import Feed
from corral.control.inbox import Inbox, Letter
from corral.control.inputs import AskProposer, Fenced, Outcome, Proposed, Solved
from corral.control.tables import Tables
from corral.model.errors import CorralError, NotLeader, Refusal, SolverFault, StoreAway, StoreConflict, Unavailable
from corral.model.ids import JobId, NodeId, TenantId
from corral.model.market import Market
from corral.model.messages import AcknowledgeHeartbeat, TaskPhase, TaskReported
from corral.model.offer import Proposal
from corral.ports.clock import Clock
from corral.ports.engine import Engine, EngineSays
from corral.ports.faults import FaultPoint, FaultPoints
from corral.ports.proposers import Proposers
from corral.ports.solver import RoundWorker
from corral.ports.store import Batch, JournalEntry, Store

TICK_S = 0.5
BATCH_MAX = 2_000
SNAPSHOT_ENTRIES = 4_000
ANSWER_LEAVES_S = 0.02
AWAY_ANSWER_S = 3.0
AWAY_RETRY_S = 0.2
T = TypeVar("T")
log = logging.getLogger(__name__)


class ControlShell:
    """Runs the core over a store and an engine.

    Without a ``solver`` there are no global rounds, without ``proposers`` the default bidder bids for every job.
    ``valid`` is set by who holds a lease as the leader: it says whether that holds now.
    """

    def __init__(
        self,
        core: ControlCore,
        store: Store,
        engine: Engine,
        clock: Clock,
        faults: FaultPoints,
        *,
        last_seq: int,
        solver: RoundWorker | None = None,
        proposers: Proposers | None = None,
    ) -> None:
        self.core = core
        self.clock = clock
        self.engine = engine
        self.feed = Feed()
        self.tables = Tables()
        self.last_seq = last_seq
        self.accepting = True
        self.failure: CorralError | None = None
        self.valid: Callable[[], bool] = lambda: True
        self.campaign_away_s: Callable[[], float] = lambda: 0.0
        self._store = store
        self._faults = faults
        self._inbox = Inbox()
        self._open: list[Letter] = []
        self._bell = asyncio.Event()
        self._ending = False
        self._ahead = False
        self._journal = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._readers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="store-read")
        self._snapshot_seq = last_seq
        self._solver = solver
        self._proposers = proposers
        self._aside: set[asyncio.Task[None]] = set()
        self._away_since: float | None = None

    # ---- callers ---------------------------------------------------------------------------------------------------

    def hear(self, said: EngineSays) -> None:
        """Take a message of the engine in (called in the event loop)."""
        if isinstance(said, TaskReported):
            if said.report.phase is TaskPhase.RUNNING:
                self._faults.reach(FaultPoint.FORKED_UNJOURNALED)
            elif said.report.phase is TaskPhase.ENDED:
                self._faults.reach(FaultPoint.EXITED_UNREPORTED)
        self._inbox.hear(said)
        self._bell.set()

    def tell(self, item: Input) -> None:
        """Hand an input over that nobody waits for."""
        self._put(Letter(item))

    async def ask(self, item: Input) -> Answer:
        """Hand an input over and return the core's answer once everything it led to is durable."""
        if self.failure is not None:
            raise self._refusal()
        if not self.accepting:
            raise Unavailable("the pool is stopping", hint="try again when it is up")
        if self.away_s > AWAY_ANSWER_S:
            raise StoreAway("the database does not answer", hint="nothing was changed; try again")
        reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._put(Letter(item, reply))
        return await reply

    @property
    def away_s(self) -> float:
        """Return for how long the database has been away, 0 when it is there."""
        return 0.0 if self._away_since is None else asyncio.get_running_loop().time() - self._away_since

    @property
    def unanswered_s(self) -> float:
        """Return for how long the database has answered neither a write nor the campaign for the lead, else 0."""
        return max(self.away_s, self.campaign_away_s())

    def depose(self, reason: CorralError) -> None:
        """Let ``run`` raise ``reason`` as soon as it can: another controller leads."""
        self.failure = self.failure or reason
        self.accepting = False
        self._bell.set()

    async def read(self, call: Callable[..., T], *args: Any) -> T:
        """Make a blocking read of the store in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, call, *args)

    def _put(self, letter: Letter) -> None:
        self._inbox.put(letter)
        self._bell.set()

    # ---- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until ``end`` is called or until cancelled. Raises the store's error when an append failed."""
        loop = asyncio.get_running_loop()
        next_tick = loop.time()
        try:
            while not self._ending:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._bell.wait(), max(0.0, next_tick - loop.time()))
                self._bell.clear()
                if self.failure is not None:
                    raise self.failure
                self._open = self._inbox.take(BATCH_MAX)
                if self._inbox:
                    self._bell.set()
                now = self.clock.now()
                self._ahead = True
                answers = [self._handle(now, letter) for letter in self._open]
                if loop.time() >= next_tick:
                    next_tick = loop.time() + TICK_S
                    self.core.tick(now, self.clock.wall_offset_s())
                self.core.settle(now)
                await self._commit(answers, self.core.drain())
        except CorralError as error:
            self.failure = error
            raise
        finally:
            self._give_up()

    def end(self) -> None:
        """Let ``run`` return after the batch that it is at, with all of it appended and answered."""
        self.accepting = False
        self._ending = True
        self._bell.set()

    def _handle(self, now: float, letter: Letter) -> Answer:
        """Hand one input to the core. One that breaks the rules is refused or logged; the pool goes on."""
        try:
            return self.core.handle(now, letter.item)
        except CorralError as error:
            if letter.reply is None:
                log.exception("%s was not taken in", type(letter.item).__name__)
                return None
            letter.reply.set_exception(error)
            return None

    def _give_up(self) -> None:
        """Answer everybody who still waits, whatever ended the loop; take nobody in any more."""
        self.accepting = False
        problem = self._refusal()
        known = problem
        if isinstance(problem, NotLeader) and self._away_since is not None:
            # Whoever hears NOT_LEADER repeats anything elsewhere. Of this batch nobody knows whether it was written.
            known = StoreAway("another controller leads the pool now", hint="it may be carried out; look, or repeat")
        for letter in self._open:
            letter.refuse(known)
        self._inbox.refuse(problem)
        self._open, self._inbox = [], Inbox()

    def _refusal(self) -> CorralError:
        """Return what callers are told from now on. That the lead was lost is nothing that they could do about."""
        if isinstance(self.failure, StoreConflict):
            return NotLeader("another controller leads the pool now", hint="try again")
        return self.failure or Unavailable("the controller stopped")

    async def _commit(self, answers: list[Answer], outcome: Outcome) -> None:
        if outcome.facts:
            self._faults.reach(FaultPoint.BEFORE_APPEND)
            await self._append(outcome)
            self._faults.reach(FaultPoint.APPENDED_UNACKNOWLEDGED)
        self._ahead = False
        letters, self._open = self._open, []
        for letter, answer in zip(letters, answers, strict=True):
            if letter.reply is not None and not letter.reply.done():
                letter.reply.set_result(answer)
        if self._faults.armed(FaultPoint.ACKNOWLEDGED_UNLAUNCHED):
            await self._die_after_answer(letters)
        self._act(outcome)
        await self._keep_house()

    def _act(self, outcome: Outcome) -> None:
        """Do what a durable batch led to: what takes its time is done aside, and its answer is an input again."""
        valid = self.valid()
        for command in outcome.commands:
            if valid or not isinstance(command, AcknowledgeHeartbeat):
                self.engine.send(command)
        self.tables.publish(outcome.table)
        for words in outcome.notices:
            log.warning("%s", words)
        for node in outcome.fences:
            if valid:
                self._do_aside(self._fence(node))
            else:
                # Another controller may lead, with which the node is well.
                self._put(Letter(Fenced(node, proven=False)))
        if outcome.solve is not None and self._solver is not None:
            self._do_aside(self._solve(self._solver, outcome.solve))
        ended = {finished.id for finished in outcome.finished}
        for ask in outcome.asks:
            if ask.job.id not in ended:
                self._do_aside(self._propose(ask))
        if self._proposers is not None:
            for job in ended:
                self._proposers.forget(job)

    async def _die_after_answer(self, letters: list[Letter]) -> None:
        """Let the answers leave the process, then reach the point (only when a test armed it)."""
        if any(letter.reply is not None for letter in letters):
            await asyncio.sleep(ANSWER_LEAVES_S)
            self._faults.reach(FaultPoint.ACKNOWLEDGED_UNLAUNCHED)

    async def _append(self, outcome: Outcome) -> None:
        batch = Batch(outcome.facts, outcome.finished, outcome.usage)
        first = self.last_seq + 1
        epoch = self.core.book.epoch
        self.last_seq = await self._appended(epoch, batch)
        entries = [JournalEntry(first + i, epoch, fact) for i, fact in enumerate(outcome.facts)]
        self.feed.publish(entries, self._tenant_of)
        self.core.book.durable(outcome.finished)

    async def _appended(self, epoch: int, batch: Batch) -> int:
        """Append a batch, however long the database is away; return the last sequence."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                last = await loop.run_in_executor(self._journal, self._store.append, self.last_seq, epoch, batch)
            except StoreAway as error:
                if self.failure is not None:
                    raise self.failure from None
                if self._ending:
                    raise
                if self._away_since is None:
                    log.warning("%s; waiting for it", error)
                    self._away_since = began
                    self._inbox.stick()
                if self.away_s > AWAY_ANSWER_S:
                    self._refuse_all(error)
                await asyncio.sleep(AWAY_RETRY_S)
                continue
            if self._away_since is not None:
                log.warning("the database is back after %.1f s", self.away_s)
                self._away_since = None
                self._inbox.flow()
            return last

    def _refuse_all(self, why: StoreAway) -> None:
        """Answer everybody who waits. What was handed to the core is appended later all the same, the rest never."""
        for letter in self._open:
            letter.refuse(StoreAway(why.refusal.message, hint="it may be carried out; look, or repeat"))
        self._inbox.refuse(StoreAway(why.refusal.message, hint="nothing was changed; try again"))

    def _tenant_of(self, job: JobId) -> TenantId | None:
        book = self.core.book
        found = book.state.jobs.get(job) or book.leaving.get(job)
        return found.spec.tenant if found is not None else None

    def _do_aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _solve(self, solver: RoundWorker, market: Market) -> None:
        """Have a round solved. When that fails the pool goes on with the fill, and the next round tries again."""
        version = market.snapshot.version
        try:
            solved = Solved(version, await solver.solve(market))
        except SolverFault as error:
            log.warning("no global round this time: %s", error)
            solved = Solved(version, fault=str(error))
        except Exception as error:
            log.exception("the global round on version %d was not solved", version)
            solved = Solved(version, fault=f"it could not be solved ({type(error).__name__})")
        self._put(Letter(solved))

    async def _propose(self, ask: AskProposer) -> None:
        """Have a job's own proposer answer an offer. Whatever it does, the core hears of it."""
        job = ask.job.id
        answer = Proposed(job, failure="this pool runs no proposers of jobs")
        try:
            if self._proposers is not None:
                bids = await self._proposers.propose(ask.job, ask.offer)
                answer = (
                    Proposed(job, failure=bids.message)
                    if isinstance(bids, Refusal)
                    else Proposed(job, Proposal(job, ask.offer.snapshot.version, bids))
                )
        except Exception as error:
            log.exception("the proposer of job %s could not be asked", job)
            answer = Proposed(job, failure=f"it could not be asked ({type(error).__name__})")
        self._put(Letter(answer))

    async def _fence(self, node: NodeId) -> None:
        try:
            known = self.core.book.state.nodes.get(node)
            proven = known is not None and await self.engine.fence(node, known.spec.machine) is True
        except Exception:
            # Whatever the engine met: the node is not proven to be dead, and is fenced again later.
            log.exception("node %s could not be fenced", node)
            proven = False
        self._put(Letter(Fenced(node, proven)))

    async def _keep_house(self) -> None:
        if self.last_seq - self._snapshot_seq < SNAPSHOT_ENTRIES:
            return
        before, self._snapshot_seq = self._snapshot_seq, self.last_seq
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._journal, self._store.save_snapshot, self.last_seq, self.core.image())
        except StoreAway as error:
            log.warning("no snapshot this time: %s", error)
            self._snapshot_seq = before

    async def prune(self, retention_s: float) -> int:
        """Delete journal entries beyond the retention and return how many. Appends go on in between."""
        before, live = self.clock.now() - retention_s, list(self.core.book.state.jobs)
        return await self.read(lambda: self._store.prune(entries_before=before, keep_jobs=live))

    async def close(self) -> None:
        """Keep a last snapshot, let the threads go. Call it after ``run`` has ended."""
        self.accepting = False
        for task in self._aside:
            task.cancel()
        if self._solver is not None:
            await self._solver.close()
        if self._proposers is not None:
            await self._proposers.close()
        if not self._ahead and self.failure is None and self.last_seq > self._snapshot_seq:
            loop = asyncio.get_running_loop()
            with contextlib.suppress(StoreAway):
                await loop.run_in_executor(self._journal, self._store.save_snapshot, self.last_seq, self.core.image())
        self._journal.shutdown(wait=True)
        self._readers.shutdown(wait=False)
