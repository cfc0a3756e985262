"""Telling the agent what happens: one JSON object per datagram, best effort, like sd_notify(3).

A datagram may be lost; what it says is in the task directory. So nothing here fails.
"""

from __future__ import annotations

import json
import socket

# An agent that is busy has this long to take the end of a task.
_PATIENCE_S = 0.2


class Notifier:
    """Sends events about one task to the agent's socket, or nowhere when the specification names none."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._socket: socket.socket | None = None

    def send(self, event: str, content: dict[str, object], *, patient: bool = False) -> bool:
        """Send an event; return whether the socket took it. ``patient``: wait shortly when its queue is full."""
        if self._path is None:
            return False
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_PATIENCE_S if patient else 0)
        try:
            self._socket.sendto(json.dumps({"event": event, **content}).encode(), self._path)
        except OSError:
            return False
        return True
