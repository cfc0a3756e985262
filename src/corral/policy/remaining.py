"""How much service a gang still needs when nobody says: the mean residual life in the history of finished gangs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from corral.model.experience import ServiceClass, ServiceHistory
from corral.model.ids import TenantId

SAMPLE_MIN = 10
"""Finished gangs of a class from which its own distribution is preferred to that of a wider class."""


def expected_remaining_s(history: ServiceHistory, tenant: TenantId, devices: int, attained_s: float) -> float:
    """Return the expected seconds of service left after ``attained_s``, from the narrowest class that knows enough.

    Without any history: as long as it has run (a Pareto tail), one second at least.
    """
    for durations in _samples(history, tenant, devices):
        longer = durations[bisect_right(durations, attained_s) :]
        if longer:
            return max(1.0, sum(longer) / len(longer) - attained_s)
    return max(1.0, attained_s)


def _samples(history: ServiceHistory, tenant: TenantId, devices: int) -> Iterator[tuple[float, ...]]:
    for name in (ServiceClass(tenant, devices), ServiceClass(None, devices), ServiceClass(None, None)):
        durations = history.durations.get(name, ())
        if len(durations) >= SAMPLE_MIN:
            yield durations
