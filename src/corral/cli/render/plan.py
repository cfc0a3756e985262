"""`corral plan`: when the new jobs would run, whose start moves, who is hurt."""

from __future__ import annotations

from datetime import tzinfo

from rich.console import RenderableType
from rich.text import Text

from corral.cli.render.layout import Column, cell, facts, heading, stack, table
from corral.cli.render.units import counted, duration, gang_name, moment, percent
from corral.model.plan import Course, PlanReport, Shift

SHOWN = 30


def plan(report: PlanReport, *, now: float, zone: tzinfo | None = None) -> RenderableType:
    """Return what the changes would do."""
    hurt = sum(1 for shift in report.shifts if shift.hurts(report.at))
    pairs: list[tuple[str, str | Text]] = [
        ("looked ahead", f"until {moment(report.until, now, zone)}, {counted(report.gangs, 'gang')} of now"),
        (
            "moved",
            f"{counted(len(report.shifts), 'gang')}: {len(report.shifts) - hurt} not later or little, {hurt} hurt",
        ),
        ("all of now ended by", f"{_when(report.ends_before, now, zone)} -> {_when(report.ends_after, now, zone)}"),
        ("busy", f"{percent(report.busy_before)} -> {percent(report.busy_after)} of the pool in that time"),
        ("rests on", f"{report.basis}; an expectation, not a promise"),
    ]
    return stack(
        Text("tried on a copy; nothing is changed", style="bold"),
        Text(""),
        facts(pairs),
        *_submitted(report, now, zone),
        *_shifts(report, now, zone),
    )


def _submitted(report: PlanReport, now: float, zone: tzinfo | None) -> list[RenderableType]:
    if not report.submitted:
        return []
    heads = (
        Column("NAME", cut=True, least=6),
        Column("ELEMENT", right=True),
        Column("START", least=8),
        Column("WAITS", right=True),
        Column("END", least=8),
        Column("PREEMPTED", right=True),
    )
    rows = [
        (
            course.name,
            str(course.key.gang),
            _when(course.start, now, zone),
            "-" if course.start is None else duration(max(0.0, course.start - report.at)),
            _when(course.end, now, zone),
            str(course.preemptions),
        )
        for course in report.submitted[:SHOWN]
    ]
    parts: list[RenderableType] = [heading("the new jobs"), table(heads, rows)]
    return parts + _left(len(report.submitted) - SHOWN)


def _shifts(report: PlanReport, now: float, zone: tzinfo | None) -> list[RenderableType]:
    if not report.shifts:
        return [Text("no start and no end of another job moves")]
    # By their times, not by their keys: the jobs of others have none of their own.
    ordered = sorted(report.shifts, key=lambda shift: (not shift.hurts(report.at), -_later(shift), shift.before.key))
    heads = (
        Column("JOB", least=4),
        Column("NAME", cut=True, least=6),
        Column("TENANT", cut=True, least=6),
        Column("START", least=17),
        Column("END", least=17),
        Column("", least=4),
    )
    rows = [_row(shift, now, zone, hurt=shift.hurts(report.at)) for shift in ordered[:SHOWN]]
    parts: list[RenderableType] = [heading("what moves, the hurt first"), table(heads, rows)]
    return parts + _left(len(ordered) - SHOWN)


def _row(shift: Shift, now: float, zone: tzinfo | None, *, hurt: bool) -> tuple[str | Text, ...]:
    before, after = shift.before, shift.after
    key = gang_name(before.key.job, before.key.gang)
    return (key, before.name, before.tenant, _starts(before, after, now, zone),
            _pair(before.end, after.end, now, zone), cell("hurt") if hurt else "")  # fmt: skip


def _starts(before: Course, after: Course, now: float, zone: tzinfo | None) -> str:
    if before.running:
        return "runs" if after.preemptions == before.preemptions else f"preempted {after.preemptions}x"
    return _pair(before.start, after.start, now, zone)


def _pair(before: float | None, after: float | None, now: float, zone: tzinfo | None) -> str:
    one, two = _when(before, now, zone), _when(after, now, zone)
    return one if one == two else f"{one} -> {two}"


def _when(at: float | None, now: float, zone: tzinfo | None) -> str:
    return "beyond" if at is None else moment(at, now, zone)


def _later(shift: Shift) -> float:
    before, after = shift.before.end, shift.after.end
    if before is None or after is None:
        return float("inf") if before is not None else 0.0
    return after - before


def _left(count: int) -> list[RenderableType]:
    return [Text(f"and {counted(count, 'more')} (--json)", style="dim")] if count > 0 else []
