"""What front ends tell of services. Observed and never journaled: after a restart it is unknown until told again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from corral.model.ids import ServiceName
from corral.model.routes import FrontEndReport, RouteLoad
from corral.model.service_report import FrontEndStatus
from corral.policy.serving.loads import merged
from corral.policy.serving.renewal import Answers
from corral.policy.serving.scaling import Load

SILENT_S = 5.0
"""A front end tells once a second: what it told longer ago is no load any more."""

FORGOTTEN_S = 60.0
"""A front end that was silent for so long serves nobody, or by a table that this controller cannot change."""

NEWS_S = 10.0
"""So long after its beginning a controller waits for front ends that reported to the one before it."""

UNLISTED_S = 2.0
"""A front end that does not list a backend so long after it was told to drain it has none of its requests."""

MEAN_S = 3.0
"""Requests under way are averaged over so long: a moment says little."""

RATE_S = 10.0
"""Requests a second are counted over so long."""


class FrontEnd(msgspec.Struct):
    """A front end: its newest report, when that came, and when its first one did."""

    report: FrontEndReport
    heard_at: float
    began_at: float


class Course(msgspec.Struct):
    """The load of one service lately: (time, under way) and (time, requests that came since the one before)."""

    under_way: deque[tuple[float, int]]
    came: deque[tuple[float, int]]
    asked_at: float
    since: float


class Traffic:
    """All front ends. ``began_at`` is when this controller began to listen."""

    def __init__(self) -> None:
        self.front_ends: dict[str, FrontEnd] = {}
        self.began_at: float | None = None
        self._courses: dict[ServiceName, Course] = {}

    def hear(self, now: float, report: FrontEndReport) -> None:
        """Take in a report."""
        known = self.front_ends.get(report.name)
        before = {load.service: load for load in known.report.loads} if known is not None else {}
        began = known.began_at if known is not None else now
        self.front_ends[report.name] = FrontEnd(report, now, began)
        for load in report.loads:
            self._note(now, load, before.get(load.service))

    def tick(self, now: float, services: Iterable[ServiceName]) -> None:
        """Forget who has been silent for long, and services that are gone."""
        if self.began_at is None:
            self.began_at = now
        for name in [name for name, one in self.front_ends.items() if now - one.heard_at > FORGOTTEN_S]:
            del self.front_ends[name]
        for gone in self._courses.keys() - set(services):
            del self._courses[gone]

    def _note(self, now: float, load: RouteLoad, before: RouteLoad | None) -> None:
        course = self._courses.get(load.service)
        if course is None:
            course = self._courses[load.service] = Course(deque(), deque(), now, now)
        came = load.requests
        if before is not None:
            # A counter that fell begins anew with its front end. The first report counts from an unknown time on.
            came = load.requests - before.requests if load.requests >= before.requests else load.requests
        else:
            came = 0
        if came or load.outstanding or load.waiting:
            course.asked_at = now
        course.came.append((now, came))
        while course.came[0][0] < now - RATE_S:
            course.came.popleft()
        course.under_way.append((now, sum(one.outstanding for one in self._loads(load.service, now))))
        while course.under_way[0][0] < now - MEAN_S:
            course.under_way.popleft()

    def _loads(self, service: ServiceName, now: float) -> list[RouteLoad]:
        return [
            load
            for one in self.front_ends.values()
            if now - one.heard_at <= SILENT_S
            for load in one.report.loads
            if load.service == service
        ]

    def load(self, service: ServiceName, now: float) -> Load | None:
        """Return the load of a service, ``None`` while no front end tells of it."""
        loads, course = self._loads(service, now), self._courses.get(service)
        if not loads or course is None:
            return None
        counts = [count for _, count in course.under_way]
        span_s = min(RATE_S, max(1.0, now - course.since))
        return Load(
            outstanding=sum(counts) / len(counts) if counts else 0.0,
            waiting=sum(load.waiting for load in loads),
            requests_s=sum(count for _, count in course.came) / span_s,
            idle_s=now - course.asked_at,
        )

    def merged(self, service: ServiceName, now: float) -> RouteLoad | None:
        """Return what all front ends see of a service together, for people."""
        found = merged(self._loads(service, now))
        return found[0] if found else None

    def answers(self, service: ServiceName, backends: set[str], now: float) -> Answers:
        """Return how some backends of a service have answered at all front ends."""
        told = [one for load in self._loads(service, now) for one in load.backends if one.name in backends]
        return Answers(sum(one.requests for one in told), sum(one.errors for one in told))

    def drained(self, service: ServiceName, backend: str, since: float, now: float) -> bool:
        """Return whether no front end has a request under way at a backend that drains ``since`` then."""
        if not self.front_ends:
            return self.began_at is not None and now - self.began_at >= NEWS_S
        return all(_drained(one, service, backend, since) for one in self.front_ends.values())

    def statuses(self, now: float, digest: str | None) -> tuple[FrontEndStatus, ...]:
        """Return the front ends for people; ``digest`` is that of the newest table."""
        return tuple(
            FrontEndStatus(
                name=name,
                address=one.report.address,
                heard_s=now - one.heard_at,
                current=one.report.digest == digest,
                holds=one.report.holds,
                problem=one.report.problem,
            )
            for name, one in sorted(self.front_ends.items())
        )


def _drained(one: FrontEnd, service: ServiceName, backend: str, since: float) -> bool:
    if one.heard_at <= since:
        return False
    for load in one.report.loads:
        if load.service != service:
            continue
        for told in load.backends:
            if told.name == backend:
                return told.drained
    return one.heard_at >= since + UNLISTED_S
