"""Joining, as said and as answered."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from corral.wire.v1.base import Answer, Question

NODE_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$"
NodeName = Annotated[str, StringConstraints(pattern=NODE_NAME)]
Word = Annotated[str, StringConstraints(max_length=64)]
LongWord = Annotated[str, StringConstraints(max_length=256)]


class Versions(Question):
    """Of what has to be the same on all machines."""

    corral: Word
    python: Word
    ray: Word


class JoinRequest(Question):
    """A machine that wants to be a node, or one that is and asks again."""

    node: NodeName = Field(description="its name in the pool")
    machine: Word = Field(description="tells two machines of the same name apart")
    versions: Versions
    clock: float = Field(allow_inf_nan=False, description="its wall clock, seconds since the epoch")
    incarnation: LongWord = Field(default="", description="names this start of the machine")
    address: LongWord = Field(default="", description="where other machines reach it")


class HeadPlace(Answer):
    """A head of the pool."""

    url: str
    certificate: str = Field(description="PEM; empty without TLS")


class Joined(Answer):
    """What a node has to know. Holds secrets."""

    gcs: str = Field(description="HOST:PORT of Ray's GCS; empty while there is none")
    ray_token: str
    heads: list[HeadPlace]
    node_token: str = Field(description="empty when asked with a node's token")
    connected: bool = Field(description="whether the node's agent is heard now")
    clock: float = Field(description="the head's wall clock, seconds since the epoch")


class LeaveRequest(Question):
    """What becomes of the tasks of a node that leaves."""

    drain: bool = Field(default=False, description="have them save themselves, stop them and queue their jobs again")


class Leaving(Answer):
    """What a node that leaves still has."""

    tasks: int = Field(description="jobs and array elements with a task there")
