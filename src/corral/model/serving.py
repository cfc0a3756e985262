"""What makes a job a replica of a service: where it listens, how it is probed, how it knows its callers."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from corral.model.ids import NodeId, ServiceName


class Guard(StrEnum):
    """How a replica tells a front end from anybody else who reaches its port."""

    TOKEN = "token"  # noqa: S105 - a way, not a secret
    """Front ends send a secret in a header; the program compares it."""
    MTLS = "mtls"
    """The program serves TLS and asks for a certificate, with the files that it is given."""
    NONE = "none"


class ProbeKind(StrEnum):
    """What a probe does."""

    HTTP = "http"
    """GET of a path: 200 to 399 is good."""
    TCP = "tcp"
    COMMAND = "command"
    """A command in the environment of the replica: exit code 0 is good."""


class Probe(msgspec.Struct, frozen=True):
    """A question that is asked of a replica again and again by the agent of its node.

    ``failures`` bad answers in a row turn it from good to bad, ``successes`` good ones back.
    """

    kind: ProbeKind = ProbeKind.TCP
    path: str = "/"
    argv: tuple[str, ...] = ()
    period_s: float = 1.0
    timeout_s: float = 1.0
    failures: int = 3
    successes: int = 1


class Probes(msgspec.Struct, frozen=True):
    """What is asked of a replica. Readiness and liveness count only once ``startup`` was good.

    Without ``startup`` the first good answer to ``readiness`` stands for it. A replica that does not start up
    ``startup_within_s`` after its process began has failed, and so has one whose ``liveness`` is bad. One whose
    ``readiness`` is bad gets no requests.
    """

    startup: Probe | None = None
    readiness: Probe = Probe()
    liveness: Probe | None = None
    startup_within_s: float = 600.0


class ServingTask(msgspec.Struct, frozen=True):
    """What makes a job a replica. ``port`` is ``None`` where the program takes the one in ``PORT``.

    On the nodes in ``avoid`` replicas before it failed, newest last: it tries others first.
    """

    service: ServiceName
    revision: int
    ordinal: int
    port: int | None
    probes: Probes
    guard: Guard
    drain_s: float
    avoid: tuple[NodeId, ...] = ()
