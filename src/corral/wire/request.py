"""What a job may say: the one set of rules for job files, HTTP bodies, flags and the SDK, and the way back to JSON.

A job is a document of the fields in :data:`FIELDS`. :func:`ask_of_node` reads one, :func:`document_of` writes one that
reads back to the same :class:`corral.model.ask.JobAsk`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from corral.model.ask import AfterAsk, JobAsk
from corral.model.errors import DependencyCycle, DuplicateName, InvalidField, MissingField, UsageError
from corral.model.experience import WorkSpec
from corral.model.files import JobFiles
from corral.model.job import DependencyKind, Fencing
from corral.wire import sizes, units
from corral.wire.document import Checked, Node, Problems, json_node, node_of, shown
from corral.wire.fields import FieldReader
from corral.wire.paths import directory, mounts, patterns, travelling
from corral.wire.work import entry_point, work

JOBS_MAX = 1_000
ELEMENTS_TOGETHER_MAX = 100_000
NODES_MAX = 100_000
RESTARTS_MAX = 1_000_000
PRIORITY_MAX = 1_000_000
GRACE_S_MAX = 86_400.0
LEASE_S_MIN = 10.0
LEASE_S_MAX = 7 * 86_400.0
RESTART_COST_S_MAX = 86_400.0

Read = Callable[[FieldReader, Node, str], object]

_RESOURCES: dict[str, Read] = {
    "accelerators": sizes.accelerators,
    "cpus": lambda reader, node, path: reader.quantity(node, path, units.read_cpus_milli),
    "memory": lambda reader, node, path: reader.quantity(node, path, units.read_memory_mib),
}


def _resources(reader: FieldReader, node: Node, path: str) -> dict[str, object]:
    fields = reader.problems.fields(node, path, _RESOURCES, _MISPLACED_IN_RESOURCES)
    return {
        name: _RESOURCES[name](reader, value, f"{path}.{name}")
        for name, (_, value) in fields.items()
        if value.kind != "null"
    }


def _run(reader: FieldReader, node: Node, path: str) -> str | tuple[str, ...] | None:
    if node.kind != "list":
        return reader.script(node, path)
    argv = reader.words(node, path)
    if not node.items or (argv and not argv[0]):
        reader.problems.add(MissingField, node, path, "has no program to run", "say what to run")
    return argv


FIELDS: dict[str, Read] = {
    "name": FieldReader.name,
    "tenant": FieldReader.name,
    "queue": FieldReader.name,
    "resources": _resources,
    "num_gpus": sizes.gpus,
    "num_nodes": lambda reader, node, path: sizes.nodes(reader, node, path, NODES_MAX),
    "setup": lambda reader, node, path: reader.text(node, path),
    "run": _run,
    "envs": FieldReader.variables,
    "workdir": directory,
    "file_mounts": mounts,
    "array": FieldReader.indices,
    "sweep": FieldReader.points,
    "max_duration": lambda reader, node, path: reader.duration_s(node, path, 0.001),
    "grace": lambda reader, node, path: reader.duration_s(node, path, 0.0, GRACE_S_MAX),
    "max_restarts": lambda reader, node, path: reader.whole(node, path, 0, RESTARTS_MAX),
    "priority": lambda reader, node, path: reader.whole(node, path, -PRIORITY_MAX, PRIORITY_MAX),
    "after": FieldReader.after,
    "data": FieldReader.words,
    "fencing": lambda reader, node, path: reader.choice(node, path, Fencing),
    "lease": lambda reader, node, path: reader.duration_s(node, path, LEASE_S_MIN, LEASE_S_MAX),
    "checkpoint": FieldReader.checkpoint,
    "restart_cost": lambda reader, node, path: reader.duration_s(node, path, 0.0, RESTART_COST_S_MAX),
    "work": work,
    "appmaster": entry_point,
    "outputs": patterns,
}
"""Every field of a job, in the order of the documentation."""

_HTTP_FIELDS: dict[str, Read] = {"user": lambda reader, node, path: reader.text(node, path), "files": travelling}
"""What clients say beside: who submits, and which files they have sent."""

_MERGE = {"<<": "merge keys are not supported: write the fields out"}
_MISPLACED_IN_RESOURCES = _MERGE | {
    "gpus": "accelerators, for example accelerators: 2",
    "gpu": "accelerators, for example accelerators: 2",
    "mem": "memory",
    "ram": "memory",
    "nodes": "num_nodes, beside resources",
    "num_nodes": "num_nodes, beside resources",
    "num_gpus": "num_gpus, beside resources",
}
MISPLACED = _MERGE | {
    "gpus": "resources.accelerators",
    "gpu": "resources.accelerators",
    "accelerators": "resources.accelerators",
    "cpus": "resources.cpus",
    "memory": "resources.memory",
    "mem": "resources.memory",
    "env": "envs",
    "environment": "envs",
    "nodes": "num_nodes",
    "command": "run",
    "cmd": "run",
    "script": "run",
    "time": "max_duration",
    "time_limit": "max_duration",
    "timeout": "max_duration",
    "depends_on": "after",
    "dependency": "after",
    "dependencies": "after",
    "needs": "after",
    "partition": "queue",
    "retries": "max_restarts",
    "cwd": "workdir",
    "chdir": "workdir",
    "min_nodes": "num_nodes, for example num_nodes: 1-4",
    "max_nodes": "num_nodes, for example num_nodes: 1-4",
    "proposer": "appmaster",
    "steps": "work.total",
    "volumes": "file_mounts",
    "kind": "corral serve, which takes services",
    "mounts": "file_mounts",
}
_RENAMED = {
    "max_duration": "max_duration_s",
    "grace": "grace_s",
    "lease": "lease_s",
    "restart_cost": "restart_cost_s",
    "array": "indices",
    "sweep": "points",
}


def ask_of_node(root: Node, problems: Problems, *, path: str = "", user: bool = False) -> JobAsk | None:
    """Read one job; note what is wrong and return ``None`` then. ``user`` allows ``user`` and ``files`` (HTTP only)."""
    readers = {**FIELDS, **_HTTP_FIELDS} if user else FIELDS
    before = problems.count
    if root.kind != "map":
        problems.add(InvalidField, root, path, f"a job must be a mapping of fields, not {root.described()}")
        return None
    prefix = f"{path}." if path else ""
    fields = problems.fields(root, path, tuple(readers), MISPLACED)
    reader = FieldReader(problems)
    told: dict[str, object] = {}
    for name, (_, value) in fields.items():
        if value.kind == "null":
            continue
        told[name] = readers[name](reader, value, prefix + name)
    if "run" not in told:
        problems.add(
            MissingField, fields["run"][1] if "run" in fields else root, f"{prefix}run", "is missing", "say what to run"
        )
    if problems.count > before:
        return None
    _check_elements(told, fields, problems, prefix)
    return None if problems.count > before else _assembled(told)


def _check_elements(
    told: Mapping[str, object], fields: Mapping[str, tuple[Node, Node]], problems: Problems, prefix: str
) -> None:
    indices, points = told.get("array"), told.get("sweep")
    if isinstance(indices, tuple) and isinstance(points, tuple) and len(indices) != len(points):
        message = f"has {len(indices):,} elements, but sweep has {len(points):,} points"
        problems.add(InvalidField, fields["array"][1], f"{prefix}array", message, "leave array out")
    _check_sizes(told, fields, problems, prefix)
    envs = told.get("envs")
    if isinstance(envs, dict) and isinstance(points, tuple):
        for name in sorted({name for point in points for name in point if name in envs}):
            problems.add(DuplicateName, fields["envs"][1], f"{prefix}envs.{name}", "is also a parameter of sweep")


def _check_sizes(
    told: Mapping[str, object], fields: Mapping[str, tuple[Node, Node]], problems: Problems, prefix: str
) -> None:
    resources, nodes = told.get("resources"), told.get("num_nodes")
    devices = resources.get("accelerators") if isinstance(resources, dict) else None
    if devices is not None and "num_gpus" in told:
        message = "says the same as resources.accelerators"
        problems.add(InvalidField, fields["num_gpus"][1], f"{prefix}num_gpus", message, "leave one out")
    devices = devices if devices is not None else told.get("num_gpus")
    if isinstance(devices, tuple) and devices[2] and isinstance(nodes, tuple) and len(nodes) > 1:
        message = "varies, and so does the number of GPUs per node"
        problems.add(InvalidField, fields["num_nodes"][1], f"{prefix}num_nodes", message, "let one of them vary")


def _assembled(told: dict[str, object]) -> JobAsk:
    resources = told.pop("resources", {})
    run = told.pop("run")
    given = {_RENAMED.get(name, name): value for name, value in told.items()}
    given["argv" if isinstance(run, tuple) else "script"] = run
    devices = given.pop("num_gpus", None)
    if isinstance(resources, dict):
        devices = resources.get("accelerators", devices)
        for name, field in (("cpus", "cpus_milli"), ("memory", "memory_mib")):
            if name in resources:
                given[field] = resources[name]
    if isinstance(devices, tuple):
        given["gpu_model"], given["gpu_milli"], given["gpu_counts"] = devices
    nodes = given.get("num_nodes")
    if isinstance(nodes, tuple):
        given["num_nodes"], given["node_counts"] = nodes[-1], nodes if len(nodes) > 1 else ()
    points = given.get("points")
    if isinstance(points, tuple) and "indices" not in given:
        given["indices"] = tuple(range(len(points)))
    return JobAsk(**given)  # type: ignore[arg-type]


def asks_of_nodes(
    roots: Sequence[Node], problems: Problems, *, paths: Sequence[str] | None = None, user: bool = False
) -> tuple[JobAsk, ...]:
    """Read jobs that are submitted together; raise the first problem of any, the others in its ``also``."""
    paths = paths or [""] * len(roots)
    asks = [ask_of_node(root, problems, path=path, user=user) for root, path in zip(roots, paths, strict=True)]
    named: dict[str, tuple[JobAsk, Node, str]] = {}
    for ask, root, path in zip(asks, roots, paths, strict=True):
        if ask is None or ask.name is None:
            continue
        here = f"{path}.name" if path else "name"
        if ask.name in named:
            line = named[ask.name][1].line
            seen = f" (first in the job on line {line})" if line else ""
            problems.add(DuplicateName, _field(root, "name"), here, f"{shown(ask.name)} names two jobs{seen}")
        else:
            named[ask.name] = (ask, root, path)
    elements = sum(len(ask.indices or (0,)) for ask in asks if ask is not None)
    if elements > ELEMENTS_TOGETHER_MAX:
        message = f"{elements:,} array elements are more than one submission may have ({ELEMENTS_TOGETHER_MAX:,})"
        problems.add(InvalidField, roots[0], "jobs" if paths[0] else "array", message, "submit them in several parts")
    if not problems.found:
        _check_cycles(named, problems)
    problems.raise_first()
    return tuple(ask for ask in asks if ask is not None)


def _field(root: Node, name: str) -> Node:
    return next((value for key, value in root.pairs if key.text == name), root)


def _check_cycles(named: Mapping[str, tuple[JobAsk, Node, str]], problems: Problems) -> None:
    """Note the first circle of ``after`` among named jobs (depth first, in the order of the documents)."""
    done: set[str] = set()
    for start in named:
        trail: list[str] = []
        stack = [(start, iter(_refs(named, start)))]
        trail.append(start)
        while stack:
            name, refs = stack[-1]
            nxt = next((ref for ref in refs if ref not in done), None)
            if nxt is None:
                done.add(name)
                trail.pop()
                stack.pop()
            elif nxt in trail:
                circle = [*trail[trail.index(nxt) :], nxt]
                _, root, path = named[name]
                text = " -> ".join(circle if len(circle) <= 8 else [*circle[:7], "...", nxt])
                message = f"jobs wait for each other in a circle: {text}"
                problems.add(DependencyCycle, _field(root, "after"), f"{path}.after" if path else "after", message)
                return
            else:
                trail.append(nxt)
                stack.append((nxt, iter(_refs(named, nxt))))


def _refs(named: Mapping[str, tuple[JobAsk, Node, str]], name: str) -> Iterable[str]:
    return [entry.ref for entry in named[name][0].after if entry.ref in named]


def ask_of_fields(fields: Mapping[str, object], checked: Checked) -> JobAsk:
    """Read a job from Python values (the SDK, flags); raise the first problem, the others in its ``also``."""
    return asks_of_nodes([node_of(fields)], Problems(checked))[0]


def asks_of_json(data: bytes) -> tuple[JobAsk, ...]:
    """Read an HTTP body ``{"jobs": [...]}``. Raises ``UsageError`` when it is not JSON, else as the job file does."""
    problems = Problems(Checked())
    root = json_node(data, UsageError)
    hint = 'put jobs under "jobs"'
    fields = problems.fields(root, "", ("jobs",), dict.fromkeys((*FIELDS, *MISPLACED), hint))
    problems.raise_first()
    jobs = fields["jobs"][1] if "jobs" in fields else None
    if jobs is None:
        problems.add(MissingField, root, "jobs", "is missing", "a list of jobs")
    elif jobs.kind != "list" or not 1 <= len(jobs.items) <= JOBS_MAX:
        problems.add(InvalidField, jobs, "jobs", f"must be a list of 1 to {JOBS_MAX:,} jobs")
    problems.raise_first()
    items = jobs.items if jobs else []
    return asks_of_nodes(items, problems, paths=[f"jobs[{i}]" for i in range(len(items))], user=True)


def document_of(ask: JobAsk) -> dict[str, object]:
    """Return the JSON document of a job: only what was said, in forms that read back exactly."""
    resources: dict[str, object] = {}
    if ask.gpu_milli or ask.gpu_model:
        resources["accelerators"] = sizes.written_accelerators(ask.gpu_model, ask.gpu_milli, ask.gpu_counts)
    if ask.cpus_milli is not None:
        resources["cpus"] = units.written_cpus(ask.cpus_milli)
    if ask.memory_mib is not None:
        resources["memory"] = units.written_memory(ask.memory_mib)
    checkpoint = None
    if ask.checkpoint is not None:
        saved = ask.checkpoint
        checkpoint = {"signal": saved.signal, "grace": saved.grace_s}
        checkpoint |= {"path": saved.path} if saved.path is not None else {}
    document: dict[str, object] = {
        "name": ask.name,
        "tenant": ask.tenant,
        "queue": ask.queue,
        "resources": resources or None,
        "num_nodes": _nodes(ask),
        "setup": ask.setup,
        "run": ask.script if ask.script is not None else list(ask.argv),
        "envs": ask.envs or None,
        "workdir": ask.workdir,
        "file_mounts": ask.file_mounts or None,
        "array": list(ask.indices) if ask.indices is not None else None,
        "sweep": list(ask.points) or None,
        "max_duration": ask.max_duration_s,
        "grace": ask.grace_s,
        "max_restarts": ask.max_restarts,
        "priority": ask.priority or None,
        "after": [_after(entry) for entry in ask.after] or None,
        "data": list(ask.data) or None,
        "fencing": ask.fencing.value if ask.fencing is not None else None,
        "lease": ask.lease_s,
        "checkpoint": checkpoint,
        "restart_cost": ask.restart_cost_s,
        "work": _work(ask.work) if ask.work is not None else None,
        "appmaster": ask.appmaster,
        "outputs": list(ask.outputs) or None,
        "files": _files(ask.files) if ask.files is not None else None,
        "user": ask.user or None,
    }
    return {name: value for name, value in document.items() if value is not None}


def _nodes(ask: JobAsk) -> object:
    if ask.node_counts:
        return sizes.written_sizes(ask.node_counts)
    return ask.num_nodes if ask.num_nodes != 1 else None


def _files(files: JobFiles) -> dict[str, object]:
    return {"tree": files.tree, "workdir": files.workdir, "targets": list(files.targets)}


def _work(work: WorkSpec) -> dict[str, object]:
    told: dict[str, object] = {"total": work.total, "family": work.family, "throughput": work.throughput or None}
    return {name: value for name, value in told.items() if value is not None}


def _after(entry: AfterAsk) -> str | dict[str, str]:
    return entry.ref if entry.kind is DependencyKind.SUCCEEDED else {entry.ref: entry.kind.value}
