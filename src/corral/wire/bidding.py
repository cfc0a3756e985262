"""What a job's own proposer is shown and what it answers: plain JSON documents, described in ``docs/proposers.md``.

The documents hold what the job may know: its own needs, free and whole capacity, prices. Other tenants' jobs are not
among it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from corral.model.errors import InvalidField, Refusal
from corral.model.job import JobSpec
from corral.model.offer import Bid, Locality, NodeOffer, Offer, Preference
from corral.model.resources import MILLI, GangShape
from corral.policy.config import BIDS_MAX, NAME_LENGTH_MAX
from corral.policy.feasibility import model_matches

NODES_MAX = 512
"""Nodes that an offer lists one by one; of a larger pool the freest. The sums by device model are always of all."""
PREFERRED_MAX = 64
NUMBER_MAX = 1e15
"""Larger numbers are nonsense in any unit of a bid, and what is computed from them would not stay finite."""

_FIELDS = frozenset(
    {"num_gpus", "num_nodes", "model", "locality", "preferred", "throughput", "confidence", "remaining_s"}
    | {"restart_cost_s"}
)


def question_of(job: str, spec: JobSpec, offer: Offer, bids: tuple[Bid, ...]) -> dict[str, Any]:
    """Return what ``propose(offer, job)`` is called with: ``{"offer": ..., "job": ...}``."""
    return {"offer": _offer(spec, offer, bids), "job": _job(job, spec)}


def _job(job: str, spec: JobSpec) -> dict[str, Any]:
    work = spec.work
    return {
        "id": job,
        "name": spec.name,
        "tenant": spec.tenant,
        "queue": spec.queue,
        "priority": spec.priority,
        "sizes": [_size(shape) for shape in spec.shapes or (spec.shape,)],
        "total": work.total if work is not None else None,
        "throughput": dict(work.throughput) if work is not None else {},
        "restart_cost_s": spec.restart_cost_s,
        "max_duration_s": spec.max_duration_s,
        "data": list(spec.data),
        "envs": dict(spec.envs),
    }


def _size(shape: GangShape) -> dict[str, Any]:
    demand = shape.demand
    return {
        "num_nodes": shape.ranks,
        "num_gpus": _gpus(demand.gpu_milli),
        "model": demand.gpu_model,
        "cpus": demand.cpus_milli / MILLI,
        "memory_mib": demand.memory_mib,
    }


def _gpus(milli: int) -> int | float:
    return milli / MILLI if milli % MILLI else milli // MILLI


def _offer(spec: JobSpec, offer: Offer, bids: tuple[Bid, ...]) -> dict[str, Any]:
    snapshot = offer.snapshot
    models: dict[str, dict[str, float]] = {}
    for node in snapshot.nodes:
        for name, one in _models(node).items():
            found = models.setdefault(name, {"devices": 0, "free": 0})
            found["devices"] += one["devices"]
            found["free"] += one["free"]
    freest = sorted(snapshot.nodes, key=lambda node: (-sum(d.free_milli for d in node.devices), node.node))
    return {
        "version": snapshot.version,
        "at": snapshot.at,
        "credit": offer.credit,
        "prices": dict(offer.prices),
        "models": models,
        "nodes": [_node(spec, node) for node in freest[:NODES_MAX]],
        "nodes_in_all": len(snapshot.nodes),
        "rates": [
            {
                "model": rate.model,
                "devices": rate.devices,
                "units_per_s": rate.units_per_s,
                "confidence": rate.confidence,
            }
            for rate in offer.rates
        ],
        "bids": [document_of_bid(bid) for bid in bids],
    }


def _models(node: NodeOffer) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for device in node.devices:
        one = found.setdefault(device.model, {"devices": 0, "free": 0})
        one["devices"] += 1
        one["free"] += device.free_milli / MILLI
    return found


def _node(spec: JobSpec, node: NodeOffer) -> dict[str, Any]:
    return {
        "name": node.node,
        "rack": node.rack,
        "models": _models(node),
        "cpus": node.cpus_milli / MILLI,
        "memory_mib": node.memory_mib,
        "data": [shard for shard in spec.data if shard in node.shards],
    }


def document_of_bid(bid: Bid) -> dict[str, Any]:
    """Return a bid as a proposer sees it, and may answer it."""
    return {
        "num_nodes": bid.shape.ranks,
        "num_gpus": _gpus(bid.shape.demand.gpu_milli),
        "model": bid.shape.demand.gpu_model,
        "locality": bid.locality.value,
        "preferred": {preference.node: preference.cold_start_s for preference in bid.preferred},
        "throughput": bid.throughput,
        "confidence": bid.confidence,
        "remaining_s": bid.remaining_s,
        "restart_cost_s": bid.restart_cost_s,
    }


# ---- the answer ------------------------------------------------------------------------------------------------------


class _Wrong(ValueError):
    """A bid that is none; the text is the reason in one line."""


def bids_of(answer: object, spec: JobSpec, defaults: tuple[Bid, ...]) -> tuple[Bid, ...] | Refusal:
    """Return the bids of an answer, best first, or what is wrong with it.

    What a bid leaves out is that of the job: its first size, its model, its restart cost. Tenure and checkpoint age are
    the pool's to say (those of ``defaults``).
    """
    if not isinstance(answer, list) or not 1 <= len(answer) <= BIDS_MAX:
        size = f"{len(answer)} bids" if isinstance(answer, list) else "no list"
        return Refusal(
            InvalidField.code, f"propose must return a list of 1 to {BIDS_MAX} bids, not {size}", "appmaster"
        )
    bids = []
    for number, document in enumerate(answer):
        try:
            bids.append(_bid(document, spec, defaults))
        except _Wrong as error:
            return Refusal(InvalidField.code, f"bid {number}: {error}", "appmaster")
    return tuple(bids)


def _bid(document: object, spec: JobSpec, defaults: tuple[Bid, ...]) -> Bid:
    if not isinstance(document, Mapping):
        raise _Wrong(f"must be a mapping, not {_shown(document)}")
    unknown = sorted(str(name) for name in document.keys() - _FIELDS)
    if unknown:
        raise _Wrong(f"{_shown(unknown[0])} is no part of a bid; known are {', '.join(sorted(_FIELDS))}")
    shape = _shape(document, spec)
    like = next((bid for bid in defaults if bid.shape == shape), defaults[0] if defaults else Bid(shape))
    remaining = document.get("remaining_s")
    return Bid(
        shape=shape,
        locality=_locality(document.get("locality", Locality.ANY.value)),
        preferred=_preferred(document.get("preferred", {})),
        throughput=_number(document, "throughput", like.throughput, 0.0, above=True),
        confidence=_number(document, "confidence", 0.0, 0.0, 1.0),
        remaining_s=None if remaining is None else _number(document, "remaining_s", 0.0, 0.0),
        restart_cost_s=_number(document, "restart_cost_s", spec.restart_cost_s, 0.0, spec.restart_cost_s),
        checkpoint_age_s=like.checkpoint_age_s,
        tenure_s=like.tenure_s,
    )


def _shape(document: Mapping[str, object], spec: JobSpec) -> GangShape:
    """Return the size that a bid names: one of the job's own, on a device model that the job allows."""
    sizes = spec.shapes or (spec.shape,)
    first = spec.shape
    ranks = _number(document, "num_nodes", first.ranks, 1)
    milli = _number(document, "num_gpus", first.demand.gpu_milli / MILLI, 0.0) * MILLI
    for shape in sizes:
        if shape.ranks == ranks and shape.demand.gpu_milli == round(milli):
            break
    else:
        raise _Wrong(f"{ranks:g} nodes with {milli / MILLI:g} GPUs each is no size of the job")
    model = document.get("model")
    declared = shape.demand.gpu_model
    if model is None:
        return shape
    if not isinstance(model, str) or not 0 < len(model) <= NAME_LENGTH_MAX or not shape.demand.gpu_milli:
        raise _Wrong(f"model {_shown(model)} is no device model")
    if declared is not None and not model_matches(declared, model):
        raise _Wrong(f"model {_shown(model)} is not the {declared} that the job asks for")
    if declared is not None:
        return shape
    return replace(shape, demand=replace(shape.demand, gpu_model=model))


def _locality(given: object) -> Locality:
    try:
        return Locality(given)  # type: ignore[arg-type] # what is no text is no member either
    except ValueError:
        known = ", ".join(Locality)
        raise _Wrong(f"locality must be one of {known}, not {_shown(given)}") from None


def _preferred(given: object) -> tuple[Preference, ...]:
    from corral.model.ids import NodeId

    if not isinstance(given, Mapping) or len(given) > PREFERRED_MAX:
        raise _Wrong(f"preferred must be a mapping of at most {PREFERRED_MAX} nodes to seconds")
    found = []
    for node in given:
        if not isinstance(node, str) or not 0 < len(node) <= NAME_LENGTH_MAX:
            raise _Wrong(f"preferred names {_shown(node)}, which is no node")
        found.append(Preference(NodeId(node), _number(given, node, 0.0, 0.0)))
    return tuple(sorted(found, key=lambda preference: (preference.cold_start_s, preference.node)))


def _number(
    document: Mapping[str, object],
    name: str,
    default: float,
    low: float,
    high: float = NUMBER_MAX,
    *,
    above: bool = False,
) -> float:
    value = document.get(name)
    if value is None:
        return default
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    # What is no number, or infinite, or too large for a float, is on neither side of a bound.
    if not usable or not low <= value <= high or (above and value <= low):  # type: ignore[operator] # checked above
        least = f"above {low:g}" if above else f"at least {low:g}"
        most = f" and at most {high:g}" if high < NUMBER_MAX or (usable and value > high) else ""  # type: ignore[operator]
        raise _Wrong(f"{name[:64]} must be a number {least}{most}, not {_shown(value)}")
    return value  # type: ignore[return-value] # checked above


def _shown(value: object) -> str:
    """Return a value short enough for one line."""
    text = json.dumps(value, default=lambda other: type(other).__name__)
    return text if len(text) <= 60 else f"{text[:57]}..."
