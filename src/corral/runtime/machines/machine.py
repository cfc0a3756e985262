"""What a machine says of itself to a head: which one it is, what it runs, where it is reached."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import platform
import secrets
import socket
import struct
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import urlsplit

import corral
from corral.model.errors import DependencyMissing, InvalidField
from corral.ports.membership import Versions
from corral.runtime.paths import StatePaths
from corral.runtime.wholefile import write_whole

ANYWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): a datagram socket connected to it shows the way and sends nothing."""

SIOCGIFADDR = 0x8915
"""The request for the address of a network interface (netdevice(7))."""


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
    """Return the address from which this machine reaches another.

    Where there is no way it is the machine's only one, and loopback where it has none or several.
    """
    family = socket.AF_INET6 if ":" in towards[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(towards)
        except OSError:
            found = addresses()
            return found[0] if len(found) == 1 else "127.0.0.1"
        return str(probe.getsockname()[0])


def address_towards(url: str) -> str:
    """Return the address from which this machine reaches the head at a URL."""
    parts = urlsplit(url)
    return own_address((parts.hostname or "", parts.port or 0))


def addresses() -> tuple[str, ...]:
    """Return the first IPv4 address of each network interface of this machine, loopback left out."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return tuple(address for address in dict.fromkeys(found) if not address.startswith("127."))


def is_own_address(address: str) -> bool:
    """Return whether a name or an address is one of this machine: whether it can listen there."""
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, place in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as trial:
                trial.bind(place)
                return True
    return False


def check_own_address(address: str) -> None:
    """Raise ``InvalidField`` for an address at which others cannot reach this machine, for it is not its own."""
    if not is_own_address(address) or _all_of(address, lambda found: found.is_unspecified):
        raise InvalidField(f"{address} is no address of this machine", field="--address", hint=_those_it_has())


def check_seen_from(url: str, address: str) -> None:
    """Raise ``InvalidField`` for an address at which this machine alone reaches itself, when the head is another."""
    host = urlsplit(url).hostname or ""
    if is_loopback(address) and not is_loopback(host):
        raise InvalidField(
            f"at {address} only this machine reaches itself, and the head is at {host}",
            field="--address",
            hint=_those_it_has(),
        )


def is_loopback(place: str) -> bool:
    """Return whether a name or an address is nobody else's."""
    return _all_of(place, lambda found: found.is_loopback)


def _all_of(place: str, holds: Callable[[ipaddress.IPv4Address | ipaddress.IPv6Address], bool]) -> bool:
    try:
        found = socket.getaddrinfo(place, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(holds(ipaddress.ip_address(str(one[4][0]).partition("%")[0])) for one in found)


def _those_it_has() -> str:
    found = ", ".join(addresses())
    return f"it has {found}" if found else "`ip address` shows those that it has"
