"""A pool with services whose front end, replicas and controller can be broken from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from bench.pool import Pool
from bench.serving_load import Target
from corral.model.service_report import ReplicaReport, ServiceReport

T = TypeVar("T")
LIMIT_S = 120.0


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def until(look: Callable[[], T], what: str, limit_s: float = LIMIT_S, every_s: float = 0.02) -> T:
    """Return the first true answer. Raises ``TimeoutError``."""
    deadline = time.monotonic() + limit_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s:g} s for {what}")
        time.sleep(every_s)


class ServingPool(Pool):
    """Nodes of a simulated pool whose head serves on ports of its own."""

    def __init__(self, nodes: int = 4) -> None:
        super().__init__(nodes=nodes)
        self.port, self.metrics_port = free_port(), free_port()
        self.environment |= {
            "CORRAL_SERVE_PORT": str(self.port),
            "CORRAL_SERVE_METRICS_PORT": str(self.metrics_port),
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        }

    def serve(
        self,
        name: str,
        replicas: int,
        *,
        run: list[str] | None = None,
        envs: dict[str, str] | None = None,
        traffic: dict[str, Any] | None = None,
        **fields: Any,
    ) -> ServiceReport:
        """Bring a service of the benchmark's replica out, and return when all that it has are ready."""
        with self.client() as client:
            client.serve(
                name=name,
                run=run or [sys.executable, "-m", "bench.serving_replica"],
                replicas=replicas,
                envs={"PYTHONPATH": self.environment["PYTHONPATH"], **(envs or {})},
                traffic={"keys": False, "guard": "none", **(traffic or {})},
                workdir=None,
                **{"readiness": "/health", **fields},
            )
        return self.ready(name, replicas)

    def remove(self, name: str) -> None:
        """End a service, and return when nothing of it is left."""
        with self.client() as client:
            client.remove_service(name)
            until(lambda: name not in {one.name for one in client.services()}, f"the end of {name}", every_s=0.2)

    def report(self, name: str) -> ServiceReport:
        """Return how a service stands."""
        with self.client() as client:
            return client.service(name)

    def ready(self, name: str, count: int) -> ServiceReport:
        """Return once so many replicas are ready, no rollout is under way, and the front end has them."""

        def look() -> ServiceReport | None:
            report = self.report(name)
            up = sum(one.up for one in report.load.backends) if report.load is not None else 0
            whole = report.rollout is None and len(report.replicas) == count
            return report if whole and report.ready == up == count else None

        found = until(look, f"{count} ready replicas of {name}", every_s=0.2)
        assert found is not None
        return found

    def target(self, name: str) -> Target:
        """Return where the load goes."""
        return Target(self.port, name)

    # ---- breaking it -----------------------------------------------------------------------------------------------

    def process_of(self, replica: ReplicaReport) -> int:
        """Return the process of a replica's program."""
        (file,) = self.state_dir.glob(f"nodes/*/tasks/{replica.job}.0.0.*/shim.json")
        return int(json.loads(file.read_text())["child_pid"])

    def daemon(self) -> int:
        """Return the controller's process."""
        return int(json.loads((self.state_dir / "daemon.json").read_text())["pid"])

    def supervisor(self) -> int:
        """Return the supervisor's process."""
        return int((self.state_dir / "supervisor.pid").read_text())

    def front_end(self) -> int:
        """Return the process of the front end beside the proxy."""
        return int(json.loads((self.state_dir / "front" / "ready.json").read_text())["pid"])

    def gauge(self, name: str, **labels: str) -> float | None:
        """Return a sample of the front end's metrics, ``None`` when there is none."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5.0) as answer:
            text = answer.read().decode()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        for line in text.splitlines():
            if line.startswith(f"{name}{{") and all(one in line for one in wanted):
                return float(line.rpartition(" ")[2])
        return None


def signalled(pid: int, number: signal.Signals) -> float:
    """Send a signal; return when (monotonic seconds)."""
    os.kill(pid, number)
    return time.monotonic()
