"""Listening for clients, and uvicorn with our limits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn

from corral.api.protocol import BoundedHttp
from corral.model.errors import InsecureBinding, InvalidField, PortTaken, StateUnusable
from corral.runtime.options import DEFAULT_PORT

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
BACKLOG = 2_048


class Server(uvicorn.Server):
    """Uvicorn without its signal handlers: the daemon has its own."""

    async def ready(self, serving: asyncio.Task[None]) -> None:
        """Return once it accepts requests (or has ended)."""
        while not self.started and not serving.done():  # noqa: ASYNC110 - uvicorn has only this flag
            await asyncio.sleep(0.005)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def make_server(app: Any, tls_cert: str | None, tls_key: str | None) -> Server:
    """Return a server of an application. Raises ``StateUnusable`` when certificate or key cannot be used."""
    config = uvicorn.Config(
        app,
        loop="none",
        http=BoundedHttp,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=75,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise StateUnusable(f"the TLS certificate or key cannot be used: {error}") from None
    return Server(config)


def bind(host: str, port: int | None, *, tls: bool, insecure: bool) -> socket.socket:
    """Return a listening socket. Raises ``InsecureBinding``, ``PortTaken`` or ``InvalidField`` (no such address)."""
    if host not in LOOPBACK and not tls and not insecure:
        raise InsecureBinding(
            f"{host} is not loopback and the API would be readable on the way",
            hint="give --tls-cert and --tls-key, or --insecure on a trusted network",
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = DEFAULT_PORT if port is None else port
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, wanted))
    except OSError as error:
        listener.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise InvalidField(f"cannot listen on {host}: {(error.strerror or '').lower()}", field="--host") from None
        if port is None and wanted:
            return bind(host, 0, tls=tls, insecure=insecure)
        if isinstance(error, PermissionError):
            raise PortTaken(f"port {wanted} needs more rights", hint="use --port with a number above 1023") from None
        raise PortTaken(
            f"cannot listen on {host}:{wanted}: {error.strerror}", hint="use --port, or --port 0 for any free one"
        ) from None
    listener.listen(BACKLOG)
    return listener
