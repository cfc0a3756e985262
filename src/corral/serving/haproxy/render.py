"""From a routing table to the files of the proxy. Pure: nothing is written, resolved or asked here.

What changes all the time (servers, their weights, keys, reasons) can be told to a running proxy; ``digest`` names all
the rest, and only when that changes another process has to take over.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import msgspec

from corral.model.errors import InvalidField
from corral.model.ids import ServiceName
from corral.model.routes import GUARD_HEADER, REPLICA_HEADER, SERVICE_HEADER, TENANT_HEADER, Route, RoutingTable
from corral.model.service import Balance, Guard, Retry
from corral.serving.haproxy.config import (
    BODY_HELD_BYTES,
    BODY_SHORT_BYTES,
    BUFFER_BYTES,
    HELD_AT_ONCE_MAX,
    HOLD_BUFFER_BYTES,
    LOG_RING_BYTES,
    ProxyConfig,
)
from corral.serving.haproxy.logline import LOG_FORMAT
from corral.serving.haproxy.servers import HOLDER, Server, servers_of
from corral.serving.haproxy.template import template

CONFIGURATION = "haproxy.cfg"
KEYS, REASONS, NO_RETRY, STATE = "keys.map", "reasons.map", "noretry.map", "servers.state"
BY_CONTENT = re.compile(r".+-[0-9a-f]{12}\.(map|pem|json)")
"""How files are named whose content never changes."""

HOLD_SOCKET, AGAIN_SOCKET = "hold.sock", "again.sock"
MODEL_HEADER, REPEAT_HEADER = "X-Corral-Model", "X-Corral-Repeat"
"""Between the proxy's two processes only: the model that a body names, and that the request may be repeated."""

OPENAI_PATHS = "/v1/chat/completions /v1/completions /v1/embeddings"
KEY_NEEDED = "an API key is needed: Authorization: Bearer KEY"
RETRY_AFTER_S = 5
RETRY_ON = "conn-failure empty-response junk-response response-timeout 500 502 503 504"
RATE_REQUESTS_MIN = 10
"""A limit is kept over as many whole seconds as bring so many requests: nobody is refused for two in a row."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,126})")
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,126}")
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}")
_PATH = re.compile(r"/[!-~]*")
_MODEL = re.compile(r"[^\s#]\S*")

FAILURES = (
    (400, "BAD_REQUEST", "the request is not HTTP as it should be"),
    (408, "REQUEST_TIMEOUT", "the request did not come in time"),
    (500, "PROXY_FAULT", "the front end failed"),
    (502, "BAD_ANSWER", "a replica broke off or answered with something that is not HTTP"),
    (503, "NO_REPLICA", "no replica takes the request now"),
    (504, "NO_ANSWER", "a replica did not answer in time"),
)
BALANCE = {
    Balance.ROUND_ROBIN: "roundrobin",
    Balance.WEIGHTED: "roundrobin",
    Balance.LEAST_OUTSTANDING: "leastconn",
    Balance.POWER_OF_TWO: "random(2)",
    Balance.CONSISTENT_HASH: "hash var(txn.hash)",
    Balance.PREFIX_AFFINITY: "leastconn",
}


class Desired(msgspec.Struct, frozen=True):
    """What the proxy is to do: the table, and what was found out on this machine.

    ``left_out`` are services that it refused, ``ports_taken`` ports of services that other programs have.
    """

    table: RoutingTable
    ejected: Mapping[ServiceName, Collection[str]] = {}
    no_retry: frozenset[ServiceName] = frozenset()
    addresses: Mapping[str, str] = {}
    ports_taken: frozenset[int] = frozenset()
    left_out: frozenset[ServiceName] = frozenset()
    certificate: bytes = b""


class Rate(msgspec.Struct, frozen=True):
    """At most ``requests`` in any ``within_s`` seconds."""

    requests: int
    within_s: int
    shown: str


class Rendered(msgspec.Struct, frozen=True):
    """Files by name (the configuration among them) and what a running process is told.

    ``lines`` says which service each line of the configuration is about. ``ports`` are those that it binds beside the
    main one. ``problems`` are of services, or parts of them, that are left out.
    """

    files: dict[str, bytes]
    digest: str
    servers: dict[ServiceName, tuple[Server, ...]]
    keys: dict[str, str]
    reasons: dict[str, str]
    no_retry: dict[str, str]
    ports: tuple[int, ...]
    lines: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def configuration(self) -> str:
        """Return the text of the configuration."""
        return self.files[CONFIGURATION].decode()


def render(config: ProxyConfig, desired: Desired) -> Rendered:
    """Return what the proxy should be. Raises ``DependencyMissing``."""
    problems: list[str] = []
    routes = _sound(desired, problems)
    files: dict[str, bytes] = {}
    named = _Named(config.folder, files)
    words = _settings(config, desired, routes, named, problems)
    services, servers = [], {}
    for route in routes:
        service = route.service
        ejected = desired.ejected.get(service, ())
        secret_files = _secret_files(route, named)
        servers[service] = servers_of(route, ejected, secret_files, desired.addresses)
        services.append(_service(config, route) | {"files": secret_files})
    text = template("haproxy.cfg.j2").render(**words, services=[s | {"servers": servers[s["name"]]} for s in services])
    bare = template("haproxy.cfg.j2").render(**words, services=[s | {"servers": ()} for s in services])
    reasons: dict[str, str] = {r.service: quote_plus(r.reason) for r in routes if r.reason}
    files[CONFIGURATION] = text.encode()
    files[KEYS] = _map(desired.table.keys)
    files[REASONS] = _map(reasons)
    no_retry: dict[str, str] = dict.fromkeys(sorted(desired.no_retry), "1")
    files[NO_RETRY] = _map(no_retry)
    return Rendered(
        files,
        hashlib.sha256(bare.encode()).hexdigest(),
        servers,
        dict(desired.table.keys),
        reasons,
        no_retry,
        tuple(_ports(desired, routes)),
        tuple(_lines(text)),
        tuple(problems),
    )


class _Named:
    """Names files by their content, so that a process never finds another content under a name that it knows."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self._folder = folder
        self._files = files

    def fixed(self, name: str) -> str:
        return str(self._folder / name)

    def by_content(self, stem: str, suffix: str, content: bytes) -> str:
        name = f"{stem}-{hashlib.sha256(content).hexdigest()[:12]}.{suffix}"
        self._files[name] = content
        return str(self._folder / name)


def _sound(desired: Desired, problems: list[str]) -> list[Route]:
    """Return the routes that can be put into a configuration; note what is wrong with the others."""
    routes = []
    for route in sorted(desired.table.routes, key=lambda route: route.service):
        wrong = _wrong(route)
        if wrong:
            problems.append(f"service {route.service}: {wrong}")
        elif route.service not in desired.left_out:
            routes.append(route)
    return routes


def _wrong(route: Route) -> str:
    header, path = route.traffic.hash_header, route.health_path
    if not _NAME.fullmatch(route.service):
        return "its name does not go into a proxy"
    if header is not None and not _HEADER.fullmatch(header):
        return f"{header!r} is not a name of a header"
    if path is not None and not _PATH.fullmatch(path):
        return f"{path!r} is not a path"
    bad = [b.name for b in route.backends if not _NAME.fullmatch(b.name) or not 0 < b.port < 65536]
    return f"its replica {bad[0]!r} does not go into a proxy" if bad else ""


def _settings(
    config: ProxyConfig, desired: Desired, routes: list[Route], named: _Named, problems: list[str]
) -> dict[str, object]:
    models: dict[str, str] = {}
    for route in routes:
        if route.model is not None and _MODEL.fullmatch(route.model):
            if route.model in models:
                problems.append(f"service {route.service}: model {route.model} is that of {models[route.model]}")
            models.setdefault(route.model, route.service)
        elif route.model is not None:
            problems.append(f"service {route.service}: {route.model!r} does not go as a name of a model")
    ports = _ports(desired, routes)
    binds = [f"{_bracketed(config.address)}:{port}" for port in (config.port, *ports)]
    certificate = named.by_content("front", "pem", desired.certificate) if desired.certificate else ""
    return {
        "access_log": str(config.access_log) if config.access_log else "",
        "log_ring_bytes": LOG_RING_BYTES,
        "affinity": str(config.affinity) if config.affinity else "",
        "relay": str(config.relay) if config.relay else "",
        "buffer_bytes": BUFFER_BYTES,
        **_words(config),
        "short_bytes": BODY_SHORT_BYTES,
        "key_needed": KEY_NEEDED,
        "state_file": named.fixed(STATE),
        "keys": named.fixed(KEYS),
        "noretry": named.fixed(NO_RETRY),
        "has_ports": bool(ports),
        "has_hosts": any(route.traffic.hosts for route in routes),
        "ports": named.by_content("ports", "map", _map({str(port): name for port, name in ports.items()})),
        "hosts": named.by_content("hosts", "map", _map(_hosts(routes, problems))),
        "names": named.by_content("names", "map", _map({r.service: r.service for r in routes})),
        "models": named.by_content("models", "map", _map(models)),
        "keyed": named.by_content("keyed", "map", _map({r.service: "1" for r in routes if r.traffic.keys})),
        "repeatable": named.by_content("repeatable", "map", _map(_repeatable(routes))),
        "relayed": named.by_content("relayed", "map", _map({r.service: "1" for r in routes if r.relayed})),
        "model_list": named.by_content("models", "json", model_list(routes)),
        "models_need_keys": all(r.traffic.keys for r in routes if r.model is not None),
        "none_ready": lambda name: _none_ready(name, named.fixed(REASONS)),
        "retry_after_s": RETRY_AFTER_S,
        "binds": binds,
        "certificate": certificate,
        "log_format": LOG_FORMAT,
        "holder": HOLDER,
        "guard_header": GUARD_HEADER,
        "replica_header": REPLICA_HEADER,
        "service_header": SERVICE_HEADER,
        "tenant_header": TENANT_HEADER,
    }


def render_hold(config: ProxyConfig) -> str:
    """Return the configuration of the process that holds long bodies: it knows no services, and never changes."""
    return template("hold.cfg.j2").render(
        **_words(config), buffer_bytes=HOLD_BUFFER_BYTES, at_once=min(HELD_AT_ONCE_MAX, config.connections_max)
    )


def _words(config: ProxyConfig) -> dict[str, object]:
    """Return what both configurations say."""
    return {
        "config": config,
        "held_bytes": BODY_HELD_BYTES,
        "failures": FAILURES,
        "error": error,
        "hold": f"unix@{config.folder / HOLD_SOCKET}",
        "again": f"unix@{config.folder / AGAIN_SOCKET}",
        "model_header": MODEL_HEADER,
        "repeat_header": REPEAT_HEADER,
        "openai_paths": OPENAI_PATHS,
    }


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _ports(desired: Desired, routes: list[Route]) -> dict[int, ServiceName]:
    ports: dict[int, ServiceName] = {}
    for route in routes:
        port = route.traffic.listen
        if port is not None and port not in desired.ports_taken:
            ports.setdefault(port, route.service)
    return ports


def _hosts(routes: list[Route], problems: list[str]) -> dict[str, str]:
    hosts: dict[str, str] = {}
    for route in routes:
        for host in route.traffic.hosts:
            name = host.lower()
            if not _HOST.fullmatch(name):
                problems.append(f"service {route.service}: {host!r} is not a name of a host")
            elif hosts.setdefault(name, route.service) != route.service:
                problems.append(f"service {route.service}: host {host} is that of {hosts[name]}")
    return hosts


def _repeatable(routes: list[Route]) -> dict[str, str]:
    """Return which services let long requests be sent again: the idempotent ones, or all."""
    words = {Retry.IDEMPOTENT: "idempotent", Retry.BEFORE_FIRST_TOKEN: "always"}
    return {route.service: words[route.traffic.retry] for route in routes if route.traffic.retry in words}


def _secret_files(route: Route, named: _Named) -> dict[str, str]:
    if route.traffic.guard is not Guard.MTLS:
        return {}
    return {
        "front_end": named.by_content(f"client-{route.service}", "pem", route.secrets.front_end_pem.encode()),
        "authority": named.by_content(f"authority-{route.service}", "pem", route.secrets.authority_pem.encode()),
    }


def _service(config: ProxyConfig, route: Route) -> dict[str, Any]:
    traffic = route.traffic
    # Shares are kept by weights, and only taking turns follows them exactly.
    balance = "roundrobin" if route.shares else BALANCE[traffic.balance]
    return {
        "name": route.service,
        "balance": balance,
        "hashed": balance == BALANCE[Balance.CONSISTENT_HASH],
        "hash_header": traffic.hash_header,
        "affinity": traffic.balance is Balance.PREFIX_AFFINITY and config.affinity is not None and not route.shares,
        "connect_s": traffic.connect_s,
        "response_s": traffic.response_s,
        "idle_s": traffic.idle_s,
        "queue_s": traffic.queue_s,
        "relay_silence_s": max(traffic.response_s, traffic.idle_s, traffic.queue_s, route.scaling.cold_start_s) + 10.0,
        "health_timeout_s": route.health_timeout_s,
        "health_path": route.health_path,
        "retry_on": "" if traffic.retry is Retry.NEVER else RETRY_ON,
        "retry_idempotent": traffic.retry is Retry.IDEMPOTENT,
        "rate": _rate(traffic.requests_s_max),
        "body_max": traffic.body_max_bytes,
        "token": route.secrets.token if traffic.guard is Guard.TOKEN else "",
        "relayed": route.relayed and config.relay is not None,
    }


def _rate(requests_s_max: float | None) -> Rate | None:
    if requests_s_max is None:
        return None
    within_s = max(1, -int(-RATE_REQUESTS_MIN // requests_s_max)) if requests_s_max > 0 else 1
    return Rate(max(0, round(requests_s_max * within_s)), within_s, f"{requests_s_max:g}")


def error(code: str, message: str) -> str:
    """Return the body of an answer that the front end gives itself, as OpenAI's clients read it."""
    return json.dumps({"error": {"code": code, "message": message, "type": "front_end"}})


def _none_ready(service: str, reasons: str) -> str:
    said = f"%[str({service}),map({reasons},none+of+them+answers),url_dec(1),json(utf8s)]"
    return error("NO_REPLICA", f"no replica of {service} is ready: @").replace("@", said)


def model_list(routes: list[Route]) -> bytes:
    """Return the answer to ``GET /v1/models`` (OpenAI API reference, "List models")."""
    models = [
        {"id": route.model, "object": "model", "created": 0, "owned_by": route.tenant}
        for route in routes
        if route.model is not None
    ]
    return json.dumps({"object": "list", "data": models}).encode()


def _map(entries: Mapping[Any, str]) -> bytes:
    return "".join(f"{key} {value}\n" for key, value in sorted(entries.items())).encode()


def _lines(text: str) -> list[str]:
    """Return for each line the service that it is about, empty for those that all share."""
    services, service = [], ""
    for line in text.splitlines():
        if line.startswith("backend "):
            name = line.split()[1]
            service = name[2:] if name.startswith(("s_", "r_")) else ""
        elif line and not line.startswith((" ", "#")):
            service = ""
        services.append(service)
    return services


def check_words(*words: str) -> None:
    """Raise ``InvalidField`` where words would not stay one word each."""
    for word in words:
        if not word or any(letter.isspace() or letter in "\"'\\#;$" for letter in word):
            raise InvalidField(f"{word!r} does not go into a command to the proxy")
