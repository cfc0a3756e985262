"""Looks at the pool during a drill: when what was broken got no more requests, and when all was as before."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress

from corral.client import Client
from corral.model.errors import CorralError
from corral.model.service_report import ServiceReport
from corral.runtime.drilling.faults import Fault
from corral.runtime.fronting.frontfile import FrontFile

LOOK_S = 0.05
REPORT_LOOK_S = 0.25
METRICS_S = 2.0
REPORTED_S = 2.0
"""Front ends report each second: by then the controller has heard of the last requests."""


class Watch:
    """Looks at the pool meanwhile, in a thread of its own: when it was ejected, when all was as before."""

    def __init__(
        self, connect: Callable[[], Client], before: ServiceReport, fault: Fault, front: FrontFile | None
    ) -> None:
        self.ejected_at: float | None = None
        self.recovered_at: float | None = None
        self.retries: int | None = None
        self._connect = connect
        self._before = before
        self._back = fault.back
        self._gone = {one.job for one in fault.replicas}
        self._names = {one.load.name for one in fault.replicas if one.load is not None}
        self._metrics = _metrics_of(front) if front is not None and front.metrics_port else ""
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._follow, daemon=True)]
        if self._names:
            self._threads.append(threading.Thread(target=self._see, daemon=True))

    def start(self) -> None:
        """Begin to look."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Look no longer."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        time.sleep(REPORTED_S)
        with suppress(CorralError), self._connect() as client:
            now = client.service(self._before.name).load
            was = self._before.load
            self.retries = max(0, now.retries - was.retries) if now is not None and was is not None else None

    def _see(self) -> None:
        """See when the front end sends nothing any more to what was broken."""
        with self._connect() as client:
            while not self._over.is_set() and self.ejected_at is None:
                with suppress(CorralError, OSError, ValueError):
                    if self._down_by_metrics() if self._metrics else self._down_by_report(client):
                        self.ejected_at = time.monotonic()
                self._over.wait(LOOK_S if self._metrics else REPORT_LOOK_S)

    def _down_by_report(self, client: Client) -> bool:
        load = client.service(self._before.name).load
        return load is not None and not any(one.up for one in load.backends if one.name in self._names)

    def _down_by_metrics(self) -> bool:
        with urllib.request.urlopen(self._metrics, timeout=METRICS_S) as answer:  # noqa: S310 - always http
            text = answer.read().decode()
        up = [line for line in text.splitlines() if line.startswith("corral_service_replica_up{")]
        mine = [line for line in up if f'service="{self._before.name}"' in line]
        return not any(f'replica="{name}"' in line and line.endswith(" 1.0") for line in mine for name in self._names)

    def _follow(self) -> None:
        """See when all is as before."""
        with self._connect() as client:
            while not self._over.is_set() and self.recovered_at is None:
                with suppress(CorralError):
                    if self._back() and self._whole(client.service(self._before.name)):
                        self.recovered_at = time.monotonic()
                self._over.wait(REPORT_LOOK_S)

    def _whole(self, report: ServiceReport) -> bool:
        return report.ready >= self._before.ready and not self._gone & {one.job for one in report.replicas}


def _metrics_of(front: FrontFile) -> str:
    """Return where a front end of this machine tells its metrics."""
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where it listens, not where we do
    host = anywhere.get(front.metrics_host, front.metrics_host)
    return f"http://{f'[{host}]' if ':' in host else host}:{front.metrics_port}/metrics"
