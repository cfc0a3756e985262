"""The HTTP API as one application: thin routers over the port :class:`corral.ports.pool.Pool`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from corral.api.asked import failing
from corral.api.elsewhere import Elsewhere
from corral.api.guard import Guard
from corral.api.problems import KnownRoutes, install
from corral.api.routes import files, jobs, join, pool, services, streams, tenants
from corral.api.streams import Stopping
from corral.ports.files import Files
from corral.ports.membership import Membership
from corral.ports.pool import Pool
from corral.ports.services import Services
from corral.wire.v1.jobs import JournalEntry
from corral.wire.v1.problem import Problem
from corral.wire.v1.requests import SubmitRequest
from corral.wire.v1.service_requests import SetServiceRequest

PREFIX = "/v1"
DESCRIPTION = """\
Many GPU servers, one pool: submit jobs, follow them, and learn why they wait.

Every request carries `Authorization: Bearer TOKEN`, but for `/v1/health` and this description. Bodies are JSON of at
most 4 MiB, request line and headers at most 64 KiB. Whatever is refused is answered with a problem document
(`application/problem+json`) whose `code` never changes its meaning; `retryable` says whether the same call may succeed
later. Times are seconds since the epoch, devices are counted in milli-GPUs, CPUs in milli-cores, memory in MiB. Fields
are only ever added: ignore those that you do not know.
"""


def create_app(
    pool_: Pool | Elsewhere,
    *,
    version: str,
    on_stop: Callable[[], None] | None = None,
    files_: Files | None = None,
    membership: Membership | None = None,
    services_: Services | None = None,
) -> FastAPI:
    """Return the application. ``on_stop`` is called after ``POST /v1/stop`` was answered (``None``: it is refused).

    Without ``files_`` the pool keeps no files; without ``membership`` no machine can join it; without ``services_`` it
    has no services.

    Whoever serves it calls :func:`begin_stop` in the event loop before the server waits for open connections.
    """
    app = FastAPI(
        title="corral",
        version=version,
        description=DESCRIPTION,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.pool = pool_
    app.state.files = files_
    app.state.on_stop = on_stop
    app.state.membership = membership
    app.state.services = services_
    app.state.stopping = Stopping()
    app.add_middleware(Guard)
    install(app)
    routers = (jobs.router, streams.router, pool.router, tenants.router, services.router, files.router, join.router)
    for router in routers:
        app.include_router(router, prefix=PREFIX, responses=failing(401, 422, 500, 503))
    app.include_router(pool.open_router, prefix=PREFIX)
    app.state.routes = KnownRoutes.of(PREFIX, *routers, pool.open_router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def serve_pool(
    app: FastAPI,
    pool_: Pool | Elsewhere,
    files_: Files | None = None,
    membership: Membership | None = None,
    services_: Services | None = None,
) -> None:
    """Answer from another pool from now on: this controller leads now, or leads no longer. Open streams end."""
    app.state.stopping.begin()
    app.state.pool = pool_
    app.state.files = files_
    app.state.membership = membership
    app.state.services = services_
    app.state.stopping = Stopping()


def begin_stop(app: FastAPI) -> None:
    """End all streams and long waits of ``app`` now; call it in the event loop when the daemon begins to stop."""
    app.state.stopping.begin()


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the description of the API, made once, with the schemas that routes name without FastAPI knowing them."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _, extra = models_json_schema(
            [
                (SubmitRequest, "validation"),
                (SetServiceRequest, "validation"),
                (Problem, "serialization"),
                (JournalEntry, "serialization"),
            ],
            ref_template="#/components/schemas/{model}",
        )
        known = schema["components"]["schemas"] = dict(
            sorted({**extra["$defs"], **schema["components"]["schemas"]}.items())
        )
        for operation in (operation for path in schema["paths"].values() for operation in path.values()):
            for status, response in operation["responses"].items():
                _describe(response, status, known)
        app.openapi_schema = schema
    return app.openapi_schema


def _describe(response: dict[str, Any], status: str, known: dict[str, Any]) -> None:
    """Say of a good answer what its schema says of itself, where FastAPI has only its stock phrase."""
    if response["description"] != "Successful Response":
        return
    reference = response.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "")
    described = known.get(reference.rpartition("/")[2], {}).get("description")
    response["description"] = described or ("Done." if status == "204" else "The answer.")
