"""`sim run` and `sim compare`: recorded workloads under the production scheduler and others, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.session import Session, note
from corral.cli.tree import Json, StrictGroup, command
from corral.model.errors import MissingField

if TYPE_CHECKING:
    from rich.console import RenderableType

sim = typer.Typer(
    cls=StrictGroup,
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode="rich",
)


@sim.callback()
@command
def simulator(ctx: typer.Context, session: Session) -> None:
    """Run recorded workloads under the production scheduler and others, in virtual time."""
    del session
    if ctx.invoked_subcommand is None:
        raise MissingField("there is nothing to simulate", hint="corral sim run TRACE, or corral sim compare TRACE")


BASELINES = "corral,fifo,las,srtf-oracle"

Trace = Annotated[str, typer.Argument(metavar="TRACE", help="The file of the trace.", show_default=False)]
Format = Annotated[
    str, typer.Option("--format", "-f", metavar="NAME", help="gavel, philly, openb, tiresias or corral (our own).")
]
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        "-c",
        metavar="SPEC",
        help="The nodes: 12xV100 are 12 of one device, 18x8xH100/6 are 18 of 8 devices in racks of 6 nodes; groups are "
        "joined by commas.",
        show_default=False,
    ),
]
InformationLevel = Annotated[
    str,
    typer.Option(
        "--information",
        "-i",
        metavar="LEVEL",
        help="What jobs tell: blind (nothing), progress (the part that is done), declared (what the trace lets users "
        "know) or oracle (true durations).",
    ),
]
RoundSeconds = Annotated[
    float | None,
    typer.Option(
        "--round",
        metavar="SECONDS",
        min=1.0,
        help="Time between rounds (default: that of a pool for corral, the format's for other policies).",
        show_default=False,
    ),
]
RestartCost = Annotated[
    float | None,
    typer.Option(
        "--restart-cost",
        metavar="SECONDS",
        min=0.0,
        max=86_400.0,
        help="What a preempted job loses (default: the format's).",
        show_default=False,
    ),
]
Fairness = Annotated[
    float | None,
    typer.Option(
        "--fairness",
        metavar="N",
        min=0.0,
        max=1.0,
        help="The dial: 0 is the shortest average completion time, 1 protects the worst-off job most.",
        show_default=False,
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="COLUMN=VALUE",
        help="Only the rows with this value, as in cluster=ee9e8c (philly). May be repeated.",
        show_default=False,
    ),
]
Throughputs = Annotated[
    str | None,
    typer.Option(
        "--throughputs",
        metavar="FILE",
        help="Table of throughputs (gavel; default: simulation_throughputs.json beside the trace).",
        show_default=False,
    ),
]
WithJobs = Annotated[
    bool, typer.Option("--jobs", help="With --json: every job, and how the pool stood from moment to moment.")
]


@sim.command()
@command
def run(
    session: Session,
    *,
    trace: Trace,
    cluster: Cluster,
    format_: Format = "corral",
    policy: Annotated[str, typer.Option("--policy", "-p", metavar="NAME", help="Who schedules.")] = "corral",
    information: InformationLevel = "blind",
    round_s: RoundSeconds = None,
    restart_cost_s: RestartCost = None,
    fairness: Fairness = None,
    select: Select = None,
    throughputs: Throughputs = None,
    with_jobs: WithJobs = False,
    as_json: Json = False,
) -> None:
    """Run a trace under one policy in virtual time and print what came of it.

    The scheduler is the production code: the control core with its fill and its global rounds, and every job's
    AppMaster. Only time, nodes and the work of the jobs are simulated.
    """
    from corral.cli.simulating import level, reported, selected, watched
    from corral.sim.simulate import Options, simulate

    asked = Options(
        trace=trace,
        format=format_,
        cluster=cluster,
        policy=policy,
        information=level(information),
        round_s=round_s,
        restart_cost_s=restart_cost_s,
        fairness=fairness,
        select=selected(select or []),
        throughputs=throughputs,
    )
    with watched([policy]) as bars:
        report = simulate(asked, None if bars is None else bars.of(0))

    def text() -> RenderableType:
        from corral.cli.render.sim import report as rendered

        return rendered(report)

    session.answer(reported(report, with_jobs=with_jobs), text, as_json=as_json)


@sim.command()
@command
def compare(
    session: Session,
    *,
    trace: Trace,
    cluster: Cluster,
    format_: Format = "corral",
    policies: Annotated[
        str, typer.Option("--policies", "-p", metavar="NAME,NAME...", help="Who schedules, one after the other.")
    ] = BASELINES,
    information: InformationLevel = "blind",
    round_s: RoundSeconds = None,
    restart_cost_s: RestartCost = None,
    fairness: Fairness = None,
    select: Select = None,
    throughputs: Throughputs = None,
    workers: Annotated[
        int, typer.Option("--workers", "-w", metavar="N", min=1, max=1024, help="Simulations at a time.")
    ] = 1,
    plots: Annotated[
        str | None,
        typer.Option(
            "--plots",
            metavar="DIR",
            help="Write PNG plots there: completion times, utilisation, finish-time ratios, length of the queue.",
            show_default=False,
        ),
    ] = None,
    with_jobs: WithJobs = False,
    as_json: Json = False,
) -> None:
    """Run a trace under several policies and print the figures side by side.

    A policy that needs true durations (its name says oracle) gets them; the others get what --information says (who
    cannot run with that is named and left out), and each line says what it was.
    """
    from corral.cli.simulating import level, reported, selected, side_by_side
    from corral.sim import plots as drawing
    from corral.sim.simulate import Options

    asked = [
        Options(
            trace=trace,
            format=format_,
            cluster=cluster,
            policy=policy.strip(),
            information=level(information),
            round_s=round_s,
            restart_cost_s=restart_cost_s,
            fairness=fairness,
            select=selected(select or []),
            throughputs=throughputs,
        )
        for policy in policies.split(",")
    ]
    if plots is not None:
        drawing.require()
    found, left_out = side_by_side(asked, workers)
    if plots is not None:
        for path in drawing.draw(found, plots):
            note(f"wrote {path}")

    def text() -> RenderableType:
        from corral.cli.render.sim import reports as rendered

        return rendered(found)

    told = {"rows": [reported(one, with_jobs=with_jobs) for one in found], "left_out": left_out}
    session.answer(told, text, as_json=as_json)
