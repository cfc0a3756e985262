"""The scheduler on public traces, beside baselines: completion times, makespan, utilisation, fairness, preemptions.

    python -m bench.traces --json [--data DIR] [--only NAME] [--workers N] [--frontier DIR]

Prints one object: ``rows`` with trace, cluster, policy (ours is ``corral``), information, avg_jct_h, p99_jct_h,
makespan_h, utilisation, worst_ftr, p95_ftr, preemptions, allocated_pct, seconds and more; ``missing`` with where to get
traces that are not there. ``--only`` runs one of gavel, philly-ee9e8c, philly-7f04ca, philly-b436b2, openb-default,
openb-gpuspec33. ``--frontier`` draws average completion time against the worst finish-time ratio over the dial
``fairness`` instead, into a folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from corral.model.errors import CorralError
from corral.policy.config import SchedulingConfig
from corral.sim.crew import News, simulate_all
from corral.sim.formats.openb import read_nodes, read_pods
from corral.sim.information import Information
from corral.sim.metrics import FTR_DEFINITION
from corral.sim.packing import pack
from corral.sim.plots import frontier
from corral.sim.simulate import Options, Report, row

DATA = Path("data") / "traces"

SEEDS = range(42, 52)

DIALS = (0.0, SchedulingConfig().fairness, 0.25, 0.5, 0.75, 1.0)


class Case(msgspec.Struct, frozen=True):
    """One trace on one cluster. ``runs`` are the policies with their levels of information."""

    name: str
    file: str
    format: str
    cluster: str
    source: str
    runs: tuple[tuple[str, Information], ...]
    select: dict[str, str] = {}


GAVEL_RUNS = (
    ("corral", Information.DECLARED),
    ("corral", Information.BLIND),
    ("fifo-gavel", Information.BLIND),
    ("las", Information.BLIND),
    ("max-min", Information.BLIND),
    ("max-min-perf", Information.BLIND),
    ("finish-time-fairness", Information.DECLARED),
    ("srtf-oracle", Information.ORACLE),
)

PHILLY_RUNS = (
    ("corral", Information.BLIND),
    ("corral", Information.PROGRESS),
    ("fifo", Information.BLIND),
    ("easy", Information.ORACLE),
    ("las", Information.BLIND),
    ("srtf-oracle", Information.ORACLE),
)

GAVEL_SOURCE = (
    "https://github.com/stanford-futuredata/gavel (made by its generator, seed 0; simulation_throughputs.json)"
)
PHILLY_SOURCE = "https://github.com/msr-fiddle/philly-traces (as a table: timestamp, duration, num_gpus, cluster)"
OPENB_SOURCE = "https://github.com/alibaba/clusterdata, cluster-trace-gpu-v2023"
OPENB_NODES = "alibaba-gpu-v2023/openb_node_list_gpu_node.csv"

CASES = (
    Case("gavel", "gavel/gavel_gen_120_l600_s0.trace", "gavel", "12xV100,12xP100,12xK80", GAVEL_SOURCE, GAVEL_RUNS),
    *(
        # A virtual cluster is a number of GPUs: one node, so that nothing is lost to how they are spread.
        Case(
            f"philly-{name}",
            "philly/philly_jobs.csv",
            "philly",
            f"1x{gpus}xP100",
            PHILLY_SOURCE,
            PHILLY_RUNS,
            {"cluster": name},
        )
        for name, gpus in (("ee9e8c", 144), ("7f04ca", 72), ("b436b2", 64))
    ),
    *(
        Case(f"openb-{name}", f"alibaba-gpu-v2023/openb_pod_list_{name}.csv", "openb", OPENB_NODES, OPENB_SOURCE, ())
        for name in ("default", "gpuspec33")
    ),
)


def missing(case: Case, data: Path) -> str | None:
    """Return what to say of a case whose files are not there."""
    for file in (case.file, OPENB_NODES) if case.format == "openb" else (case.file,):
        if not (data / file).is_file():
            return f"{case.name}: {data / file} is not there; it comes from {case.source}"
    return None


def options(case: Case, data: Path) -> list[Options]:
    """Return the simulations of a case."""
    return [
        Options(str(data / case.file), case.format, case.cluster, policy, information, select=case.select)
        for policy, information in case.runs
    ]


def packed(case: Case, data: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the row of a list of pods: the share of the GPUs that is allocated, on average over the seeds."""
    begin = time.perf_counter()
    nodes, pods = read_nodes(data / OPENB_NODES), read_pods(data / case.file)
    found = []
    for seed in seeds:
        found.append(pack(nodes, pods, seed))
        say(f"{case.name}: seed {seed} {found[-1].allocated_pct:.2f} %")
    return {
        "trace": case.name,
        "cluster": Path(OPENB_NODES).name,
        "policy": "corral",
        "information": Information.BLIND.value,
        **dict.fromkeys(("avg_jct_h", "p99_jct_h", "makespan_h", "utilisation", "worst_ftr", "p95_ftr")),
        "preemptions": 0,
        "allocated_pct": statistics.fmean(one.allocated_pct for one in found),
        "seeds": list(seeds),
        "allocated_pct_by_seed": [one.allocated_pct for one in found],
        "seconds": time.perf_counter() - begin,
    }


def simulated(cases: Sequence[Case], data: Path, workers: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of traces in the order in which they are known."""
    asked = [(case, one) for case in cases for one in options(case, data)]
    for index, report in simulate_all([one for _, one in asked], workers, Voice([one for _, one in asked])):
        found = {**row(report), "allocated_pct": None, "trace": asked[index][0].name}
        say(
            f"{found['trace']} {found['policy']} ({found['information']}): avg {found['avg_jct_h']:.2f} h, "
            f"p99 {found['p99_jct_h']:.0f} h, makespan {found['makespan_h']:.1f} h, "
            f"utilisation {found['utilisation']:.3f}, worst FTR {found['worst_ftr']:.1f}, "
            f"{found['preemptions']} preemptions, {found['seconds']:.0f} s"
        )
        yield found


class Voice:
    """Says now and then how far the simulations are."""

    def __init__(self, asked: Sequence[Options]) -> None:
        self._asked = asked
        self._said = time.monotonic()

    def __call__(self, news: News) -> None:
        """Take in news; say something twice a minute at most."""
        if time.monotonic() - self._said >= 30.0:
            self._said = time.monotonic()
            policy = self._asked[news.index].policy
            say(f"{Path(self._asked[news.index].trace).name} {policy}: {news.ended} of {news.total} jobs")


def say(text: str) -> None:
    """Say one line to the person who waits."""
    print(text, file=sys.stderr, flush=True)


def dial(cases: Sequence[Case], data: Path, workers: int, folder: Path) -> dict[str, Any]:
    """Return average completion time and worst finish-time ratio over the dial, with LAS beside it, and draw them."""
    asked: list[tuple[Case, Options]] = []
    for case in cases:
        if case.format == "openb":
            continue
        level = Information.DECLARED if case.format == "gavel" else Information.PROGRESS
        base = Options(str(data / case.file), case.format, case.cluster, "corral", level, select=case.select)
        asked.extend((case, msgspec.structs.replace(base, fairness=value)) for value in DIALS)
        asked.append((case, msgspec.structs.replace(base, policy="las", information=Information.BLIND)))
    reports: dict[int, Report] = dict(
        simulate_all([one for _, one in asked], workers, Voice([one for _, one in asked]))
    )
    points = [
        {
            "trace": case.name,
            "policy": one.policy,
            "information": one.information.value,
            "fairness": one.fairness,
            **{
                name: getattr(reports[i].measures, name)
                for name in ("avg_jct_h", "worst_ftr", "p95_ftr", "preemptions")
            },
        }
        for i, (case, one) in enumerate(asked)
    ]
    plots = [
        str(frontier(folder / f"frontier-{case.name}.png", case.name, [p for p in points if p["trace"] == case.name]))
        for case in cases
        if case.format != "openb"
    ]
    return {"frontier": points, "default": SchedulingConfig().fairness, "plots": plots}


def main() -> int:
    """Run what was asked; return 1 when nothing could be."""
    parser = argparse.ArgumentParser(prog="python -m bench.traces", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the traces (default: %(default)s)")
    parser.add_argument("--only", choices=[case.name for case in CASES], help="run one trace")
    parser.add_argument("--workers", type=int, default=2, help="simulations at a time (default: %(default)s)")
    parser.add_argument("--frontier", type=Path, metavar="DIR", help="draw the frontier of the dial into a folder")
    given = parser.parse_args()
    wanted = [case for case in CASES if given.only in (None, case.name)]
    absent = {case.name: words for case in wanted if (words := missing(case, given.data)) is not None}
    for words in absent.values():
        say(words)
    there = [case for case in wanted if case.name not in absent]
    if not there:
        return 1
    try:
        answer = _measured(there, given)
    except CorralError as error:
        say(f"error[{error.code}]: {error}")
        return 1
    answer["missing"] = absent
    if given.json:
        print(json.dumps(answer))
    return 0


def _measured(cases: Sequence[Case], given: argparse.Namespace) -> dict[str, Any]:
    if given.frontier is not None:
        given.frontier.mkdir(parents=True, exist_ok=True)
        found = dial(cases, given.data, given.workers, given.frontier)
        (given.frontier / "frontier.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return found
    rows = list(simulated([case for case in cases if case.format != "openb"], given.data, given.workers))
    order = {case.name: i for i, case in enumerate(cases)}
    rows.sort(key=lambda one: order[one["trace"]])
    rows.extend(packed(case, given.data, SEEDS) for case in cases if case.format == "openb")
    return {"rows": rows, "ftr_definition": FTR_DEFINITION}


if __name__ == "__main__":
    sys.exit(main())
