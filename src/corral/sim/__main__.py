"""Storms by seed: ``python -m corral.sim --seed N --trace``, or ``--seeds 0-199`` over all CPUs."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from corral.sim.storm.season import storms
from corral.sim.storm.storm import Report, Storm


def line(report: Report) -> str:
    """Return a report as a line."""
    faults = " ".join(f"{name}:{count}" for name, count in report.faults.items())
    sums = f"{report.steps} steps, {report.jobs} jobs, {report.placed} placements, {report.leaders} epochs"
    said = f"seed {report.seed}: {report.failure or 'ok'}"
    return f"{said}  [{report.digest}] {report.virtual_s:.0f} s, {sums}, {report.overlaps} overlaps; {faults}"


def say(words: str) -> None:
    """Write a line out."""
    sys.stdout.write(f"{words}\n")


def seeds_of(text: str) -> tuple[int, ...]:
    """Parse a count, ``first-last``, or several such ranges and single seeds with commas. Raises ``ValueError``."""
    if text.isdecimal():
        return tuple(range(int(text)))
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        found.extend(range(int(first), int(last) + 1) if dash else (int(first),))
    return tuple(found)


def main(arguments: list[str] | None = None) -> int:
    """Run storms; return 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m corral.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="one storm")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("20"), help="many: a count, 5-9, or 3,5-9")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happens")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
    parser.add_argument("--quiet", action="store_true", help="print failures and the sum alone")
    asked = parser.parse_args(arguments)
    if asked.seed is not None:
        report = Storm(asked.seed, say if asked.trace else None).run()
        say(line(report))
        return 1 if report.failure else 0
    # Its workers are to end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed, passed = [], 0
    for report in storms(asked.seeds, asked.workers):
        if report.failure:
            failed.append(report.seed)
        passed += not report.failure
        if report.failure or not asked.quiet:
            say(line(report))
            sys.stdout.flush()
        if report.failure and asked.fail_fast:
            break
    say(f"{passed} storms passed, {len(failed)} failed" + (f": {failed}" if failed else ""))
    for seed in failed[:3]:
        say(f"python -m corral.sim --seed {seed} --trace")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
