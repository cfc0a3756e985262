"""Counters that rise for ever, from processes whose counters begin anew. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from corral.model.ids import ServiceName
from corral.model.routes import BackendLoad, Route, RouteLoad
from corral.serving.haproxy.observed import Key, Row

NOTHING = Row(up=False, outstanding=0, requests=0, errors=0, retries=0)


class Ledger:
    """Adds up what all processes of a proxy counted, those that are gone included."""

    def __init__(self) -> None:
        self._gone: dict[Key, Row] = {}
        self._last: dict[int, dict[Key, Row]] = {}
        self._worker: int | None = None

    def note(self, worker: int, seen: Mapping[int, Mapping[Key, Row]]) -> None:
        """Take in what the live processes tell; ``worker`` is the one that accepts."""
        for process in [known for known in self._last if known not in seen]:
            for key, row in self._last.pop(process).items():
                self._gone[key] = _sum(self._gone.get(key, NOTHING), msgspec.structs.replace(row, outstanding=0))
        self._last = {process: dict(rows) for process, rows in seen.items()}
        self._worker = worker

    def forget(self, services: Mapping[ServiceName, object]) -> None:
        """Forget the services that are not among these."""
        for key in [key for key in self._gone if key[0] not in services]:
            del self._gone[key]

    def row(self, key: Key) -> Row:
        """Return the sum for a server, or a service (see :data:`Key`); up is what the accepting process says."""
        total = self._gone.get(key, NOTHING)
        for rows in self._last.values():
            total = _sum(total, rows.get(key, NOTHING))
        now = self._last.get(self._worker, {}).get(key) if self._worker is not None else None
        return msgspec.structs.replace(total, up=now is not None and now.up)

    def load(self, route: Route, ejected: frozenset[str]) -> RouteLoad:
        """Return what is seen of a service and its backends."""
        whole = self.row((route.service, ""))
        backends = []
        for backend in route.backends:
            row = self.row((route.service, backend.name))
            backends.append(
                BackendLoad(
                    backend.name,
                    up=row.up,
                    ejected=backend.name in ejected,
                    outstanding=row.outstanding,
                    requests=row.requests,
                    errors=row.errors,
                    retries=row.retries,
                    drained=backend.draining and row.outstanding == 0,
                )
            )
        return RouteLoad(
            route.service,
            requests=whole.requests,
            errors=whole.errors,
            retries=whole.retries,
            outstanding=whole.outstanding,
            backends=tuple(backends),
        )


def _sum(one: Row, other: Row) -> Row:
    return Row(
        one.up or other.up,
        one.outstanding + other.outstanding,
        one.requests + other.requests,
        one.errors + other.errors,
        one.retries + other.retries,
    )
