"""Files that travel."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from corral.model.files import ReturnKind
from corral.wire.trees import BLOBS_ASKED_MAX
from corral.wire.v1.base import Answer, Question

BlobName = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class FileTerms(Answer):
    """What a pool allows."""

    travel: bool = Field(description="whether nodes do not see the paths of clients")
    upload_max_mib: int = Field(description="what a job may bring along")
    shared_paths: list[str] = Field(description="what all nodes see anyway")


class BlobsRequest(Question):
    """Blobs by the SHA-256 of their content, in hex."""

    blobs: list[BlobName] = Field(min_length=1, max_length=BLOBS_ASKED_MAX)


class Missing(Answer):
    """The blobs that are not there."""

    missing: list[str]


class ReturnRequest(Question):
    """What a node gives back of a running task; the tree's blobs were sent before."""

    node: str = Field(max_length=128)
    task: str = Field(max_length=64, examples=["12.0.0"], description="JOB.GANG.RANK")
    incarnation: int = Field(ge=1)
    what: ReturnKind
    tree: BlobName


class LogEnds(Answer):
    """How far the log of each piece is kept (the offset after its last byte); -1 where a piece was refused."""

    ends: list[int]
