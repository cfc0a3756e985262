"""What is counted of services, in Prometheus' words; units and suffixes as its naming guide asks for."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from corral.model.routes import RouteLoad
from corral.serving.haproxy.logline import AccessLine

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """Of one front end. Gauges of replicas that are gone are dropped; what was counted of them stays."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...]) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def gauge(name: str, text: str, labels: tuple[str, ...]) -> Gauge:
            return Gauge(name, text, labels, registry=self.registry)

        one, each = ("service",), ("service", "replica")
        self._requests = counter(
            "corral_service_requests", "Requests answered, by replica, tenant and status.", (*each, "tenant", "code")
        )
        self._seconds = Histogram(
            "corral_service_request_duration_seconds",
            "From the arrival of a request to the end of its answer.",
            one,
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._first = Histogram(
            "corral_service_response_start_seconds",
            "From the sending of a request to a replica to the head of its answer.",
            each,
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._bytes = counter("corral_service_response_bytes", "Bytes of answers.", one)
        self._retried = counter("corral_service_retried_requests", "Requests that were sent again.", one)
        self._outstanding = gauge("corral_service_outstanding_requests", "Requests under way.", each)
        self._waiting = gauge("corral_service_waiting_requests", "Requests for which there is no replica yet.", one)
        self._errors = gauge("corral_service_errors", "Failed requests since the proxy's start.", one)
        self._ejections = gauge("corral_service_ejections", "Ejections since the front end's start.", one)
        self._up = gauge("corral_service_replica_up", "1 where a replica's health checks are good.", each)
        self._ejected = gauge("corral_service_replica_ejected", "1 where a replica is ejected for its errors.", each)
        self._replicas: dict[str, set[str]] = {}

    def line(self, line: AccessLine) -> None:
        """Count a request."""
        self._requests.labels(line.service, line.replica, line.tenant, str(line.status)).inc()
        self._seconds.labels(line.service).observe(max(0, line.total_ms) / 1000)
        if line.response_ms >= 0:
            self._first.labels(line.service, line.replica).observe(line.response_ms / 1000)
        self._bytes.labels(line.service).inc(line.bytes_out)
        if line.retried:
            self._retried.labels(line.service).inc()

    def load(self, load: RouteLoad) -> None:
        """Take in how a service stands."""
        name = load.service
        self._waiting.labels(name).set(load.waiting)
        self._errors.labels(name).set(load.errors)
        self._ejections.labels(name).set(load.ejections)
        for backend in load.backends:
            self._outstanding.labels(name, backend.name).set(backend.outstanding)
            self._up.labels(name, backend.name).set(backend.up)
            self._ejected.labels(name, backend.name).set(backend.ejected)
        there = {backend.name for backend in load.backends}
        for gone in self._replicas.get(name, set()) - there:
            for series in (self._outstanding, self._up, self._ejected):
                series.remove(name, gone)
        self._replicas[name] = there

    def forget(self, service: str) -> None:
        """Drop the gauges of a service that is gone."""
        for series in (self._waiting, self._errors, self._ejections):
            series.remove(service)
        for replica in self._replicas.pop(service, set()):
            for series in (self._outstanding, self._up, self._ejected):
                series.remove(service, replica)

    @property
    def known(self) -> frozenset[str]:
        """Return the services that have gauges."""
        return frozenset(self._replicas)

    def text(self) -> bytes:
        """Return all in Prometheus' text format."""
        return generate_latest(self.registry)
