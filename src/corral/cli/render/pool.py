"""`corral up`, `status`, `queue`, `tenant`, `token` and `usage`: the pool and those who share it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from corral.cli.render.layout import Column, cell, facts, stack, state, table
from corral.cli.render.units import (
    counted,
    duration,
    gang_name,
    gpu_hours,
    milli,
    percent,
    span,
    stamp,
    trimmed,
)
from corral.cli.render.why import shape_brief
from corral.model.report import HEAD_SILENT_S, PoolStatus, QueueLine, TenantReport
from corral.model.tenant import Queue, Quota, Token
from corral.ports.store import UsageRow

if TYPE_CHECKING:
    from corral.runtime.doctor_machines import Finding
    from corral.runtime.options import PoolInfo
    from corral.runtime.starting.heading import HeadInfo

MILLI_S_PER_HOUR = 3_600_000.0


def status(found: PoolStatus, *, state_dir: str, zone: tzinfo | None = None) -> RenderableType:
    """Return the pool at a glance."""
    pairs: list[tuple[str, str | Text]] = [
        ("address", found.url),
        ("state", state_dir),
        ("running since", f"{stamp(found.started_at, zone)} ({duration(found.now - found.started_at)})"),
        ("nodes", _up_of(found)),
        ("devices", devices_words(found)),
        ("held", held_words(found)),
        ("work", work_words(found)),
    ]
    if found.heads:
        pairs.append(("controllers", heads_words(found)))
    if found.store_away_s >= 1:
        away = f"has not answered for {duration(found.store_away_s)}; nothing is taken in, another controller may lead"
        pairs.append(("database", state("suspect", away)))
    if abs(found.clock_offset_s) >= 1:
        pairs.append(("clock", f"was set by {duration(abs(found.clock_offset_s))}; times go on without a jump"))
    title = cell(f"corral {found.version}, pid {found.pid}, epoch {found.epoch}, journal at {found.seq}")
    return stack(title, Text(""), facts(pairs))


def heads_words(found: PoolStatus) -> str:
    """Return who leads and who stands by: ``head-1 leads; head-2 and head-3 stand by``."""
    leading = " and ".join(head.name for head in found.heads if head.leads)
    there = [head.name for head in found.heads if not head.leads and head.seen_s < HEAD_SILENT_S]
    gone = [head.name for head in found.heads if not head.leads and head.seen_s >= HEAD_SILENT_S]
    words = [f"{leading} leads"] if leading else []
    words += [f"{_listed(there)} {'stands' if len(there) == 1 else 'stand'} by"] if there else []
    words += [f"{_listed(gone)} {'is' if len(gone) == 1 else 'are'} silent"] if gone else []
    return "; ".join(words)


def _listed(names: list[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _up_of(found: PoolStatus) -> Text:
    word = "up" if found.nodes_up == found.nodes else "suspect"
    return state(word, f"{found.nodes_up} of {found.nodes} up")


def devices_words(found: PoolStatus) -> str:
    """Return what the devices are: ``32 (32 x H100), all SIMULATED``, or that this is a CPU pool."""
    if not found.devices:
        return "CPU pool: no GPUs found"
    models = ", ".join(f"{count} x {model}" for model, count in sorted(found.models.items()))
    text = f"{found.devices} ({models})" if models else str(found.devices)
    if found.simulated_devices:
        all_of = found.simulated_devices == found.devices
        text += ", all SIMULATED" if all_of else f", {found.simulated_devices} SIMULATED"
    if found.devices_failed:
        text += f", {found.devices_failed} failed"
    return text


def held_words(found: PoolStatus) -> str:
    """Return what is held of what there is."""
    parts = []
    for word, held, total in (
        ("GPUs", found.held.gpu_milli, found.capacity.gpu_milli),
        ("CPUs", found.held.cpus_milli, found.capacity.cpus_milli),
    ):
        if total:
            parts.append(f"{milli(held)} of {milli(total)} {word} ({percent(held / total, 0)})")
    return ", ".join(parts) or "nothing"


def work_words(found: PoolStatus) -> str:
    """Return how much work there is."""
    return (
        f"{found.running_gangs} running, {found.pending_gangs} pending, "
        f"{counted(found.waiting_jobs, 'job')} waiting for others, {found.finished_jobs} finished"
    )


def queue(
    lines: Sequence[QueueLine], *, now: float, limit: int, held_back: int = 0, zone: tzinfo | None = None
) -> RenderableType:
    """Return what waits, in the order in which it is considered. ``held_back`` jobs wait for others to end."""
    others = f"{counted(held_back, 'job')} {'waits' if held_back == 1 else 'wait'} for other jobs to end"
    if not lines:
        return Text(f"nothing waits for room; {others}" if held_back else "nothing waits")
    heads = (
        Column("POS", right=True),
        Column("JOB", least=4),
        Column("NAME", cut=True, least=6),
        Column("TENANT", cut=True, least=6),
        Column("PRIO", right=True),
        Column("NEEDS", cut=True, least=8),
        Column("WAITED", right=True),
        Column("START", wide=True, least=9),
        Column("REASON", wide=True, least=14),
    )
    rows = [
        (
            str(line.position),
            gang_name(line.key.job, line.key.gang),
            line.name,
            line.tenant,
            str(line.priority),
            shape_brief(line.shape),
            duration(line.waited_s),
            "-" if line.estimate is None else span(line.estimate.earliest, line.estimate.latest, now, zone),
            line.reason,
        )
        for line in lines
    ]
    more = Text(f"the first {limit} (--limit shows more)", style="dim") if len(lines) >= limit else None
    return stack(table(heads, rows), more, Text(others, style="dim") if held_back else None)


def queues(found: Sequence[Queue]) -> RenderableType:
    """Return the named queues."""
    heads = (
        Column("QUEUE", least=5),
        Column("PRIORITY", right=True),
        Column("LIMIT", wide=True),
        Column("STATE"),
    )
    rows = [
        (one.name, str(one.priority), quota_words(one.limit, "none"), "paused" if one.paused else "open")
        for one in found
    ]
    return table(heads, rows)


def quota_words(quota: Quota, otherwise: str) -> str:
    """Return a quota in words: ``8 GPUs, 64 CPUs``; a limit of nothing is said as such."""
    parts = []
    if quota.gpu_milli is not None:
        parts.append(f"{milli(quota.gpu_milli)} GPUs")
    if quota.cpus_milli is not None:
        parts.append(f"{milli(quota.cpus_milli)} CPUs")
    return ", ".join(parts) or otherwise


def tenants(reports: Sequence[TenantReport]) -> RenderableType:
    """Return the tenants with what is due to them and what they hold."""
    heads = (
        Column("TENANT", least=6),
        Column("WEIGHT", right=True),
        Column("DUE", right=True),
        Column("HOLDS", right=True),
        Column("AVERAGE", right=True),
        Column("GPUS", right=True),
        Column("RUNNING", right=True),
        Column("PENDING", right=True),
        Column("GUARANTEED", wide=True),
        Column("LIMIT", wide=True),
    )
    rows = [
        (
            report.tenant.id,
            trimmed(report.tenant.weight, 2),
            percent(report.due_share),
            percent(report.held_share),
            percent(report.decayed_share),
            milli(report.held.gpu_milli),
            str(report.running),
            str(report.pending),
            quota_words(report.tenant.guaranteed, "-"),
            quota_words(report.tenant.limit, "-"),
        )
        for report in reports
    ]
    return table(heads, rows)


def tokens(found: Sequence[Token], *, zone: tzinfo | None = None) -> RenderableType:
    """Return the access tokens; their secrets are known to nobody but their holders."""
    heads = (Column("ID", least=6), Column("TENANT"), Column("ROLE"), Column("MADE"), Column("LABEL", wide=True))
    rows = [(one.id, one.tenant, one.role.value, stamp(one.created_at, zone), one.label) for one in found]
    return table(heads, rows)


def usage(
    rows: Sequence[UsageRow], *, since: float, until: float, by: str, zone: tzinfo | None = None
) -> RenderableType:
    """Return used GPU-hours and CPU-hours ``by`` tenant, day or hour, with each one's part of all."""
    title = Text(f"from {stamp(since, zone)} to {stamp(until, zone)}", style="bold")
    sums = usage_sums(rows, by, zone)
    total = sum(gpu for gpu, _, _ in sums.values())
    if not sums:
        return stack(title, Text("nothing was used"))
    heads = (
        *(() if by == "tenant" else (Column(by.upper()),)),
        Column("TENANT", least=6),
        Column("GPU-HOURS", right=True),
        Column("PART", right=True),
        Column("LOST", right=True),
        Column("CPU-HOURS", right=True),
    )
    lines = [
        (
            *(() if by == "tenant" else (when,)),
            tenant,
            gpu_hours(gpu),
            percent(gpu / total if total else None),
            gpu_hours(lost),
            gpu_hours(cpu),
        )
        for (when, tenant), (gpu, cpu, lost) in sums.items()
    ]
    return stack(title, Text(""), table(heads, lines))


def usage_sums(
    rows: Iterable[UsageRow], by: str, zone: tzinfo | None = None
) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Return (GPU-hours, CPU-hours, lost GPU-hours) by (time, tenant); the time is empty when ``by`` is tenant."""
    shapes = {"tenant": "", "day": "%Y-%m-%d", "hour": "%Y-%m-%d %H:%M"}
    sums: dict[tuple[str, str], tuple[float, float, float]] = {}
    for row in rows:
        key = (datetime.fromtimestamp(row.hour, zone).strftime(shapes[by]), str(row.tenant))
        gpu, cpu, lost = sums.get(key, (0.0, 0.0, 0.0))
        sums[key] = (
            gpu + row.gpu_milli_s / MILLI_S_PER_HOUR,
            cpu + row.cpus_milli_s / MILLI_S_PER_HOUR,
            lost + row.lost_gpu_milli_s / MILLI_S_PER_HOUR,
        )
    return dict(sorted(sums.items()))


def started_head(info: HeadInfo) -> RenderableType:
    """Return a head that has just started, and how others join it."""
    if info.join is None:
        told = Text("\nanother head leads; `corral token join` there prints how machines join")
        return stack(started(info.pool), told)
    told = Text("\non every other machine, with the same release of corral (the token lets machines in; keep it):\n")
    return stack(started(info.pool), told, Text(f"  {info.join}", no_wrap=True, overflow="ignore"))


def started(info: PoolInfo) -> RenderableType:
    """Return what was started: nodes, devices, where it answers and where its state is."""
    models = ", ".join(f"{count} x {model}" for model, count in sorted(info.devices.items()))
    devices = models or "CPU pool: no GPUs found"
    if info.simulated:
        devices += ", all SIMULATED"
    pairs = [
        ("address", info.url),
        ("state", info.state_dir),
        ("nodes", f"{info.nodes_up} of {info.nodes} up"),
        ("devices", devices),
        *(("note", text) for text in info.notes),
        ("next", "corral run --gpus 1 -- nvidia-smi" if models and not info.simulated else "corral run -- hostname"),
    ]
    return stack(Text(f"the pool is up: corral {info.version}, pid {info.pid}"), Text(""), facts(pairs))


FINDING_WORDS = {True: ("ok", "green"), False: ("wrong", "red"), None: ("note", "yellow")}


def findings(found: Sequence[Finding]) -> RenderableType:
    """Return the checks of the doctor, each with what to do when it is wrong."""
    heads = (Column("CHECK", least=6), Column("RESULT"), Column("DETAIL", wide=True, least=20))
    rows = []
    for finding in found:
        word, style = FINDING_WORDS[finding.ok]
        hint = f" ({finding.hint})" if finding.hint else ""
        rows.append((finding.check, Text(word, style=style), f"{finding.detail}{hint}"))
    wrong = sum(finding.ok is False for finding in found)
    verdict = f"{counted(wrong, 'check')} found something wrong" if wrong else "nothing is wrong"
    return stack(table(heads, rows), Text(f"\n{verdict}"))
