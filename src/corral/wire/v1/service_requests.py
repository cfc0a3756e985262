"""A service as clients ask for it. Read by :mod:`corral.wire.service`; these classes document the schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from corral.model.service import Balance, Guard, Retry
from corral.wire.fields import TEXT_BYTES_MAX
from corral.wire.service import REPLICA_FIELDS
from corral.wire.service_fields import REPLICAS_MAX
from corral.wire.v1.base import Question
from corral.wire.v1.requests import JobRequest, Quantity, Scalar

Replicas = Annotated[int, Field(ge=1, le=REPLICAS_MAX)]


class ReplicaRange(Question):
    """From how many replicas to how many."""

    min: int = Field(ge=0, le=REPLICAS_MAX)
    max: Replicas


class ProbeFields(Question):
    """A question that is asked again and again; with neither http nor command whether one can connect."""

    http: str | None = Field(default=None, description="a path: 200 to 399 is good", examples=["/health"])
    tcp: bool | None = None
    command: Annotated[str, Field(max_length=TEXT_BYTES_MAX)] | list[Scalar] | None = Field(
        default=None, description="exit code 0 is good"
    )
    period: Quantity | None = Field(default=None, examples=["5s"])
    timeout: Quantity | None = None
    failures: int | None = Field(default=None, ge=1, description="bad answers in a row that turn it to bad")
    successes: int | None = Field(default=None, ge=1, description="good answers in a row that turn it back")


ProbeSaid = str | ProbeFields


class ScalingFields(Question):
    """How the number of replicas follows the load."""

    target_outstanding: float | str | None = Field(default=None, description="requests at a time for each replica")
    target_requests_s: float | str | None = Field(default=None, description="requests a second for each replica")
    down_after: Quantity | None = Field(default=None, description="so long with less load gives replicas back")
    idle: Quantity | None = Field(default=None, description="of replicas 0-N: the last one goes after so long")
    cold_start: Quantity | None = Field(default=None, description="how long a request may wait for the first one")
    cold_requests_max: int | None = Field(default=None, ge=0, description="how many may wait so")


class RolloutFields(Question):
    """How one revision follows another."""

    surge: int | None = Field(default=None, ge=0, description="replicas more than wanted")
    max_unavailable: int | None = Field(default=None, ge=0, description="ready replicas fewer than wanted")
    ready_within: Quantity | None = Field(default=None, description="undone when none is ready by then")
    errors_max: float | str | None = Field(default=None, description="undone when more fail", examples=["5%"])
    requests_min: int | None = Field(default=None, ge=1, description="fewer requests tell nothing")
    watch: Quantity | None = Field(default=None, description="how long a whole revision is watched")


class TrafficFields(Question):
    """How requests reach the replicas."""

    balance: Balance | None = None
    hash_header: str | None = Field(default=None, description="what a consistent hash looks at")
    imbalance_max: int | None = Field(default=None, ge=0, description="affinity to a prefix ends there")
    connect: Quantity | None = None
    response: Quantity | None = Field(default=None, description="to the headers of the answer")
    idle: Quantity | None = Field(default=None, description="a silence within a stream")
    queue: Quantity | None = Field(default=None, description="the wait for a replica that takes fewer at a time")
    outstanding_max: int | None = Field(default=None, ge=1, description="requests at a time for each replica")
    retry: Retry | None = None
    hedge_after: Quantity | None = Field(default=None, description="a GET is sent to a second replica then")
    body_max: Quantity | None = Field(default=None, examples=["10MiB"])
    stream: bool | None = Field(default=None, description="answers come piece by piece")
    guard: Guard | None = Field(default=None, description="how a replica knows front ends")
    listen: int | None = Field(default=None, ge=1, le=65_535, description="a port of its own on every front end")
    hosts: str | list[str] | None = Field(default=None, description="names by which it is called, too")
    keys: bool | None = Field(default=None, description="whether callers show an API key")
    requests_s_max: float | str | None = Field(default=None, description="of one tenant")
    drain: Quantity | None = Field(default=None, description="how long requests under way may take at the end")


class ServiceFields(Question):
    """The fields of a service file. What is left out gets its default."""

    kind: Literal["service"] = "service"
    name: str | None = Field(default=None, max_length=63, description="that of the address")
    tenant: str | None = Field(default=None, max_length=128, description="the token's tenant; an admin may name any")
    model: str | None = Field(default=None, max_length=128, description="the name by which OpenAI's API calls it")
    port: int | None = Field(default=None, ge=1, le=65_535, description="when the program does not take PORT")
    replicas: Replicas | str | ReplicaRange | None = Field(default=None, examples=[3, "2-8"])
    startup: ProbeSaid | None = None
    startup_within: Quantity | None = Field(default=None, examples=["30m"])
    readiness: ProbeSaid | None = Field(default=None, examples=["/health"])
    liveness: ProbeSaid | None = None
    scaling: ScalingFields | None = None
    rollout: RolloutFields | None = None
    traffic: TrafficFields | None = None


_OF_REPLICAS: dict[str, Any] = {
    name: (field.annotation, field)
    for name, field in JobRequest.model_fields.items()
    if name in (*REPLICA_FIELDS, "files", "user")
}
ServiceRequest = create_model(
    "ServiceRequest",
    __base__=ServiceFields,
    __doc__="A service: the fields of a service file, those of its replicas' job among them.",
    **_OF_REPLICAS,
)


class SetServiceRequest(Question):
    """A service as it shall be."""

    service: ServiceRequest
    canary_percent: int | None = Field(
        default=None, ge=1, le=99, description="hold the new revision at this part of the replicas"
    )
