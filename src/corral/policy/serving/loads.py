"""What several proxies or front ends see of the same services, added up."""

from __future__ import annotations

from collections.abc import Iterable

from corral.model.ids import ServiceName
from corral.model.routes import BackendLoad, RouteLoad


def merged(loads: Iterable[RouteLoad]) -> tuple[RouteLoad, ...]:
    """Return one load for each service: what several proxies or front ends see of it, added up.

    Of latencies the largest counts, and a backend is up where anybody reaches it.
    """
    found: dict[ServiceName, RouteLoad] = {}
    for load in loads:
        known = found.get(load.service)
        found[load.service] = load if known is None else _added(known, load)
    return tuple(found.values())


def _added(one: RouteLoad, other: RouteLoad) -> RouteLoad:
    backends = {load.name: load for load in one.backends}
    for load in other.backends:
        known = backends.get(load.name)
        backends[load.name] = load if known is None else _added_backend(known, load)
    return RouteLoad(
        one.service,
        one.requests + other.requests,
        one.errors + other.errors,
        one.retries + other.retries,
        one.ejections + other.ejections,
        one.outstanding + other.outstanding,
        one.waiting + other.waiting,
        _largest(one.latency_p50_s, other.latency_p50_s),
        _largest(one.latency_p99_s, other.latency_p99_s),
        tuple(backends.values()),
    )


def _added_backend(one: BackendLoad, other: BackendLoad) -> BackendLoad:
    return BackendLoad(
        one.name,
        one.up or other.up,
        one.ejected or other.ejected,
        one.outstanding + other.outstanding,
        one.requests + other.requests,
        one.errors + other.errors,
        one.retries + other.retries,
        one.drained and other.drained,
    )


def _largest(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)
