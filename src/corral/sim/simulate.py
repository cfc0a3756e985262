"""One simulation from its options to its report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from corral.control.config import ControlConfig
from corral.model.errors import InvalidField
from corral.model.resources import NodeSpec
from corral.policy.config import SchedulingConfig
from corral.sim.cluster import device_count, models_of, parse_cluster
from corral.sim.formats.corral import read_corral
from corral.sim.formats.gavel import read_gavel
from corral.sim.formats.openb import read_nodes
from corral.sim.formats.openb_jobs import read_openb
from corral.sim.formats.philly import read_philly
from corral.sim.formats.tiresias import read_tiresias
from corral.sim.information import Information
from corral.sim.metrics import FTR_DEFINITION, JobResult, Measures, measure, results
from corral.sim.policies.registry import Policy, Rhythm, Setting, policy_named
from corral.sim.record import Moment
from corral.sim.runs import Truth
from corral.sim.workload import Workload
from corral.sim.world import Rules, Watcher, World

INSTANT_S = 1e-6
"""The time between rounds of a policy that decides at every change: a new instant is a new round."""

NEVER = 10**18

FORMATS = ("corral", "gavel", "openb", "philly", "tiresias")


class Options(msgspec.Struct, frozen=True):
    """What is simulated. ``None`` is the default of the trace's format or of production."""

    trace: str
    format: str
    cluster: str
    policy: str = "corral"
    information: Information = Information.BLIND
    round_s: float | None = None
    restart_cost_s: float | None = None
    fairness: float | None = None
    select: dict[str, str] = {}
    throughputs: str | None = None


class Report(msgspec.Struct, frozen=True):
    """What came of a simulation. ``seconds`` is what it took, ``solve_s`` the part of the global rounds in it."""

    options: Options
    information: Information
    measures: Measures
    round_s: float
    restart_cost_s: float
    left_out: int
    rounds: int
    gap_mean: float
    gap_max: float
    solve_s: float
    seconds: float
    devices: int
    ftr_definition: str = FTR_DEFINITION
    jobs: tuple[JobResult, ...] = ()
    moments: tuple[Moment, ...] = ()


def nodes_of(cluster: str) -> tuple[NodeSpec, ...]:
    """Return the nodes of a cluster specification, or of a list of nodes in the openb format (``FILE.csv``)."""
    return read_nodes(Path(cluster)) if cluster.endswith(".csv") else parse_cluster(cluster)


def load(options: Options, nodes: Sequence[NodeSpec]) -> Workload:
    """Read the trace of some options. Raises ``TraceUnreadable``, ``TraceInvalid`` or ``InvalidField``."""
    path = Path(options.trace)
    match options.format:
        case "gavel":
            return read_gavel(path, Path(options.throughputs) if options.throughputs else None)
        case "philly":
            return read_philly(path, device_count(nodes), options.select)
        case "openb":
            return read_openb(path)
        case "tiresias":
            return read_tiresias(path)
        case _:
            return read_corral(path)


def checked(options: Options) -> None:
    """Raise what is wrong with options before anything runs."""
    nodes_of(options.cluster)
    policy_named(options.policy).level(options.information)
    if options.format not in FORMATS:
        raise InvalidField(
            f"there is no format {options.format!r}", field="--format", hint=f"known: {', '.join(FORMATS)}"
        )
    if options.select and options.format != "philly":
        raise InvalidField(f"traces of the format {options.format} have nothing to select", field="--select")
    if options.throughputs is not None and options.format != "gavel":
        raise InvalidField(f"traces of the format {options.format} need no table", field="--throughputs")


def build(options: Options, workload: Workload, nodes: Sequence[NodeSpec]) -> World:
    """Return the world of some options, ready to run."""
    policy = policy_named(options.policy)
    information = policy.level(options.information)
    round_s = _round_s(options, workload)
    # Where a device that comes free inside a round stays idle until its end, only rounds start gangs.
    rhythm = Rhythm.ROUNDS if workload.whole_steps and policy.name != "fill" else policy.rhythm
    scheduling = _scheduling(options, rhythm, policy, round_s)
    truth = Truth()
    solver = policy.make(Setting(truth, replace(scheduling, round_s=round_s), information))
    rules = Rules(
        control=ControlConfig(scheduling=scheduling, fill=rhythm is Rhythm.PRODUCTION),
        information=information,
        restart_cost_s=_restart_cost_s(options, workload),
        tick_s=round_s if solver is not None and rhythm is not Rhythm.EVENTS else None,
        only_ticks=rhythm is Rhythm.ROUNDS,
        whole_steps=workload.whole_steps and rhythm is Rhythm.ROUNDS,
    )
    return World(workload, nodes, rules, solver, truth)


def simulate(options: Options, watcher: Watcher | None = None) -> Report:
    """Run one simulation."""
    begin = time.perf_counter()
    checked(options)
    nodes = nodes_of(options.cluster)
    workload = load(options, nodes)
    world = build(options, workload, nodes)
    world.run(watcher)
    record, moments = world.record, tuple(world.record.moments)
    jobs = results(list(world.truth.runs.values()), moments, models_of(nodes), device_count(nodes))
    return Report(
        options=options,
        information=world.information,
        measures=measure(jobs, sum(run.busy_s for run in world.truth.runs.values()), device_count(nodes)),
        round_s=_round_s(options, workload),
        restart_cost_s=_restart_cost_s(options, workload),
        left_out=workload.left_out,
        rounds=record.rounds,
        gap_mean=record.gap_sum / record.rounds if record.rounds else 0.0,
        gap_max=record.gap_max,
        solve_s=record.solve_s,
        seconds=time.perf_counter() - begin,
        devices=device_count(nodes),
        jobs=jobs,
        moments=moments,
    )


def row(report: Report) -> dict[str, Any]:
    """Return a report as one row of a table."""
    measures = report.measures
    return {
        "trace": Path(report.options.trace).name,
        "cluster": report.options.cluster,
        "policy": report.options.policy,
        "information": report.information.value,
        **{name: getattr(measures, name) for name in measures.__struct_fields__},
        "gap_mean": report.gap_mean,
        "gap_max": report.gap_max,
        "rounds": report.rounds,
        "round_s": report.round_s,
        "restart_cost_s": report.restart_cost_s,
        "left_out": report.left_out,
        "seconds": report.seconds,
        "solve_s": report.solve_s,
    }


def _restart_cost_s(options: Options, workload: Workload) -> float:
    return options.restart_cost_s if options.restart_cost_s is not None else workload.restart_cost_s


def _round_s(options: Options, workload: Workload) -> float:
    """Return the time between rounds: production keeps its own, unless the trace is about what rounds do."""
    if options.round_s is not None:
        return options.round_s
    production = policy_named(options.policy).rhythm is Rhythm.PRODUCTION and not workload.whole_steps
    return SchedulingConfig().round_s if production else workload.round_s


def _scheduling(options: Options, rhythm: Rhythm, policy: Policy, round_s: float) -> SchedulingConfig:
    config = SchedulingConfig()
    if options.fairness is not None:
        config = replace(config, fairness=options.fairness)
    if policy.rhythm is not Rhythm.PRODUCTION:
        config = replace(config, tenure_s=0.0, tenure_restarts=0.0)
    match rhythm:
        case Rhythm.PRODUCTION:
            return replace(config, round_s=round_s)
        case Rhythm.ROUNDS:
            # The core is woken for rounds only: each time is one, whether anything changed or not.
            return replace(config, round_s=INSTANT_S, round_rest=1)
        case Rhythm.EVENTS:
            return replace(config, round_s=INSTANT_S, round_rest=NEVER)
