"""The pool: nodes, waiting lines, status, health, stop."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response
from starlette.background import BackgroundTask

from corral.api.asked import AskedNow, answer, failing
from corral.api.elsewhere import Elsewhere
from corral.model.errors import Conflict, Forbidden, JobsRunning
from corral.model.ids import NodeId, TenantId
from corral.model.plan import NewNodes, PlanAsk
from corral.model.tenant import Role
from corral.wire.request import asks_of_json
from corral.wire.v1.plan import PlanReport
from corral.wire.v1.reports import (
    Alive,
    Ledger,
    Maintenance,
    NodeReport,
    NodeReports,
    PoolStatus,
    QueueLine,
    QueueLines,
    Stopped,
)
from corral.wire.v1.requests import (
    CordonRequest,
    LedgerQuery,
    LimitQuery,
    MaintenanceRequest,
    PlanRequest,
    StopRequest,
)

router = APIRouter(tags=["pool"])
open_router = APIRouter(tags=["pool"])
"""What needs no token."""


@open_router.get("/health", response_model=Alive)
async def health(request: Request) -> Response:
    """Tell that the daemon answers, and whether it leads. Needs no token."""
    leads = not isinstance(request.app.state.pool, Elsewhere)
    return answer(Alive(version=request.app.version, pid=os.getpid(), leads=leads))


@router.get("/status", response_model=PoolStatus)
async def status(asked: AskedNow) -> Response:
    """Show the pool at a glance."""
    return answer(PoolStatus.of(asked.pool.status()))


@router.get("/nodes", response_model=NodeReports)
async def list_nodes(asked: AskedNow) -> Response:
    """List all nodes with their devices and what they hold."""
    return answer(NodeReports(nodes=[NodeReport.of(node) for node in await asked.pool.nodes(asked.who)]))


@router.post("/nodes/{node}/cordon", status_code=204, responses=failing(403, 404, 422))
async def cordon(node: str, asked: AskedNow, body: CordonRequest | None = None) -> Response:
    """Give a node no new tasks; with ``drain`` those that run there give way, else they stay (admin)."""
    body = body or CordonRequest()
    await asked.pool.cordon(asked.who, NodeId(node), body.reason, drain=body.drain)
    return Response(status_code=204)


@router.post("/nodes/{node}/uncordon", status_code=204, responses=failing(403, 404))
async def uncordon(node: str, asked: AskedNow) -> Response:
    """Give a node tasks again (admin)."""
    await asked.pool.uncordon(asked.who, NodeId(node))
    return Response(status_code=204)


@router.delete("/nodes/{node}", status_code=204, responses=failing(403, 404, 409))
async def remove_node(node: str, asked: AskedNow) -> Response:
    """Forget a lost node without tasks (admin)."""
    await asked.pool.remove_node(asked.who, NodeId(node))
    return Response(status_code=204)


@router.get("/maintenance", response_model=Maintenance)
async def read_maintenance(asked: AskedNow) -> Response:
    """Tell how far a planned outage of the controller is prepared."""
    return answer(Maintenance.of(await asked.pool.maintenance(asked.who)))


@router.post("/maintenance", response_model=Maintenance, responses=failing(403, 422))
async def start_maintenance(asked: AskedNow, body: MaintenanceRequest) -> Response:
    """Grant leases that last over a planned outage (admin). It may begin when no node is missing."""
    return answer(Maintenance.of(await asked.pool.start_maintenance(asked.who, body.duration_s, body.reason)))


@router.delete("/maintenance", response_model=Maintenance, responses=failing(403, 409))
async def stop_maintenance(asked: AskedNow) -> Response:
    """Take the long leases back (admin)."""
    return answer(Maintenance.of(await asked.pool.stop_maintenance(asked.who)))


@router.get("/queue", response_model=QueueLines, responses=failing(422))
async def read_queue(asked: AskedNow, query: Annotated[LimitQuery, Query()]) -> Response:
    """List pending gangs in the order in which they are considered."""
    lines = await asked.pool.queue(asked.who, query.limit)
    return answer(QueueLines(lines=[QueueLine.of(line) for line in lines]))


@router.get("/ledger", response_model=Ledger, responses=failing(422))
async def read_ledger(asked: AskedNow, query: Annotated[LedgerQuery, Query()]) -> Response:
    """Tell who received, owes and was preempted in the last hours; a user sees the own tenant."""
    return answer(Ledger.of(await asked.pool.ledger(asked.who, query.hours)))


@router.post("/plan", response_model=PlanReport, responses=failing(400, 403, 404, 422, 503))
async def plan(asked: AskedNow, body: PlanRequest) -> Response:
    """Tell what changes would do, tried on a copy of the pool. Nothing is changed."""
    jobs = asks_of_json(msgspec.json.encode({"jobs": body.jobs})) if body.jobs else ()
    ask = PlanAsk(
        submit=jobs,
        weights={TenantId(name): weight for name, weight in body.weights.items()},
        drain=tuple(map(NodeId, body.drain)),
        add=tuple(NewNodes(one.count, NodeId(one.like) if one.like is not None else None) for one in body.add),
        horizon_s=body.horizon_s,
    )
    return answer(PlanReport.of(await asked.pool.plan(asked.who, ask)))


@router.post("/stop", response_model=Stopped, responses=failing(403, 409, 422))
async def stop(request: Request, asked: AskedNow, body: StopRequest | None = None) -> Response:
    """Stop the daemon (admin). With live tasks it is refused unless the body says what becomes of them."""
    if asked.who.role is not Role.ADMIN:
        raise Forbidden("only an admin may stop the pool")
    on_stop = request.app.state.on_stop
    if on_stop is None:
        raise Conflict("this pool is stopped by whoever started it")
    tasks = body.tasks if body else "refuse"
    running = asked.pool.status().running_gangs
    if tasks == "refuse" and running:
        words = "1 job runs" if running == 1 else f"{running} jobs and array elements run"
        raise JobsRunning(words, hint='say {"tasks": "stop"} or {"tasks": "leave"}')
    left = await asked.pool.prepare_stop(asked.who, stop_tasks=tasks == "stop")
    response = answer(Stopped(tasks_left=left))
    response.background = BackgroundTask(on_stop)
    return response
