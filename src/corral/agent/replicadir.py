"""What the directory of a task holds besides when it is a replica of a service.

serving.json    what it is asked, and at which port: also after a restart of the agent
started-up      it has started up
tls/            where its guard is mutual TLS: key, certificate, and the authority of those who may call it
"""

from __future__ import annotations

import os
import re

import msgspec

from corral.agent import processes
from corral.agent.taskdir import write_file
from corral.model.messages import LaunchTask
from corral.model.service import Guard, Secrets, ServingTask, certificates_of

SERVING = "serving.json"
STARTED_UP = "started-up"
TLS = "tls"
TOKEN_NAME = "CORRAL_FRONT_END_TOKEN"  # noqa: S105 - a name, not a secret
_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----\n?", re.DOTALL)


class NotServable(Exception):
    """A replica cannot be launched with what the controller says; the text is for people."""


class ServingFile(msgspec.Struct, frozen=True):
    """``serving.json``."""

    serving: ServingTask
    port: int


def port_of(command: LaunchTask) -> int | None:
    """Return the port on which a replica will listen, ``None`` for what is none. Raises :class:`NotServable`."""
    if command.serving is None or command.task.rank != 0:
        return None
    port = command.serving.port or command.placement.port
    if port is None:
        raise NotServable("no port was leased to the replica")
    return port


def environment(command: LaunchTask, directory: str) -> dict[str, str]:
    """Return what a replica is told: its service, its port, how it knows front ends. Raises :class:`NotServable`."""
    serving, port = command.serving, port_of(command)
    if serving is None or port is None:
        return {}
    env = {
        "PORT": str(port),
        "CORRAL_SERVICE": serving.service,
        "CORRAL_REPLICA": str(serving.ordinal),
        "CORRAL_REVISION": str(serving.revision),
    }
    if serving.guard is Guard.TOKEN:
        env[TOKEN_NAME] = _secrets(command).token
    elif serving.guard is Guard.MTLS:
        env |= {f"CORRAL_TLS_{what.upper()}": f"{directory}/{TLS}/{what}.pem" for what in ("cert", "key", "ca")}
    return env


def lay(command: LaunchTask, directory: str) -> None:
    """Write what a replica's directory holds. Raises ``OSError`` and :class:`NotServable`."""
    serving, port = command.serving, port_of(command)
    if serving is None or port is None:
        return
    if serving.guard is Guard.MTLS:
        secrets = _secrets(command)
        key = _KEY.search(secrets.replica_pem)
        cert, authority = certificates_of(secrets.replica_pem), certificates_of(secrets.authority_pem)
        if key is None or not cert or not authority:
            raise NotServable("the service has no certificate for its replicas")
        os.mkdir(f"{directory}/{TLS}", 0o700)  # noqa: PTH102 - strings all along
        for name, text in (("key", key.group()), ("cert", cert), ("ca", authority)):
            write_file(f"{directory}/{TLS}/{name}.pem", text.encode(), 0o600)
    write_file(f"{directory}/{SERVING}", msgspec.json.encode(ServingFile(serving, port)))


def _secrets(command: LaunchTask) -> Secrets:
    if command.secrets is None:
        raise NotServable("the secrets of the service did not come with the replica")
    return command.secrets


def read(directory: str) -> ServingFile | None:
    """Return ``serving.json``, ``None`` of a task that is no replica. Raises ``msgspec.MsgspecError``."""
    raw = processes.read_small(f"{directory}/{SERVING}")
    return None if raw is None else msgspec.json.decode(raw, type=ServingFile)


def mark_started_up(directory: str) -> None:
    """Remember that a replica has started up. Raises ``OSError``."""
    write_file(f"{directory}/{STARTED_UP}", b"")


def has_started_up(directory: str) -> bool:
    """Return whether a replica has once started up."""
    return os.path.exists(f"{directory}/{STARTED_UP}")  # noqa: PTH110 - strings all along
