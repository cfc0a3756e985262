"""What `sim run` and `sim compare` share: readings of their flags, progress bars, the JSON of a report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from corral.cli.failures import did_you_mean
from corral.cli.session import note
from corral.model.errors import InvalidField
from corral.sim.information import Information
from corral.sim.policies.registry import policy_named
from corral.sim.simulate import Options, Report, checked, row

if TYPE_CHECKING:
    from rich.progress import Progress

    from corral.sim.world import Watcher


def level(text: str) -> Information:
    """Return the level of information of its name. Raises ``InvalidField``."""
    try:
        return Information(text)
    except ValueError:
        hint = did_you_mean(text, list(Information), f"one of {', '.join(Information)}")
        raise InvalidField(f"{text!r} is no level of information", field="--information", hint=hint) from None


def selected(pairs: Sequence[str]) -> dict[str, str]:
    """Return the columns and values of ``--select``. Raises ``InvalidField``."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidField(f"{pair!r} is not COLUMN=VALUE", field="--select", hint="write cluster=ee9e8c")
        found[name] = value
    return found


class Bars:
    """One progress bar for each simulation."""

    def __init__(self, progress: Progress, titles: Sequence[str]) -> None:
        self._progress = progress
        self._tasks = [progress.add_task(title, total=None) for title in titles]

    def of(self, index: int) -> Watcher:
        """Return the function that moves a bar."""
        return lambda ended, total: self.move(index, ended, total)

    def move(self, index: int, ended: int, total: int) -> None:
        """Move a bar on."""
        self._progress.update(self._tasks[index], completed=ended, total=total)


@contextmanager
def watched(titles: Sequence[str]) -> Iterator[Bars | None]:
    """Give bars on standard error if that is a terminal, else ``None``."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        yield Bars(progress, titles)


def runnable(asked: Sequence[Options]) -> tuple[list[Options], list[InvalidField]]:
    """Return the simulations that can run at their level of information, and why each of the others cannot.

    Raises ``InvalidField`` when none can.
    """
    lacking = [policy_named(options.policy).lacks(options.information) for options in asked]
    left_out = [error for error in lacking if error is not None]
    if len(left_out) == len(asked):
        raise left_out[0]
    return [options for options, error in zip(asked, lacking, strict=True) if error is None], left_out


def side_by_side(everybody: Sequence[Options], workers: int) -> tuple[list[Report], list[str]]:
    """Run simulations, some at a time; return their reports in the order asked, and who was left out and why."""
    from corral.sim.crew import simulate_all

    asked, left_out = runnable(everybody)
    for options in asked:
        checked(options)
    for error in left_out:
        note(f"left out: {error.refusal.message} ({error.refusal.hint})")
    with watched([options.policy for options in asked]) as bars:
        watcher: Callable[[Any], None] | None = None
        if bars is not None:
            moving = bars

            def watcher(news: Any) -> None:
                moving.move(news.index, news.ended, news.total)

        found = dict(simulate_all(asked, workers, watcher))
    return [found[index] for index in range(len(asked))], [error.refusal.message for error in left_out]


def reported(report: Report, *, with_jobs: bool) -> dict[str, Any]:
    """Return the JSON object of a report: its row, what it was asked, and on demand its jobs and moments."""
    found = {**row(report), "options": report.options, "ftr_definition": report.ftr_definition}
    if with_jobs:
        found["jobs"] = [{**msgspec.structs.asdict(job), "jct_h": job.jct_s / 3600.0} for job in report.jobs]
        found["moments"] = {"columns": ["at_s", "held", "waiting", "unfinished"], "rows": report.moments}
    return found
