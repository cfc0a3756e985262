"""Who asks, and whom: the one dependency of every route but health."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.requests import HTTPConnection

from corral.api.streams import Stopping
from corral.model.errors import Conflict, Forbidden, Unauthenticated
from corral.model.tenant import Role
from corral.ports.membership import Membership
from corral.ports.pool import Pool, Principal
from corral.wire.v1.base import Answer
from corral.wire.v1.problem import MEDIA_TYPE


class Asked(msgspec.Struct, frozen=True):
    """An authenticated request. ``still`` raises ``Unauthenticated`` once the token is refused."""

    pool: Pool
    who: Principal
    stopping: Stopping
    still: Callable[[], object]


def bearer_secret(authorization: str) -> str:
    """Return the secret of an ``Authorization`` header. Raises ``Unauthenticated`` when there is none in it."""
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Unauthenticated("there is no token", hint="send Authorization: Bearer TOKEN")
    return secret.strip()


class BearerToken(HTTPBearer):
    """Reads ``Authorization: Bearer SECRET`` and asks the pool who that is. Only ``roles`` pass, or people's."""

    def __init__(self, *roles: Role) -> None:
        super().__init__(scheme_name="token", description="an access token of the pool", auto_error=False)
        self._roles = frozenset(roles) or frozenset(role for role in Role if role.of_people)

    async def __call__(self, request: HTTPConnection) -> Asked:  # type: ignore[override]
        """Return who asks. Raises ``Unauthenticated`` and ``Forbidden``."""
        state = request.app.state
        pool: Pool = state.pool
        secret = bearer_secret(request.headers.get("authorization", ""))
        who = pool.authenticate(secret)
        if who.role not in self._roles:
            raise Forbidden(f"a token of role {who.role.value} does not allow this")
        return Asked(pool, who, state.stopping, partial(pool.authenticate, secret))


AskedNow = Annotated[Asked, Depends(BearerToken())]


def answer(dto: Answer, status: int = 200) -> Response:
    """Return an object as JSON, written by pydantic's serializer at once."""
    return Response(dto.json_bytes(), status, media_type="application/json")


def failing(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the problem answers of a route for OpenAPI."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": _MEANING[status], "content": {MEDIA_TYPE: {"schema": schema}}} for status in statuses
    }


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the description of a body that a route reads by itself."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_MEANING = {
    400: "The request cannot be read.",
    401: "There is no token, or one that the pool does not know.",
    403: "The token's tenant or role does not allow this.",
    404: "There is no such thing, or it is another tenant's.",
    409: "The state of the thing does not allow this.",
    413: "The body is larger than 4 MiB.",
    415: "The body is not declared as JSON.",
    422: "A field is wrong; the document names it.",
    429: "The tenant or the pool holds as many unfinished jobs as it may. Try again after Retry-After seconds.",
    500: "The pool made a mistake or its state cannot be used.",
    503: "The pool starts or stops. Try again after Retry-After seconds.",
}


def membership_of(request: Request) -> Membership:
    """Return how machines join the pool. Raises ``Conflict`` where none can."""
    found: Membership | None = request.app.state.membership
    if found is None:
        raise Conflict("this pool is of one machine", hint="`corral head` starts one that others can join")
    return found
