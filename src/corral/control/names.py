"""By what services are called: no two by the same name, host, model or port, whosever they are."""

from __future__ import annotations

from collections.abc import Iterable

from corral.control.submission import refuse
from corral.model.errors import DuplicateName, Refusal
from corral.model.service import Service, ServiceSpec


def names_taken(spec: ServiceSpec, others: Iterable[Service]) -> Refusal | None:
    """Return what a revision would be called by that means another service already, of any revision of it.

    Whoever may call a service by another one's name would get its requests.
    """
    for other in others:
        for revision in other.revisions:
            refusal = _clash(spec, revision.spec)
            if refusal is not None:
                return refusal
    return None


def _clash(spec: ServiceSpec, other: ServiceSpec) -> Refusal | None:
    if spec.model is not None and spec.model == other.model:
        return refuse(DuplicateName, f"another service serves model {spec.model!r}", field="model")
    listen = spec.traffic.listen
    if listen is not None and listen == other.traffic.listen:
        return refuse(DuplicateName, f"another service listens on port {listen}", field="listen")
    for host in spec.traffic.hosts:
        if host in other.traffic.hosts or _means(host, other):
            return refuse(DuplicateName, f"{host!r} means another service", field="hosts")
    if any(_means(host, spec) for host in other.traffic.hosts):
        words = f"a host of another service begins with {spec.name!r}"
        return refuse(DuplicateName, words, field="name")
    return None


def _means(host: str, spec: ServiceSpec) -> bool:
    """Return whether a host is a service's name, alone or with a domain behind it."""
    return host.lower().split(".")[0] == spec.name.lower()
