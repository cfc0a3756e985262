"""A proposer that is thrifty: old GPUs first, fewer of them while the pool is crowded and nothing is urgent.

    appmaster: thrifty:propose

corral calls :func:`propose` with each offer. It answers with bids, the ones that it likes best first; corral finds the
best allocation for all jobs of the pool. ``offer["bids"]`` are the bids that corral would make for this job by itself:
to drop some, put them into another order or change a number is usually all that a proposer has to do.
"""

from __future__ import annotations

from typing import Any

CHEAP = ("K80", "P100", "V100")
"""What this project calls old."""
CROWDED = 0.9
"""A price of a device at which others need it as much as we do: about 1 where every tenant has its due share."""


def propose(offer: dict[str, Any], job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the bids that stand for all gangs of the job, best first."""
    bids = offer["bids"]
    old = [bid for bid in bids if is_old(bid["model"])] or on_old_models(offer, bids)
    wanted = old or bids
    if crowded(offer) and job["priority"] <= 0:
        smallest = min(wanted, key=devices)
        wanted = [bid for bid in wanted if devices(bid) <= max(devices(smallest), most(wanted) // 2)]
    return sorted(wanted, key=lambda bid: -bid["throughput"])


def is_old(model: str | None) -> bool:
    """Return whether a device model is one of the old ones."""
    return model is not None and any(name in model.upper() for name in CHEAP)


def on_old_models(offer: dict[str, Any], bids: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the bids for the old models of the pool: corral names none where it knows of no difference."""
    models = [model for model in offer["models"] if is_old(model)]
    return [bid | {"model": model} for bid in bids if bid["model"] is None for model in models]


def crowded(offer: dict[str, Any]) -> bool:
    """Return whether devices are dear."""
    return any(price > CROWDED for price in offer["prices"].values())


def devices(bid: dict[str, Any]) -> float:
    """Return how many devices a bid takes."""
    return float(bid["num_nodes"] * bid["num_gpus"])


def most(bids: list[dict[str, Any]]) -> float:
    """Return how many devices the largest bid takes."""
    return max(devices(bid) for bid in bids)
