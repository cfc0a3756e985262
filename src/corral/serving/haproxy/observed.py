"""What a running proxy tells of itself, and what it has to be told. Pure.

Formats: HAProxy 2.8 management guide, 9.1 (``show stat``) and 9.3 (``show servers state``).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from corral.model.errors import ProxyFault
from corral.model.ids import ServiceName
from corral.serving.haproxy.servers import HOLDER, Server

IN_MAINTENANCE = 0x01
"""``SRV_ADMF_FMAINT``: somebody put it there, or it was added and not enabled yet."""


class Present(msgspec.Struct, frozen=True):
    """A server as it is."""

    place: str
    weight: int
    enabled: bool


class Row(msgspec.Struct, frozen=True):
    """A line of statistics: of a server, or of a service as a whole. Counters rise from the start of the process."""

    up: bool
    outstanding: int
    requests: int
    errors: int
    retries: int


Key = tuple[ServiceName, str]
"""A service and one of its servers; the empty name stands for the service as a whole."""


def parse_servers(text: str) -> dict[ServiceName, dict[str, Present]]:
    """Read ``show servers state``: the servers of services. Raises ``ProxyFault``."""
    lines = text.splitlines()
    if len(lines) < 2 or not lines[1].startswith("# "):
        raise ProxyFault("the proxy does not tell its servers")
    names = lines[1][2:].split()
    found: dict[ServiceName, dict[str, Present]] = {}
    for line in lines[2:]:
        row = dict(zip(names, line.split(), strict=False))
        service = _service_of(row["be_name"])
        if service is None or row["srv_name"] == HOLDER:
            continue
        address, port = row["srv_addr"], row["srv_port"]
        place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        enabled = not int(row["srv_admin_state"]) & IN_MAINTENANCE
        found.setdefault(service, {})[row["srv_name"]] = Present(place, int(row["srv_uweight"]), enabled)
    return found


def _service_of(backend: str) -> ServiceName | None:
    return ServiceName(backend[2:]) if backend.startswith("s_") else None


def parse_rows(text: str) -> dict[Key, Row]:
    """Read ``show stat``: services and their servers. Raises ``ProxyFault``."""
    lines = text.splitlines()
    names = lines[0].removeprefix("# ").split(",") if text.startswith("# ") else []
    try:
        at = [names.index(name) for name in _FIELDS]
    except ValueError:
        raise ProxyFault("the proxy does not tell its statistics") from None
    last = max(at) + 1
    found: dict[Key, Row] = {}
    for line in lines[1:]:
        # Text that may hold commas comes behind all that is read here.
        values = line.split(",", last)
        proxy, server, queued, current, total, refused, broken, retried, status, failed = (values[i] for i in at)
        service = _service_of(proxy)
        if service is None:
            continue
        whole = server == "BACKEND"
        # A service has failed a request when its caller saw that; a server also when another one answered then.
        errors = _number(failed) + (0 if whole else _number(refused) + _number(broken))
        outstanding = _number(current) + (0 if whole else _number(queued))
        up = status.startswith(("UP", "no check", "NOLB", "DRAIN"))
        found[service, "" if whole else server] = Row(up, outstanding, _number(total), errors, _number(retried))
    return found


_FIELDS = ("pxname", "svname", "qcur", "scur", "stot", "econ", "eresp", "wretr", "status", "hrsp_5xx")


def _number(text: str) -> int:
    return int(text or 0)


class Change(msgspec.Struct):
    """Commands for a running proxy. ``leaving`` are servers that get nothing any more and go when they are idle."""

    commands: list[str] = []
    leaving: set[Key] = set()


def change_servers(
    desired: Mapping[ServiceName, tuple[Server, ...]], present: Mapping[ServiceName, Mapping[str, Present]]
) -> Change:
    """Return what makes the servers as they should be. Nobody's requests are cut by it.

    A server whose place changed under the same name leaves first, and comes back with the next comparison.
    """
    change = Change([], set())
    for service, servers in desired.items():
        there = present.get(service, {})
        for server in servers:
            name = f"s_{service}/{server.name}"
            known = there.get(server.name)
            if known is None:
                change.commands += [
                    f"add server {name} {server.words}",
                    f"enable health {name}",
                    f"enable server {name}",
                ]
            elif known.place != server.place:
                _leave(change, service, server.name, known)
            else:
                if not known.enabled:
                    change.commands += [f"enable health {name}", f"enable server {name}"]
                if known.weight != server.weight:
                    change.commands.append(f"set server {name} weight {server.weight}")
        wanted = {server.name for server in servers}
        for name, known in there.items():
            if name not in wanted:
                _leave(change, service, name, known)
    return change


def _leave(change: Change, service: ServiceName, name: str, known: Present) -> None:
    change.leaving.add((service, name))
    if known.weight != 0 and known.enabled:
        change.commands.append(f"set server s_{service}/{name} weight 0")


def change_map(path: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the commands that turn one content of a map into another. Keys and values are single words."""
    commands = [f"del map {path} {key}" for key in before if key not in after]
    commands += [f"add map {path} {key} {value}" for key, value in after.items() if key not in before]
    commands += [
        f"set map {path} {key} {value}" for key, value in after.items() if key in before and before[key] != value
    ]
    return commands
