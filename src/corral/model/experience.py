"""What the pool has learnt from jobs that ran: how fast a family goes on which devices, and how long jobs take."""

from __future__ import annotations

import msgspec

from corral.model.ids import TenantId


class WorkSpec(msgspec.Struct, frozen=True):
    """What a job says of its work, all of it optional.

    ``total`` is the amount of work of one gang in its own units (steps, images); tasks report how far they are in the
    same units. ``family`` names jobs that go equally fast on equal devices (default: the job's name). ``throughput``
    are the job's own claims in units per second by device model (``"V100"``) or by model and number of devices of the
    whole gang (``"V100:4"``); they are priors that measurement corrects.
    """

    total: float | None = None
    family: str | None = None
    throughput: dict[str, float] = {}


class Rate(msgspec.Struct, frozen=True):
    """A throughput in units per second of a gang with ``devices`` devices of ``model``, believed by ``confidence``."""

    model: str
    devices: int
    units_per_s: float
    confidence: float


class Measurement(msgspec.Struct, frozen=True):
    """A measured throughput: ``units`` done in ``seconds`` by a gang of a family on ``devices`` of ``model``.

    An AppMaster says which ``gang`` and ``incarnation`` it measured and leaves ``model`` and ``devices`` empty: the
    controller knows what that one holds.
    """

    family: str
    model: str
    devices: int
    units: float
    seconds: float
    gang: int = 0
    incarnation: int = 0


class ServiceClass(msgspec.Struct, frozen=True):
    """Whose finished jobs are alike: a tenant's (``None``: all tenants) with a number of devices (``None``: any)."""

    tenant: TenantId | None
    devices: int | None


class ServiceHistory(msgspec.Struct, frozen=True):
    """Run times (s of service, sorted) of finished gangs by class, a bounded sample of the newest of each."""

    durations: dict[ServiceClass, tuple[float, ...]] = {}
