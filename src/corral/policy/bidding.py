"""The default bidder, and what is asked of the answers of a job's own proposer."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from corral.model.errors import InvalidField, Refusal
from corral.model.experience import Rate
from corral.model.job import Gang, Job, JobSpec
from corral.model.offer import Bid, Locality, NodeOffer, Offer, Preference, Proposal
from corral.model.resources import Demand, GangShape
from corral.policy.config import BIDS_MAX, NAME_LENGTH_MAX, SchedulingConfig
from corral.policy.estimation import NOTHING_KNOWN, Prediction, Throughput, scale_of
from corral.policy.feasibility import empty_fit, model_matches
from corral.policy.landscape import Landscape, landscape_of

PREFERENCES_MAX = 64
"""Nodes that one bid lists: enough for every rank of a usual gang to find its data, small enough to send."""

SMALLEST_KEPT = 8
"""Bids that are kept for their size when there would be too many: something small nearly always fits."""

SPREAD = 0.9
"""What is left of the throughput of ranks in several racks: uplinks between racks are shared and oversubscribed. A
belief, about right where it matters: nobody should wait long, or move, for a rack."""

SPLIT = 0.85
"""What is left of the throughput of a rank whose devices are not joined by NVLink, in the same sense."""

MODELS_DIFFER = 1.01
"""Models whose expected throughputs lie within a hundredth of each other need no bids of their own."""

_Way = tuple[GangShape, Locality, Prediction]


def default_bids(
    spec: JobSpec,
    offer: Offer,
    *,
    gang: Gang | None = None,
    config: SchedulingConfig = SchedulingConfig(),  # noqa: B008 - frozen
) -> tuple[Bid, ...]:
    """Return the bids that stand for all pending gangs of a job, best first, at most 32.

    There is a bid for each size of an elastic job; for each device model, where the throughput is known to differ; and
    for each locality that makes a difference on this pool. A rigid job on a uniform pool has one. Each names the nodes
    that hold some of the declared data by cold-start seconds, and what a restart costs. Bids are made even when nothing
    fits now: they stand until they are replaced. ``gang`` adds the time since which its work is unsaved.

    ``remaining_s`` is that of a gang that begins, known where the job declared its work and its speed is known;
    ``throughput`` is relative to the declared shape (1) while its unit is not known.
    """
    since = gang.started_at if gang is not None and spec.checkpoint is not None else None
    age_s = max(0.0, offer.snapshot.at - since) if since is not None else None
    tenure_s = tenure_of(spec, config)
    total = spec.work.total if spec.work is not None else None
    preferred: dict[Demand, tuple[Preference, ...]] = {}
    bids = []
    for shape, locality, speed in _ways(spec, offer):
        demand = shape.demand
        if spec.data and demand not in preferred:
            preferred[demand] = _preferences(spec, demand, offer.snapshot.nodes, config)
        bids.append(
            Bid(
                shape=shape,
                locality=locality,
                preferred=preferred.get(demand, ()),
                throughput=speed.units_per_s,
                confidence=speed.confidence,
                remaining_s=_seconds(total, speed),
                restart_cost_s=spec.restart_cost_s,
                checkpoint_age_s=age_s,
                tenure_s=tenure_s,
            )
        )
    return tuple(_few(bids))


def _seconds(total: float | None, speed: Prediction) -> float | None:
    seconds = total / speed.units_per_s if total is not None and speed.confidence > 0 else math.inf
    return seconds if seconds < math.inf else None


def tenure_of(spec: JobSpec, config: SchedulingConfig) -> float:
    """Return the seconds for which a gang of a job is not preempted: max(10 min, 10 x restart cost) by default."""
    return max(config.tenure_s, config.tenure_restarts * spec.restart_cost_s)


def believed(spec: JobSpec, offer: Offer) -> Throughput:
    """Return the estimate of a job's throughput from its claims and from what was measured of its family."""
    claims = tuple(spec.work.throughput.items()) if spec.work is not None else ()
    if not claims and not offer.rates:
        return NOTHING_KNOWN
    models = landscape_of(offer.snapshot).models if claims else ()
    return _believed(claims, offer.rates, models, scale_of(spec.shape))


@functools.lru_cache(maxsize=1_024)
def _believed(
    claims: tuple[tuple[str, float], ...], rates: tuple[Rate, ...], models: tuple[str, ...], declared: int
) -> Throughput:
    """Jobs of a family make the same claims: one estimate serves them all."""
    return Throughput.of(claimed(claims, models, declared), rates)


def claimed(claims: Iterable[tuple[str, float]], models: Iterable[str], declared: int) -> dict[tuple[str, int], float]:
    """Return claims (``V100`` or ``V100:4``, units/s) by device model of the pool and number of devices.

    A claim without a number of devices is about the ``declared`` one. The most exact claim counts: one that names the
    number before one that does not, then the one with the longest name of the model.
    """
    found: dict[tuple[str, int], tuple[bool, int, float]] = {}
    for name, rate in claims:
        wanted, _, count = name.partition(":")
        for model in models:
            if model_matches(wanted, model):
                key = (model, int(count) if count else declared)
                found[key] = max(found.get(key, (False, 0, 0.0)), (bool(count), len(wanted), rate))
    return {key: rate for key, (_, _, rate) in found.items()}


def _ways(spec: JobSpec, offer: Offer) -> Iterator[_Way]:
    rate = believed(spec, offer)
    for shape in spec.shapes or (spec.shape,):
        if not rate.known and shape.ranks == 1 and shape.demand.gpus_whole <= 1:
            # Nothing to choose from: the pool need not be looked at.
            yield shape, Locality.ANY, _relative(rate, shape, spec.shape)
            continue
        pool = landscape_of(offer.snapshot)
        for wished, speed in _models(shape, rate, pool, spec.shape):
            for locality, part in _localities(wished, pool):
                yield wished, locality, Prediction(speed.units_per_s * part, speed.confidence)


def _relative(rate: Throughput, shape: GangShape, declared: GangShape) -> Prediction:
    """Return what is believed of the throughput of a size, with that of the declared one as the unit."""
    if shape == declared:
        return Prediction(1.0, 0.0)
    unit = rate.predict("", scale_of(declared)).units_per_s
    return Prediction(rate.predict("", scale_of(shape)).units_per_s / unit, 0.0)


def _models(
    shape: GangShape, rate: Throughput, pool: Landscape, declared: GangShape
) -> Iterator[tuple[GangShape, Prediction]]:
    """Yield a shape for each device model where they differ, and last the shape for whatever model there is."""
    if not rate.known:
        yield shape, _relative(rate, shape, declared)
        return
    demand, scale = shape.demand, scale_of(shape)
    names = pool.matching(demand) if demand.gpu_milli else ()
    fitting = [name for name in names if pool.ranks(demand, name) >= shape.ranks]
    speeds = {name: rate.predict(name, scale) for name in fitting or names or ("",)}
    slowest = min(speeds.values(), key=lambda speed: speed.units_per_s)
    fastest = max(speed.units_per_s for speed in speeds.values())
    if demand.gpu_model is not None or fastest <= slowest.units_per_s * MODELS_DIFFER:
        yield shape, slowest
        return
    for name, speed in speeds.items():
        yield replace(shape, demand=replace(demand, gpu_model=name)), speed
    if scale > 1:
        # Devices of several models together, when nothing else is left: as fast as the slowest of them.
        yield shape, slowest


def _localities(shape: GangShape, pool: Landscape) -> list[tuple[Locality, float]]:
    """Return the localities that make a difference, with the part of the throughput that each leaves."""
    demand = shape.demand
    if shape.ranks > 1 and pool.racks > 1:
        together = pool.ranks_in_rack(demand) >= shape.ranks
        return [(Locality.RACK, 1.0), (Locality.ANY, SPREAD)] if together else [(Locality.ANY, SPREAD)]
    if shape.ranks == 1 and demand.gpus_whole > 1 and pool.islands_matter(demand):
        return [(Locality.NVLINK, 1.0), (Locality.ANY, SPLIT)]
    return [(Locality.ANY, 1.0)]


def _few(bids: list[Bid]) -> list[Bid]:
    """Return at most ``BIDS_MAX`` bids, fastest first: the best, and those that fit soonest for their size."""
    bids.sort(key=lambda bid: (-bid.throughput, scale_of(bid.shape), bid.locality is Locality.ANY))
    if len(bids) <= BIDS_MAX:
        return bids
    best, rest = bids[: BIDS_MAX - SMALLEST_KEPT], bids[BIDS_MAX - SMALLEST_KEPT :]
    rest.sort(key=_openness)
    return best + sorted(rest[:SMALLEST_KEPT], key=lambda bid: -bid.throughput)


def _openness(bid: Bid) -> tuple[int, bool, bool, float]:
    """Order bids by how much has to come together for them: the smallest finds its place most often."""
    demand = bid.shape.demand
    return scale_of(bid.shape), bid.locality is not Locality.ANY, demand.gpu_model is not None, -bid.throughput


def _preferences(
    spec: JobSpec, demand: Demand, nodes: Iterable[NodeOffer], config: SchedulingConfig
) -> tuple[Preference, ...]:
    """Return the feasible nodes that hold at least one declared shard, fewest seconds to load first."""
    wanted = frozenset(spec.data)
    found = []
    for node in nodes:
        missing = len(wanted - node.shards)
        if missing < len(wanted) and empty_fit(node, demand):
            found.append(Preference(node.node, missing * config.cold_start_per_shard_s))
    found.sort(key=lambda preference: (preference.cold_start_s, preference.node))
    return tuple(found[:PREFERENCES_MAX])


def check_proposal(job: Job, proposal: Proposal, config: SchedulingConfig) -> Refusal | None:
    """Return what is wrong with the answer of a job's own proposer, ``None`` when its bids may stand.

    It may choose among the shapes that the job declared, name a device model where the job names none, and ask for any
    locality. It may lower what a restart costs and how long it is protected, never raise them: its tenant would gain.
    """
    spec, bids = job.spec, proposal.bids
    if proposal.job != job.id:
        return Refusal(InvalidField.code, f"is {proposal.job!r}, not {job.id}", "job")
    if not 0 < len(bids) <= BIDS_MAX:
        return Refusal(InvalidField.code, f"are {len(bids)}, not 1 to {BIDS_MAX}", "bids")
    shapes = spec.shapes or (spec.shape,)
    for i, bid in enumerate(bids):
        wrong = _shape_fault(bid.shape, shapes) or _number_fault(bid, spec, config) or _preferred_fault(bid)
        if wrong is not None:
            return Refusal(InvalidField.code, wrong[1], f"bids[{i}].{wrong[0]}")
    return None


_Fault = tuple[str, str]


def _shape_fault(shape: GangShape, allowed: Iterable[GangShape]) -> _Fault | None:
    model = shape.demand.gpu_model
    for one in allowed:
        named = one if one.demand.gpu_model is not None else replace(one, demand=replace(one.demand, gpu_model=model))
        if shape == named and (model is None or (shape.demand.gpu_milli and 0 < len(model) <= NAME_LENGTH_MAX)):
            return None
    return "shape", "is none of the shapes that the job declared"


def _number_fault(bid: Bid, spec: JobSpec, config: SchedulingConfig) -> _Fault | None:
    most = {
        "throughput": math.inf,
        "confidence": 1.0,
        "remaining_s": math.inf,
        "restart_cost_s": spec.restart_cost_s,
        "checkpoint_age_s": math.inf,
        "tenure_s": tenure_of(spec, config),
    }
    for name, limit in most.items():
        value = getattr(bid, name)
        if value is None:
            continue
        if not (math.isfinite(value) and 0 <= value <= limit):
            return name, f"is {value}, not a number from 0" + (f" to {limit:g}" if limit < math.inf else "")
    return ("throughput", "must be above 0") if bid.throughput <= 0 else None


def _preferred_fault(bid: Bid) -> _Fault | None:
    if len(bid.preferred) > PREFERENCES_MAX:
        return "preferred", f"has {len(bid.preferred)} nodes, more than {PREFERENCES_MAX}"
    if not all(math.isfinite(p.cold_start_s) and p.cold_start_s >= 0 for p in bid.preferred):
        return "preferred", "has a cold start that is no number of seconds"
    return None
