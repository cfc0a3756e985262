"""What a service may say: one set of rules for service files, HTTP bodies, flags and the SDK, and the way back to JSON.

A service is a document of the fields in :data:`SERVICE_FIELDS` and of those of a job that each of its replicas is
(:data:`REPLICA_FIELDS`). :func:`spec_of_node` reads one, :func:`document_of_service` writes one that reads back to the
same :class:`corral.model.service.ServiceSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corral.model.ask import JobAsk
from corral.model.errors import InvalidField, MissingField, UsageError
from corral.model.ids import ServiceName, TenantId
from corral.model.service import Probes, Renewal, Scaling, ServiceSpec, Traffic
from corral.wire import service_fields as parts
from corral.wire.document import Checked, Node, Problems, json_node, node_of, shown
from corral.wire.fields import FieldReader
from corral.wire.request import FIELDS, MISPLACED, ask_of_node, document_of

KIND = "service"
TENANT_NOT_SAID = TenantId("")
"""The tenant of a spec that names none: it is that of whoever asks for the service."""
STARTUP_S_MAX = 7 * 86_400.0

Read = Callable[[FieldReader, Node, str], object]


def _kind(reader: FieldReader, node: Node, path: str) -> str | None:
    if node.text == KIND:
        return KIND
    reader.wrong(node, path, f"must be {KIND}, not {node.described()}", "jobs have no kind: corral submit takes them")
    return None


SERVICE_FIELDS: dict[str, Read] = {
    "kind": _kind,
    "name": parts.service_name,
    "tenant": FieldReader.name,
    "model": parts.model_name,
    "port": parts.port,
    "replicas": parts.replicas,
    "startup": parts.probe,
    "startup_within": lambda reader, node, path: reader.duration_s(node, path, 1.0, STARTUP_S_MAX),
    "readiness": parts.probe,
    "liveness": parts.probe,
    "scaling": parts.scaling,
    "rollout": parts.rollout,
    "traffic": parts.traffic,
}
"""Every field of a service beside those of its replicas, in the order of the documentation."""

NOT_FOR_REPLICAS: dict[str, str] = {
    "num_nodes": "a replica runs on one node",
    "array": "replicas says how many there are",
    "sweep": "all replicas are equal",
    "after": "a service starts when it is asked for",
    "max_duration": "a replica runs until it is no longer needed",
    "max_restarts": "a replica that ends is replaced, however often",
    "checkpoint": "a replica finishes its requests instead: traffic.drain says how long that may take",
    "work": "a replica has no end to work towards",
    "appmaster": "a service decides by its load",
    "outputs": "a replica has no result",
}
"""The fields of a job that do not go with a service, and why."""

REPLICA_FIELDS = tuple(name for name in FIELDS if name not in NOT_FOR_REPLICAS and name not in ("name", "tenant"))

_MISPLACED = {wrong: right for wrong, right in MISPLACED.items() if right.split(",")[0] not in NOT_FOR_REPLICAS} | {
    "nodes": "replicas",
    "timeout": "traffic.response",
    "retries": "traffic.retry",
    "min_replicas": "replicas, for example replicas: 2-8",
    "max_replicas": "replicas, for example replicas: 2-8",
    "instances": "replicas",
    "autoscaling": "scaling",
    "health": "readiness",
    "healthcheck": "readiness",
    "ready": "readiness",
    "ports": "port",
    "strategy": "rollout",
    "update": "rollout",
    "canary": "--canary, or canary_percent beside the service",
    "policy": "traffic.balance",
    "balance": "traffic.balance",
    "guard": "traffic.guard",
    "hosts": "traffic.hosts",
    "keys": "traffic.keys",
    "listen": "traffic.listen",
    "stream": "traffic.stream",
}


def spec_of_node(root: Node, problems: Problems, *, path: str = "", user: bool = False) -> ServiceSpec | None:
    """Read one service; note what is wrong and return ``None`` then. ``user`` allows ``files`` (HTTP only)."""
    before = problems.count
    if root.kind != "map":
        problems.add(InvalidField, root, path, f"a service must be a mapping of fields, not {root.described()}")
        return None
    prefix = f"{path}." if path else ""
    own = (*REPLICA_FIELDS, *(("files", "user") if user else ()))
    fields = problems.fields(root, path, (*SERVICE_FIELDS, *FIELDS, *own), _MISPLACED)
    reader = FieldReader(problems)
    told: dict[str, object] = {}
    for name, (key, value) in fields.items():
        if value.kind == "null":
            continue
        if name in SERVICE_FIELDS:
            told[name] = SERVICE_FIELDS[name](reader, value, prefix + name)
        elif name in NOT_FOR_REPLICAS:
            problems.add(InvalidField, key, prefix + name, "does not go with a service", NOT_FOR_REPLICAS[name])
    if "name" not in told:
        problems.add(MissingField, root, f"{prefix}name", "is missing", "say by which name it is called")
    ask = ask_of_node(_job_part(root, own), problems, path=path, user=user)
    if ask is not None and ask.gpu_counts:
        place = fields["resources" if "resources" in fields else "num_gpus"][1]
        problems.add(
            InvalidField, place, f"{prefix}resources.accelerators", "a replica has one size", "name one number"
        )
    return None if ask is None or problems.count > before else _assembled(told, ask)


def _job_part(root: Node, names: tuple[str, ...]) -> Node:
    """Return the fields that the job of a replica has, as a document of its own at the same place."""
    job = Node("map", line=root.line, column=root.column)
    job.pairs = [(key, value) for key, value in root.pairs if key.text in names]
    return job


def _assembled(told: dict[str, object], ask: JobAsk) -> ServiceSpec:
    counts, given = told.get("replicas"), told.get("scaling")
    low, high = counts if isinstance(counts, tuple) else (1, 1)
    scaling = Scaling(low, high, **(given if isinstance(given, dict) else {}))
    probes: dict[str, object] = {name: told[name] for name in ("startup", "readiness", "liveness") if name in told}
    if "startup_within" in told:
        probes["startup_within_s"] = told["startup_within"]
    return ServiceSpec(
        name=ServiceName(str(told["name"])),
        tenant=TenantId(str(told.get("tenant") or TENANT_NOT_SAID)),
        replica=ask,
        model=told.get("model"),  # type: ignore[arg-type]
        port=told.get("port"),  # type: ignore[arg-type]
        probes=Probes(**probes),  # type: ignore[arg-type]
        scaling=scaling,
        renewal=told.get("rollout") or Renewal(),  # type: ignore[arg-type]
        traffic=told.get("traffic") or Traffic(),  # type: ignore[arg-type]
    )


def spec_of_fields(fields: Mapping[str, object], checked: Checked) -> ServiceSpec:
    """Read a service from Python values (the SDK, flags); raise the first problem, the others in its ``also``."""
    problems = Problems(checked)
    spec = spec_of_node(node_of(fields), problems)
    problems.raise_first()
    assert spec is not None, "what is not a service has a problem"
    return spec


def spec_of_json(data: bytes, name: str) -> tuple[ServiceSpec, int | None]:
    """Read an HTTP body ``{"service": {...}, "canary_percent": 10}`` for the service ``name``.

    Raises ``UsageError`` when it is not JSON, else as a service file does.
    """
    problems = Problems(Checked())
    root = json_node(data, UsageError)
    known = (*SERVICE_FIELDS, *FIELDS, *_MISPLACED)
    fields = problems.fields(root, "", ("service", "canary_percent"), dict.fromkeys(known, 'put it under "service"'))
    if "service" not in fields and not problems.count:
        problems.add(MissingField, root, "service", "is missing", "the fields of a service file")
    problems.raise_first()
    document = fields["service"][1]
    if document.kind == "map" and not any(key.text == "name" for key, _ in document.pairs):
        document.pairs.insert(0, (Node("text", "name"), Node("text", name)))
    spec = spec_of_node(document, problems, path="service", user=True)
    canary = None
    if "canary_percent" in fields and fields["canary_percent"][1].kind != "null":
        canary = FieldReader(problems).whole(fields["canary_percent"][1], "canary_percent", 1, 99)
    if spec is not None and spec.name != name:
        message = f"is {shown(spec.name)}, but the address names {shown(name)}"
        problems.add(InvalidField, document, "service.name", message, "leave it out")
    problems.raise_first()
    assert spec is not None, "what is not a service has a problem"
    return spec, canary


def document_of_service(spec: ServiceSpec) -> dict[str, object]:
    """Return the JSON document of a service: only what differs from the defaults, in forms that read back exactly."""
    probes, default = spec.probes, Probes()
    scaling, scaled = spec.scaling, (spec.scaling.replicas_min, spec.scaling.replicas_max)
    document: dict[str, object] = {
        "kind": KIND,
        "name": spec.name,
        "tenant": spec.tenant or None,
        "model": spec.model,
        "port": spec.port,
        "replicas": parts.written_replicas(*scaled) if scaled != (1, 1) else None,
        "startup": parts.written_probe(probes.startup) if probes.startup is not None else None,
        "startup_within": probes.startup_within_s if probes.startup_within_s != default.startup_within_s else None,
        "readiness": parts.written_probe(probes.readiness) if probes.readiness != default.readiness else None,
        "liveness": parts.written_probe(probes.liveness) if probes.liveness is not None else None,
        "scaling": parts.written(scaling, Scaling(), parts.SCALING) or None,
        "rollout": parts.written(spec.renewal, Renewal(), parts.ROLLOUT) or None,
        "traffic": parts.written(spec.traffic, Traffic(), parts.TRAFFIC) or None,
    }
    return {name: value for name, value in document.items() if value is not None} | document_of(spec.replica)
