"""Services: what is offered under a name, its revisions, and the replicas that carry it.

A replica is a job of one gang (ADR 16): it is placed, moved and accounted for as every other job. A service holds the
number of replicas that its load and its limits ask for, and moves from one revision to the next.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from corral.model.ask import JobAsk
from corral.model.ids import JobId, ServiceName, TenantId
from corral.model.serving import Guard, Probe, ProbeKind, Probes, ServingTask

__all__ = [
    "Balance",
    "Guard",
    "Probe",
    "ProbeKind",
    "Probes",
    "Renewal",
    "Replica",
    "ReplicaPhase",
    "Retry",
    "Revision",
    "Rollout",
    "Scaling",
    "Secrets",
    "Service",
    "ServiceSpec",
    "ServingTask",
    "Traffic",
]

REVISIONS_MAX = 10
"""So many revisions are kept to go back to."""

CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)

STEADY_S = 60.0
"""A replica that served so long and then ended by itself begins a new series of failures."""


class Balance(StrEnum):
    """How requests are spread over the replicas of a service."""

    ROUND_ROBIN = "round-robin"
    WEIGHTED = "weighted"
    """Round robin, by the speed of the devices that the replicas run on."""
    LEAST_OUTSTANDING = "least-outstanding"
    POWER_OF_TWO = "power-of-two"
    """The less loaded of two that are drawn (Mitzenmacher, IEEE TPDS 12(10), 2001)."""
    CONSISTENT_HASH = "consistent-hash"
    PREFIX_AFFINITY = "prefix-affinity"
    """Prompts that begin alike go to the same replica, while it is not much more loaded than the others."""


class Retry(StrEnum):
    """Which requests are sent to another replica when one fails."""

    NEVER = "never"
    IDEMPOTENT = "idempotent"
    """GET, HEAD, OPTIONS, PUT, DELETE (RFC 9110, 9.2.2), and what bears an ``Idempotency-Key``."""
    BEFORE_FIRST_TOKEN = "before_first_token"  # noqa: S105 - a rule, not a secret
    """Every request, until the first byte of its answer's body was passed on."""


class Scaling(msgspec.Struct, frozen=True):
    """How many replicas there are. With neither target it is ``replicas_min`` until somebody says another number.

    ``target_outstanding`` are requests under way or waiting, ``target_requests_s`` requests a second, both for each
    replica. After ``down_after_s`` with less load replicas are given back; with ``replicas_min`` 0 the last one goes
    after ``idle_s`` without a request, and a request that comes then waits for it, ``cold_start_s`` at most and with at
    most ``cold_requests_max`` others.
    """

    replicas_min: int = 1
    replicas_max: int = 1
    target_outstanding: float | None = None
    target_requests_s: float | None = None
    down_after_s: float = 60.0
    idle_s: float = 300.0
    cold_start_s: float = 120.0
    cold_requests_max: int = 100

    @property
    def automatic(self) -> bool:
        """Return whether load decides."""
        return self.target_outstanding is not None or self.target_requests_s is not None or self.replicas_min == 0


class Renewal(msgspec.Struct, frozen=True):
    """How one revision follows another.

    At most ``surge`` replicas more than wanted, and ``max_unavailable`` fewer ready ones. A revision none of whose
    replicas is ready in ``ready_within_s``, or of whose requests (``requests_min`` at least) more than
    ``errors_max_share`` fail, is undone.
    """

    surge: int = 1
    max_unavailable: int = 0
    ready_within_s: float = 600.0
    errors_max_share: float = 0.05
    requests_min: int = 20
    watch_s: float = 10.0


class Traffic(msgspec.Struct, frozen=True):
    """How requests reach the replicas.

    ``hash_header`` names what a consistent hash looks at (without the header: the client's address). Affinity to a
    prefix gives way when a replica has more than ``imbalance_max`` requests more than the least loaded one.
    ``response_s`` limits the time to the answer's headers, ``idle_s`` a silence within a stream, ``queue_s`` the wait
    for a replica that takes fewer at a time (``outstanding_max``). With ``hedge_after_s`` a GET that has no answer by
    then is sent to a second replica. ``listen`` is a port of its own on every front end, ``hosts`` are names by which
    it is called. ``keys`` says that a caller must show an API key. ``stream`` says that answers come piece by piece.
    """

    balance: Balance = Balance.LEAST_OUTSTANDING
    hash_header: str | None = None
    imbalance_max: int = 8
    connect_s: float = 1.0
    response_s: float = 60.0
    idle_s: float = 300.0
    queue_s: float = 30.0
    outstanding_max: int | None = None
    retry: Retry = Retry.IDEMPOTENT
    hedge_after_s: float | None = None
    body_max_bytes: int = 10 * 1024 * 1024
    stream: bool = False
    guard: Guard = Guard.TOKEN
    listen: int | None = None
    hosts: tuple[str, ...] = ()
    keys: bool = True
    requests_s_max: float | None = None
    drain_s: float = 300.0


class Secrets(msgspec.Struct, frozen=True):
    """What front ends and replicas of a service know each other by. PEM texts: a key and its certificate.

    They are in the journal, as nothing else that is secret is; histories that are shown leave them out.
    """

    token: str
    authority_pem: str = ""
    replica_pem: str = ""
    front_end_pem: str = ""

    def for_replica(self) -> Secrets:
        """Return what a replica needs: of the authority only the certificate."""
        return Secrets(self.token, certificates_of(self.authority_pem), self.replica_pem)

    def for_front_end(self) -> Secrets:
        """Return what a front end needs: of the authority only the certificate."""
        return Secrets(self.token, certificates_of(self.authority_pem), front_end_pem=self.front_end_pem)


def certificates_of(pem: str) -> str:
    """Return the certificates of a PEM text without its keys (RFC 7468)."""
    return "".join(found.group(0) + "\n" for found in CERTIFICATE.finditer(pem))


class ServiceSpec(msgspec.Struct, frozen=True):
    """One revision of a service. ``replica`` is what each replica asks for as a job.

    ``model`` is the name by which OpenAI's API calls it. ``port`` is fixed by the program (then there is one replica on
    a machine at most), ``None`` when it takes the one in ``PORT``.
    """

    name: ServiceName
    tenant: TenantId
    replica: JobAsk
    model: str | None = None
    port: int | None = None
    probes: Probes = Probes()
    scaling: Scaling = Scaling()
    renewal: Renewal = Renewal()
    traffic: Traffic = Traffic()


class Revision(msgspec.Struct, frozen=True):
    """A spec with its number, counted from 1."""

    number: int
    spec: ServiceSpec
    at: float
    by: str


class ReplicaPhase(StrEnum):
    """How far a replica is."""

    STARTING = "starting"
    SERVING = "serving"
    """It was ready. Whether it answers now is what front ends see."""
    DRAINING = "draining"
    """It gets no new requests, and ends when those under way are done."""


class Replica(msgspec.Struct, frozen=True):
    """A live job that carries a service. ``incarnation`` is the one that was ready, 0 before."""

    job: JobId
    revision: int
    ordinal: int
    phase: ReplicaPhase = ReplicaPhase.STARTING
    incarnation: int = 0
    since: float = 0.0


class Rollout(msgspec.Struct, frozen=True):
    """The way from the stable revision to another. ``canary_percent`` holds it at that part of the replicas."""

    revision: int
    began_at: float
    by: str
    canary_percent: int | None = None
    began_to_serve_at: float | None = None


class Service(msgspec.Struct):
    """A service in the controller's memory; changed only by ``service_transitions``.

    ``stable`` is the number of the revision to go back to. ``wanted`` are the replicas that load or people ask for.
    ``failures`` counts replicas in a row that ended by themselves soon after they began, the newest at ``failed_at``.
    """

    name: ServiceName
    tenant: TenantId
    revisions: tuple[Revision, ...]
    stable: int
    wanted: int
    created_at: float
    secrets: Secrets
    rollout: Rollout | None = None
    replicas: dict[JobId, Replica] = {}
    next_ordinal: int = 1
    failures: int = 0
    failed_at: float | None = None
    failed_revision: int = 0
    message: str = ""
    removed_by: str | None = None

    def spec(self, number: int) -> ServiceSpec:
        """Return a revision that is kept. Raises ``KeyError``."""
        for revision in self.revisions:
            if revision.number == number:
                return revision.spec
        raise KeyError(number)

    @property
    def newest(self) -> Revision:
        """Return the revision that was made last."""
        return self.revisions[-1]

    @property
    def current(self) -> ServiceSpec:
        """Return the spec by which it is scaled and routed: that of the stable revision."""
        return self.spec(self.stable)
