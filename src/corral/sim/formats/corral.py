"""corral's own traces: JSON lines, one for the trace and one for each job. ``docs/simulator.md`` describes them.

    {"corral_trace": 1}
    {"name": "fit", "arrival_s": 0, "devices": 4, "duration_s": 3600}

A pool's own history is written in this form by :func:`lines_of`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from corral.model.errors import TraceInvalid
from corral.model.ids import DEFAULT_TENANT, TenantId
from corral.model.job import Gang, Job
from corral.model.resources import MILLI
from corral.sim.formats.rows import WHOLE_MAX, read_text
from corral.sim.workload import ANY_MODEL, Rows, TraceJob, Workload

VERSION = 1

T = TypeVar("T")

_BYTE = re.compile(r"byte (\d+)")
_FIELD = re.compile(r"`\$\.?(\w+)|unknown field `(.*)`")

COLUMNS = {
    "arrival": "arrival_s",
    "duration": "duration_s",
    "num_nodes": "devices",
    "resources.accelerators": "devices",
    "model": "model",
    "priority": "priority",
    "max_duration": "declared_s",
    "work.family": "family",
    "work.throughput": "speeds",
    "work.total": "work",
}


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line. ``origin_s`` (seconds since the epoch) is the time that ``arrival_s`` counts from."""

    corral_trace: int
    origin_s: float = 0.0


class Line(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One job, as :class:`corral.sim.workload.TraceJob`; ``duration_s`` stands for ``work`` at a speed of 1.

    ``devices`` is a number (a fraction below 1 is a share of one device) or the sizes of an elastic job.
    """

    name: str
    arrival_s: float
    devices: float | tuple[int, ...]
    duration_s: float | None = None
    work: float | None = None
    speeds: dict[str, float] = {}
    family: str | None = None
    tenant: str = DEFAULT_TENANT
    priority: int = 0
    model: str | None = None
    declared_s: float | None = None


def read_corral(path: Path) -> Workload:
    """Return the jobs of a trace in order of arrival."""
    lines = [(i, text) for i, text in enumerate(read_text(path).splitlines(), 1) if text.strip()]
    head = _decoded(path, 1, lines[0][1], Head) if lines else None
    if head is None or head.corral_trace != VERSION:
        raise TraceInvalid(f'the first line is not {{"corral_trace": {VERSION}}}', where=f"{path}:1:1")
    jobs = [_job(path, number, text) for number, text in lines[1:]]
    if not jobs:
        raise TraceInvalid("the trace has no job", where=str(path))
    jobs.sort(key=lambda job: job.arrival_s)
    texts = dict(lines)
    rows = Rows(COLUMNS, lambda line, name: f"{path}:{line}:{_column(texts[line], name)}")
    return Workload(str(path), tuple(jobs), origin_s=head.origin_s, rows=rows)


def _decoded(path: Path, number: int, text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        words = str(error)
        byte, field = _BYTE.search(words), _FIELD.search(words)
        column = 1
        if byte is not None:
            column = 1 + len(text.encode()[: int(byte.group(1))].decode(errors="ignore"))
        elif field is not None:
            column = _column(text, field.group(1) or field.group(2))
        raise TraceInvalid(words, where=f"{path}:{number}:{column}") from None


def _column(text: str, field: str) -> int:
    found = re.search(rf'"{re.escape(field)}"\s*:', text)
    return 1 + (found.start() if found is not None else 0)


def _job(path: Path, number: int, text: str) -> TraceJob:
    line = _decoded(path, number, text, Line)
    sizes = line.devices if isinstance(line.devices, tuple) else (line.devices,)
    mistake = _mistake(line, sizes)
    if mistake is not None:
        field, words = mistake
        raise TraceInvalid(f"{field}: {words}", where=f"{path}:{number}:{_column(text, field)}")
    share = sizes[0] if sizes[0] < 1 else None
    return TraceJob(
        name=line.name,
        arrival_s=line.arrival_s,
        devices=(1,) if share is not None else tuple(sorted({int(size) for size in sizes}, reverse=True)),
        work=line.work if line.work is not None else line.duration_s or 0.0,
        speeds=line.speeds or {ANY_MODEL: 1.0},
        steps=line.work is not None,
        family=line.family,
        tenant=TenantId(line.tenant),
        priority=line.priority,
        model=line.model,
        declared_s=line.declared_s,
        milli=max(1, round(share * MILLI)) if share is not None else None,
        line=number,
    )


def _mistake(line: Line, sizes: Sequence[float]) -> tuple[str, str] | None:
    """Return the field that is wrong and why."""
    if not math.isfinite(line.arrival_s) or line.arrival_s < 0.0:
        return "arrival_s", f"{line.arrival_s:g} is not at least 0"
    positive = (
        ("duration_s", line.duration_s),
        ("work", line.work),
        ("declared_s", line.declared_s),
        *(("devices", size) for size in sizes),
        *(("speeds", speed) for speed in line.speeds.values()),
    )
    for field, value in positive:
        if value is not None and not (math.isfinite(value) and value > 0.0):
            return field, f"{value:g} is not above 0"
    if (line.duration_s is None) == (line.work is None):
        return "duration_s", "one of duration_s and work has to be there, and not both"
    if line.work is not None and not line.speeds:
        return "work", "speeds are missing: how much of it is done in a second"
    if not sizes or (any(size != int(size) for size in sizes) and not (len(sizes) == 1 and sizes[0] < 1)):
        return "devices", "these are neither whole numbers nor one share of a device"
    if max(sizes) > WHOLE_MAX:
        return "devices", f"more than {WHOLE_MAX:,}"
    return None


# ---- a pool's history ------------------------------------------------------------------------------------------------


def lines_of(jobs: Iterable[Job]) -> Iterator[bytes]:
    """Yield the lines of a trace of what ended jobs did, in order of arrival: one for each gang that ran on devices.

    What a gang did is the time of its last run, and that of earlier ones where it saves its work.
    """
    lines = [line for job in jobs for line in _lines(job)]
    lines.sort(key=lambda line: (line.arrival_s, line.name))
    origin_s = lines[0].arrival_s if lines else 0.0
    yield msgspec.json.encode(Head(VERSION, origin_s)) + b"\n"
    for line in lines:
        yield msgspec.json.encode(replace(line, arrival_s=round(line.arrival_s - origin_s, 3))) + b"\n"


def _lines(job: Job) -> Iterator[Line]:
    spec = job.spec
    milli = spec.shape.demand.gpu_milli
    if not milli:
        return
    sizes = tuple(shape.ranks * shape.demand.gpu_milli // MILLI for shape in spec.shapes)
    for gang in job.gangs.values():
        duration_s = _service_s(gang) + (gang.attained_s if spec.checkpoint is not None else 0.0)
        if duration_s <= 0.0:
            continue
        yield Line(
            name=f"{job.id}.{gang.index}" if spec.is_array else job.id,
            arrival_s=job.submitted_at,
            devices=sizes or (milli / MILLI if milli < MILLI else float(spec.shape.ranks * milli // MILLI)),
            duration_s=round(duration_s, 3),
            family=spec.work.family if spec.work is not None and spec.work.family else spec.name,
            tenant=spec.tenant,
            priority=spec.priority,
            model=spec.shape.demand.gpu_model,
            declared_s=spec.max_duration_s,
        )


def _service_s(gang: Gang) -> float:
    """Return the seconds of the last run in which all ranks ran."""
    starts = [task.started_at for task in gang.tasks]
    ends = [task.ended_at for task in gang.tasks]
    if not starts or None in starts or None in ends:
        return 0.0
    return max(0.0, min(end for end in ends if end is not None) - max(start for start in starts if start is not None))
