"""Services for people, and what front ends are told and tell."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from corral.api.asked import Asked, AskedNow, BearerToken, answer, body_of, failing
from corral.model.errors import NotFound
from corral.model.ids import ServiceName
from corral.model.tenant import Role
from corral.ports.services import Services as ServicesPort
from corral.wire.service import spec_of_json
from corral.wire.v1.routes import ReportRequest, RoutesQuery, RoutingTable
from corral.wire.v1.service_requests import SetServiceRequest
from corral.wire.v1.services import (
    DrillAnswer,
    DrillRequest,
    FrontEnds,
    FrontEndStatus,
    ScaleRequest,
    ServiceReport,
    Services,
    UndoRequest,
    WidenRequest,
)

router = APIRouter(tags=["services"])


def _services(request: Request) -> ServicesPort:
    services: ServicesPort | None = request.app.state.services
    if services is None:
        raise NotFound("this pool has no services")
    return services


ServicesNow = Annotated[ServicesPort, Depends(_services)]
FrontEnd = Annotated[Asked, Depends(BearerToken(Role.FRONT, Role.ADMIN))]


@router.get("/services", response_model=Services)
async def list_services(asked: AskedNow, services: ServicesNow) -> Response:
    """List the services of one's tenant (admin: all), by name."""
    return answer(Services(services=[ServiceReport.of(one) for one in await services.services(asked.who)]))


@router.get("/services/{name}", response_model=ServiceReport, responses=failing(404))
async def read_service(name: str, asked: AskedNow, services: ServicesNow) -> Response:
    """Read a service with its revisions and replicas."""
    return answer(ServiceReport.of(await services.service(asked.who, ServiceName(name))))


@router.put(
    "/services/{name}",
    response_model=ServiceReport,
    responses=failing(400, 403, 404, 409, 413, 415, 422, 429),
    openapi_extra=body_of(SetServiceRequest),
)
async def set_service(name: str, request: Request, asked: AskedNow, services: ServicesNow) -> Response:
    """Make a service, or begin to bring its next revision out. The same service again changes nothing."""
    spec, canary_percent = spec_of_json(await request.body(), name)
    return answer(ServiceReport.of(await services.set_service(asked.who, spec, canary_percent)))


@router.delete("/services/{name}", status_code=204, responses=failing(404, 409))
async def remove_service(name: str, asked: AskedNow, services: ServicesNow) -> Response:
    """End a service: its replicas get no new requests and end when those under way are done."""
    await services.remove_service(asked.who, ServiceName(name))
    return Response(status_code=204)


@router.post("/services/{name}/scale", response_model=ServiceReport, responses=failing(404, 409, 422))
async def scale(name: str, asked: AskedNow, services: ServicesNow, body: ScaleRequest) -> Response:
    """Ask for a number of replicas. Load goes on to decide from there."""
    return answer(ServiceReport.of(await services.scale(asked.who, ServiceName(name), body.replicas)))


@router.post("/services/{name}/rollout/widen", response_model=ServiceReport, responses=failing(404, 409, 422))
async def widen_rollout(
    name: str, asked: AskedNow, services: ServicesNow, body: WidenRequest | None = None
) -> Response:
    """Let a rollout have more of the replicas, or all."""
    percent = body.canary_percent if body is not None else None
    return answer(ServiceReport.of(await services.widen(asked.who, ServiceName(name), percent)))


@router.post("/services/{name}/rollout/undo", response_model=ServiceReport, responses=failing(404, 409, 422))
async def undo_rollout(name: str, asked: AskedNow, services: ServicesNow, body: UndoRequest | None = None) -> Response:
    """Give a rollout up, or bring an older revision out again."""
    revision = body.revision if body is not None else None
    return answer(ServiceReport.of(await services.undo(asked.who, ServiceName(name), revision)))


@router.post("/services/{name}/drill", response_model=DrillAnswer, responses=failing(403, 404, 409, 422))
async def drill(name: str, asked: AskedNow, services: ServicesNow, body: DrillRequest) -> Response:
    """Break something on purpose, to see that nobody notices (admin)."""
    return answer(DrillAnswer(hit=await services.drill(asked.who, ServiceName(name), body.what, body.target)))


# ---- front ends ------------------------------------------------------------------------------------------------------


@router.get("/frontends", response_model=FrontEnds)
async def list_front_ends(asked: AskedNow, services: ServicesNow) -> Response:
    """List the front ends that report to this controller."""
    return answer(FrontEnds(front_ends=[FrontEndStatus.of(one) for one in await services.front_ends(asked.who)]))


@router.post("/frontends", status_code=204, responses=failing(403, 422))
async def report_front_end(asked: FrontEnd, services: ServicesNow, body: ReportRequest) -> Response:
    """Tell what a front end sees (front ends): once a second, and at once when a request waits for a replica."""
    await services.report(asked.who, body.to_model())
    return Response(status_code=204)


@router.get("/routes", response_model=RoutingTable, responses=failing(403, 422))
async def read_routes(asked: FrontEnd, services: ServicesNow, query: Annotated[RoutesQuery, Query()]) -> Response:
    """Read the routing table (front ends): when it is not the one that is known, or after ``timeout_s``."""
    table = await asked.stopping.unless(services.table(asked.who, query.after, query.timeout_s))
    return answer(RoutingTable.of(table))
