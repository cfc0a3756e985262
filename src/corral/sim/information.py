"""What a job tells its scheduler of what the trace knows: four levels, never mixed."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from corral.model.ask import JobAsk
from corral.model.experience import WorkSpec
from corral.model.job import CheckpointSpec
from corral.model.resources import MILLI, NodeSpec
from corral.sim.cluster import largest_node, models_of
from corral.sim.workload import ANY_MODEL, ARRIVAL_MAX_S, DURATION_MAX_S, TraceJob, Workload

FRACTION = 1.0
"""At the level ``progress`` the work of every job is 1: its tasks report the fraction that is done."""


class Information(StrEnum):
    """What the jobs declare and report.

    ``blind``: nothing but their size. ``progress``: the fraction done, once they have run for five minutes.
    ``declared``: what their users could say, the total of steps and the throughput table, where the trace has them;
    they report steps. ``oracle``: the same from the true durations of traces that count no steps.
    """

    BLIND = "blind"
    PROGRESS = "progress"
    DECLARED = "declared"
    ORACLE = "oracle"

    @property
    def reports(self) -> bool:
        """Return whether running tasks report how far they are."""
        return self is not Information.BLIND


class Teller:
    """Turns the jobs of one workload into what is submitted to the control core."""

    def __init__(
        self, workload: Workload, nodes: Sequence[NodeSpec], level: Information, restart_cost_s: float
    ) -> None:
        self._workload = workload
        self._nodes = nodes
        self._models = models_of(nodes)
        self._level = level
        self._restart_cost_s = restart_cost_s
        self._asked = 0
        self._largest: dict[str | None, int] = {}

    def ask(self, job: TraceJob) -> JobAsk:
        """Return the submission of a job."""
        self._asked += 1
        sizes = self._sizes(job)
        ranks, per_rank = self._shape(job, sizes)
        node_counts: tuple[int, ...] = ()
        gpu_counts: tuple[int, ...] = ()
        if len(sizes) > 1 and ranks == 1:
            gpu_counts = sizes
        elif len(sizes) > 1:
            node_counts = tuple(size // per_rank for size in sizes)
        return JobAsk(
            # Names of traces may be anything; one of its own keeps a job from sharing the family of another.
            name=f"trace-{self._asked}",
            tenant=job.tenant,
            argv=("train",),
            gpu_milli=job.milli if job.milli is not None else per_rank * MILLI,
            gpu_model=job.model,
            cpus_milli=job.cpus_milli,
            memory_mib=job.memory_mib,
            num_nodes=ranks,
            gpu_counts=gpu_counts,
            node_counts=node_counts,
            priority=job.priority,
            max_duration_s=job.declared_s if self._level is not Information.BLIND else None,
            max_restarts=0,
            checkpoint=CheckpointSpec(),
            restart_cost_s=self._restart_cost_s,
            work=self._work(job),
        )

    def total(self, job: TraceJob) -> float:
        """Return the amount of work in the units in which its tasks report."""
        return FRACTION if self._level is Information.PROGRESS else job.work

    def check(self) -> None:
        """Raise ``TraceInvalid`` for the first job that comes too late, has no speed here, or runs for ever."""
        for job in self._workload.jobs:
            self._check(job)

    def _check(self, job: TraceJob) -> None:
        wrong = self._workload.wrong
        if job.arrival_s > ARRIVAL_MAX_S:
            raise wrong(job, "arrival", f"{job.arrival_s:g} s are more than {ARRIVAL_MAX_S:g}")
        models = [model for model in self._models if job.model in (None, model)]
        if not models:
            return
        speeds = [job.speed(model, size) for model in models for size in job.devices if job.knows(model, size)]
        if not speeds:
            message = f"no speed on {', '.join(models)} for {', '.join(map(str, job.devices))} devices"
            raise wrong(job, "work.throughput", message, "the cluster needs devices that the trace knows")
        seconds = job.work / max(speeds)
        if seconds > DURATION_MAX_S:
            field = "work.total" if job.steps else "duration"
            raise wrong(job, field, f"the job takes {seconds:g} s at its best, more than {DURATION_MAX_S:g}")

    def _sizes(self, job: TraceJob) -> tuple[int, ...]:
        """Return the sizes of a job that the cluster can have, the largest first; its smallest one in any case."""
        there = sum(1 for n in self._nodes for device in n.devices if job.model in (None, device.model))
        return tuple(size for size in job.devices if size <= there) or job.devices[-1:]

    def _shape(self, job: TraceJob, sizes: tuple[int, ...]) -> tuple[int, int]:
        """Return the ranks of the largest size and the devices of each: as few ranks as the largest node allows."""
        largest = self._largest.get(job.model)
        if largest is None:
            largest = self._largest[job.model] = max(1, largest_node(self._nodes, job.model))
        if sizes[0] <= largest:
            return 1, sizes[0]
        per_rank = next(n for n in range(min(largest, sizes[-1]), 0, -1) if all(size % n == 0 for size in sizes))
        return sizes[0] // per_rank, per_rank

    def _work(self, job: TraceJob) -> WorkSpec | None:
        claims = self._claims(job) if job.steps else {}
        match self._level:
            case Information.BLIND if self._workload.table_known:
                return WorkSpec(family=job.family, throughput=claims)
            case Information.BLIND:
                return None
            case Information.PROGRESS:
                return WorkSpec(total=FRACTION, family=job.family)
            case Information.DECLARED:
                return WorkSpec(total=job.work, family=job.family, throughput=claims) if job.steps else None
            case Information.ORACLE:
                return WorkSpec(total=job.work, family=job.family, throughput=self._claims(job))

    def _claims(self, job: TraceJob) -> dict[str, float]:
        claims: dict[str, float] = {}
        for name, rate in job.speeds.items():
            model, _, devices = name.partition(":")
            for each in self._models if model == ANY_MODEL else (model,):
                claims[f"{each}:{devices}" if devices else each] = rate
        return claims
