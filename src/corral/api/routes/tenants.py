"""Tenants, queues, tokens and usage."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from corral.api.asked import AskedNow, answer, failing, membership_of
from corral.model.errors import InvalidField
from corral.model.ids import QueueName, TenantId
from corral.model.tenant import Role
from corral.wire.v1.requests import UsageQuery
from corral.wire.v1.tenants import (
    IssuedToken,
    NewQueue,
    NewTenant,
    Queue,
    QueueRequest,
    Queues,
    TenantReport,
    TenantReports,
    TenantRequest,
    Token,
    TokenRequest,
    Tokens,
    Usage,
    UsageRow,
    checked_name,
)

router = APIRouter(tags=["tenants"])


@router.get("/tenants", response_model=TenantReports)
async def list_tenants(asked: AskedNow) -> Response:
    """List all tenants (admin) or one's own, with their standing."""
    return answer(TenantReports(tenants=[TenantReport.of(report) for report in await asked.pool.tenants(asked.who)]))


@router.post("/tenants", status_code=204, responses=failing(403, 422))
async def add_tenant(asked: AskedNow, body: NewTenant) -> Response:
    """Add a tenant (admin)."""
    await asked.pool.set_tenant(asked.who, body.to_model(body.id), create=True)
    return Response(status_code=204)


@router.put("/tenants/{tenant}", status_code=204, responses=failing(403, 404, 422))
async def set_tenant(tenant: str, asked: AskedNow, body: TenantRequest) -> Response:
    """Change a tenant: what the body leaves out gets its default (admin)."""
    await asked.pool.set_tenant(asked.who, body.to_model(checked_name(tenant)), create=False)
    return Response(status_code=204)


@router.delete("/tenants/{tenant}", status_code=204, responses=failing(403, 404, 409))
async def remove_tenant(tenant: str, asked: AskedNow) -> Response:
    """Remove a tenant without unfinished jobs (admin)."""
    await asked.pool.remove_tenant(asked.who, TenantId(tenant))
    return Response(status_code=204)


@router.get("/queues", response_model=Queues)
async def list_queues(asked: AskedNow) -> Response:
    """List the queues."""
    return answer(Queues(queues=[Queue.of(queue) for queue in await asked.pool.queues(asked.who)]))


@router.post("/queues", status_code=204, responses=failing(403, 422))
async def add_queue(asked: AskedNow, body: NewQueue) -> Response:
    """Add a queue (admin)."""
    await asked.pool.set_queue(asked.who, body.to_model(body.name), create=True)
    return Response(status_code=204)


@router.put("/queues/{queue}", status_code=204, responses=failing(403, 404, 422))
async def set_queue(queue: str, asked: AskedNow, body: QueueRequest) -> Response:
    """Change a queue: what the body leaves out gets its default (admin)."""
    await asked.pool.set_queue(asked.who, body.to_model(checked_name(queue)), create=False)
    return Response(status_code=204)


@router.delete("/queues/{queue}", status_code=204, responses=failing(403, 404, 409))
async def remove_queue(queue: str, asked: AskedNow) -> Response:
    """Remove an unused queue (admin)."""
    await asked.pool.remove_queue(asked.who, QueueName(queue))
    return Response(status_code=204)


@router.get("/tokens", response_model=Tokens)
async def list_tokens(asked: AskedNow) -> Response:
    """List the tokens of one's tenant (admin: all), without secrets."""
    return answer(Tokens(tokens=[Token.of(token) for token in await asked.pool.tokens(asked.who)]))


@router.post("/tokens", status_code=201, response_model=IssuedToken, responses=failing(403, 404, 409, 422))
async def issue_token(request: Request, asked: AskedNow, body: TokenRequest) -> Response:
    """Make a token (admin). Its secret is shown this once; that of a join token with the fingerprints of the heads."""
    membership = membership_of(request) if body.role is Role.JOIN else None
    token, secret = await asked.pool.issue_token(asked.who, TenantId(body.tenant), body.role, body.label)
    if membership is not None:
        secret = membership.join_token(secret)
    return answer(IssuedToken(token=Token.of(token), secret=secret), 201)


@router.delete("/tokens/{token}", status_code=204, responses=failing(403, 404, 409))
async def revoke_token(token: str, asked: AskedNow) -> Response:
    """Refuse a token from now on (admin)."""
    await asked.pool.revoke_token(asked.who, token)
    return Response(status_code=204)


@router.get("/usage", response_model=Usage, responses=failing(403, 422))
async def read_usage(asked: AskedNow, query: Annotated[UsageQuery, Query()]) -> Response:
    """Tell what tenants used, by hour."""
    if query.until < query.since:
        raise InvalidField("must not be before since", field="until")
    tenant = TenantId(query.tenant) if query.tenant is not None else None
    rows = await asked.pool.usage(asked.who, query.since, query.until, tenant)
    return answer(Usage(rows=[UsageRow.of(row) for row in rows]))
