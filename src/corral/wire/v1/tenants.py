"""Tenants, queues, tokens and usage, as said and as answered."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from corral.model import tenant as model
from corral.model.errors import CorralError
from corral.model.ids import QueueName, TenantId
from corral.wire.document import Checked, Problems, node_of
from corral.wire.fields import FieldReader
from corral.wire.v1.base import Answer, Question
from corral.wire.v1.resources import Amount

MILLI_MAX = 10**12
PRIORITY_MAX = 1_000_000
NAME_FAULT = "name_fault"


def checked_name(text: str) -> str:
    """Return the name of a tenant or queue, by the rule of the job file; raise ``InvalidField``."""
    problems = Problems(Checked())
    name = FieldReader(problems).name(node_of(text), "name")
    problems.raise_first()
    return name or ""


def _name(text: str) -> str:
    try:
        return checked_name(text)
    except CorralError as error:
        raise PydanticCustomError(NAME_FAULT, "{reason}", {"reason": error.refusal.message}) from None


Name = Annotated[str, AfterValidator(_name)]
Milli = Annotated[int, Field(ge=0, le=MILLI_MAX, strict=True)]


class Quota(Question):
    """Milli-GPUs and milli-CPUs; null is "not set" (no floor, or no limit)."""

    gpu_milli: Milli | None = None
    cpus_milli: Milli | None = None

    def to_model(self) -> model.Quota:
        """Return the quota of the model."""
        return model.Quota(self.gpu_milli, self.cpus_milli)


class TenantRequest(Question):
    """A tenant as it shall be. What is left out gets its default."""

    weight: float = Field(
        default=1.0, gt=0, le=1_000_000, allow_inf_nan=False, description="its part while others wait"
    )
    guaranteed: Quota = Field(default=Quota(), description="served before weights are looked at")
    limit: Quota = Field(default=Quota(), description="a hard cap, also when the pool is idle")
    jobs_max: int | None = Field(default=None, ge=0, le=10_000_000, description="unfinished jobs at most")

    def to_model(self, name: str) -> model.Tenant:
        """Return the tenant of the model."""
        return model.Tenant(
            TenantId(name), self.weight, self.guaranteed.to_model(), self.limit.to_model(), self.jobs_max
        )


class NewTenant(TenantRequest):
    """A tenant to add."""

    id: Name


class QuotaAnswer(Answer):
    """Milli-GPUs and milli-CPUs; null is "not set"."""

    gpu_milli: int | None
    cpus_milli: int | None


class Tenant(Answer):
    """A share holder."""

    id: str
    weight: float
    guaranteed: QuotaAnswer
    limit: QuotaAnswer
    jobs_max: int | None


class TenantReport(Answer):
    """A tenant with its standing; shares are parts of the pool's dominant resource (0..1)."""

    tenant: Tenant
    due_share: float
    held_share: float
    decayed_share: float
    held: Amount
    running: int
    pending: int


class TenantReports(Answer):
    """Tenants."""

    tenants: list[TenantReport]


class QueueRequest(Question):
    """A queue as it shall be."""

    priority: int = Field(default=0, ge=-PRIORITY_MAX, le=PRIORITY_MAX, description="adds to the job's")
    limit: Quota = Field(default=Quota(), description="caps what its jobs hold together")
    paused: bool = Field(default=False, description="its jobs wait")

    def to_model(self, name: str) -> model.Queue:
        """Return the queue of the model."""
        return model.Queue(QueueName(name), self.priority, self.limit.to_model(), self.paused)


class NewQueue(QueueRequest):
    """A queue to add."""

    name: Name


class Queue(Answer):
    """A named waiting line."""

    name: str
    priority: int
    limit: QuotaAnswer
    paused: bool


class Queues(Answer):
    """The queues."""

    queues: list[Queue]


class TokenRequest(Question):
    """A token to make."""

    tenant: Name
    role: model.Role = model.Role.USER
    label: str = Field(default="", max_length=128, description="what it is for")


class Token(Answer):
    """An access token without its secret."""

    id: str
    tenant: str
    role: model.Role
    created_at: float
    label: str


class Tokens(Answer):
    """Tokens."""

    tokens: list[Token]


class IssuedToken(Answer):
    """A new token. The secret is shown this once."""

    token: Token
    secret: str


class UsageRow(Answer):
    """Milli-GPU and milli-CPU seconds that a tenant used in one hour."""

    tenant: str
    hour: int = Field(description="its beginning, seconds since the epoch")
    gpu_milli_s: float
    cpus_milli_s: float
    lost_gpu_milli_s: float


class Usage(Answer):
    """Usage by tenant and hour."""

    rows: list[UsageRow]
