"""What running gangs report of their work: how fast they go, how long they still need, and what of it is saved.

A gang is as far as the slowest of its ranks that report. Its speed is that of a window which begins with the first step
after its first report, so that start-up and compilation are not in it. Until that window is long enough, what it did is
compared with all the time that it has run.

Whoever listens is told again only when something changed that matters, so that a thousand running jobs make a few
messages per second: at the first estimate and the first measurement, when the estimate is off by more than a tenth (and
a fifth more time has passed than at the last telling), when the run is twice as old, and after a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from corral.model.experience import Measurement
from corral.model.job import Gang
from corral.model.messages import Usage
from corral.model.offer import Outlook

WINDOW_MIN_S = 30.0
"""A shorter window says too little: progress is sampled once a second."""

DEVIATION = 0.1
"""The part by which the time left has to differ from what was told, to be told again."""

PATIENCE = 1.2
"""How much older a run has to be than at the last telling for a deviation to count: tellings are geometric in time."""

REFRESH = 2.0
"""How much older a run is when its measurement is told again although nothing deviates: it is worth more then."""

CHECKPOINT_S = 60.0
"""Checkpoints are told at most this often."""


class Progress(msgspec.Struct, frozen=True):
    """The last progress that a task reported, and when (seconds since the epoch) it changed last."""

    value: float
    changed_at: float


class _Told(msgspec.Struct, frozen=True):
    """What was told last: when, how old the run was, the time left, the checkpoint, and the end of the window."""

    at: float
    age_s: float
    remaining_s: float | None
    saved: float | None
    window: Progress | None


class Run:
    """One incarnation of a gang, seen from the samples of its tasks."""

    def __init__(self, incarnation: int, now: float) -> None:
        self.incarnation = incarnation
        self.ranks: dict[int, Progress] = {}
        self._seen_at = now
        self._total: float | None = None
        self._saved: float | None = None
        self._saved_at: float | None = None
        self._first: Progress | None = None
        self._base: Progress | None = None
        self._last: Progress | None = None
        self._told: _Told | None = None

    def observe(self, sample: Usage, now: float) -> None:
        """Take in a sample of one of its tasks."""
        if sample.progress is None:
            return
        known = self.ranks.get(sample.task.rank)
        if known is None or known.value != sample.progress:
            self.ranks[sample.task.rank] = Progress(sample.progress, now)
            self._advance(now)
        if sample.progress_total is not None and sample.progress_total > 0:
            self._total = sample.progress_total
        saved = sample.checkpointed_at
        if saved is not None and (self._saved is None or saved > self._saved):
            self._saved, self._saved_at = saved, self._time_of(saved, now)

    def _advance(self, now: float) -> None:
        value = min(progress.value for progress in self.ranks.values())
        if self._last is not None and value < self._last.value:
            # It went back to an older checkpoint by itself: what was before is another story.
            self._first = self._base = None
            self._told = replace(self._told, window=None) if self._told is not None else None
        if self._last is None or value != self._last.value:
            self._last = Progress(value, now)
            if self._first is None:
                self._first = self._last
            elif self._base is None:
                self._base = self._last

    def _time_of(self, saved: float, now: float) -> float:
        """Return when the run was as far as its checkpoint, ``now`` while its speed is not known."""
        rate, last = self._rate(), self._last
        if rate is None or last is None or saved >= last.value:
            return now
        return max(self._seen_at, last.changed_at - (last.value - saved) / rate)

    def _rate(self) -> float | None:
        """Return units per second over the window, ``None`` while it is too short."""
        base, last = self._base, self._last
        if base is None or last is None or last.changed_at - base.changed_at < WINDOW_MIN_S:
            return None
        return (last.value - base.value) / (last.changed_at - base.changed_at)

    def remaining_s(self, gang: Gang, declared: float | None, now: float) -> float | None:
        """Return the seconds left as things go, ``None`` while nobody knows how much work there is or how fast it goes.

        ``declared`` is the amount of work that the job declared, where the task itself reports none.
        """
        total, last = self._total if self._total is not None else declared, self._last
        if total is None or last is None:
            return None
        rate = self._rate()
        if rate is None and last.value > 0:
            service_s = gang.attained_s + last.changed_at - self._started_at(gang)
            rate = last.value / service_s if service_s > 0 else None
        if rate is None or rate <= 0:
            return None
        # The step that it is at is partly done, but not more than that.
        ahead = min(rate * (now - last.changed_at), self._step())
        return max(0.0, total - last.value - ahead) / rate

    def _step(self) -> float:
        """Return how far apart its first two reports were, 0 while there is one."""
        return self._base.value - self._first.value if self._base is not None and self._first is not None else 0.0

    def _started_at(self, gang: Gang) -> float:
        starts = [task.started_at for task in gang.tasks if task.started_at is not None]
        return min(self._seen_at, max(starts)) if starts else self._seen_at

    def tell(self, gang: Gang, declared: float | None, now: float) -> Outlook | None:
        """Return what is believed of the gang when it differs enough from what was told, and count it as told."""
        remaining_s, window = self.remaining_s(gang, declared, now), self._last if self._rate() is not None else None
        age_s = now - self._started_at(gang)
        if not self._matters(remaining_s, window, age_s, now):
            return None
        self._told = _Told(now, age_s, remaining_s, self._saved, window)
        return Outlook(remaining_s=remaining_s, saved_at=self._saved_at)

    def measured(self, family: str, gang: Gang, since: Progress | None) -> Measurement | None:
        """Return what was done since ``since`` (the end of the window as told before), or in all of the window."""
        begin, last = since if since is not None else self._base, self._last
        if self._rate() is None or begin is None or last is None or last.value <= begin.value:
            return None
        return Measurement(
            family=family,
            model="",
            devices=0,
            units=last.value - begin.value,
            seconds=last.changed_at - begin.changed_at,
            gang=gang.index,
            incarnation=self.incarnation,
        )

    @property
    def told_window(self) -> Progress | None:
        """Return the end of the window that was told last, ``None`` when none was."""
        return self._told.window if self._told is not None else None

    def _matters(self, remaining_s: float | None, window: Progress | None, age_s: float, now: float) -> bool:
        told = self._told
        if told is None:
            return remaining_s is not None or window is not None or self._saved is not None
        if window is not None and (told.window is None or (age_s >= REFRESH * told.age_s and window != told.window)):
            return True
        if self._saved != told.saved and now - told.at >= CHECKPOINT_S:
            return True
        if remaining_s is None or told.remaining_s is None:
            return remaining_s is not None
        expected_s = max(0.0, told.remaining_s - (now - told.at))
        return age_s >= PATIENCE * told.age_s and abs(remaining_s - expected_s) > DEVIATION * max(expected_s, 1.0)


class Watch:
    """The runs of all gangs of a job that are seen from here."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}

    def progress(self, gang: int, rank: int) -> Progress | None:
        """Return what a task reported last, ``None`` when it never did."""
        run = self._runs.get(gang)
        return run.ranks.get(rank) if run is not None else None

    def observe(self, usage: Iterable[Usage], now: float) -> None:
        """Take in samples; those of an older incarnation than the newest seen are passed over."""
        for sample in usage:
            run = self._runs.get(sample.task.gang)
            if run is None or run.incarnation < sample.incarnation:
                run = self._runs[sample.task.gang] = Run(sample.incarnation, now)
            if run.incarnation == sample.incarnation:
                run.observe(sample, now)

    def forget(self, gang: int) -> None:
        """Drop the run of a gang that has ended."""
        self._runs.pop(gang, None)

    def news(
        self, gangs: dict[int, Gang], family: str, declared: float | None, now: float
    ) -> tuple[dict[int, Outlook], tuple[Measurement, ...]]:
        """Return what matters since the last telling: outlooks by gang, and measurements."""
        outlooks: dict[int, Outlook] = {}
        measured: list[Measurement] = []
        for index, run in self._runs.items():
            gang = gangs.get(index)
            if gang is None or gang.incarnation != run.incarnation:
                continue
            since = run.told_window
            outlook = run.tell(gang, declared, now)
            if outlook is None:
                continue
            outlooks[index] = outlook
            found = run.measured(family, gang, since)
            if found is not None:
                measured.append(found)
        return outlooks, tuple(measured)
