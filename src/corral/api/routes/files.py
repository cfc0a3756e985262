"""Files that travel: blobs by their hash in packs, what nodes give back, and logs that come back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Request, Response

from corral.api.asked import Asked, BearerToken, answer, failing
from corral.model.errors import FilesDamaged, InvalidField, NotFound
from corral.model.ids import NodeId, TaskKey
from corral.model.tenant import Role
from corral.ports.files import Files, Return
from corral.wire.logpack import logs_of_pack
from corral.wire.trees import pack, unpack
from corral.wire.v1.files import BlobsRequest, FileTerms, LogEnds, Missing, ReturnRequest

router = APIRouter(tags=["files"])
BINARY = "application/octet-stream"
_PACK = {BINARY: {"schema": {"type": "string", "format": "binary"}}}
_PACK_BODY = {"requestBody": {"required": True, "content": _PACK}}


def _files(request: Request) -> Files:
    files: Files | None = request.app.state.files
    if files is None:
        raise NotFound("this pool keeps no files", hint="its tasks run where the files are")
    return files


FilesNow = Annotated[Files, Depends(_files)]
Anybody = Annotated[Asked, Depends(BearerToken(Role.USER, Role.ADMIN, Role.NODE))]
Node = Annotated[Asked, Depends(BearerToken(Role.ADMIN, Role.NODE))]


@router.get("/files/terms", response_model=FileTerms, responses=failing(404))
async def read_terms(asked: Anybody, files: FilesNow) -> Response:
    """Read whether files travel to the nodes, how large they may be, and which paths all nodes see anyway."""
    return answer(FileTerms.of(files.terms(asked.who)))


@router.post("/files/missing", response_model=Missing, responses=failing(404, 413, 415, 422))
async def find_missing(asked: Anybody, files: FilesNow, body: Annotated[BlobsRequest, Body()]) -> Response:
    """Learn which blobs have to be sent. The others are kept for a while, until a job names them."""
    return answer(Missing(missing=await files.missing(asked.who, body.blobs)))


@router.post("/files/blobs", status_code=204, responses=failing(400, 404, 413, 415, 422), openapi_extra=_PACK_BODY)
async def put_blobs(request: Request, asked: Anybody, files: FilesNow) -> Response:
    """Send blobs as a pack: each of at most 4 MiB, behind its length in 4 bytes (big-endian); 8 MiB in all."""
    await files.put(asked.who, _blobs_of(await request.body()))
    return Response(status_code=204)


@router.post(
    "/files/fetch",
    response_class=Response,
    responses={
        200: {"description": "A pack; the length FFFFFFFF stands for a blob that is not there.", "content": _PACK},
        **failing(404, 413, 415, 422),
    },
)
async def get_blobs(asked: Anybody, files: FilesNow, body: Annotated[BlobsRequest, Body()]) -> Response:
    """Get blobs, in the order asked for: as many as fit into a pack, at least one. Ask again for the others."""
    return Response(pack(await files.get(asked.who, body.blobs)), media_type=BINARY)


@router.post("/files/returned", status_code=204, responses=failing(403, 404, 409, 422))
async def give_back(asked: Node, files: FilesNow, body: Annotated[ReturnRequest, Body()]) -> Response:
    """Give back what a running task made or saved (nodes). Those of an older start are refused with `STALE`."""
    what = Return(NodeId(body.node), _task(body.task), body.incarnation, body.what, body.tree)
    await files.give_back(asked.who, what)
    return Response(status_code=204)


@router.post(
    "/files/logs",
    response_model=LogEnds,
    responses=failing(400, 403, 404, 413, 415, 422),
    openapi_extra=_PACK_BODY,
)
async def add_logs(request: Request, asked: Node, files: FilesNow) -> Response:
    """Bring pieces of logs (nodes): a pack of which the first blob describes the others."""
    node, pieces = logs_of_pack(await request.body())
    return answer(LogEnds(ends=await files.add_logs(asked.who, node, pieces)))


def _blobs_of(data: bytes) -> list[bytes]:
    try:
        blobs = unpack(data)
    except FilesDamaged as error:
        raise InvalidField(str(error), field="body") from None
    found = [blob for blob in blobs if blob is not None]
    if len(found) < len(blobs):
        raise InvalidField("a blob that is sent must be there", field="body")
    return found


def _task(text: str) -> TaskKey:
    try:
        return TaskKey.parse(text)
    except ValueError:
        raise InvalidField("must be JOB.GANG.RANK", field="task") from None
