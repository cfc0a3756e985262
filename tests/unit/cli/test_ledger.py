from __future__ import annotations

from rich.console import Console, RenderableType

from corral.cli.render.ledger import balance, ledger
from corral.model.ids import GangKey, JobId, TenantId
from corral.model.market import Preemption, PreemptionKind
from corral.model.report import Ledger, LedgerEntry, LedgerLine

A, B = TenantId("vision"), TenantId("speech")


def text_of(shown: RenderableType) -> str:
    console = Console(width=140, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


def test_the_ledger_says_who_is_owed_and_who_gave_way_for_whom() -> None:
    lines = (
        LedgerLine(A, 3_600.0, 4.0, 6.5, 2.5, 2, 1, 0.25, 0),
        LedgerLine(B, 3_600.0, 4.0, 1.5, -2.5, 0, 0, 0.0, 1),
    )
    entries = (
        LedgerEntry(7_200.0, GangKey(JobId("3"), 0), A, 4_000, Preemption(PreemptionKind.MOVE, lost_s=30.0)),
        LedgerEntry(
            7_260.0, GangKey(JobId("4"), 2), A, 2_000, Preemption(PreemptionKind.RECLAIM, JobId("9"), B, 630.0)
        ),
    )
    shown = text_of(ledger(Ledger(3_600.0, lines, entries), now=7_300.0)).splitlines()
    vision = next(line for line in shown if line.strip().startswith("vision"))
    assert vision.split() == ["vision", "4.00", "6.50", "+2.50", "2", "0.25", "0"]
    assert next(line for line in shown if line.strip().startswith("speech")).split()[3] == "-2.50"
    newest = next(line for line in shown if "4.2" in line)
    assert "gave back what was guaranteed to job 9 of tenant speech; repeats 10m" in newest
    assert shown.index(newest) < next(i for i, line in enumerate(shown) if "moved to devices" in line)


def test_an_empty_ledger_says_so() -> None:
    assert "nobody held or wanted anything" in text_of(ledger(Ledger(0.0, (), ()), now=1.0))


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert [balance(0.0), balance(-1.234), balance(12.0)] == ["0.00", "-1.23", "+12.00"]
