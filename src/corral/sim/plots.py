"""PNG plots of simulations side by side. They need the extra ``plots`` (matplotlib)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.model.errors import DependencyMissing, StateUnusable
from corral.sim.metrics import HOUR_S
from corral.sim.simulate import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_IN = (9.0, 5.0)
DPI = 120
BINS = 200
"""Points of a curve over time: each is the average of its span."""


def require() -> None:
    """Raise ``DependencyMissing`` when matplotlib is not there."""
    if find_spec("matplotlib") is None:
        raise DependencyMissing("plots need matplotlib", hint="pip install 'corral[plots]'")


def draw(reports: Sequence[Report], folder: str) -> list[Path]:
    """Write the four plots of a comparison into a folder and return their paths."""
    require()
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateUnusable(f"plots cannot be written to {target}: {error.strerror}") from None
    title = f"{Path(reports[0].options.trace).name} on {reports[0].options.cluster}"
    painters: dict[str, Callable[[Axes, Report], None]] = {
        "jct": _completion,
        "utilisation": _utilisation,
        "finish-time-ratio": _ratios,
        "queue": _queue,
    }
    return [_figure(target / f"{name}.png", reports, title, painter) for name, painter in painters.items()]


def _figure(path: Path, reports: Sequence[Report], title: str, painter: Callable[[Axes, Report], None]) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_IN, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for report in reports:
        painter(axes, report)
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path)
    return path


def label(report: Report) -> str:
    """Return how a simulation is called in a legend."""
    return f"{report.options.policy} ({report.information})"


def _completion(axes: Axes, report: Report) -> None:
    _distribution(axes, [job.jct_s / HOUR_S for job in report.jobs], label(report))
    axes.set(xlabel="job completion time (h)", ylabel="part of the jobs", xscale="log")


def _ratios(axes: Axes, report: Report) -> None:
    _distribution(axes, [job.ftr for job in report.jobs], label(report))
    axes.set(xlabel="finish-time ratio", ylabel="part of the jobs", xscale="log")


def _distribution(axes: Axes, values: Sequence[float], name: str) -> None:
    ordered = sorted(values)
    axes.step(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], where="post", label=name)


def _utilisation(axes: Axes, report: Report) -> None:
    times, held = averages(report.moments, lambda moment: moment.held)
    axes.plot(times, [value / report.devices for value in held], label=label(report))
    axes.set(xlabel="time (h)", ylabel="utilisation", ylim=(0.0, 1.05))


def _queue(axes: Axes, report: Report) -> None:
    axes.plot(*averages(report.moments, lambda moment: moment.waiting), label=label(report))
    axes.set(xlabel="time (h)", ylabel="jobs that wait")


def averages(moments: Sequence[Any], value: Callable[[Any], float]) -> tuple[list[float], list[float]]:
    """Return a curve as (middles of ``BINS`` spans in hours, averages over them)."""
    if len(moments) < 2:
        return [], []
    begin, end = moments[0].at, moments[-1].at
    width = (end - begin) / BINS
    areas = [0.0] * BINS
    for before, after in pairwise(moments):
        at = before.at
        while at < after.at:
            index = min(BINS - 1, int((at - begin) / width))
            until = after.at if index == BINS - 1 else min(after.at, begin + (index + 1) * width)
            if until <= at:
                break
            areas[index] += value(before) * (until - at)
            at = until
    middles = [(begin + (i + 0.5) * width) / HOUR_S for i in range(BINS)]
    return middles, [area / width for area in areas]


def frontier(path: Path, title: str, points: Sequence[dict[str, Any]]) -> Path:
    """Draw average completion time against the worst finish-time ratio over the dial; return the path.

    Points have ``policy``, ``fairness``, ``avg_jct_h`` and ``worst_ftr``.
    """
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_IN, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for policy in dict.fromkeys(point["policy"] for point in points):
        own = [point for point in points if point["policy"] == policy]
        axes.plot([p["avg_jct_h"] for p in own], [p["worst_ftr"] for p in own], marker="o", label=policy)
        for point in own:
            if point["fairness"] is not None:
                at = (point["avg_jct_h"], point["worst_ftr"])
                axes.annotate(f"{point['fairness']:g}", at, textcoords="offset points", xytext=(5, 5))
    axes.set(xlabel="average job completion time (h)", ylabel="worst finish-time ratio", yscale="log", title=title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path)
    return path
