"""Files over HTTP: who may do what, and what is no pack, no blob and no task is refused in one line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.model.files import LogPiece, ReturnKind
from corral.model.ids import JobId, NodeId, TaskKey
from corral.ports.files import Return
from corral.wire.logpack import pack_of_logs
from corral.wire.trees import CHUNK_BYTES, PACK_BYTES_MAX, pack, unpack
from tests.unit.api.conftest import Http
from tests.unit.api.memory_files import MemoryFiles
from tests.unit.api.memory_pool import ALICE, NODE
from tests.unit.api.serving import Served

BINARY = {"Content-Type": "application/octet-stream"}
TASK = TaskKey(JobId("12"), 0, 1)
GIVEN: dict[str, object] = {
    "node": "n1",
    "task": "12.0.1",
    "incarnation": 3,
    "what": "checkpoint",
    "tree": "ab" * 32,
}


@pytest.fixture
def files(server: Served, tmp_path: Path) -> Iterator[MemoryFiles]:
    made = MemoryFiles(tmp_path)
    server.app.state.files = made
    yield made
    server.app.state.files = None


def named(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def test_blobs_go_there_and_back(files: MemoryFiles, http: Callable[..., Http]) -> None:
    alice = http(ALICE)
    blobs = [b"one", b"", bytes(CHUNK_BYTES)]
    names = [named(blob) for blob in blobs]
    assert alice("GET", "/v1/files/terms").json() == {"travel": True, "upload_max_mib": 1, "shared_paths": []}
    assert alice("POST", "/v1/files/missing", json={"blobs": names}).json() == {"missing": sorted(names)}
    assert alice("POST", "/v1/files/blobs", content=pack(blobs), headers=BINARY).status_code == 204
    assert alice("POST", "/v1/files/missing", json={"blobs": names}).json() == {"missing": []}
    reply = http(NODE)("POST", "/v1/files/fetch", json={"blobs": ["ab" * 32, *names]})
    assert unpack(reply.content) == [None, b"one", b""]


def test_nodes_and_only_they_give_back(files: MemoryFiles, http: Callable[..., Http]) -> None:
    logs = pack_of_logs(NodeId("n1"), [LogPiece(TASK, 3, 0, b"hello"), LogPiece(TASK, 3, 5, b"", complete=True)])
    for path, content, kind in (
        ("/v1/files/returned", json.dumps(GIVEN).encode(), {"Content-Type": "application/json"}),
        ("/v1/files/logs", logs, BINARY),
    ):
        assert http(ALICE)("POST", path, content=content, headers=kind).status_code == 403
    assert http(NODE)("POST", "/v1/files/returned", json=GIVEN).status_code == 204
    assert files.returned == [Return(NodeId("n1"), TASK, 3, ReturnKind.CHECKPOINT, "ab" * 32)]
    assert http(NODE)("POST", "/v1/files/logs", content=logs, headers=BINARY).json() == {"ends": [5, 5]}
    files.stale = True
    refused = http(NODE)("POST", "/v1/files/returned", json=GIVEN)
    assert (refused.status_code, refused.json()["code"]) == (409, "STALE")
    assert http(NODE)("POST", "/v1/files/logs", content=logs, headers=BINARY).json() == {"ends": [-1, -1]}
    # Of the rest of the API a node has nothing.
    assert http(NODE)("GET", "/v1/jobs").status_code == 403


def log_of(**said: int) -> bytes:
    """Return a pack with one piece of a log, described as nodes may describe it that mean harm."""
    return pack([json.dumps({"node": "n1", "pieces": [{"task": "12.0.1", **said}]}).encode(), b"x"])


@pytest.mark.parametrize(
    "path,content,status",
    [
        ("blobs", b"\0\0", 422),
        ("blobs", pack([None]), 422),
        ("blobs", pack([b"x"])[:-1], 422),
        ("blobs", b"\0\x40\0\1" + bytes(CHUNK_BYTES + 1), 422),
        ("blobs", bytes(PACK_BYTES_MAX + (1 << 20) + 1), 413),
        ("logs", b"", 422),
        ("logs", pack([b"no json"]), 422),
        ("logs", pack([b'{"node": "n1", "pieces": [{"task": "x", "incarnation": 1, "offset": 0}]}', b"x"]), 422),
        ("logs", pack([b'{"node": "n1", "pieces": []}', b"x"]), 422),
        ("logs", log_of(incarnation=0, offset=0), 422),
        ("logs", log_of(incarnation=1 << 31, offset=0), 422),
        ("logs", log_of(incarnation=1, offset=-1), 422),
        ("logs", log_of(incarnation=1, offset=1 << 70), 422),
    ],
)
def test_what_is_no_pack_is_refused(
    files: MemoryFiles, http: Callable[..., Http], path: str, content: bytes, status: int
) -> None:
    reply = http(NODE)("POST", f"/v1/files/{path}", content=content, headers=BINARY)
    assert reply.status_code == status
    assert "\n" not in reply.json()["message"]
    assert files.sent == 0


@pytest.mark.parametrize(
    "change", [{"task": "12"}, {"task": "a.b.c"}, {"tree": "x"}, {"what": "secrets"}, {"incarnation": 0}, {"more": 1}]
)
def test_what_describes_no_return_is_refused(
    files: MemoryFiles, http: Callable[..., Http], change: dict[str, object]
) -> None:
    assert http(NODE)("POST", "/v1/files/returned", json=GIVEN | change).status_code == 422
    assert files.returned == []


def test_bodies_are_what_they_are_declared_as(files: MemoryFiles, http: Callable[..., Http]) -> None:
    for path, kind in (("blobs", "application/json"), ("missing", "application/octet-stream")):
        reply = http(NODE)("POST", f"/v1/files/{path}", content=b"{}", headers={"Content-Type": kind})
        assert reply.status_code == 415
    for names in ([], ["x"], ["AB" * 32]):
        assert http(NODE)("POST", "/v1/files/missing", json={"blobs": names}).status_code == 422


def test_a_pool_of_one_machine_keeps_no_files(server: Served, http: Callable[..., Http]) -> None:
    server.app.state.files = None
    assert http(ALICE)("GET", "/v1/files/terms").status_code == 404
