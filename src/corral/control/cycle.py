"""The two-phase cycle: snapshot, offers to all jobs that owe bids, proposals, arbitration, commit.

Runs after every batch of inputs that changed something, and once a second while anything waits (reservations and
backfill windows move with time).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from corral.control.awards import Awards
from corral.control.book import Book
from corral.control.holdings import kin_of
from corral.control.proposals import Proposals
from corral.control.waiting import may_start
from corral.model.events import GangPlaced
from corral.model.ids import TenantId
from corral.model.job import Job
from corral.model.offer import (
    Allocation,
    Arbitration,
    Reservation,
    Snapshot,
    Standing,
    Verdict,
    VerdictKind,
)
from corral.model.resources import Amount, Placement
from corral.policy.apart import Apart
from corral.policy.arbitration import arbitrate
from corral.policy.fairness import credit, due_shares
from corral.policy.memory import Memory
from corral.policy.verification import verify_all

PORT_TAKEN = "another replica has its port on that machine"


class Cycle:
    """Phase 1 and 2 over the book."""

    def __init__(self, book: Book, proposals: Proposals) -> None:
        self._book = book
        config = book.config
        self._next_port = config.port_first if config.port_start is None else config.port_start
        self._memory = Memory()
        self.reservations: tuple[Reservation, ...] = ()
        self.awards = Awards()
        self.proposals = proposals
        self.paused = False
        self.last_verdicts: tuple[Verdict, ...] = ()

    def run(self, now: float) -> Arbitration | None:
        """Run one round; ``None`` when nothing waits."""
        book = self._book
        book.dirty = False
        if self.paused:
            return None
        self.proposals.refresh(now)
        snapshot = self._award(now) if self.awards else None
        if not book.waiting.unbid and not book.waiting.count():
            self.reservations = ()
            return None
        if snapshot is None or snapshot.version != book.board.version:
            snapshot = book.board.snapshot(now)
        standings = book.standings.of_tenants(book.state, book.board.capacity, now)
        self._offer(now, snapshot, standings)
        if not book.config.fill:
            return None
        verdict = arbitrate(
            snapshot,
            book.waiting.index,
            standings,
            book.standings.of_queues(book.state),
            self.reservations,
            book.config.scheduling,
            self.awards.all(),
            self._memory,
        )
        self.reservations = verdict.reservations
        self.last_verdicts = self.commit(now, snapshot, verdict.allocations)
        book.dirty = False
        return verdict

    def _award(self, now: float) -> Snapshot:
        """Start the gangs for which all that was awarded has come free."""
        snapshot = self.prune(now)
        for verdict in self.commit(now, snapshot, self.awards.ready(snapshot, self._book.state)):
            if verdict.kind is VerdictKind.COMMITTED or verdict.reason == PORT_TAKEN:
                self.awards.drop(verdict.key)
        return snapshot

    def prune(self, now: float) -> Snapshot:
        """Drop the awards that cannot be taken up any more; return the snapshot on which that was seen."""
        snapshot = self._book.board.snapshot(now)
        for told in self.awards.prune(snapshot, self._book.state):
            self._book.notice(told)
        return snapshot

    def commit(self, now: float, seen: Snapshot, allocations: Sequence[Allocation]) -> tuple[Verdict, ...]:
        """Record the allocations of a round on ``seen`` that still hold; the others are answered as stale."""
        if not allocations:
            return ()
        book = self._book
        newest = seen if seen.version == book.board.version else book.board.snapshot(now)
        return tuple(
            self._commit(now, allocation) if verdict.kind is VerdictKind.COMMITTED else verdict
            for allocation, verdict in zip(allocations, verify_all(allocations, newest), strict=True)
        )

    def _offer(self, now: float, snapshot: Snapshot, standings: dict[TenantId, Standing]) -> None:
        book = self._book
        if not book.waiting.unbid:
            return
        wanting = {name for name, standing in standings.items() if standing.held != Amount()}
        wanting.update(book.waiting.index.tenants())
        wanting.update(job.spec.tenant for job in map(book.state.jobs.get, book.waiting.unbid) if job is not None)
        due = due_shares(standings, wanting, capacity=book.board.capacity)
        for name in list(book.waiting.unbid):
            job = book.state.jobs.get(name)
            if job is None:
                book.waiting.unbid.pop(name)
                continue
            tenant = job.spec.tenant
            standing = standings.get(tenant)
            owed = credit(standing, due.get(tenant, 0.0)) if standing is not None else 0.0
            self.proposals.offer(now, job, snapshot, owed)

    def _commit(self, now: float, allocation: Allocation) -> Verdict:
        book = self._book
        job = book.state.jobs.get(allocation.key.job)
        gang = job.gangs.get(allocation.key.gang) if job is not None else None
        version = book.board.version
        if job is None or gang is None or not may_start(job, gang):
            return Verdict(VerdictKind.STALE, allocation.key, version, "the gang does not wait any more")
        if self._clashes(job, allocation.placements):
            return Verdict(VerdictKind.STALE, allocation.key, version, PORT_TAKEN)
        placements = self._with_port(allocation.placements)
        if placements is None:
            return Verdict(VerdictKind.INFEASIBLE, allocation.key, version, "no rendezvous port is free")
        incarnation = gang.incarnation + 1
        bid = replace(allocation.bid, preferred=()) if allocation.bid is not None else None
        placed = GangPlaced(
            at=now, job=job.id, gang=gang.index, incarnation=incarnation, placements=placements, bid=bid
        )
        book.record(placed)
        return Verdict(VerdictKind.COMMITTED, allocation.key, version)

    def _clashes(self, job: Job, placements: tuple[Placement, ...]) -> bool:
        """Return whether the fixed port of a replica is taken on the machine where it would go."""
        kin, board = kin_of(job), self._book.board
        if kin is None or kin.port is None:
            return False
        return Apart(board.offers(), board.holdings.values()).clashes(kin, placements)

    def _with_port(self, placements: tuple[Placement, ...]) -> tuple[Placement, ...] | None:
        """Lease a rendezvous port on the node of rank 0: free on every node that shares its address.

        A gang of one rank goes without when all are taken; one of several cannot start then (``None``).
        """
        book = self._book
        first = placements[0]
        address = book.state.nodes[first.node].spec.address
        taken = [
            held.ports
            for name, held in book.state.held.items()
            if held.ports and name in book.state.nodes and book.state.nodes[name].spec.address == address
        ]
        span = book.config.port_last - book.config.port_first + 1
        for _ in range(span):
            port = self._next_port
            self._next_port = book.config.port_first + (port + 1 - book.config.port_first) % span
            if not any(port in ports for ports in taken):
                return (replace(first, port=port), *placements[1:])
        return placements if len(placements) == 1 else None
