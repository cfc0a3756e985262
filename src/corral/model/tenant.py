"""Tenants, queues and access tokens."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from corral.model.ids import QueueName, TenantId


class Quota(msgspec.Struct, frozen=True):
    """Milli-GPUs and milli-CPUs. ``None`` is "not set" (no floor, or no limit)."""

    gpu_milli: int | None = None
    cpus_milli: int | None = None


class Tenant(msgspec.Struct, frozen=True):
    """A share holder.

    ``weight`` is its part of the pool while others compete. ``guaranteed`` is served before weights are looked at;
    what a tenant does not use of it is lent to others. ``limit`` is a hard cap, also when the pool is idle.
    """

    id: TenantId
    weight: float = 1.0
    guaranteed: Quota = Quota()
    limit: Quota = Quota()
    jobs_max: int | None = None


class Queue(msgspec.Struct, frozen=True):
    """A named waiting line: its ``priority`` adds to the job's, ``limit`` caps what its jobs hold together."""

    name: QueueName
    priority: int = 0
    limit: Quota = Quota()
    paused: bool = False


class Role(StrEnum):
    """What a token may do. ``admin`` acts for every tenant and changes the pool.

    ``join`` lets a machine become a node and nothing else; ``node`` is what it gets: it brings files and asks again.
    ``front`` is that of a front end: it reads routes and reports load. ``caller`` is an API key: it calls services.
    """

    USER = "user"
    ADMIN = "admin"
    JOIN = "join"
    NODE = "node"
    FRONT = "front"
    CALLER = "caller"

    @property
    def of_people(self) -> bool:
        """Return whether people and their programs have such tokens (machines have the others)."""
        return self in (Role.USER, Role.ADMIN)


class Token(msgspec.Struct, frozen=True):
    """An access token at rest: only the SHA-256 of the secret (hex) is kept."""

    id: str
    digest: str
    tenant: TenantId
    role: Role
    created_at: float
    label: str = ""
