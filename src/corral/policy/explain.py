"""The true answer to "why is my job waiting": from the same things that a round looks at, with the same rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from corral.model.ids import JobId, NodeId, TenantId
from corral.model.job import JobState
from corral.model.market import RoundPlan
from corral.model.offer import Candidate, Holding, NodeOffer, Reservation
from corral.model.report import Holder, NodeConstraint, PriceTerms, QueueLine, ShareArithmetic, WhyReport
from corral.model.resources import MILLI, Amount, Demand, GangShape
from corral.policy.absences import missed, missed_words, uncordoning
from corral.policy.apart import port_taken
from corral.policy.cursor import FOREVER
from corral.policy.fairness import claim, due_shares
from corral.policy.feasibility import empty_fit, gpus_words, model_matches, node_fit
from corral.policy.outlook import Absence, Ahead, Estimates, Scene, in_order, limit_words, need_of
from corral.policy.reservation import constraints_of
from corral.policy.trial import Trial
from corral.policy.whatif import cheapest_change

HIDDEN = JobId("-")
"""What a tenant sees in place of the number of another tenant's job."""


TAKEN = "port"
"""How the words begin that tell of a fixed port."""


def _listed(nodes: Sequence[NodeId]) -> str:
    return ", ".join(nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")


def explain_pending(scene: Scene, candidate: Candidate, viewer: TenantId | None) -> WhyReport:
    """Explain a pending gang. ``viewer`` is the tenant that asks (``None``: an admin, who sees all job numbers)."""
    largest = max((bid.shape for bid in candidate.bids), key=_amount)
    candidate = easiest_first(candidate)
    others = [kept for kept in scene.reservations if kept.key != candidate.key]
    gone = missed(scene, candidate)
    own = next((kept for kept in scene.reservations if kept.key == candidate.key), None)
    trial = Trial(scene.snapshot.nodes)
    trial.constrain(constraints_of(others, trial, scene.snapshot.holdings))
    shape = candidate.shape
    end = FOREVER if candidate.max_duration_s is None else scene.snapshot.at + candidate.max_duration_s
    taken = port_taken(candidate.kin, trial.offers, scene.snapshot.holdings)
    fits = {node: fit for node, fit in trial.fits(shape.demand, None, trial.mask(end)).items() if node not in taken}
    holders = _holders_by_node(scene.snapshot.holdings, viewer)
    constraints = [
        _constraint(offer, candidate, fits.get(offer.node, 0), others, holders.get(offer.node, ()), viewer, taken)
        for offer in scene.snapshot.nodes
    ]
    constraints += [_absence(one) for one in scene.absent]
    ahead = _before(scene, candidate)
    shortfall = max(0, shape.ranks - sum(fits.values()))
    limit = limit_words(scene, candidate)
    blocked = tuple(_blocks(scene, candidate, limit, shortfall, others, viewer))
    if shortfall and taken and candidate.kin is not None:
        blocked = (f"{TAKEN} {candidate.kin.port} is taken on {_listed(sorted(taken))}", *blocked)
    shown = own if own is not None else next(iter(_in_the_way(candidate, others, trial)), None)
    return WhyReport(
        job=candidate.key.job,
        gang=candidate.key.gang,
        state=JobState.PENDING,
        verdict=_verdict(candidate, shortfall, limit, own, blocked, gone),
        shape=shape,
        position=ahead.count + 1,
        ahead=ahead.count,
        shortfall=shortfall,
        constraints=tuple(constraints),
        share=_share(scene, candidate),
        blocked_by=blocked,
        reservation=_veiled(shown, candidate, viewer),
        own_reservation=own is not None,
        estimate=Estimates(scene).of(candidate, ahead),
        cheapest_change=None
        if limit is not None
        else uncordoning(scene, candidate, gone) or cheapest_change(scene, candidate),
        pending_gangs=sum(1 for c in scene.pending if c.key.job == candidate.key.job),
        largest=largest if _amount(largest) > _amount(candidate.shape) else None,
    )


def _amount(shape: GangShape) -> tuple[int, int, int]:
    need = Amount.of(shape.demand).times(shape.ranks)
    return need.gpu_milli, need.cpus_milli, need.memory_mib


def easiest_first(candidate: Candidate) -> Candidate:
    """Return an elastic candidate with its smallest bid first: what it needs is the least that it can run with."""
    if len(candidate.bids) < 2:
        return candidate
    return replace(candidate, bids=tuple(sorted(candidate.bids, key=lambda bid: _amount(bid.shape))))


def price_terms(plan: RoundPlan, at: float, candidate: Candidate) -> PriceTerms | None:
    """Return why a gang did not win the round of ``plan``; ``None`` when it was not in it, or won."""
    loss = plan.losses.get(candidate.key)
    if loss is None:
        return None
    devices = candidate.shape.ranks * max(1, candidate.shape.demand.gpu_milli) / MILLI
    unit = loss.cost / devices if loss.cost > 0 else 0.0
    return PriceTerms(
        at=at,
        reason=loss.reason,
        worth=loss.value / unit if unit else devices,
        cost=devices,
        gap=plan.gap,
        prices=plan.prices,
        protected_until=loss.protected_until,
    )


def queue_lines(scene: Scene, limit: int, names: dict[JobId, str], viewer: TenantId | None) -> tuple[QueueLine, ...]:
    """Return the first ``limit`` pending gangs in order. Names and numbers of other tenants' jobs are hidden."""
    estimates = Estimates(scene)
    lines: list[QueueLine] = []
    before = Ahead(scene)
    reserved = {kept.key for kept in scene.reservations}
    for position, wanted in enumerate(in_order(scene), start=1):
        if position > limit:
            break
        candidate = easiest_first(wanted)
        foreign = viewer is not None and candidate.tenant != viewer
        key = candidate.key
        lines.append(
            QueueLine(
                position=position,
                key=type(key)(HIDDEN, 0) if foreign else key,
                name="" if foreign else names.get(key.job, ""),
                tenant=candidate.tenant,
                queue=candidate.queue,
                priority=candidate.priority,
                shape=candidate.shape,
                waited_s=max(0.0, scene.snapshot.at - candidate.queued_at),
                reason=_short_reason(scene, candidate, reserved=key in reserved),
                estimate=estimates.of(candidate, before),
            )
        )
        before.add(wanted)
    return tuple(lines)


def _short_reason(scene: Scene, candidate: Candidate, *, reserved: bool) -> str:
    limit = limit_words(scene, candidate)
    if limit is not None:
        return limit
    if reserved:
        return "first in line: devices are kept for it"
    gone = missed(scene, candidate)
    if gone:
        return f"waits for {missed_words(gone)}"
    need = need_of(candidate)
    return f"waits for {gpus_words(need.gpu_milli)}" if need.gpu_milli else "waits for CPUs or memory"


def _before(scene: Scene, candidate: Candidate) -> Ahead:
    """Return what is considered before a candidate."""
    ahead = Ahead(scene)
    for other in in_order(scene):
        if other.key == candidate.key:
            break
        ahead.add(other)
    return ahead


def _constraint(
    offer: NodeOffer,
    candidate: Candidate,
    fits: int,
    others: Sequence[Reservation],
    holders: Sequence[Holder],
    viewer: TenantId | None,
    taken: frozenset[NodeId],
) -> NodeConstraint:
    demand = candidate.shape.demand
    matching = [d for d in offer.devices if model_matches(demand.gpu_model, d.model)]
    free = Amount(sum(d.free_milli for d in offer.devices), offer.cpus_milli, offer.memory_mib)
    blocks = () if fits else tuple(_node_blocks(offer, demand, [d.free_milli for d in matching], others, viewer))
    if offer.node in taken and candidate.kin is not None:
        blocks = (f"port {candidate.kin.port} is taken on this machine by another replica",)
    if offer.node in candidate.avoid:
        blocks += ("it failed here before: taken again when no other node can run it",)
    return NodeConstraint(
        node=offer.node,
        fits=fits,
        free=free,
        total=offer.total,
        blocks=blocks,
        holders=tuple(holders),
    )


def _uses(kept: Reservation, offer: NodeOffer) -> bool:
    return any(placement.node == offer.node for placement in kept.placements)


def _node_blocks(
    offer: NodeOffer, demand: Demand, free: list[int], others: Sequence[Reservation], viewer: TenantId | None
) -> Iterable[str]:
    if demand.gpu_milli and not free:
        has = ", ".join(sorted({d.model for d in offer.devices})) or "no GPUs"
        yield f"no {demand.gpu_model or 'GPU'} here ({has})"
        return
    if demand.gpus_whole:
        whole = sum(1 for milli in free if milli >= MILLI)
        if whole < demand.gpus_whole:
            yield f"{whole} of {len(free)} GPUs are free, {demand.gpus_whole} are needed"
    elif demand.is_share and all(milli < demand.gpu_milli for milli in free):
        yield f"no GPU has {demand.gpu_milli / MILLI:g} free"
    if offer.cpus_milli < demand.cpus_milli:
        yield f"{offer.cpus_milli / MILLI:g} CPUs are free, {demand.cpus_milli / MILLI:g} are needed"
    if offer.memory_mib < demand.memory_mib:
        yield f"{offer.memory_mib / 1024:.1f} GiB are free, {demand.memory_mib / 1024:.1f} are needed"
    if not empty_fit(offer, demand):
        yield "too small even when it is empty"
    elif node_fit(offer, demand):
        who = [k.key.job if viewer in (None, k.tenant) else f"of tenant {k.tenant}" for k in others if _uses(k, offer)]
        yield f"kept for job {', '.join(sorted(set(who)))}"


def _absence(gone: Absence) -> NodeConstraint:
    return NodeConstraint(gone.node, 0, Amount(), gone.total, (gone.reason,))


def _holders_by_node(holdings: Iterable[Holding], viewer: TenantId | None) -> dict[NodeId, list[Holder]]:
    found: dict[NodeId, list[Holder]] = {}
    for holding in holdings:
        foreign = viewer is not None and holding.tenant != viewer
        here: dict[NodeId, Amount] = {}
        for placement in holding.placements:
            here[placement.node] = here.get(placement.node, Amount()) + Amount.of(placement)
        for node, amount in here.items():
            holder = Holder(
                job=HIDDEN if foreign else holding.key.job,
                gang=0 if foreign else holding.key.gang,
                tenant=holding.tenant,
                gpu_milli=amount.gpu_milli,
                cpus_milli=amount.cpus_milli,
                ends_at=holding.ends_at,
            )
            found.setdefault(node, []).append(holder)
    return found


def _share(scene: Scene, candidate: Candidate) -> ShareArithmetic:
    waiting = scene.pending.tenants()
    capacity = scene.snapshot.capacity
    holding = {name for name, standing in scene.standings.items() if standing.held != Amount()}
    due = due_shares(scene.standings, holding.union(waiting), capacity=capacity)
    standing = scene.standing(candidate.tenant)
    weights = scene.weights()

    def place(name: TenantId) -> tuple[int, float, TenantId]:
        return (*claim(scene.standing(name), Amount(), capacity, weights, scene.config), name)

    ranks = sorted(waiting, key=place)
    return ShareArithmetic(
        tenant=candidate.tenant,
        weight=standing.tenant.weight,
        due_share=due.get(candidate.tenant, 0.0),
        held_share=standing.held.dominant_share(capacity),
        decayed_share=standing.decayed_share,
        rank_among_tenants=ranks.index(candidate.tenant) + 1 if candidate.tenant in ranks else len(ranks) + 1,
        tenants_waiting=len(ranks),
    )


def _in_the_way(candidate: Candidate, others: Sequence[Reservation], trial: Trial) -> list[Reservation]:
    """Return the reservations that keep devices from a candidate that would fit without them."""
    demand, ranks = candidate.shape.demand, candidate.shape.ranks
    return list(others) if sum(trial.fits(demand).values()) >= ranks else []


def _blocks(
    scene: Scene,
    candidate: Candidate,
    limit: str | None,
    shortfall: int,
    others: Sequence[Reservation],
    viewer: TenantId | None,
) -> Iterable[str]:
    if limit is not None:
        yield limit
    trial = Trial(scene.snapshot.nodes)
    if shortfall:
        for kept in _in_the_way(candidate, others, trial):
            who = f"job {kept.key.job}" if viewer in (None, kept.tenant) else f"a job of tenant {kept.tenant}"
            yield f"the reservation of {who}: it would be delayed"
        away = [one.node for one in scene.absent]
        if away:
            yield f"{len(away)} node{'s' if len(away) > 1 else ''} not available: {', '.join(away[:5])}"
    if candidate.avoid:
        yield f"it failed on {', '.join(candidate.avoid)} and tries others first"


def _verdict(
    candidate: Candidate,
    shortfall: int,
    limit: str | None,
    own: Reservation | None,
    blocked: Sequence[str],
    gone: Sequence[Absence],
) -> str:
    if limit is not None:
        return f"waits for {limit}" if limit.startswith("the limit") else f"waits: {limit}"
    if shortfall and gone:
        return f"waits for {missed_words(gone)}"
    if shortfall and own is not None:
        return f"first in line; the devices kept for it are still held ({shortfall} of {candidate.shape.ranks} missing)"
    if shortfall and blocked and blocked[0].startswith(TAKEN):
        return f"waits for a machine without another replica: {blocked[0]}"
    if shortfall and blocked and blocked[0].startswith("the reservation"):
        return "would fit, but its start would delay " + blocked[0].removesuffix(": it would be delayed")
    if shortfall:
        need = need_of(candidate)
        what = gpus_words(need.gpu_milli, candidate.shape.demand.gpu_model) if need.gpu_milli else "CPUs or memory"
        return f"waits for {what}: not enough is free"
    if candidate.avoid:
        return "waits for a node on which it has not failed"
    return "starts in the next round"


def _veiled(kept: Reservation | None, candidate: Candidate, viewer: TenantId | None) -> Reservation | None:
    if kept is None or viewer in (None, kept.tenant) or kept.key == candidate.key:
        return kept
    return Reservation(type(kept.key)(HIDDEN, 0), kept.tenant, kept.placements, kept.start_at, kept.made_at)
