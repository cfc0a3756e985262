"""How the fields of a service are read from nodes and written back: probes, scaling, rollout, traffic.

As the methods of :class:`corral.wire.fields.FieldReader` the readers note problems and answer ``None`` for what is
wrong. What is written reads back as the same value; what equals the default is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from corral.model.errors import DuplicateName, MissingField
from corral.model.service import Balance, Guard, Probe, ProbeKind, Renewal, Retry, Traffic
from corral.wire import units
from corral.wire.document import Node, shown
from corral.wire.fields import FieldReader

REPLICAS_MAX = 1_000
REQUESTS_MAX = 1_000_000
HOSTS_MAX = 100
PORT_MAX = 65_535
SILENCE_S_MAX = 7 * 86_400.0
RESERVED_NAMES = frozenset({"v1", "corral"})
"""First segments of paths that front ends answer themselves."""
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_PATH = re.compile(r"/[!-~]{0,1023}")
_MODEL = re.compile(r"[!-~]{1,128}")
_REPLICAS = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?")


class FieldRule(NamedTuple):
    """A field of a section: its attribute in the model, how it is read, and how it is written."""

    attribute: str
    read: Callable[[FieldReader, Node, str], object]
    write: Callable[[Any], object] = lambda value: value


# ---- single values ---------------------------------------------------------------------------------------------------


def service_name(reader: FieldReader, node: Node, path: str) -> str | None:
    """Read the name of a service: a DNS label (RFC 1123), for it is a host name, too."""
    text = reader.name(node, path)
    if text is None:
        return None
    if text in RESERVED_NAMES:
        reader.wrong(node, path, f"{shown(text)} is the beginning of front ends' own paths", "choose another name")
        return None
    if text == "localhost":
        reader.wrong(node, path, f"{shown(text)} is how machines are called", "choose another name")
        return None
    if not _LABEL.fullmatch(text):
        hint = "it is a host name, too: at most 63 lower-case letters, digits and hyphens"
        reader.wrong(node, path, f"{shown(text)} is not a name of a service", hint)
        return None
    return text


def model_name(reader: FieldReader, node: Node, path: str) -> str | None:
    """Read the name by which OpenAI's API calls a model."""
    text = reader.text(node, path, length_max=128)
    if text is not None and not _MODEL.fullmatch(text):
        reader.wrong(node, path, f"{shown(text)} is not a name of a model", "printable ASCII without blanks")
        return None
    return text


def port(reader: FieldReader, node: Node, path: str) -> int | None:
    """Read a TCP port."""
    return reader.whole(node, path, 1, PORT_MAX)


def flag(reader: FieldReader, node: Node, path: str) -> bool | None:
    """Read true or false."""
    if node.kind in {"bool", "text"} and node.text.lower() in {"true", "false"}:
        return node.text.lower() == "true"
    reader.wrong(node, path, f"must be true or false, not {node.described()}")
    return None


def replicas(reader: FieldReader, node: Node, path: str) -> tuple[int, int] | None:
    """Read ``3``, ``2-8`` or ``{min: 0, max: 4}``."""
    if node.kind == "map":
        fields = reader.problems.fields(node, path, ("min", "max"))
        told = {name: _whole(0, REPLICAS_MAX)(reader, value, f"{path}.{name}") for name, (_, value) in fields.items()}
        for name in ("min", "max"):
            if name not in told:
                reader.problems.add(MissingField, node, f"{path}.{name}", "is missing", "write it like 2-8")
        low, high = told.get("min"), told.get("max")
    else:
        match = _REPLICAS.fullmatch(node.text) if node.kind in {"int", "text"} else None
        if match is None:
            reader.wrong(node, path, f"{node.described()} is not a number of replicas", "write it like 3 or 2-8")
            return None
        low, high = int(match[1]), int(match[2] or match[1])
    if low is None or high is None:
        return None
    if not 1 <= high <= REPLICAS_MAX:
        message = f"must be at most {REPLICAS_MAX:,} replicas, and at least 1 where there is load"
        reader.wrong(node, path, message, "write it like 0-1 for a service that is only there when it is called")
        return None
    if low > high:
        reader.wrong(node, path, "counts backwards", "write the smaller number first")
        return None
    return low, high


def written_replicas(low: int, high: int) -> int | str:
    """Return what :func:`replicas` reads back."""
    return low if low == high else f"{low}-{high}"


def _whole(low: int, high: int) -> Callable[[FieldReader, Node, str], int | None]:
    return lambda reader, node, path: reader.whole(node, path, low, high)


def _seconds(low: float, high: float) -> Callable[[FieldReader, Node, str], float | None]:
    return lambda reader, node, path: reader.duration_s(node, path, low, high)


def _number(low: float, high: float) -> Callable[[FieldReader, Node, str], float | None]:
    def read(reader: FieldReader, node: Node, path: str) -> float | None:
        number = math.nan
        if node.kind in {"int", "float"}:
            number = float(node.number)
        elif node.kind == "text" and re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", node.text):
            number = float(node.text)
        if not low <= number <= high:
            reader.wrong(node, path, f"must be a number between {low:g} and {high:g}, not {node.described()}")
            return None
        return number

    return read


def share(reader: FieldReader, node: Node, path: str) -> float | None:
    """Read a part of one: ``0.05`` or ``5%``."""
    match = re.fullmatch(r"\s*([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%\s*", node.text) if node.kind == "text" else None
    number = float(match[1]) / 100 if match else None
    if number is not None and number <= 1:
        return number
    return _number(0.0, 1.0)(reader, node, path)


def _choice(kind: type[StrEnum]) -> Callable[[FieldReader, Node, str], StrEnum | None]:
    return lambda reader, node, path: reader.choice(node, path, kind)


def _header(reader: FieldReader, node: Node, path: str) -> str | None:
    text = reader.text(node, path, length_max=64)
    if text is not None and not _HEADER.fullmatch(text):
        reader.wrong(node, path, f"{shown(text)} is not a name of a header")
        return None
    return text


def _size(reader: FieldReader, node: Node, path: str) -> int | None:
    return reader.quantity(node, path, units.read_bytes)


def _hosts(reader: FieldReader, node: Node, path: str) -> tuple[str, ...] | None:
    found: list[str] = []
    items = node.items if node.kind == "list" else [node]
    if len(items) > HOSTS_MAX:
        reader.wrong(node, path, f"has more than {HOSTS_MAX} names")
        return None
    for i, item in enumerate(items):
        here = f"{path}[{i}]" if node.kind == "list" else path
        text = reader.text(item, here, length_max=253)
        if text is None:
            return None
        name = text.lower().rstrip(".")
        if not all(_LABEL.fullmatch(label) for label in name.split(".")):
            reader.wrong(item, here, f"{shown(text)} is not a host name", "a name without port or path")
            return None
        if name in found:
            reader.problems.add(DuplicateName, item, here, f"names {shown(text)} twice")
        found.append(name)
    return tuple(found)


# ---- sections --------------------------------------------------------------------------------------------------------

_DRAWN = {"replicas", "replicas_min", "replicas_max", "min_replicas", "max_replicas"}
SCALING: dict[str, FieldRule] = {
    "target_outstanding": FieldRule("target_outstanding", _number(0.001, REQUESTS_MAX)),
    "target_requests_s": FieldRule("target_requests_s", _number(0.001, REQUESTS_MAX)),
    "down_after": FieldRule("down_after_s", _seconds(0.0, SILENCE_S_MAX)),
    "idle": FieldRule("idle_s", _seconds(1.0, SILENCE_S_MAX)),
    "cold_start": FieldRule("cold_start_s", _seconds(1.0, 86_400.0)),
    "cold_requests_max": FieldRule("cold_requests_max", _whole(0, REQUESTS_MAX)),
}
ROLLOUT: dict[str, FieldRule] = {
    "surge": FieldRule("surge", _whole(0, REPLICAS_MAX)),
    "max_unavailable": FieldRule("max_unavailable", _whole(0, REPLICAS_MAX)),
    "ready_within": FieldRule("ready_within_s", _seconds(1.0, SILENCE_S_MAX)),
    "errors_max": FieldRule("errors_max_share", share),
    "requests_min": FieldRule("requests_min", _whole(1, REQUESTS_MAX)),
    "watch": FieldRule("watch_s", _seconds(0.0, 86_400.0)),
}
TRAFFIC: dict[str, FieldRule] = {
    "balance": FieldRule("balance", _choice(Balance), str),
    "hash_header": FieldRule("hash_header", _header),
    "imbalance_max": FieldRule("imbalance_max", _whole(0, REQUESTS_MAX)),
    "connect": FieldRule("connect_s", _seconds(0.001, 3_600.0)),
    "response": FieldRule("response_s", _seconds(0.001, 86_400.0)),
    "idle": FieldRule("idle_s", _seconds(0.001, SILENCE_S_MAX)),
    "queue": FieldRule("queue_s", _seconds(0.0, 86_400.0)),
    "outstanding_max": FieldRule("outstanding_max", _whole(1, REQUESTS_MAX)),
    "retry": FieldRule("retry", _choice(Retry), str),
    "hedge_after": FieldRule("hedge_after_s", _seconds(0.001, 3_600.0)),
    "body_max": FieldRule("body_max_bytes", _size),
    "stream": FieldRule("stream", flag),
    "guard": FieldRule("guard", _choice(Guard), str),
    "listen": FieldRule("listen", port),
    "hosts": FieldRule("hosts", _hosts, list),
    "keys": FieldRule("keys", flag),
    "requests_s_max": FieldRule("requests_s_max", _number(0.001, REQUESTS_MAX)),
    "drain": FieldRule("drain_s", _seconds(0.0, 86_400.0)),
}
_PROBE: dict[str, FieldRule] = {
    "period": FieldRule("period_s", _seconds(0.1, 3_600.0)),
    "timeout": FieldRule("timeout_s", _seconds(0.05, 3_600.0)),
    "failures": FieldRule("failures", _whole(1, 10_000)),
    "successes": FieldRule("successes", _whole(1, 10_000)),
}
_MISPLACED: dict[str, dict[str, str]] = {
    "scaling": dict.fromkeys(_DRAWN, "replicas, beside scaling")
    | {"target": "target_outstanding", "concurrency": "target_outstanding", "rps": "target_requests_s"},
    "rollout": {"timeout": "ready_within", "errors": "errors_max", "error_rate": "errors_max", "canary": "--canary"},
    "traffic": {"policy": "balance", "timeout": "response", "retries": "retry", "port": "listen", "host": "hosts"},
}


def section(
    reader: FieldReader, node: Node, path: str, rules: Mapping[str, FieldRule], misplaced: Mapping[str, str]
) -> dict[str, object]:
    """Read a mapping by its rules; return what was said, by attribute. What is wrong is noted and left out."""
    fields = reader.problems.fields(node, path, rules, misplaced)
    told = {
        rules[name].attribute: rules[name].read(reader, value, f"{path}.{name}")
        for name, (_, value) in fields.items()
        if value.kind != "null"
    }
    return {name: value for name, value in told.items() if value is not None}


def written(value: msgspec.Struct, default: msgspec.Struct, rules: Mapping[str, FieldRule]) -> dict[str, object]:
    """Return what :func:`section` reads back as ``value``."""
    return {
        name: rule.write(getattr(value, rule.attribute))
        for name, rule in rules.items()
        if getattr(value, rule.attribute) != getattr(default, rule.attribute)
    }


def scaling(reader: FieldReader, node: Node, path: str) -> dict[str, object]:
    """Read ``scaling``, as attributes: the numbers of replicas stand beside it."""
    return section(reader, node, path, SCALING, _MISPLACED["scaling"])


def rollout(reader: FieldReader, node: Node, path: str) -> Renewal:
    """Read ``rollout``."""
    told = Renewal(**section(reader, node, path, ROLLOUT, _MISPLACED["rollout"]))  # type: ignore[arg-type]
    if told.surge == 0 and told.max_unavailable == 0:
        reader.wrong(node, path, "allows no replica more and none fewer: nothing could follow", "surge: 1 is usual")
    return told


def traffic(reader: FieldReader, node: Node, path: str) -> Traffic:
    """Read ``traffic``."""
    told = Traffic(**section(reader, node, path, TRAFFIC, _MISPLACED["traffic"]))  # type: ignore[arg-type]
    if told.hash_header is not None and told.balance is not Balance.CONSISTENT_HASH:
        place = f"{path}.hash_header"
        reader.wrong(node, place, f"has no effect with balance {told.balance}", "say balance: consistent-hash")
    return told


# ---- probes ----------------------------------------------------------------------------------------------------------


def probe(reader: FieldReader, node: Node, path: str) -> Probe | None:
    """Read ``/health`` (an HTTP path), ``tcp``, or ``{http | tcp | command, period, timeout, failures, successes}``."""
    if node.kind == "text" and node.text == ProbeKind.TCP:
        return Probe()
    if node.kind != "map":
        found = _http_path(reader, node, path)
        return None if found is None else Probe(ProbeKind.HTTP, found)
    before = reader.problems.count
    kinds = [str(kind) for kind in ProbeKind]
    fields = reader.problems.fields(node, path, (*kinds, *_PROBE), {"path": "http", "exec": "command", "url": "http"})
    told: dict[str, object] = {}
    asked = [name for name in kinds if name in fields]
    if len(asked) > 1:
        reader.wrong(fields[asked[1]][0], path, f"asks in two ways: {asked[0]} and {asked[1]}", "choose one")
    for name in asked:
        told |= _question(reader, ProbeKind(name), fields[name][1], f"{path}.{name}")
    for name, rule in _PROBE.items():
        if name in fields and fields[name][1].kind != "null":
            told[rule.attribute] = rule.read(reader, fields[name][1], f"{path}.{name}")
    return Probe(**told) if reader.problems.count == before else None  # type: ignore[arg-type]


def _question(reader: FieldReader, kind: ProbeKind, node: Node, path: str) -> dict[str, object]:
    match kind:
        case ProbeKind.HTTP:
            return {"kind": kind, "path": _http_path(reader, node, path)}
        case ProbeKind.TCP:
            if flag(reader, node, path) is False:
                reader.wrong(node, path, "must be true", "leave it out")
            return {"kind": kind}
        case ProbeKind.COMMAND:
            if node.kind != "list":
                return {"kind": kind, "argv": ("/bin/sh", "-c", reader.script(node, path) or "")}
            argv = reader.words(node, path)
            if not argv or not argv[0]:
                reader.problems.add(MissingField, node, path, "has no program to run")
            return {"kind": kind, "argv": argv}


def _http_path(reader: FieldReader, node: Node, path: str) -> str | None:
    text = reader.text(node, path, length_max=1_024)
    if text is not None and not _PATH.fullmatch(text):
        hint = "write tcp, an HTTP path like /health, or command: [...]"
        reader.wrong(node, path, f"{shown(text)} is not a path of HTTP", hint)
        return None
    return text


def written_probe(value: Probe) -> object:
    """Return what :func:`probe` reads back."""
    more = written(value, Probe(), _PROBE)
    match value.kind:
        case ProbeKind.HTTP:
            return {"http": value.path, **more} if more else value.path
        case ProbeKind.TCP:
            return {"tcp": True, **more} if more else "tcp"
        case ProbeKind.COMMAND:
            return {"command": list(value.argv), **more}
