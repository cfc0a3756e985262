"""Planned outages of the controller: long leases first, and only when every node has them may the outage begin."""

from __future__ import annotations

from corral.control.core import ControlCore
from corral.model.report import MaintenanceReport


def report(core: ControlCore, now: float) -> MaintenanceReport:
    """Return how far the newest maintenance is prepared, or taken back; lost nodes are not waited for."""
    state = core.book.state
    planned = state.maintenance
    if planned is None or not planned.active(now):
        return MaintenanceReport(active=False, holding=core.leases.holding(now))
    nodes = [name for name, node in sorted(state.nodes.items()) if not node.lost]
    ready = [name for name in nodes if core.leases.is_prepared(core.book.observed.contact(name), now)]
    return MaintenanceReport(
        active=True,
        started_at=planned.started_at,
        until=planned.until,
        left_s=planned.until - now,
        by=planned.by,
        reason=planned.reason,
        ready=tuple(ready),
        missing=tuple(name for name in nodes if name not in ready),
    )
