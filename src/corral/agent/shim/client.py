"""Talking to the fork server, and starting one. For agents and supervisors, not for the shim."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

from corral.agent.forkserver import light_command
from corral.model.errors import EngineFault

_RECEIVE_BYTES = 1 << 16


class LaunchReply(NamedTuple):
    """The answer to a launch: ``pid`` of the shim, or the ``code`` and ``message`` of a refusal.

    The codes are those of ``corral.agent.forkserver``; after ``already-forked`` the task directory says the rest.
    """

    pid: int | None
    code: str = ""
    message: str = ""


class ForkClient:
    """A connection to a fork server. Each call waits for its answer: a launch takes about a millisecond.

    Every method raises ``EngineFault`` when the server does not answer, or not as it should.
    """

    def __init__(self, path: Path, *, timeout_s: float = 10.0) -> None:
        self._path = path
        self._received = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise self._fault(error.strerror or str(error)) from error

    def launch(self, directory: Path) -> LaunchReply:
        """Fork the shim of a task directory that holds its ``spec.json``."""
        answer = self.ask({"op": "launch", "dir": str(directory)})
        if answer["ok"]:
            return LaunchReply(int(answer["pid"]))
        return LaunchReply(None, str(answer["code"]), str(answer["message"]))

    def ping(self) -> int:
        """Return the pid of the server."""
        return int(self.ask({"op": "ping"})["pid"])

    def stop(self) -> None:
        """Let the server end; its shims go on."""
        self.ask({"op": "stop"})

    def ask(self, request: dict[str, object]) -> dict[str, Any]:
        """Send one request and return its answer."""
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            while b"\n" not in self._received:
                data = self._socket.recv(_RECEIVE_BYTES)
                if not data:
                    raise self._fault("it closed the connection")
                self._received += data
            line, _, self._received = self._received.partition(b"\n")
            answer = json.loads(line)
        except (OSError, ValueError) as error:
            raise self._fault(str(error)) from error
        if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
            raise self._fault("its answer is not understood")
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fault(self, why: str) -> EngineFault:
        return EngineFault(f"the fork server at {self._path} cannot be used: {why}")


def start(path: Path, *, log: Path | None = None, timeout_s: float = 10.0) -> subprocess.Popen[bytes]:
    """Start a fork server in a session of its own and return it when it answers.

    Args:
        path: Its socket, of at most 107 bytes.
        log: A file for what it has to say; nowhere without.
        timeout_s: How long it may take. Raises ``EngineFault`` after that, or when it ends instead.
    """
    with open(log or os.devnull, "ab") as said:  # noqa: PTH123 -- os.devnull is no Path
        command, environment = light_command(str(path.absolute()))
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with ForkClient(path, timeout_s=timeout_s) as client:
                if client.ping() == process.pid:
                    return process
        except EngineFault:
            if time.monotonic() >= deadline:
                process.kill()
                process.wait()
                raise
        if process.poll() is not None:
            raise EngineFault(f"the fork server at {path} ended with exit code {process.returncode}")
        time.sleep(0.005)
