"""What the front end and its relay say to each other: one JSON document a line, each question with its answer."""

from __future__ import annotations

import msgspec

from corral.model.ids import ServiceName
from corral.model.routes import RouteLoad, RoutingTable

LINE_MAX = 64 * 1024 * 1024


class Question(msgspec.Struct, frozen=True, tag_field="ask"):
    """Base of what the front end says."""


class Apply(Question, frozen=True, tag="apply"):
    """Serve by this table; ``anew``: who was ejected for another front end is not for this one."""

    table: RoutingTable
    anew: bool = False


class Eject(Question, frozen=True, tag="eject"):
    """Give a replica no requests, or requests again."""

    service: ServiceName
    backend: str
    on: bool


class Retries(Question, frozen=True, tag="retries"):
    """Send nothing a second time, or do again."""

    service: ServiceName
    on: bool


class Look(Question, frozen=True, tag="look"):
    """Tell what is seen of these services."""

    services: tuple[ServiceName, ...]


class Seen(msgspec.Struct, frozen=True):
    """The answer to every question. ``cpu_s`` is the process's CPU time, ``chunks`` the pieces that it passed on."""

    loads: tuple[RouteLoad, ...] = ()
    cpu_s: float = 0.0
    chunks: int = 0
    requests: int = 0
    broken: int = 0
    pid: int = 0
    version: str = ""
    error: str = ""


Questions = Apply | Eject | Retries | Look
question_decoder: msgspec.json.Decoder[Questions] = msgspec.json.Decoder(Questions)
seen_decoder: msgspec.json.Decoder[Seen] = msgspec.json.Decoder(Seen)
