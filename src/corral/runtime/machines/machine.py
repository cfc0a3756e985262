"""What a machine says of itself to a head: which one it is, what it runs, where it is reached."""

from __future__ import annotations

import platform
import secrets
import socket
from importlib.metadata import PackageNotFoundError, version

import corral
from corral.model.errors import DependencyMissing
from corral.ports.membership import Versions
from corral.runtime.paths import StatePaths
from corral.runtime.wholefile import write_whole

ANYWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): a datagram socket connected to it shows the way and sends nothing."""


def machine_id(paths: StatePaths) -> str:
    """Return what tells this machine's state directory apart from all others; made once. Raises ``OSError``."""
    place = paths.root / "machine-id"
    if not place.exists():
        write_whole(place, secrets.token_hex(8).encode(), mode=0o600)
    return place.read_text().strip()


def own_versions() -> Versions:
    """Return the versions of this machine. Raises ``DependencyMissing`` where Ray is not installed."""
    try:
        ray = version("ray")
    except PackageNotFoundError:
        raise DependencyMissing("Ray is not installed", hint="pip install 'corral[ray]'") from None
    return Versions(corral.__version__, platform.python_version(), ray)


def own_address(towards: tuple[str, int] = ANYWHERE) -> str:
    """Return the address from which this machine reaches another; loopback where there is no way."""
    family = socket.AF_INET6 if ":" in towards[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(towards)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
