"""The truth about every gang: how much of its work is done, where it runs now and when it will end."""

from __future__ import annotations

import math

import msgspec

from corral.model.ids import GangKey
from corral.sim.workload import TraceJob


class Run(msgspec.Struct):
    """One gang. ``done`` is in units of work, as of ``since``; while it runs it goes on at ``rate`` units per second.

    The first ``overhead_s`` seconds of a start after a preemption do nothing: loading the checkpoint. In a world of
    whole steps ``quota`` are those that it does in this round, and the rest of the round it is idle. ``busy_s`` are
    device-seconds of its ended runs and rounds.
    """

    key: GangKey
    job: TraceJob
    done: float = 0.0
    incarnation: int = 0
    since: float | None = None
    overhead_s: float = 0.0
    rate: float = 0.0
    devices: float = 0.0
    starts: int = 0
    preemptions: int = 0
    first_start: float | None = None
    service_s: float = 0.0
    busy_s: float = 0.0
    quota: float | None = None
    ended_at: float | None = None

    @property
    def running(self) -> bool:
        """Return whether its tasks run."""
        return self.since is not None

    def work_done(self, now: float) -> float:
        """Return the units of work that are done."""
        if self.since is None:
            return self.done
        most = self.job.work if self.quota is None else self.done + self.quota
        return min(most, self.done + max(0.0, now - self.since - self.overhead_s) * self.rate)

    def ends_at(self) -> float:
        """Return when a running gang ends if nobody stops it, infinity when that is not in this round."""
        left = self.job.work - self.done
        if self.since is None or (self.quota is not None and self.quota < left):
            return float("inf")
        return self.since + self.overhead_s + left / self.rate

    def open_round(self, now: float, round_s: float) -> float:
        """Begin a round of whole steps; return when it has done those of this round.

        A job whose single step takes longer than a round would never go on: it does a part of it.
        """
        assert self.since is not None
        steps = math.floor(max(0.0, round_s - self.overhead_s) * self.rate)
        self.quota = min(float(steps) or round_s * self.rate, self.job.work - self.done)
        return now + self.overhead_s + self.quota / self.rate

    def close_round(self, now: float) -> None:
        """End a round of whole steps."""
        if self.since is not None and self.quota is not None:
            self.done += self.quota
            self.service_s += now - self.since
            self.busy_s += self.devices * (self.overhead_s + self.quota / self.rate)
            self.since, self.overhead_s, self.quota = now, 0.0, None

    def start(self, now: float, incarnation: int, rate: float, devices: float, restart_cost_s: float) -> None:
        """All ranks run."""
        self.since, self.incarnation, self.rate, self.devices = now, incarnation, rate, devices
        self.overhead_s = restart_cost_s if self.starts else 0.0
        self.starts += 1
        if self.first_start is None:
            self.first_start = now

    def stop(self, now: float) -> None:
        """Its ranks were told to stop; what it did is saved."""
        if self.since is not None:
            self.done = self.work_done(now)
            self.service_s += now - self.since
            if self.quota is None:
                self.busy_s += self.devices * (now - self.since)
            self.since, self.quota = None, None

    def finish(self, now: float) -> None:
        """It has done all of its work."""
        if self.quota is not None:
            self.close_round(now)
            self.since = None
        self.stop(now)
        self.done, self.ended_at = self.job.work, now


class Truth:
    """What only the trace knows. Policies that are called oracles may ask; no other does."""

    def __init__(self) -> None:
        self.runs: dict[GangKey, Run] = {}

    def remaining_s(self, key: GangKey, now: float) -> float:
        """Return the seconds of service that a gang still needs at the rate at which it ran last, or at its best."""
        run = self.runs[key]
        return (run.job.work - run.work_done(now)) / (run.rate or max(run.job.speeds.values()))

    def ends_at(self, key: GangKey, now: float) -> float:
        """Return when a gang ends if it runs from now on, or runs already and nobody stops it."""
        run = self.runs[key]
        return run.ends_at() if run.running else now + self.remaining_s(key, now)
