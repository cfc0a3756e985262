"""The smallest service that is complete: it says who it is, tells when it is well, and answers front ends alone."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from corral import guard


class Hello(BaseHTTPRequestHandler):
    """Answers GET."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Say hello to front ends; `/health` is for whoever asks."""
        if self.path == "/health":
            self._answer(200, {"well": True})
        elif not guard.admits(self.headers.get(guard.HEADER)):
            self._answer(403, {"error": "only front ends are answered here"})
        else:
            greeting = os.environ.get("GREETING", "hello")
            self._answer(200, {"says": greeting, "replica": os.environ.get("CORRAL_REPLICA"), "path": self.path})

    def _answer(self, status: int, document: dict[str, object]) -> None:
        body = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve on the port in PORT until SIGTERM, and finish what is under way then."""
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"
    server = ThreadingHTTPServer((address, int(os.environ.get("PORT", "8000"))), Hello)
    server.daemon_threads = False
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"serving at {address}:{server.server_port}", flush=True)
    server.serve_forever()
    server.server_close()


if __name__ == "__main__":
    main()
