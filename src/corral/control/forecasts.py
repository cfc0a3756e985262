"""How good the expected starts are: some gangs get a forecast when they begin to wait, and are looked at as they start.

Forecasts are observations: after a restart nothing is known of their quality until gangs have started again.
"""

from __future__ import annotations

from collections import deque
from statistics import median

import msgspec

from corral.model.ids import GangKey
from corral.model.report import ForecastQuality
from corral.policy.outlook import Ahead, Estimates, Scene, in_order

EVERY_S = 5.0
"""Between two samples."""

AHEAD_MAX = 1_000
"""Only the first so many in line get a forecast: a sample costs a few milliseconds."""

MADE_MAX = 20
"""Forecasts made in one sample."""

KEPT = 500
"""Outcomes that the quality is measured on: the newest."""


class Made(msgspec.Struct, frozen=True):
    """A forecast and when it was made (seconds since the epoch)."""

    at: float
    earliest: float
    latest: float


class Ended(msgspec.Struct, frozen=True):
    """What became of a forecast: whether the start lay inside its range, and how far from its middle (s)."""

    inside: bool
    off_s: float


class Forecasts:
    """Forecasts of gangs that wait, and the outcomes of those that started."""

    def __init__(self) -> None:
        self._made: dict[GangKey, Made] = {}
        self._ended: deque[Ended] = deque(maxlen=KEPT)
        self._last_at: float | None = None

    def due(self, now: float) -> bool:
        """Return whether it is time for a sample."""
        return self._last_at is None or now - self._last_at >= EVERY_S

    def sample(self, scene: Scene) -> None:
        """Make forecasts for some of the first in line that have none yet."""
        self._last_at = scene.snapshot.at
        estimates, ahead, made = Estimates(scene), Ahead(scene), 0
        for position, candidate in enumerate(in_order(scene)):
            if position >= AHEAD_MAX or made >= MADE_MAX:
                break
            if candidate.key not in self._made:
                found = estimates.of(candidate, ahead)
                if found is not None and found.latest is not None:
                    self._made[candidate.key] = Made(scene.snapshot.at, found.earliest, found.latest)
                    made += 1
            ahead.add(candidate)

    def started(self, key: GangKey, at: float) -> None:
        """Compare a forecast with the start that came."""
        made = self._made.pop(key, None)
        if made is not None:
            middle = (made.earliest + made.latest) / 2
            self._ended.append(Ended(made.earliest <= at <= made.latest, abs(at - middle)))

    def dropped(self, key: GangKey) -> None:
        """Forget the forecast of a gang that ended without a start."""
        self._made.pop(key, None)

    def quality(self) -> ForecastQuality | None:
        """Return how good the last forecasts were, ``None`` before the first one came to an end."""
        if not self._ended:
            return None
        inside = sum(1 for ended in self._ended if ended.inside) / len(self._ended)
        return ForecastQuality(len(self._ended), inside, median(ended.off_s for ended in self._ended))
