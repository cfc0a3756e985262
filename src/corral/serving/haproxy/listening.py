"""Whether a port can be had. HAProxy shares its ports with other programs that ask for it, so it would not notice."""

from __future__ import annotations

import errno
import socket

from corral.model.errors import InvalidField


def taken(address: str, port: int) -> bool:
    """Return whether another program listens there. Raises ``InvalidField`` for an address that is not this machine's.

    What this process tries for a moment is let go before it returns.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, port))
            trial.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return True
            raise InvalidField(f"cannot listen on {address}:{port}: {error.strerror or error}") from None
    return False
