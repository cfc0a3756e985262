"""Admission: from what a user asked for to a complete job, or one refusal that says what is wrong and what to do."""

from __future__ import annotations

from msgspec.structs import replace

from corral.model.ask import JobAsk
from corral.model.errors import InvalidField, QuotaExceeded, Refusal, TooManyJobs
from corral.model.job import Dependency, JobSpec
from corral.model.resources import MILLI, Amount, Demand, GangShape
from corral.model.tenant import Queue, Quota, Tenant
from corral.policy.config import NAME_LENGTH_MAX, AdmissionDefaults
from corral.policy.fairness import within
from corral.policy.feasibility import ever_fits, gpus_words, matching
from corral.policy.inventory import Inventory
from corral.policy.validation import NAME, refusals_of

__all__ = ["AdmissionDefaults", "admit"]


def admit(
    ask: JobAsk,
    *,
    tenant: Tenant,
    queue: Queue,
    capacity: Inventory,
    defaults: AdmissionDefaults,
    pending_jobs: int,
    resolved_after: tuple[Dependency, ...],
) -> JobSpec | Refusal:
    """Return the job with all defaults applied, or why it is refused.

    Args:
        ask: What was asked for.
        tenant: Who it is for.
        queue: Where it will wait.
        capacity: All nodes that the pool knows, also those that are busy, cordoned or away: a job is refused only when
            they could never run it together.
        defaults: What holds where the job says nothing.
        pending_jobs: How many unfinished jobs the tenant has.
        resolved_after: ``ask.after`` with job numbers.

    Codes: ``INVALID_FIELD``, ``MISSING_FIELD``, ``PATH_UNSAFE`` for the request itself; ``TOO_MANY_JOBS``,
    ``QUOTA_EXCEEDED``, ``UNSCHEDULABLE`` and ``UNAVAILABLE`` (no node yet) for what the pool allows.
    """
    for refusal in refusals_of(ask, defaults):
        return refusal
    jobs_max = min(defaults.jobs_max, tenant.jobs_max if tenant.jobs_max is not None else defaults.jobs_max)
    if pending_jobs >= jobs_max:
        message = f"tenant {tenant.id} has {pending_jobs} unfinished jobs and may have {jobs_max}"
        return Refusal(TooManyJobs.code, message, None, "wait for some to end, or submit them as one array")
    shapes = _shapes(ask, capacity, defaults)
    unfit: Refusal | None = None
    for shape in shapes:
        unfit = _over_limit(shape, tenant, queue) or ever_fits(shape, capacity)
        if unfit is None:
            return _spec(ask, shape, shapes, tenant, queue, defaults, resolved_after)
    # Of an elastic job the smallest size is the one to be told about: the larger ones fit even less.
    assert unfit is not None, "a job has a shape"
    return unfit


def _shapes(ask: JobAsk, capacity: Inventory, defaults: AdmissionDefaults) -> tuple[GangShape, ...]:
    """Return the sizes in which a job can run, largest first; of a rigid job there is one."""
    if ask.gpu_counts:
        asks = [replace(ask, gpu_milli=count * MILLI) for count in sorted(ask.gpu_counts, reverse=True)]
    else:
        asks = [replace(ask, num_nodes=count) for count in sorted(ask.node_counts or (ask.num_nodes,), reverse=True)]
    return tuple(GangShape(one.num_nodes, _demand(one, capacity, defaults)) for one in asks)


def _demand(ask: JobAsk, capacity: Inventory, defaults: AdmissionDefaults) -> Demand:
    """Return what one rank needs; CPUs and memory that were not said follow from the devices it takes."""
    cpus, memory = ask.cpus_milli, ask.memory_mib
    if ask.gpu_milli:
        hosts = [
            (kind, devices)
            for kind in capacity.kinds
            if matching(kind, ask.gpu_model) and (devices := kind.devices) * MILLI >= ask.gpu_milli
        ]
        # The smallest part per device, so that every such node can fill all its devices with defaulted jobs.
        each_cpus = min((kind.cpus_milli // devices for kind, devices in hosts), default=defaults.cpus_milli)
        each_memory = min((kind.memory_mib // devices for kind, devices in hosts), default=defaults.memory_mib)
        cpus = cpus if cpus is not None else max(1, each_cpus * ask.gpu_milli // MILLI)
        memory = memory if memory is not None else max(1, each_memory * ask.gpu_milli // MILLI)
    else:
        largest_cpus = max((kind.cpus_milli for kind in capacity.kinds), default=defaults.cpus_milli)
        cpus = cpus if cpus is not None else max(1, min(defaults.cpus_milli, largest_cpus))
        memory = memory if memory is not None else _memory_by_cpus(ask.num_nodes, cpus, capacity, defaults)
    return Demand(ask.gpu_milli, ask.gpu_model, cpus, memory)


def _memory_by_cpus(ranks: int, cpus_milli: int, capacity: Inventory, defaults: AdmissionDefaults) -> int:
    """Return the part of a node's memory (MiB) that goes with CPUs: of the largest node with which all ranks fit.

    It is ``memory x cpus / CPUs of the node``, at least ``defaults.memory_mib`` or all that the node has.
    """
    memory = defaults.memory_mib
    for kind in sorted(capacity.kinds, key=lambda kind: (kind.memory_mib, kind.cpus_milli), reverse=True):
        share = kind.memory_mib * min(cpus_milli, kind.cpus_milli) // max(1, kind.cpus_milli)
        memory = max(1, share, min(defaults.memory_mib, kind.memory_mib))
        if ever_fits(GangShape(ranks, Demand(0, None, cpus_milli, memory)), capacity) is None:
            break
    return memory


def _over_limit(shape: GangShape, tenant: Tenant, queue: Queue) -> Refusal | None:
    need = Amount.of(shape.demand).times(shape.ranks)
    limits: tuple[tuple[str, Quota], ...] = (
        (f"tenant {tenant.id}", tenant.limit),
        (f"queue {queue.name}", queue.limit),
    )
    for who, limit in limits:
        broken = within(limit, Amount(), need)
        if broken == "GPUs":
            message = f"{gpus_words(need.gpu_milli)} are more than {who} may hold ({gpus_words(limit.gpu_milli or 0)})"
            return Refusal(
                QuotaExceeded.code, message, "resources.accelerators", "ask for fewer, or for a higher limit"
            )
        if broken == "CPUs":
            may = (limit.cpus_milli or 0) / MILLI
            message = f"{need.cpus_milli / MILLI:g} CPUs are more than {who} may hold ({may:g})"
            return Refusal(QuotaExceeded.code, message, "resources.cpus", "ask for fewer, or for a higher limit")
    return None


def _spec(
    ask: JobAsk,
    shape: GangShape,
    shapes: tuple[GangShape, ...],
    tenant: Tenant,
    queue: Queue,
    defaults: AdmissionDefaults,
    after: tuple[Dependency, ...],
) -> JobSpec | Refusal:
    grace_s = ask.grace_s if ask.grace_s is not None else defaults.grace_s
    duration_s = ask.max_duration_s if ask.max_duration_s is not None else defaults.max_duration_s
    lease_s = ask.lease_s if ask.lease_s is not None else defaults.lease_s
    indices = ask.indices if ask.indices is not None else tuple(range(len(ask.points))) or (0,)
    if len({dependency.job for dependency in after}) < len(after):
        return Refusal(InvalidField.code, "names the same job twice", "after", "keep one of them")
    return JobSpec(
        name=ask.name if ask.name is not None else _default_name(ask),
        tenant=tenant.id,
        shape=shape,
        argv=ask.argv,
        script=ask.script if not ask.argv else None,
        setup=ask.setup,
        queue=queue.name,
        envs=ask.envs,
        workdir=ask.workdir,
        file_mounts=ask.file_mounts,
        indices=indices,
        points=ask.points,
        is_array=ask.indices is not None or bool(ask.points),
        max_duration_s=duration_s,
        grace_s=grace_s,
        max_restarts=ask.max_restarts if ask.max_restarts is not None else defaults.max_restarts,
        priority=ask.priority,
        after=after,
        data=tuple(dict.fromkeys(ask.data)),
        fencing=ask.fencing if ask.fencing is not None else defaults.fencing,
        lease_s=lease_s,
        checkpoint=ask.checkpoint,
        restart_cost_s=ask.restart_cost_s if ask.restart_cost_s is not None else defaults.restart_cost_s,
        shapes=shapes if len(shapes) > 1 else (),
        work=ask.work,
        appmaster=ask.appmaster,
        files=ask.files,
        outputs=ask.outputs,
    )


def _default_name(ask: JobAsk) -> str:
    """Return the program's file name, the script's first word, or ``job``."""
    first = ask.argv[0] if ask.argv else next(iter((ask.script or "").split()), "")
    name = first.rstrip("/").rpartition("/")[2][:NAME_LENGTH_MAX]
    return name if NAME.fullmatch(name) and not name.replace(".", "").isdecimal() else "job"
