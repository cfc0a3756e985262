"""What the pool has learnt from jobs that ran: rates by family, what claims are worth, how long gangs take.

Rates and trust come from observations, which the journal does not hold: they live in the snapshot and are measured
anew when that is lost. The service of finished gangs is folded from facts, so that a replay finds it again.

A family belongs to its tenant. Two tenants may give jobs the same name, and none may slow down another's estimates.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque

import msgspec

from corral.model.experience import Measurement, Rate, ServiceClass, ServiceHistory
from corral.model.ids import TenantId
from corral.model.job import Gang, Job, JobSpec, JobState
from corral.policy.estimation import POINTS_MAX, Point, devices_of, family_of, rate_of, taken

SAMPLES_MAX = 2_000
"""Finished gangs of one class that are remembered, the newest: enough for the tail of a heavy-tailed distribution."""

CLASSES_MAX = 512
"""Classes that are remembered, the last used; each takes up to 80 KB."""

FAMILIES_MAX = 2_000
"""Families that are remembered, the last used; each takes a few hundred bytes for every place that it ran on."""

NEWS = 0.1
"""How far the logarithm of a rate moves until the jobs of the family are asked for new bids: a tenth."""

NAMESAKES_DIFFER = 0.3
"""Standard deviation of ln(rate) between jobs that have only their name in common: about a third. Who wants more to be
concluded from earlier jobs declares a family."""

TRUST_MIN = 0.1
"""The least that a claim is scaled by: who claims more than ten times too much has made a mistake in the unit."""

TRUST_GAIN = 0.2
"""What one measurement of ten minutes moves the audit by: the last handful of runs count."""

TRUST_FULL_S = 600.0


class Family(msgspec.Struct, frozen=True):
    """What was measured of one family."""

    tenant: TenantId
    name: str
    points: tuple[Point, ...]


class Served(msgspec.Struct, frozen=True):
    """Service times (s) of finished gangs of one class, oldest first."""

    tenant: TenantId | None
    devices: int | None
    seconds: tuple[float, ...]


class ExperienceImage(msgspec.Struct, frozen=True):
    """What a snapshot keeps. ``audits`` are the mean ln(measured / claimed) by tenant."""

    families: tuple[Family, ...] = ()
    served: tuple[Served, ...] = ()
    audits: dict[TenantId, float] = {}


class _Sample:
    """The newest service times of one class, in the order in which they came and sorted."""

    __slots__ = ("durations", "newest", "ordered")

    def __init__(self, seconds: tuple[float, ...] = (), size: int = SAMPLES_MAX) -> None:
        self.newest = deque(seconds, size)
        self.ordered = sorted(self.newest)
        self.durations = tuple(self.ordered)

    def add(self, seconds: float) -> None:
        if len(self.newest) == self.newest.maxlen:
            self.ordered.remove(self.newest[0])
        self.newest.append(seconds)
        insort(self.ordered, seconds)
        self.durations = ()

    def sorted(self) -> tuple[float, ...]:
        if not self.durations:
            self.durations = tuple(self.ordered)
        return self.durations


class Experience:
    """Measurements and facts in, rates, trust and history out."""

    def __init__(self, image: ExperienceImage | None = None) -> None:
        image = image or ExperienceImage()
        self._points: dict[tuple[TenantId, str], dict[tuple[str, int], Point]] = {
            (f.tenant, f.name): {(p.model, p.devices): p for p in f.points} for f in image.families
        }
        self._offered: dict[tuple[TenantId, str], dict[tuple[str, int], float]] = {
            name: {place: point.log_rate for place, point in points.items()} for name, points in self._points.items()
        }
        self._served: dict[ServiceClass, _Sample] = {
            ServiceClass(s.tenant, s.devices): _Sample(s.seconds) for s in image.served
        }
        self._audits = dict(image.audits)
        self._history: ServiceHistory | None = None

    def image(self) -> ExperienceImage:
        """Return what a snapshot keeps."""
        return ExperienceImage(
            tuple(Family(tenant, name, tuple(points.values())) for (tenant, name), points in self._points.items()),
            tuple(Served(c.tenant, c.devices, tuple(sample.newest)) for c, sample in self._served.items()),
            dict(self._audits),
        )

    # ---- rates -----------------------------------------------------------------------------------------------------

    def rates(self, spec: JobSpec) -> tuple[Rate, ...]:
        """Return what is known of the throughput of a job's family."""
        points = self._points.get((spec.tenant, family_of(spec)))
        differ = 0.0 if spec.work is not None and spec.work.family is not None else NAMESAKES_DIFFER
        return tuple(rate_of(point, differ) for point in points.values()) if points else ()

    def measured(self, tenant: TenantId, measurement: Measurement) -> bool:
        """Take a measurement in; return whether it changes what the jobs of the family should bid."""
        name = (tenant, measurement.family)
        points = self._points.pop(name, {})
        place = (measurement.model, max(1, measurement.devices))
        point = taken(points.pop(place, None), measurement)
        if point is not None:
            points[place] = point
        while len(points) > POINTS_MAX:
            del points[next(iter(points))]
        if points:
            # The last used go last: the first are forgotten when there are too many.
            self._points[name] = points
        while len(self._points) > FAMILIES_MAX:
            oldest = next(iter(self._points))
            del self._points[oldest]
            self._offered.pop(oldest, None)
        if point is None:
            return False
        offered = self._offered.setdefault(name, {})
        if abs(point.log_rate - offered.get(place, math.inf)) <= NEWS:
            return False
        offered[place] = point.log_rate
        return True

    # ---- trust -----------------------------------------------------------------------------------------------------

    def audit(self, tenant: TenantId, measurement: Measurement, claimed: float) -> None:
        """Compare a claim (units/s) with what was measured where it was made for."""
        if not all(0 < number < math.inf for number in (claimed, measurement.units, measurement.seconds)):
            return
        ratio = math.log(measurement.units) - math.log(measurement.seconds) - math.log(claimed)
        bounded = min(-math.log(TRUST_MIN), max(math.log(TRUST_MIN), ratio))
        before = self._audits.get(tenant, 0.0)
        gain = TRUST_GAIN * min(1.0, measurement.seconds / TRUST_FULL_S)
        self._audits[tenant] = before + gain * (bounded - before)

    def trust(self) -> dict[TenantId, float]:
        """Return what the claims of each audited tenant are worth (``TRUST_MIN``..1).

        Never more than 1: who claims too little has nothing to gain from it later.
        """
        return {tenant: min(1.0, math.exp(audit)) for tenant, audit in self._audits.items()}

    # ---- service ---------------------------------------------------------------------------------------------------

    def ended(self, job: Job, gang: Gang, at: float) -> None:
        """Note how long a gang ran that came to its end at ``at``.

        One that failed counts as one that succeeded: either gave its devices back by itself, and whoever shares them
        waits for that. A cancelled one does not: nobody knows how long it would have gone on.
        """
        if gang.state not in (JobState.SUCCEEDED, JobState.FAILED):
            return
        seconds = gang.attained_s + last_run_s(gang, at)
        if seconds <= 0:
            return
        self._note(job.spec.tenant, devices_of(gang.bid.shape if gang.bid is not None else job.spec.shape), seconds)

    def _note(self, tenant: TenantId, devices: int, seconds: float) -> None:
        for name in (ServiceClass(tenant, devices), ServiceClass(None, devices), ServiceClass(None, None)):
            sample = self._served.pop(name, None) or _Sample()
            sample.add(seconds)
            self._served[name] = sample
        while len(self._served) > CLASSES_MAX:
            del self._served[next(iter(self._served))]
        self._history = None

    def history(self) -> ServiceHistory:
        """Return the service times of finished gangs by class."""
        if self._history is None:
            self._history = ServiceHistory({name: sample.sorted() for name, sample in self._served.items()})
        return self._history

    def forget(self, tenant: TenantId) -> None:
        """Drop what is known of a tenant that was removed."""
        self._audits.pop(tenant, None)
        for name in [name for name in self._points if name[0] == tenant]:
            del self._points[name]
            self._offered.pop(name, None)
        for service in [service for service in self._served if service.tenant == tenant]:
            del self._served[service]
        self._history = None


def last_run_s(gang: Gang, at: float) -> float:
    """Return the service of a gang's last run: from the start of its last rank to the end of its last one."""
    starts = [task.started_at for task in gang.tasks if task.started_at is not None]
    if len(starts) < len(gang.tasks):
        return 0.0
    ends = [task.ended_at for task in gang.tasks if task.ended_at is not None]
    return max(0.0, min(at, max(ends, default=at)) - max(starts))
