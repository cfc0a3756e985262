"""Re-checking at commit: does an allocation, or the plan of a global round, still hold on the newest capacity?

What does not hold gets a reason, what does counts. Of a plan, an eviction counts only if an award needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from corral.model.ids import GangKey, NodeId, QueueName, TenantId
from corral.model.market import Award, Eviction, RoundPlan
from corral.model.offer import (
    Allocation,
    Bid,
    Candidate,
    Holding,
    QueueStanding,
    Snapshot,
    Standing,
    Verdict,
    VerdictKind,
)
from corral.model.resources import Amount, Placement
from corral.policy.apart import Apart
from corral.policy.cursor import FOREVER
from corral.policy.fairness import within
from corral.policy.feasibility import model_matches
from corral.policy.pending import PendingIndex
from corral.policy.trial import Trial


def verify(allocation: Allocation, newest: Snapshot) -> Verdict:
    """Re-check an allocation node by node against the newest capacity: committed, or stale with what to refresh to."""
    return _verify(allocation, newest.version, Trial(newest.nodes))


def verify_all(allocations: Sequence[Allocation], newest: Snapshot) -> tuple[Verdict, ...]:
    """Re-check allocations in order; each that holds is taken from what the next may have."""
    trial = Trial(newest.nodes)
    verdicts = []
    for allocation in allocations:
        verdict = _verify(allocation, newest.version, trial)
        if verdict.kind is VerdictKind.COMMITTED:
            trial.take(allocation.placements, FOREVER)
        verdicts.append(verdict)
    return tuple(verdicts)


def _verify(allocation: Allocation, version: int, trial: Trial) -> Verdict:
    by_node: dict[NodeId, list[Placement]] = {}
    for placement in allocation.placements:
        by_node.setdefault(placement.node, []).append(placement)
    for node, placements in by_node.items():
        offer = trial.offers.get(node)
        if offer is None:
            return Verdict(VerdictKind.STALE, allocation.key, version, f"{node} is not offered any more")
        room = trial.room(node)
        present = {device.uuid for device in offer.devices}
        for placement in placements:
            gone = [share.uuid for share in placement.devices if share.uuid not in present]
            if gone:
                return Verdict(VerdictKind.STALE, allocation.key, version, f"{node} has no device {gone[0]} any more")
            room.change(placement, -1)
        for device, free in zip(offer.devices, room.free, strict=True):
            if free < 0:
                return Verdict(VerdictKind.STALE, allocation.key, version, f"{device.uuid} on {node} was taken")
        if room.cpus_milli < 0 or room.memory_mib < 0:
            what = "CPUs" if room.cpus_milli < 0 else "memory"
            return Verdict(VerdictKind.STALE, allocation.key, version, f"the {what} of {node} were taken")
    return Verdict(VerdictKind.COMMITTED, allocation.key, version)


# ---- the plan of a global round --------------------------------------------------------------------------------------


class Ruling(msgspec.Struct, frozen=True):
    """What counts of a plan, and why the rest does not."""

    awards: tuple[Award, ...]
    evictions: tuple[Eviction, ...]
    refused: dict[GangKey, str]


def verify_plan(
    plan: RoundPlan,
    newest: Snapshot,
    pending: PendingIndex,
    standings: Mapping[TenantId, Standing],
    queues: Mapping[QueueName, QueueStanding],
    kept: Sequence[Award] = (),
) -> Ruling:
    """Re-check a plan against the newest state, gang by gang and node by node.

    An eviction counts if the gang still runs in the incarnation that the round saw, is not stopping, has had its
    tenure, and if the awards that count do not fit without it; a gang that is to go on elsewhere gives way only if its
    own award counts. An award counts if its gang waits (or gives way), bids so, and fits into what is free and what
    comes free, next to the awards that are ``kept`` from earlier rounds.
    """
    return _Judge(plan, newest, pending, standings, queues, kept).rule()


class _Judge:
    """What is left of a plan, and why the rest is not."""

    def __init__(
        self,
        plan: RoundPlan,
        newest: Snapshot,
        pending: PendingIndex,
        standings: Mapping[TenantId, Standing],
        queues: Mapping[QueueName, QueueStanding],
        kept: Sequence[Award],
    ) -> None:
        self._newest = newest
        self._kept = {award.key: award for award in kept}
        self._pending = pending
        self._standings = standings
        self._queues = queues
        self._holdings = {holding.key: holding for holding in newest.holdings}
        self._asked = {award.key: award for award in plan.awards}
        self._evictions: dict[GangKey, Eviction] = {}
        self._awards: dict[GangKey, Award] = {}
        self.refused: dict[GangKey, str] = {}
        for eviction in plan.evictions:
            why_not = self._stays(eviction)
            if why_not is None:
                self._evictions[eviction.key] = eviction
            else:
                self.refused[eviction.key] = why_not

    def rule(self) -> Ruling:
        """Take away what does not hold until all that is left holds together."""
        barred: set[GangKey] = set()
        while True:
            trial, limits = self._judge_awards(barred)
            stranded = [key for key in self._evictions if key in self._asked and key not in self._awards]
            for key in stranded:
                # It gives way to go on elsewhere: without that it stays, and those who count on its place do not.
                del self._evictions[key]
            if stranded:
                continue
            idle = self._unneeded(trial, limits)
            for key in idle:
                del self._evictions[key]
                self.refused[key] = "nobody needs its devices"
                barred.add(key)
            if not any(key in self._asked for key in idle):
                return Ruling(tuple(self._awards.values()), tuple(self._evictions.values()), self.refused)

    def _stays(self, eviction: Eviction) -> str | None:
        holding = self._holdings.get(eviction.key)
        if holding is None or holding.incarnation != eviction.incarnation:
            return "it does not run any more"
        if holding.stopping:
            return "it is stopping already"
        if not holding.preemptible:
            return "it is not preemptible"
        if self._newest.at < holding.tenure_until:
            return "its tenure is not over"
        return None

    def _judge_awards(self, barred: set[GangKey]) -> tuple[Trial, _Limits]:
        trial = Trial(self._newest.nodes)
        leaving = [h for h in self._holdings.values() if h.stopping or h.key in self._evictions]
        for holding in leaving:
            trial.release(holding.placements)
        limits = _Limits(self._standings, self._queues, leaving)
        for award in self._kept.values():
            trial.take([p for p in award.placements if p.node in trial.offers], FOREVER)
            waiting = self._pending.get(award.key) or self._holdings.get(award.key)
            if waiting is not None:
                limits.count(waiting, needs(award.bid))
        gone = {holding.key for holding in leaving}
        apart = Apart(trial.offers, [h for h in self._holdings.values() if h.key not in gone])
        self._awards = {}
        for key, award in self._asked.items():
            ruled = "it stays where it is" if key in barred else self._judge_award(award, trial, limits)
            gang = self._pending.get(key) or self._holdings.get(key)
            kin = gang.kin if gang is not None else None
            if apart.clashes(kin, award.placements):
                ruled = "its port is taken there"
            if isinstance(ruled, str):
                self.refused[key] = ruled
                continue
            if kin is not None:
                apart.add(kin, award.placements)
            self.refused.pop(key, None)
            self._awards[key] = ruled
            trial.take(ruled.placements, FOREVER)
        return trial, limits

    def _judge_award(self, award: Award, trial: Trial, limits: _Limits) -> Award | str:
        key = award.key
        if key in self._kept:
            return "it has an award already"
        gang = self._holdings[key] if key in self._evictions else self._pending.get(key)
        if gang is None:
            return "the gang does not wait any more"
        bid = next((b for b in gang.bids if b.shape == award.bid.shape and b.locality is award.bid.locality), None)
        if bid is None:
            return "it does not bid so any more"
        if not _shaped(award.placements, bid, trial):
            return "the placements are not those of its bid"
        if isinstance(gang, Holding) and set(award.placements) == {replace(p, port=None) for p in gang.placements}:
            return "it would go on where it is"
        verdict = _verify(Allocation(key, award.placements), self._newest.version, trial)
        if verdict.kind is not VerdictKind.COMMITTED:
            return verdict.reason
        what = limits.take(gang, needs(bid))
        return what if what is not None else Award(key, gang.tenant, bid, award.placements)

    def _unneeded(self, trial: Trial, limits: _Limits) -> list[GangKey]:
        """Return the evictions without which all awards still fit, those that lose most work first."""
        found = []
        winners = [self._holdings.get(key) or self._pending.get(key) for key in self._awards]
        tenants = {gang.tenant for gang in winners if gang is not None}
        queues = {gang.queue for gang in winners if gang is not None}
        for key, eviction in sorted(self._evictions.items(), key=lambda item: (-item[1].preemption.lost_s, item[0])):
            for_itself = eviction.preemption.beneficiary in (None, key.job)
            if key in self._awards and for_itself:
                continue
            holding = self._holdings[key]
            limited = holding.tenant in tenants or holding.queue in queues
            if not _fits_back(holding.placements, trial) or (limited and not limits.fits_back(holding)):
                continue
            trial.take([p for p in holding.placements if p.node in trial.offers], FOREVER)
            limits.count(holding, holds(holding))
            found.append(key)
        return found


class _Limits:
    """What tenants and queues would hold."""

    def __init__(
        self,
        standings: Mapping[TenantId, Standing],
        queues: Mapping[QueueName, QueueStanding],
        leaving: Iterable[Holding],
    ) -> None:
        self._tenants = {name: (standing.tenant.limit, standing.held) for name, standing in standings.items()}
        self._queues = {name: (line.queue, line.held) for name, line in queues.items()}
        for holding in leaving:
            self.count(holding, Amount() - holds(holding))

    def fits_back(self, holding: Holding) -> bool:
        """Return whether a gang that gives way could stay as far as limits go."""
        tenant, queue = self._tenants.get(holding.tenant), self._queues.get(holding.queue)
        if tenant is not None and within(*tenant, holds(holding)) is not None:
            return False
        return queue is None or within(queue[0].limit, queue[1], holds(holding)) is None

    def count(self, gang: Candidate | Holding, amount: Amount) -> None:
        """Count ``amount`` more for a gang's tenant and queue, whatever their limits."""
        if gang.tenant in self._tenants:
            limit, held = self._tenants[gang.tenant]
            self._tenants[gang.tenant] = (limit, held + amount)
        if gang.queue in self._queues:
            queue, held = self._queues[gang.queue]
            self._queues[gang.queue] = (queue, held + amount)

    def take(self, gang: Candidate | Holding, need: Amount) -> str | None:
        """Count ``need`` for a gang; return which limit is in the way, and count nothing then."""
        if gang.tenant in self._tenants and within(*self._tenants[gang.tenant], need) is not None:
            return f"the limit of tenant {gang.tenant}"
        if gang.queue in self._queues:
            queue, held = self._queues[gang.queue]
            if queue.paused:
                return f"queue {queue.name} is paused"
            if within(queue.limit, held, need) is not None:
                return f"the limit of queue {queue.name}"
        self.count(gang, need)
        return None


def needs(bid: Bid) -> Amount:
    """Return what all ranks of a bid hold together."""
    return Amount.of(bid.shape.demand).times(bid.shape.ranks)


def holds(holding: Holding) -> Amount:
    """Return what a running gang holds."""
    total = Amount()
    for placement in holding.placements:
        total = total + Amount.of(placement)
    return total


def _shaped(placements: Sequence[Placement], bid: Bid, trial: Trial) -> bool:
    """Return whether placements are what a bid asks for: all ranks in order, with its devices, CPUs and memory."""
    demand = bid.shape.demand
    if [placement.rank for placement in placements] != list(range(bid.shape.ranks)):
        return False
    for placement in placements:
        if Amount.of(placement) != Amount.of(demand):
            return False
        offer = trial.offers.get(placement.node)
        wanted = {share.uuid for share in placement.devices}
        devices = offer.devices if offer is not None else ()
        if any(d.uuid in wanted and not model_matches(demand.gpu_model, d.model) for d in devices):
            return False
    return True


def _fits_back(placements: Sequence[Placement], trial: Trial) -> bool:
    nodes = {placement.node for placement in placements} & trial.offers.keys()
    for node in nodes:
        room = trial.room(node)
        for placement in placements:
            if placement.node == node:
                room.change(placement, -1)
        if room.cpus_milli < 0 or room.memory_mib < 0 or any(free < 0 for free in room.free):
            return False
    return True
