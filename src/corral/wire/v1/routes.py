"""What front ends are told and tell: routing tables out, load back. Holds secrets."""

from __future__ import annotations

from typing import Annotated

import msgspec
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from corral.model import routes as model
from corral.wire.v1.base import Answer, Question
from corral.wire.v1.services import Scaling, Traffic

Count = Annotated[int, Field(ge=0, le=2**53)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Said = Annotated[str, StringConstraints(max_length=1_024)]
Latency = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LISTED_MAX = 100_000


class Backend(Answer):
    """A replica that was ready."""

    name: str = Field(description="its name in the proxy")
    job: str
    incarnation: int
    revision: int
    address: str
    port: int
    draining: bool
    weight: int = Field(description="1..256, for weighted balancing")


class Secrets(Answer):
    """What front ends and replicas of a service know each other by. PEM texts hold a key and its certificate."""

    token: str
    authority_pem: str
    replica_pem: str
    front_end_pem: str


class Route(Answer):
    """A service as a front end sees it."""

    service: str
    tenant: str
    traffic: Traffic
    scaling: Scaling
    secrets: Secrets
    backends: list[Backend]
    model: str | None
    shares: dict[int, int] = Field(description="percents of requests by revision, during a canary")
    reason: str = Field(description="why there is no replica")
    health_path: str | None
    health_timeout_s: float = Field(description="how long a replica may take for its answer to a check")


class RoutingTable(Answer):
    """All routes."""

    epoch: int = Field(description="of the leader; a table of an older one is refused")
    digest: str = Field(description="names the content")
    routes: list[Route]
    keys: dict[str, str] = Field(description="the tenant of each API key's SHA-256, in hex")


class RoutesQuery(Question):
    """Which table is known already, and how long to wait for another one."""

    after: str | None = Field(default=None, max_length=128, description="its digest")
    timeout_s: float = Field(default=20.0, ge=0, le=60, allow_inf_nan=False)


class Report(BaseModel):
    """Base of what front ends tell. Fields that only a newer one knows are left out: it must be heard all the same."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class BackendSeen(Report):
    """A backend as one front end sees it."""

    name: Name
    up: bool
    ejected: bool = False
    outstanding: Count = 0
    requests: Count = 0
    errors: Count = 0
    retries: Count = 0
    drained: bool = False


class RouteSeen(Report):
    """A service as one front end sees it."""

    service: Name
    requests: Count = 0
    errors: Count = 0
    retries: Count = 0
    ejections: Count = 0
    outstanding: Count = 0
    waiting: Count = Field(default=0, description="requests for which there is no replica yet")
    latency_p50_s: Latency | None = None
    latency_p99_s: Latency | None = None
    backends: list[BackendSeen] = Field(default=[], max_length=LISTED_MAX)


class ReportRequest(Report):
    """What a front end sees: once a second, and at once when a request waits for a replica."""

    name: Name = Field(description="of the front end")
    address: Said = Field(description="where it serves, a URL")
    epoch: int = Field(ge=0, description="of the table that it serves by")
    digest: Said
    loads: list[RouteSeen] = Field(default=[], max_length=LISTED_MAX)
    holds: list[Name] = Field(default=[], max_length=1_000, description="the virtual addresses that it has now")
    problem: Said = ""
    version: Said = ""

    def to_model(self) -> model.FrontEndReport:
        """Return the report of the model."""
        return msgspec.convert(self.model_dump(), model.FrontEndReport)
