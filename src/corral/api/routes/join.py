"""Machines become nodes, ask again, and leave."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from corral.api.asked import Asked, BearerToken, answer, failing, membership_of
from corral.model.ids import NodeId
from corral.model.tenant import Role
from corral.ports.membership import JoinAsk, Versions
from corral.wire.v1.join import Joined, JoinRequest, LeaveRequest, Leaving, NodeName

router = APIRouter(tags=["machines"])
Joining = Annotated[Asked, Depends(BearerToken(Role.ADMIN, Role.JOIN, Role.NODE))]
Leaver = Annotated[Asked, Depends(BearerToken(Role.ADMIN, Role.NODE))]


@router.post("/join", response_model=Joined, responses=failing(403, 409, 422))
async def join(request: Request, asked: Joining, body: JoinRequest) -> Response:
    """Let a machine in, or tell a node where everything is now."""
    versions = Versions(body.versions.corral, body.versions.python, body.versions.ray)
    ask = JoinAsk(
        node=NodeId(body.node),
        machine=body.machine,
        versions=versions,
        clock=body.clock,
        incarnation=body.incarnation,
        address=body.address,
    )
    return answer(Joined.of(await membership_of(request).join(asked.who, ask)))


@router.post("/nodes/{node}/leave", response_model=Leaving, responses=failing(403, 404, 409, 422))
async def leave(request: Request, node: NodeName, asked: Leaver, body: LeaveRequest | None = None) -> Response:
    """Give a node that is about to leave nothing new, and tell how many jobs and array elements it still has.

    With ``drain`` they save themselves, are stopped, and go on elsewhere.
    """
    drain = body is not None and body.drain
    return answer(Leaving(tasks=await membership_of(request).leave(asked.who, NodeId(node), drain=drain)))
