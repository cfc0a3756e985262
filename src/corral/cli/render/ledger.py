"""`corral queue --ledger`: who received, who is owed, and who gave way for whom."""

from __future__ import annotations

from datetime import tzinfo

from rich.console import RenderableType
from rich.text import Text

from corral.cli.render.layout import Column, heading, stack, table
from corral.cli.render.units import counted, duration, gang_name, gpu_hours, milli, moment, stamp
from corral.model.market import Preemption, PreemptionKind
from corral.model.report import Ledger, LedgerEntry

ENTRIES_SHOWN = 20

WHY = {
    PreemptionKind.ROOM: "made room for",
    PreemptionKind.RECLAIM: "gave back what was guaranteed to",
    PreemptionKind.PRIORITY: "gave way to higher priority:",
    PreemptionKind.MOVE: "moved to devices that suit it better",
    PreemptionKind.RESIZE: "goes on with another size",
    PreemptionKind.DEFRAGMENT: "moved, so that devices lie together for",
}


def ledger(found: Ledger, *, now: float, zone: tzinfo | None = None) -> RenderableType:
    """Return the accounts of all tenants, then the newest preemptions."""
    title = Text(f"since {stamp(found.since, zone)}", style="bold")
    if not found.lines:
        return stack(title, Text("nobody held or wanted anything"))
    heads = (
        Column("TENANT", least=6),
        Column("DUE", right=True),
        Column("RECEIVED", right=True),
        Column("BALANCE", right=True),
        Column("GAVE WAY", right=True),
        Column("LOST", right=True),
        Column("OTHERS GAVE WAY", right=True),
    )
    rows = [
        (
            line.tenant,
            gpu_hours(line.due_gpu_hours),
            gpu_hours(line.received_gpu_hours),
            balance(line.balance_gpu_hours),
            str(line.preempted),
            gpu_hours(line.lost_gpu_hours),
            str(line.preempted_others),
        )
        for line in found.lines
    ]
    note = Text("GPU-hours; a balance below 0 is owed to the tenant, above 0 it used what others left", style="dim")
    return stack(title, Text(""), table(heads, rows), note, *_preemptions(found, now, zone))


def balance(hours: float) -> str:
    """Return a signed number of GPU-hours; what rounds to nothing has no sign."""
    text = gpu_hours(abs(hours))
    return text if text == gpu_hours(0.0) else f"{'-' if hours < 0 else '+'}{text}"


def _preemptions(found: Ledger, now: float, zone: tzinfo | None) -> list[RenderableType]:
    if not found.preemptions:
        return [Text("nobody had to give way")]
    shown = found.preemptions[-ENTRIES_SHOWN:]
    heads = (
        Column("WHEN", least=8),
        Column("JOB", least=4),
        Column("TENANT", least=6),
        Column("GPUS", right=True),
        Column("WHY", wide=True, least=20),
    )
    rows = [
        (
            moment(entry.at, now, zone),
            gang_name(entry.key.job, entry.key.gang),
            entry.tenant,
            milli(entry.gpu_milli),
            reason(entry),
        )
        for entry in reversed(shown)
    ]
    parts: list[RenderableType] = [heading("who gave way, newest first"), table(heads, rows)]
    if len(found.preemptions) > len(shown):
        parts.append(Text(f"and {counted(len(found.preemptions) - len(shown), 'older one')} (--json)", style="dim"))
    return parts


def reason(entry: LedgerEntry) -> str:
    """Return why a gang gave way, for whom, and what it repeats."""
    return f"{why(entry.preemption)}; repeats {duration(entry.preemption.lost_s)}"


def why(preemption: Preemption) -> str:
    """Return the reason and who gained."""
    words = WHY[preemption.kind]
    if preemption.beneficiary is None:
        return words
    whose = f" of tenant {preemption.tenant}" if preemption.tenant is not None else ""
    return f"{words} {'a job' if preemption.beneficiary == '-' else f'job {preemption.beneficiary}'}{whose}"
