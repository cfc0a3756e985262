"""Calls about services, of people and of front ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import msgspec

from corral.client.calls import Caller, decoded, segment
from corral.client.submitting import Submitter
from corral.model.errors import UsageError

if TYPE_CHECKING:
    from corral.client.fields import ServiceFields
    from corral.model.ask import JobAsk
    from corral.model.routes import FrontEndReport, RoutingTable
    from corral.model.service import ServiceSpec
    from corral.model.service_report import FrontEndStatus, ServiceReport

ANSWER_MARGIN_S = 10.0


class ServiceCalls:
    """What a client asks about services. It holds nothing: the client does."""

    _caller: Caller
    _submitter: Submitter

    def serve(
        self,
        service: ServiceSpec | None = None,
        /,
        *,
        canary_percent: int | None = None,
        **fields: Unpack[ServiceFields],
    ) -> ServiceReport:
        """Make a service, or begin to bring its next revision out; the same service again changes nothing.

        It is given as a :class:`ServiceSpec` or in keyword arguments as in a service file:
        ``client.serve(name="hello", run="python -m http.server $PORT", replicas="2-8")``. With ``canary_percent`` the
        new revision is held at that part of the replicas. Returns at once: replicas come up meanwhile.
        """
        if service is not None and fields:
            raise UsageError("give a service or keyword arguments, not both")
        if service is None:
            from corral.client.fields import spec_of_keywords

            service = spec_of_keywords(fields)
        spec = service
        return self._submitter.send([spec.replica], lambda asks: self._serve(spec, asks[0], canary_percent))

    def _serve(self, spec: ServiceSpec, replica: JobAsk, canary_percent: int | None) -> ServiceReport:
        from corral.wire.service import document_of_service

        document = document_of_service(msgspec.structs.replace(spec, replica=replica))
        body = msgspec.json.encode({"service": document, "canary_percent": canary_percent})
        return self._service("PUT", f"/services/{segment(spec.name)}", body)

    def _service(self, method: str, path: str, body: bytes | None = None, *, repeatable: bool = True) -> ServiceReport:
        from corral.model.service_report import ServiceReport

        return decoded(self._caller.call(method, path, body=body, repeatable=repeatable).body, ServiceReport)

    def services(self) -> tuple[ServiceReport, ...]:
        """Return the services of one's tenant (admin: all), by name."""
        from corral.model.service_report import ServiceReport

        reply = self._caller.call("GET", "/services")
        return decoded(reply.body, dict[str, tuple[ServiceReport, ...]])["services"]

    def service(self, name: str) -> ServiceReport:
        """Return a service with its revisions and replicas."""
        return self._service("GET", f"/services/{segment(name)}")

    def scale(self, name: str, replicas: int) -> ServiceReport:
        """Ask for a number of replicas; load goes on to decide from there, between the limits."""
        return self._service("POST", f"/services/{segment(name)}/scale", msgspec.json.encode({"replicas": replicas}))

    def widen_rollout(self, name: str, canary_percent: int | None = None) -> ServiceReport:
        """Let a rollout have this part of the replicas from now on, ``None``: all. ``Conflict`` without one."""
        body = msgspec.json.encode({"canary_percent": canary_percent})
        return self._service("POST", f"/services/{segment(name)}/rollout/widen", body)

    def undo_rollout(self, name: str, revision: int | None = None) -> ServiceReport:
        """Give a rollout up; without one bring an older revision out again (``None``: the one before).

        Not repeated when the connection breaks: going back twice is something else.
        """
        body = msgspec.json.encode({"revision": revision})
        return self._service("POST", f"/services/{segment(name)}/rollout/undo", body, repeatable=False)

    def remove_service(self, name: str) -> None:
        """End a service; its replicas finish what they are at."""
        self._caller.call("DELETE", f"/services/{segment(name)}")

    def drill(self, name: str, what: str, target: str | None = None) -> str:
        """Break something of a service on purpose (admin); return what was hit."""
        body = msgspec.json.encode({"what": what, "target": target})
        reply = self._caller.call("POST", f"/services/{segment(name)}/drill", body=body, repeatable=False)
        return decoded(reply.body, dict[str, str])["hit"]

    def front_ends(self) -> tuple[FrontEndStatus, ...]:
        """Return the front ends that report to the controller."""
        from corral.model.service_report import FrontEndStatus

        reply = self._caller.call("GET", "/frontends")
        return decoded(reply.body, dict[str, tuple[FrontEndStatus, ...]])["front_ends"]

    # ---- what front ends ask ---------------------------------------------------------------------------------------

    def routes(self, after: str | None = None, timeout_s: float = 20.0) -> RoutingTable:
        """Return the routing table: at once when its digest is not ``after``, else when it changes (front ends).

        After ``timeout_s`` it is returned as it is.
        """
        from corral.model.routes import RoutingTable

        query = {"after": after, "timeout_s": timeout_s}
        reply = self._caller.call("GET", "/routes", query=query, timeout_s=timeout_s + ANSWER_MARGIN_S, long_poll=True)
        return decoded(reply.body, RoutingTable)

    def report_front_end(self, report: FrontEndReport) -> None:
        """Tell what a front end sees (front ends)."""
        self._caller.call("POST", "/frontends", body=msgspec.json.encode(report))
