"""`corral ps`: jobs as rows, arrays as one row with counts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.console import RenderableType
from rich.text import Text

from corral.cli.render.happenings import cause_words
from corral.cli.render.layout import Column, stack, state, table
from corral.cli.render.units import NOTHING, duration, milli
from corral.model.job import Cause, JobState
from corral.model.report import JobRows, JobSummary

NODES_SHOWN = 2
TOLD_MAX = 60
"""So many characters of why a job waits or failed fit into a row; `why` and `history` tell all of it."""
_FAILED_OF = re.compile(r"(\d+) of (\d+) elements failed\b")
"""How the message of a failed array begins: the row of a finished one has no counts."""
# In the order in which people ask: what runs, what waits, what went well, what did not.
_COUNTED = (
    (JobState.RUNNING, "running"),
    (JobState.PENDING, "pending"),
    (JobState.SUCCEEDED, "ok"),
    (JobState.FAILED, "failed"),
    (JobState.CANCELLED, "cancelled"),
)


def jobs(
    rows: JobRows, *, now: float, reasons: Mapping[str, str] | None = None, told_max: int | None = TOLD_MAX
) -> RenderableType:
    """Return the table of jobs. ``reasons`` says in short why a pending job waits, ``told_max`` is how much of it."""
    if not rows.jobs:
        return Text("no jobs")
    heads = (
        Column("JOB", right=True),
        Column("NAME", cut=True, least=8),
        Column("TENANT", cut=True, least=6),
        Column("STATE", cut=True, least=9),
        Column("GPUS", right=True),
        Column("NODES", cut=True, least=5),
        Column("WAITED", right=True),
        Column("RAN", right=True),
        Column("EXIT", right=True),
    )
    lines = [
        (
            job.id,
            job.name,
            job.tenant,
            state(job.state.value, state_words(job, (reasons or {}).get(job.id, ""), told_max)),
            gpus_words(job),
            nodes_words(job),
            duration(waited_s(job, now)),
            duration(ran_s(job, now)),
            exit_words(job),
        )
        for job in rows.jobs
    ]
    return stack(table(heads, lines), _more(rows))


def _more(rows: JobRows) -> Text | None:
    live = sum(not job.state.ended for job in rows.jobs)
    if rows.next_before is None and live >= rows.total_live:
        return None
    rest = f"{live} of {rows.total_live} unfinished jobs shown" if live < rows.total_live else "older jobs not shown"
    return Text(f"{rest} (--limit shows more)", style="dim")


def state_words(job: JobSummary, reason: str, told_max: int | None = None) -> str:
    """Return the state of a job in short: with counts for an array, with the reason for one that waits."""
    word = job.state.value
    if job.is_array and job.counts:
        parts = [f"{job.counts[kind.value]} {text}" for kind, text in _COUNTED if job.counts.get(kind.value)]
        word = ", ".join(parts) if not job.state.ended or len(parts) > 1 else word
    elif job.is_array:
        failed = _FAILED_OF.match(job.message) if job.state is JobState.FAILED else None
        word = f"{word} ({failed[1]} of {failed[2]})" if failed else f"{word} ({job.elements} elements)"
    if job.progress is not None and not job.state.ended:
        word += f" {int(100 * job.progress)} %"
    told = reason or (job.message if not job.state.ended else _why_ended(job))
    if told_max is not None and len(told) > told_max:
        told = told[: told_max - 1].rstrip() + "…"
    return f"{word}: {told}" if told else word


def _why_ended(job: JobSummary) -> str:
    """Return why a job failed, when its exit code does not tell."""
    if job.state is not JobState.FAILED or job.exit_cause is None:
        return job.message if job.state is JobState.FAILED else ""
    return cause_words(Cause(job.exit_cause)) if job.exit_cause in set(Cause) else job.exit_cause


def gpus_words(job: JobSummary) -> str:
    """Return the devices of one element: ``8``, ``4x8`` for a gang over four nodes, ``-`` for none."""
    if not job.gpu_milli:
        return NOTHING
    each = milli(job.gpu_milli)
    return each if job.num_nodes == 1 else f"{job.num_nodes}x{each}"


def nodes_words(job: JobSummary) -> str:
    """Return where a job runs: up to two nodes by name and the number of the others; how many it asks for before."""
    if not job.nodes:
        return str(job.num_nodes)
    shown, rest = job.nodes[:NODES_SHOWN], len(job.nodes) - NODES_SHOWN
    return " ".join(shown) + (f" +{rest}" if rest > 0 else "")


def waited_s(job: JobSummary, now: float) -> float:
    """Return how long a job waited for its first start, or waits."""
    until = job.started_at if job.started_at is not None else job.ended_at if job.ended_at is not None else now
    return until - job.submitted_at


def ran_s(job: JobSummary, now: float) -> float | None:
    """Return the time from a job's first start to its end, or until now; ``None`` before it starts."""
    if job.started_at is None:
        return None
    return (job.ended_at if job.ended_at is not None else now) - job.started_at


def exit_words(job: JobSummary) -> str:
    """Return the exit code of an ended job, or why there is none."""
    if job.exit_code is not None:
        return str(job.exit_code)
    return (job.exit_cause or NOTHING) if job.state.ended else NOTHING
