"""Text of simulations."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from corral.cli.render.layout import Column, facts, stack, table
from corral.sim.simulate import Report

COLUMNS = (
    Column("policy"),
    Column("information"),
    Column("avg JCT h", right=True),
    Column("p50", right=True),
    Column("p99", right=True),
    Column("makespan h", right=True),
    Column("utilisation", right=True),
    Column("worst FTR", right=True),
    Column("p95 FTR", right=True),
    Column("preemptions", right=True),
    Column("restarts", right=True),
    Column("gap", right=True, optional=True),
    Column("seconds", right=True, optional=True),
)


def report(found: Report) -> RenderableType:
    """Return one simulation as a list of facts."""
    measures = found.measures
    left_out = f", {found.left_out} left out (no duration, or larger than the cluster)" if found.left_out else ""
    gap = f"{found.gap_mean:.2%} on average, {found.gap_max:.2%} at most" if found.rounds else "no rounds"
    return stack(
        facts(
            (
                ("trace", f"{found.options.trace}: {measures.jobs} jobs{left_out}"),
                ("cluster", f"{found.options.cluster}: {found.devices} devices"),
                ("policy", f"{found.options.policy}, information: {found.information}"),
                ("rounds", f"{found.rounds} of {found.round_s:g} s; gap {gap}"),
                ("restart cost", f"{found.restart_cost_s:g} s"),
                ("JCT", f"{measures.avg_jct_h:.2f} h avg, {measures.p50_jct_h:.2f} p50, {measures.p99_jct_h:.2f} p99"),
                ("makespan", f"{measures.makespan_h:.2f} h"),
                ("utilisation", f"{measures.utilisation:.3f}"),
                ("finish-time ratio", f"{measures.worst_ftr:.2f} worst, {measures.p95_ftr:.2f} p95"),
                ("preemptions", f"{measures.preemptions} ({measures.restarts} restarts)"),
                ("seconds", f"{found.seconds:.1f} ({found.solve_s:.1f} in rounds)"),
            )
        ),
        Text(found.ftr_definition, style="dim"),
    )


def reports(found: Sequence[Report]) -> RenderableType:
    """Return simulations side by side."""
    rows = [
        (
            one.options.policy,
            one.information,
            f"{one.measures.avg_jct_h:.2f}",
            f"{one.measures.p50_jct_h:.2f}",
            f"{one.measures.p99_jct_h:.1f}",
            f"{one.measures.makespan_h:.1f}",
            f"{one.measures.utilisation:.3f}",
            f"{one.measures.worst_ftr:.1f}",
            f"{one.measures.p95_ftr:.1f}",
            str(one.measures.preemptions),
            str(one.measures.restarts),
            f"{one.gap_mean:.2%}" if one.rounds else "-",
            f"{one.seconds:.1f}",
        )
        for one in found
    ]
    return stack(table(COLUMNS, rows), Text(found[0].ftr_definition if found else "", style="dim"))
