"""`corral plan` as text."""

from __future__ import annotations

from datetime import UTC

import pytest
from msgspec.structs import replace

from corral.cli.commands.plan import _new_nodes, _weight
from corral.cli.render.layout import as_text
from corral.cli.render.plan import plan
from corral.model.errors import InvalidField
from corral.model.ids import GangKey, JobId, NodeId, TenantId
from corral.model.plan import Course, NewNodes, PlanReport, Shift

NOW = 1_764_504_000.0  # 2025-11-30 12:00:00 UTC


def course(job: int, start: float | None, end: float | None, *, running: bool = False, stops: int = 0) -> Course:
    return Course(
        GangKey(JobId(str(job)), 0), f"job-{job}", TenantId("vision"), running=running, preemptions=stops,
        start=None if start is None else NOW + start, end=None if end is None else NOW + end,
    )  # fmt: skip


SHIFTS = (
    Shift(course(3, 600, 1_200), course(3, 60, 660)),
    Shift(course(4, -60, 1_200, running=True), course(4, -60, 3_600, running=True, stops=1)),
    Shift(course(5, 1_800, 2_400), course(5, None, None)),
)
REPORT = PlanReport(
    at=NOW, until=NOW + 86_400, gangs=9, submitted=(course(9, 300, 900),), shifts=SHIFTS,
    hurt=(SHIFTS[1].before.key, SHIFTS[2].before.key), busy_before=0.5, busy_after=0.625, ends_before=NOW + 2_400,
    ends_after=None, basis="the median of finished jobs like them",
)  # fmt: skip


def test_a_plan_says_who_gains_and_who_is_hurt() -> None:
    lines = as_text(plan(REPORT, now=NOW, zone=UTC), width=120).splitlines()
    text = "\n".join(lines)
    assert "moved                3 gangs: 1 not later or little, 2 hurt" in text
    assert "all of now ended by  12:40:00 -> beyond" in text
    assert "50.0% -> 62.5% of the pool" in text
    new = next(line for line in lines if line.startswith("job-9"))
    assert new.split() == ["job-9", "0", "12:05:00", "5m00s", "12:15:00", "0"]
    rows = [line.split() for line in lines if line[:2] in ("3 ", "4 ", "5 ")]
    # Hurt first: the one that never ends before the one that ends later; then who gains.
    assert [row[0] for row in rows] == ["5", "4", "3"]
    assert rows[0][3:] == ["12:30:00", "->", "beyond", "12:40:00", "->", "beyond", "hurt"]
    assert rows[1][3:] == ["preempted", "1x", "12:20:00", "->", "13:00:00", "hurt"]
    assert rows[2][3:] == ["12:10:00", "->", "12:01:00", "12:20:00", "->", "12:11:00"]


def test_one_hurt_job_of_others_does_not_make_all_of_theirs_hurt() -> None:
    hidden = GangKey(JobId("-"), 0)
    gains, loses = (
        Shift(replace(shift.before, key=hidden, name=""), replace(shift.after, key=hidden, name=""))
        for shift in (SHIFTS[0], SHIFTS[2])
    )
    report = replace(REPORT, shifts=(gains, loses, loses), hurt=(hidden, hidden))
    lines = as_text(plan(report, now=NOW, zone=UTC), width=120).splitlines()
    assert any("3 gangs: 1 not later or little, 2 hurt" in line for line in lines)
    assert [line.split()[-1] for line in lines if line.startswith("- ")] == ["hurt", "hurt", "12:11:00"]


@pytest.mark.parametrize("text", ["vision", "=2", "vision=", "vision=0", "vision=-1", "vision=inf", "vision=x"])
def test_a_wrong_weight_is_refused(text: str) -> None:
    with pytest.raises(InvalidField, match="TENANT=WEIGHT"):
        _weight(text)
    assert _weight("vision=2.5") == ("vision", 2.5)


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "2:", ":node-0", "1.5", "٢"])
def test_a_wrong_number_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(InvalidField, match="N or N:NODE"):
        _new_nodes(text)
    assert _new_nodes("4:node-0") == NewNodes(4, NodeId("node-0"))
    assert _new_nodes("4") == NewNodes(4)
