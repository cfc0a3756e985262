"""`corral receipt` and `corral history`: what a job cost, and what happened to it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

from rich.console import RenderableType
from rich.text import Text

from corral.cli.render.layout import Column, cell, facts, stack, state, table
from corral.cli.render.units import counted, duration, gpu_hours, memory, percent, stamp
from corral.model.events import FilesReturned
from corral.model.files import ReturnKind
from corral.model.report import Receipt
from corral.ports.store import JournalEntry


def receipt(found: Receipt, *, zone: tzinfo | None = None) -> RenderableType:
    """Return the receipt as a list of facts."""
    ended = found.state.ended
    title = Text.assemble(
        (f"receipt of job {found.job}", "bold"), " (", cell(found.name), "), tenant ", cell(found.tenant), ": ",
        state(found.state.value), "" if ended else Text(", so far"),
    )  # fmt: skip
    pairs: list[tuple[str, str | Text]] = [
        ("submitted", stamp(found.submitted_at, zone)),
        ("started", stamp(found.started_at, zone)),
        ("ended", stamp(found.ended_at, zone)),
        ("waited", duration(found.waited_s)),
        ("ran", duration(found.ran_s)),
        (
            "GPU-hours",
            gpu_hours(found.gpu_hours) + (" (simulated devices)" if found.simulated and found.gpu_hours else ""),
        ),
        ("lost work", f"{gpu_hours(found.lost_gpu_hours)} GPU-hours" + _lost_share(found)),
        ("idle share", "not measured" if found.idle_share is None else percent(found.idle_share)),
        ("restarts", f"{found.restarts}, and {counted(found.moves, 'move')} that no fault of the job caused"),
    ]
    if found.gangs > 1:
        pairs.append(("elements", str(found.gangs)))
    if found.cpu_s is not None:
        pairs.append(("CPU time", duration(found.cpu_s)))
    if found.rss_max_mib is not None:
        pairs.append(("memory, most", memory(found.rss_max_mib)))
    pairs.append(("nodes", ", ".join(found.nodes) or "none"))
    pairs.append(("exit", _exit(found)))
    return stack(title, Text(""), facts(pairs))


def _lost_share(found: Receipt) -> str:
    return f" ({percent(found.lost_gpu_hours / found.gpu_hours)} of it)" if found.gpu_hours else ""


def _exit(found: Receipt) -> str:
    if not found.state.ended and not found.exit_cause:
        return "not yet"
    code = "" if found.exit_code is None else f"code {found.exit_code}"
    return ", ".join(part for part in (found.exit_cause, code) if part) or "none"


def receipt_line(found: Receipt) -> str:
    """Return the receipt in one sentence, as `run` prints it at the end."""
    parts = [f"waited {duration(found.waited_s)}", f"ran {duration(found.ran_s)}"]
    if found.gpu_hours:
        parts.append(f"{gpu_hours(found.gpu_hours)} GPU-hours" + (" (simulated)" if found.simulated else ""))
    if found.restarts:
        parts.append(counted(found.restarts, "restart"))
    if found.moves:
        parts.append(counted(found.moves, "move"))
    return ", ".join(parts)


def _saved(entry: JournalEntry) -> tuple[int, int, int] | None:
    """Return whose checkpoint came back, ``None`` for any other fact."""
    fact = entry.fact
    if not isinstance(fact, FilesReturned) or fact.what is not ReturnKind.CHECKPOINT:
        return None
    return fact.gang, fact.rank, fact.incarnation


def history(entries: Sequence[JournalEntry], *, zone: tzinfo | None = None) -> RenderableType:
    """Return the facts of a job, oldest first, with the time since the one before.

    Of the checkpoints of one start of a task only the last that came back is told.
    """
    from corral.cli.render.happenings import told

    heads = (Column("TIME", least=19), Column("AFTER", right=True), Column("WHAT", wide=True))
    rows = []
    before: float | None = None
    last = {_saved(entry): entry.seq for entry in entries}
    for entry in entries:
        if _saved(entry) is not None and last[_saved(entry)] != entry.seq:
            continue
        after = "" if before is None else duration(entry.fact.at - before)
        rows.append((stamp(entry.fact.at, zone), after, told(entry.fact)))
        before = entry.fact.at
    return table(heads, rows)
