"""A replica for tests: a server that the test moves by files in a directory, and the command that launches it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from corral.model.ids import ServiceName
from corral.model.messages import LaunchTask
from corral.model.resources import Placement
from corral.model.service import Guard, Probe, ProbeKind, Probes, Secrets, ServingTask
from tests.unit.agent.words import NODE, key, launch

PROGRAM = """
import http.server, os, pathlib, ssl, sys, time
from corral import guard

home = pathlib.Path(sys.argv[1])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.strip("/")
        while (home / f"hang-{name}").exists():
            time.sleep(0.01)
        good = guard.admits(self.headers.get(guard.HEADER)) and not (home / f"bad-{name}").exists()
        self.send_response(200 if good else 503)
        self.end_headers()
        self.wfile.write(b"body")

    def log_message(self, *_):
        pass

while (home / "loading").exists():
    time.sleep(0.01)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler)
if "CORRAL_TLS_KEY" in os.environ:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.environ["CORRAL_TLS_CERT"], os.environ["CORRAL_TLS_KEY"])
    context.load_verify_locations(os.environ["CORRAL_TLS_CA"])
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


def asks(path: str = "/ready", **changes: Any) -> Probe:
    """Return a quick probe of a path."""
    return replace(Probe(ProbeKind.HTTP, path, period_s=0.1, timeout_s=5.0), **changes)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def replica(home: Path, port: int, *, job: int = 1, guard: Guard = Guard.TOKEN, **changes: Any) -> LaunchTask:
    """Return the launch of a replica with this port and (``changes``) these probes."""
    probes = Probes(**{"readiness": asks(), **changes.pop("probes", {})})
    command: dict[str, Any] = {
        "argv": (sys.executable, "-c", PROGRAM, str(home)),
        "placement": Placement(0, NODE, (), 0, 0, port),
        "serving": ServingTask(ServiceName("chat"), 1, 1, None, probes, guard, 30.0),
        "secrets": Secrets("s3cret"),
        "grace_s": 5.0,
    }
    return launch(key(job), **{**command, **changes})
