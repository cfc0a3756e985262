"""A what-if question as the JSON that the API reads."""

from __future__ import annotations

from corral.model.plan import PlanAsk
from corral.wire.request import document_of


def document_of_plan(ask: PlanAsk) -> dict[str, object]:
    """Return the JSON document of a question."""
    return {
        "jobs": [document_of(job) for job in ask.submit],
        "weights": dict(ask.weights),
        "drain": list(ask.drain),
        "add": [{"count": one.count, "like": one.like} for one in ask.add],
        "horizon_s": ask.horizon_s,
    }
