"""What the relay knows of services and replicas: who may get a request now, who waits, and what was counted."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Container, Iterable

import msgspec

from corral.model.ids import ServiceName, TenantId
from corral.model.routes import Backend, BackendLoad, Route, RouteLoad, RoutingTable
from corral.policy.serving.balancing import Candidate, PrefixIndex, pick
from corral.policy.serving.budget import RetryBudget
from corral.serving.relay.http import Problem, Request

LATENCIES_MAX = 2_000
LATENCY_WINDOW_S = 60.0
RETRY_AFTER_S = 2
DOWN_AFTER = 2


class Live(msgspec.Struct, eq=False):
    """A replica as the relay sees it now. ``bad`` are failed checks in a row; at ``DOWN_AFTER`` it gets nothing."""

    backend: Backend
    outstanding: int = 0
    bad: int = 0
    ejected: bool = False
    answers: int = 0
    errors: int = 0
    retries: int = 0

    @property
    def up(self) -> bool:
        """Return whether its checks are good."""
        return self.bad < DOWN_AFTER


class Place(msgspec.Struct, eq=False):
    """A service with its replicas. ``changed`` is set, and made anew, when a request that waits should look again."""

    route: Route
    changed: asyncio.Event
    budget: RetryBudget
    prefixes: PrefixIndex
    replicas: dict[str, Live] = {}
    waiting: int = 0
    requests: int = 0
    errors: int = 0
    retries: int = 0
    may_retry: bool = True
    latencies: deque[tuple[float, float]] = msgspec.field(default_factory=deque)

    def look_again(self) -> None:
        """Wake all requests that wait."""
        self.changed.set()
        self.changed = asyncio.Event()


class Board:
    """All services that were told of."""

    def __init__(self) -> None:
        self.places: dict[ServiceName, Place] = {}
        self._models: dict[str, ServiceName] = {}
        self._turns = itertools.count()
        self._draw = random.Random()  # noqa: S311 - spreads load, hides nothing

    def apply(self, table: RoutingTable) -> None:
        """Serve by a table from now on."""
        routes = {route.service: route for route in table.routes}
        for name in [name for name in self.places if name not in routes]:
            self.places.pop(name).look_again()
        for name, route in routes.items():
            place = self.places.get(name)
            if place is None:
                place = self.places[name] = Place(route, asyncio.Event(), RetryBudget(), PrefixIndex(), replicas={})
            place.route = route
            _take(place, route.backends)
            place.look_again()
        self._models = {route.model: route.service for route in table.routes if route.model is not None}

    def of(self, service: str) -> Place | None:
        """Return a service by its name."""
        return self.places.get(ServiceName(service))

    def of_model(self, model: str) -> Place | None:
        """Return the service of a model."""
        service = self._models.get(model)
        return self.places.get(service) if service is not None else None

    def models(self) -> list[tuple[str, TenantId]]:
        """Return the models that services declare, with their tenants."""
        return sorted((model, self.places[name].route.tenant) for model, name in self._models.items())

    # ---- choosing --------------------------------------------------------------------------------------------------

    def choose(self, place: Place, request: Request, tried: Container[str], prompt: str | None = None) -> Live | None:
        """Return who gets a request now, ``None`` when nobody can. Whoever has not failed it yet comes first."""
        traffic = place.route.traffic
        limit = traffic.outstanding_max
        open_ = [
            live
            for live in place.replicas.values()
            if not live.backend.draining
            and live.up
            and not live.ejected
            and (limit is None or live.outstanding < limit)
            and live.backend.name not in tried
        ]
        if not open_:
            return None
        shared = self._share(place.route, open_)
        candidates = [Candidate(one.backend.name, one.outstanding, one.backend.weight) for one in shared]
        if prompt is not None:
            return place.replicas[place.prefixes.choose(prompt, candidates, traffic.imbalance_max).name]
        key = request.header((traffic.hash_header or "x-forwarded-for").lower().encode()).decode("latin-1")
        draws = (self._draw.getrandbits(30), self._draw.getrandbits(30))
        chosen = pick(traffic.balance, candidates, turn=next(self._turns), draws=draws, key=key)
        return place.replicas[chosen.name]

    def _share(self, route: Route, open_: list[Live]) -> list[Live]:
        """Return the replicas of the revision that is drawn during a canary, all of them otherwise."""
        there = {live.backend.revision for live in open_}
        shares = [(revision, share) for revision, share in route.shares.items() if revision in there and share > 0]
        if len(shares) < 2:
            return open_
        revisions, weights = zip(*shares, strict=True)
        (drawn,) = self._draw.choices(revisions, weights)
        return [live for live in open_ if live.backend.revision == drawn]

    def refusal(self, place: Place) -> Problem:
        """Return why nobody can get a request of a service."""
        if not place.replicas:
            why = place.route.reason or "it has no replica yet"
        elif all(live.backend.draining for live in place.replicas.values()):
            why = place.route.reason or "its replicas are being replaced"
        else:
            down = sum(not live.up or live.ejected for live in place.replicas.values())
            why = (
                f"{down} of its {len(place.replicas)} replicas fail" if down else "its replicas have all they can take"
            )
        return Problem(503, "NO_REPLICA", f"service {place.route.service} cannot answer now: {why}", RETRY_AFTER_S)

    # ---- counting --------------------------------------------------------------------------------------------------

    def done(self, place: Place, live: Live, seconds: float, *, good: bool) -> None:
        """Count an answer of a replica."""
        live.answers += 1
        live.errors += not good
        now = time.monotonic()
        place.latencies.append((now, seconds))
        while place.latencies and (
            len(place.latencies) > LATENCIES_MAX or place.latencies[0][0] < now - LATENCY_WINDOW_S
        ):
            place.latencies.popleft()

    def loads(self, services: Iterable[ServiceName]) -> tuple[RouteLoad, ...]:
        """Return what is seen of some services."""
        return tuple(_load(self.places[name]) for name in services if name in self.places)

    def forgive(self) -> None:
        """Let everybody have requests and retries again."""
        for place in self.places.values():
            place.may_retry = True
            for live in place.replicas.values():
                live.ejected = False

    def set_ejected(self, service: ServiceName, backend: str, *, on: bool) -> None:
        """Give a replica no requests, or requests again."""
        place = self.places.get(service)
        live = place.replicas.get(backend) if place is not None else None
        if place is not None and live is not None:
            live.ejected = on
            place.look_again()

    def set_retries(self, service: ServiceName, *, on: bool) -> None:
        """Send nothing a second time, or do again."""
        place = self.places.get(service)
        if place is not None:
            place.may_retry = on


def _take(place: Place, backends: tuple[Backend, ...]) -> None:
    names = {backend.name for backend in backends}
    for name in [name for name in place.replicas if name not in names]:
        del place.replicas[name]
        place.prefixes.forget(name)
    for backend in backends:
        live = place.replicas.get(backend.name)
        if live is None:
            place.replicas[backend.name] = Live(backend)
        else:
            live.backend = backend


def _load(place: Place) -> RouteLoad:
    ordered = sorted(seconds for _, seconds in place.latencies)
    backends = tuple(
        BackendLoad(
            live.backend.name,
            up=live.up,
            ejected=live.ejected,
            outstanding=live.outstanding,
            requests=live.answers,
            errors=live.errors,
            retries=live.retries,
            drained=live.backend.draining and live.outstanding == 0,
        )
        for live in place.replicas.values()
    )
    return RouteLoad(
        place.route.service,
        requests=place.requests,
        errors=place.errors,
        retries=place.retries,
        outstanding=sum(live.outstanding for live in place.replicas.values()),
        waiting=place.waiting,
        latency_p50_s=ordered[len(ordered) // 2] if ordered else None,
        latency_p99_s=ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] if ordered else None,
        backends=backends,
    )
