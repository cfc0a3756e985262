"""What a trace asks for, in one form for all formats: jobs with their true work and how fast they go where."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from corral.model.errors import Refusal, TraceInvalid
from corral.model.ids import DEFAULT_TENANT, TenantId

ANY_MODEL = "*"

CANNOT = 1e-6
"""What is left of a job's best speed where a trace knows none (its memory does not fit): as good as nothing."""


DURATION_MAX_S = 1e8
"""Three years: a trace with longer jobs has a slip in it, and would be simulated for days, a round at a time."""

ARRIVAL_MAX_S = 1e10
"""Three hundred years: clocks that count from 1970 are far below, and times still differ by microseconds."""


class TraceJob(msgspec.Struct, frozen=True):
    """One job of a trace. Times in seconds since the beginning of the trace.

    It does ``work`` units in all. ``speeds`` are units per second by device model and number of devices of the whole
    gang (``"V100:4"``), by model alone (``"V100"``) or for all (``"*"``). ``devices`` are its sizes, the largest first;
    a rigid job has one. ``declared_s`` is a duration that its user declared. ``steps`` says that ``work`` counts
    something that a user could declare; otherwise it is the duration itself. ``milli`` is the share of one device that
    it takes; ``cpus_milli`` and ``memory_mib`` are per rank (``None``: what comes with the devices). ``line`` (from 1)
    is where it stands.
    """

    name: str
    arrival_s: float
    devices: tuple[int, ...]
    work: float
    speeds: dict[str, float] = msgspec.field(default_factory=lambda: {ANY_MODEL: 1.0})
    steps: bool = False
    family: str | None = None
    tenant: TenantId = DEFAULT_TENANT
    weight: float = 1.0
    priority: int = 0
    model: str | None = None
    declared_s: float | None = None
    milli: int | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None
    line: int = 0

    def speed(self, model: str, devices: int) -> float:
        """Return units of work per second on ``devices`` of a model, next to nothing where it cannot run."""
        for name in (f"{model}:{devices}", model, f"{ANY_MODEL}:{devices}", ANY_MODEL):
            if name in self.speeds:
                return self.speeds[name]
        return max(self.speeds.values()) * CANNOT

    def knows(self, model: str, devices: int) -> bool:
        """Return whether the trace says how fast it is on ``devices`` of a model."""
        return any(name in self.speeds for name in (f"{model}:{devices}", model, f"{ANY_MODEL}:{devices}", ANY_MODEL))

    def alone_s(self, models: tuple[str, ...], devices: int) -> float:
        """Return the seconds that it takes alone on its largest size of at most ``devices``, on the best model.

        A rigid job, and an elastic one whose sizes are all larger, runs on its smallest size.
        """
        size = next((size for size in self.devices if size <= devices), self.devices[-1])
        return self.work / max(self.speed(model, size) for model in models if self.model in (None, model))


class Rows(msgspec.Struct, frozen=True):
    """Where the rows of a trace stand, so that what turns out to be wrong with one can be told.

    ``columns`` are the trace's names for ``arrival``, ``duration``, ``model`` and what job files call otherwise.
    ``find`` looks a row up again: it returns ``path:line:column`` of a line and one of these names.
    """

    columns: dict[str, str]
    find: Callable[[int, str], str]


class Workload(msgspec.Struct, frozen=True):
    """The jobs of one trace in the order of their arrival.

    ``round_s``, ``restart_cost_s`` and ``whole_steps`` are what the experiments on such traces assume: the time between
    rounds, what a preempted job loses, and rounds of whole steps: a job does as many steps as fit into a round, devices
    that come free inside it stay idle, and the next round begins when all that run have done theirs.
    ``table_known`` says that the throughputs belong to the experiment: every policy knows them, a blind one too.
    ``origin_s`` is the time of the trace's own clock at which it begins, ``left_out`` the rows that it does not use.
    ``rows`` is ``None`` where the jobs come from no file.
    """

    source: str
    jobs: tuple[TraceJob, ...]
    round_s: float = 60.0
    restart_cost_s: float = 30.0
    whole_steps: bool = False
    table_known: bool = False
    origin_s: float = 0.0
    left_out: int = 0
    rows: Rows | None = None

    def wrong(self, job: TraceJob, field: str, message: str, hint: str | None = None) -> TraceInvalid:
        """Return the error that a field of a job makes."""
        told = self.placed(job, Refusal(TraceInvalid.code, message, field, hint))
        return TraceInvalid(told.message, field=told.field, hint=told.hint, where=told.where)

    def placed(self, job: TraceJob, refusal: Refusal) -> Refusal:
        """Return a refusal of the pool with the file, line and column of what it is about."""
        if self.rows is None:
            return replace(refusal, where=f"{self.source}: job {job.name}")
        field = refusal.field or ""
        # No rank is larger than a node, so a device that cannot be had is one of a model that is not there.
        if field == "resources.accelerators" and job.model is not None:
            field = "model"
        name = self.rows.columns.get(field)
        if name is None:
            return replace(refusal, where=self.rows.find(job.line, ""))
        return replace(refusal, field=name, where=self.rows.find(job.line, name))
