"""Services, their revisions, rollouts and replicas. Times are seconds since the epoch, durations seconds."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import BeforeValidator, Field

from corral.model import service as model
from corral.model.ask import JobAsk
from corral.wire.service_fields import REPLICAS_MAX
from corral.wire.v1.base import Answer, Question


class Probe(Answer):
    """A question that is asked of a replica again and again."""

    kind: model.ProbeKind
    path: str = Field(description="of an HTTP probe: 200 to 399 is good")
    argv: list[str] = Field(description="of a command probe: exit code 0 is good")
    period_s: float
    timeout_s: float
    failures: int = Field(description="bad answers in a row that turn it from good to bad")
    successes: int = Field(description="good answers in a row that turn it back")


class Probes(Answer):
    """What is asked of a replica. Readiness and liveness count once startup was good."""

    startup: Probe | None
    readiness: Probe
    liveness: Probe | None
    startup_within_s: float = Field(description="who has not started up by then has failed")


class ServingTask(Answer):
    """What makes a job a replica."""

    service: str
    revision: int
    ordinal: int
    port: int | None = Field(description="null where the program takes the one in PORT")
    probes: Probes
    guard: model.Guard
    drain_s: float
    avoid: list[str] = Field(description="nodes where replicas before it failed, newest last")


class Scaling(Answer):
    """How many replicas there are."""

    replicas_min: int
    replicas_max: int
    target_outstanding: float | None = Field(description="requests under way or waiting, for each replica")
    target_requests_s: float | None = Field(description="requests a second, for each replica")
    down_after_s: float
    idle_s: float = Field(description="with replicas_min 0: the last one goes after so long without a request")
    cold_start_s: float = Field(description="how long a request may wait for the first replica")
    cold_requests_max: int = Field(description="how many may wait so")


class Renewal(Answer):
    """How one revision follows another."""

    surge: int = Field(description="replicas more than wanted")
    max_unavailable: int = Field(description="ready replicas fewer than wanted")
    ready_within_s: float = Field(description="a revision none of whose replicas is ready by then is undone")
    errors_max_share: float = Field(description="a revision of whose requests more fail is undone")
    requests_min: int = Field(description="fewer requests than these tell nothing")
    watch_s: float


class Traffic(Answer):
    """How requests reach the replicas."""

    balance: model.Balance
    hash_header: str | None
    imbalance_max: int
    connect_s: float
    response_s: float = Field(description="to the headers of the answer")
    idle_s: float = Field(description="a silence within a stream")
    queue_s: float
    outstanding_max: int | None = Field(description="requests at a time for each replica")
    retry: model.Retry
    hedge_after_s: float | None
    body_max_bytes: int
    stream: bool
    guard: model.Guard
    listen: int | None
    hosts: list[str]
    keys: bool = Field(description="whether callers show an API key")
    requests_s_max: float | None = Field(description="for each tenant that calls")
    drain_s: float


def _said(value: Any) -> Any:
    """Return what of a job was said."""
    if not isinstance(value, JobAsk):
        return value
    said, defaults = msgspec.to_builtins(value), msgspec.to_builtins(JobAsk())
    return {name: one for name, one in said.items() if one != defaults[name]}


class ServiceSpec(Answer):
    """One revision of a service."""

    name: str
    tenant: str
    replica: Annotated[dict[str, object], BeforeValidator(_said)] = Field(
        description="what each replica asks for as a job; what is left out is not said"
    )
    model: str | None = Field(description="the name by which OpenAI's API calls it")
    port: int | None = Field(description="null where the program takes the one in PORT")
    probes: Probes
    scaling: Scaling
    renewal: Renewal
    traffic: Traffic


class Revision(Answer):
    """A spec with its number, counted from 1."""

    number: int
    spec: ServiceSpec
    at: float
    by: str


class Rollout(Answer):
    """The way from the stable revision to another."""

    revision: int
    began_at: float
    by: str
    canary_percent: int | None = Field(description="the part of the replicas at which it is held")
    began_to_serve_at: float | None


class BackendLoad(Answer):
    """A replica as the front ends see it. Counters rise from their start."""

    name: str
    up: bool
    ejected: bool
    outstanding: int
    requests: int
    errors: int
    retries: int
    drained: bool


class RouteLoad(Answer):
    """A service as the front ends see it together."""

    service: str
    requests: int
    errors: int
    retries: int
    ejections: int
    outstanding: int
    waiting: int = Field(description="requests for which there is no replica yet")
    latency_p50_s: float | None = Field(description="over the last minute")
    latency_p99_s: float | None
    backends: list[BackendLoad]


class ReplicaReport(Answer):
    """A replica: its job, and where it runs."""

    job: str
    ordinal: int
    revision: int
    phase: model.ReplicaPhase
    state: str = Field(description="of its job")
    node: str | None
    address: str = Field(description="HOST:PORT; empty before it has one")
    since: float
    ready: bool | None = Field(description="what its node said last; null: not known")
    load: BackendLoad | None
    message: str


class ServiceReport(Answer):
    """A service as it is now."""

    name: str
    tenant: str
    stable: int = Field(description="the revision to go back to")
    wanted: int = Field(description="replicas that load or people ask for")
    ready: int
    replicas_min: int
    replicas_max: int
    model: str | None
    urls: list[str]
    created_at: float
    replicas: list[ReplicaReport]
    rollout: Rollout | None
    revisions: list[Revision] = Field(description="those that are kept, oldest first")
    load: RouteLoad | None = Field(description="over all front ends; null where none reports")
    message: str
    waits_for: str = Field(description="why it has fewer replicas than wanted")
    removing: bool


class Services(Answer):
    """Services, by name."""

    services: list[ServiceReport]


class FrontEndStatus(Answer):
    """A front end as the controller knows it."""

    name: str
    address: str = Field(description="where it serves")
    heard_s: float = Field(description="seconds since it reported")
    current: bool = Field(description="whether it serves by the newest table")
    holds: list[str] = Field(description="the virtual addresses that it has now")
    problem: str


class FrontEnds(Answer):
    """The front ends that report to this controller."""

    front_ends: list[FrontEndStatus]


class ScaleRequest(Question):
    """A number of replicas. Load goes on to decide from there, between the limits."""

    replicas: int = Field(ge=0, le=REPLICAS_MAX)


class WidenRequest(Question):
    """The part of the replicas that a rollout may have from now on."""

    canary_percent: int | None = Field(default=None, ge=1, le=99, description="null: all")


class UndoRequest(Question):
    """Where to go back to."""

    revision: int | None = Field(default=None, ge=1, description="null: the rollout is given up, else the one before")


class DrillRequest(Question):
    """What to break on purpose."""

    what: str = Field(max_length=32, examples=["replica", "node"])
    target: str | None = Field(default=None, max_length=128, description="which one; any when not given")


class DrillAnswer(Answer):
    """What was hit."""

    hit: str
