"""What a simulation is judged by, each with its definition."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from corral.sim.record import Moment
from corral.sim.runs import Run

HOUR_S = 3600.0

FTR_DEFINITION = (
    "finish-time ratio = JCT / (time alone on max(its own size, a 1/n share), n = average number of contending jobs)"
)


class JobResult(msgspec.Struct, frozen=True):
    """One job. Times in seconds since the beginning of the trace; ``ftr`` is its finish-time ratio."""

    name: str
    devices: int
    arrival_s: float
    started_s: float
    ended_s: float
    alone_s: float
    ftr: float
    preemptions: int
    restarts: int

    @property
    def jct_s(self) -> float:
        """Return the job completion time: from its arrival to its end."""
        return self.ended_s - self.arrival_s


class Measures(msgspec.Struct, frozen=True):
    """The figures of one simulation.

    JCT is the time from arrival to end; percentiles interpolate linearly. The makespan goes from the first arrival to
    the last end; utilisation is the part of the devices that was at work, on average over the makespan (loading a
    checkpoint after a preemption counts as work, the idle rest of a round does not).
    """

    jobs: int
    avg_jct_h: float
    p50_jct_h: float
    p99_jct_h: float
    makespan_h: float
    utilisation: float
    worst_ftr: float
    p95_ftr: float
    preemptions: int
    restarts: int


def percentile(values: Sequence[float], part: float) -> float:
    """Return the percentile ``part`` (0..1) with linear interpolation; ``values`` must not be empty."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Contention:
    """How many jobs were unfinished on average within any span of time."""

    def __init__(self, moments: Sequence[Moment]) -> None:
        self._moments = moments
        self._times = [moment.at for moment in moments]
        self._areas = [0.0]
        for before, after in pairwise(moments):
            self._areas.append(self._areas[-1] + before.unfinished * (after.at - before.at))

    def average(self, begin: float, end: float) -> float:
        """Return the average between two times, 1 at least."""
        if end <= begin:
            return 1.0
        return max(1.0, (self._until(end) - self._until(begin)) / (end - begin))

    def _until(self, at: float) -> float:
        i = bisect_right(self._times, at) - 1
        if i < 0:
            return 0.0
        return self._areas[i] + self._moments[i].unfinished * (at - self._times[i])


def results(
    runs: Sequence[Run], moments: Sequence[Moment], models: tuple[str, ...], devices: int
) -> tuple[JobResult, ...]:
    """Return what became of every job; all must have ended."""
    contention = Contention(moments)
    found = []
    for run in runs:
        assert run.first_start is not None
        assert run.ended_at is not None
        arrival = run.job.arrival_s
        share = math.floor(devices / contention.average(arrival, run.ended_at))
        alone_s = run.job.alone_s(models, max(run.job.devices[0] if len(run.job.devices) == 1 else 0, share))
        found.append(
            JobResult(
                name=run.job.name,
                devices=run.job.devices[0],
                arrival_s=arrival,
                started_s=run.first_start,
                ended_s=run.ended_at,
                alone_s=alone_s,
                ftr=(run.ended_at - arrival) / alone_s,
                preemptions=run.preemptions,
                restarts=run.starts - 1,
            )
        )
    return tuple(found)


def measure(jobs: Sequence[JobResult], busy_s: float, devices: int) -> Measures:
    """Return the figures of a simulation of at least one job, in which ``busy_s`` device-seconds were used."""
    begin, end = min(job.arrival_s for job in jobs), max(job.ended_s for job in jobs)
    times_h = [job.jct_s / HOUR_S for job in jobs]
    ratios = [job.ftr for job in jobs]
    return Measures(
        jobs=len(jobs),
        avg_jct_h=sum(times_h) / len(times_h),
        p50_jct_h=percentile(times_h, 0.5),
        p99_jct_h=percentile(times_h, 0.99),
        makespan_h=(end - begin) / HOUR_S,
        utilisation=busy_s / (devices * (end - begin)) if end > begin else 0.0,
        worst_ftr=max(ratios),
        p95_ftr=percentile(ratios, 0.95),
        preemptions=sum(job.preemptions for job in jobs),
        restarts=sum(job.restarts for job in jobs),
    )
