"""Whether a port can be had. HAProxy shares its ports with other programs that ask for it, so it would not notice."""

from __future__ import annotations

import errno
import socket

from corral.model.errors import InvalidField


def hindrance(address: str, port: int) -> str:
    """Return what hinders from listening there, for people; empty when nothing does.

    What is tried for a moment is let go before it returns. Raises ``InvalidField`` for an address that is not this
    machine's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, port))
            trial.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "is in use by another program"
            if error.errno == errno.EACCES:
                return "is for root only"
            raise InvalidField(f"cannot listen on {address}:{port}: {error.strerror or error}") from None
    return ""
