"""How fast a job goes on how many devices of which model: least squares on logarithms, shrunk to what is believed.

ln(rate) = base + effect of the model + slope x ln(devices) + deviation of this very (model, devices), each with a
normal prior: ridge regression, or the posterior mean of a Bayesian linear model (Bishop, Pattern Recognition and
Machine Learning, 3.3). What was measured is kept as one running mean per (model, devices): with the deviation in the
model these means are all that it needs, so a measurement costs O(1) and an estimate one solve with 2 + models unknowns.

Beliefs stand in layers. Nothing known: all models are equal and devices scale a little less than linearly. A job's
claims: exact where it claims something, fitted elsewhere. Measurements correct what the layer below says: all of it,
claims too, by what claims usually are wrong by. Who is wrong about one size mostly is about the others, so a claim for
four devices moves, a part of the way, with what was measured on one; what is measured on four outweighs both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from corral.model.experience import Measurement, Rate
from corral.model.job import JobSpec
from corral.model.resources import GangShape

SCALING = 0.9
"""The slope that is expected of a job of which nothing is known: 4 devices do the work of 3.5."""

NOISE = 0.1
"""The standard deviation of ln(rate) as measured over many minutes: input, neighbours and clocks move it by a tenth."""

SHORT_S = 60.0
"""A measurement over this time has twice the variance of a long one: sampling steps and warm-up are in it."""

TRUSTED = 0.2
"""The standard deviation of ln(rate) at which the confidence is one half: a rate that is known to a fifth."""

WEIGHT_MAX = 10.0 / NOISE**2
"""Ten long measurements: what is older fades, since jobs of the same name change."""

OUTLIER = 2.5
"""Standard deviations beyond which a measurement counts for less (Huber's estimator), and what it contradicts too: one
alone moves little, a few in a row are a change."""

FADING = 0.5
"""What is left of the weight of the old mean after each outlier."""

POINTS_MAX = 64
"""Places (model, devices) that are remembered of one family."""

LOG_MAX = 100.0
"""The largest |ln(units/s)| that is taken for real: 1e43 a second, or one in 1e35 years."""

CERTAIN = 1e12
"""The weight of a claim in the layer that claims are: it is exact there."""


class Spread(msgspec.Struct, frozen=True):
    """Standard deviations of the parts of ln(rate) before anything is measured, and the slope that is expected."""

    base: float
    model: float
    slope: float
    deviation: float
    scaling: float


UNKNOWN = Spread(base=10.0, model=0.7, slope=0.3, deviation=0.15, scaling=SCALING)
"""Any unit of work is possible; half of all pairs of models lie within a factor of two of each other; some jobs gain
nearly nothing from more devices."""

CLAIMED = Spread(base=0.25, model=0.25, slope=0.1, deviation=0.15, scaling=0.0)
"""How wrong claims are: by a quarter altogether and in how models compare, by little in how devices scale. What was
measured at the very place outweighs that at once; what was measured elsewhere says less the further the claims had to
be carried to get there."""


class Point(msgspec.Struct, frozen=True):
    """What was measured with ``devices`` of ``model``: the mean of ln(units/s), and 1 / its variance."""

    model: str
    devices: int
    log_rate: float
    weight: float


class Prediction(msgspec.Struct, frozen=True):
    """A throughput in units per second, and how far it is believed (0..1): 1 / (1 + variance of ln / 0.2^2)."""

    units_per_s: float
    confidence: float


def devices_of(shape: GangShape) -> int:
    """Return the devices of a gang: one for every rank with a share of a device, none without GPUs."""
    if shape.demand.gpu_milli == 0:
        return 0
    return shape.ranks * max(1, shape.demand.gpus_whole)


def scale_of(shape: GangShape) -> int:
    """Return what the throughput of a gang grows with: its devices, its ranks where it has none."""
    return devices_of(shape) or shape.ranks


def family_of(spec: JobSpec) -> str:
    """Return the name under which jobs are expected to be equally fast: the declared family, else the job's name."""
    return spec.work.family if spec.work is not None and spec.work.family is not None else spec.name


def confidence_of(variance: float) -> float:
    """Return the confidence in a rate by the variance of its logarithm."""
    return 1.0 / (1.0 + variance / TRUSTED**2)


def taken(known: Point | None, measured: Measurement) -> Point | None:
    """Return the mean of a point with one more measurement, as it was when the measurement says nothing."""
    if not (measured.units > 0 and 0 < measured.seconds < math.inf and measured.units < math.inf):
        return known
    log_rate = math.log(measured.units) - math.log(measured.seconds)
    if abs(log_rate) > LOG_MAX:
        return known
    weight = 1.0 / (NOISE**2 * (1.0 + SHORT_S / measured.seconds))
    if known is None:
        return Point(measured.model, max(1, measured.devices), log_rate, weight)
    kept = min(known.weight, WEIGHT_MAX)
    away = abs(log_rate - known.log_rate) / math.sqrt(NOISE**2 + 1.0 / kept + 1.0 / weight)
    if away > OUTLIER:
        weight *= OUTLIER / away
        mean = known.log_rate + (log_rate - known.log_rate) * weight / (kept + weight)
        return Point(known.model, known.devices, mean, max(weight, FADING * kept))
    mean = known.log_rate + (log_rate - known.log_rate) * weight / (kept + weight)
    return Point(known.model, known.devices, mean, min(WEIGHT_MAX, kept + weight))


def rate_of(point: Point, differ: float = 0.0) -> Rate:
    """Return a measured point as AppMasters are told it.

    ``differ`` is the standard deviation of ln(rate) between the jobs that it was measured on and the one that asks.
    """
    return Rate(point.model, point.devices, math.exp(point.log_rate), confidence_of(1.0 / point.weight + differ**2))


def point_of(rate: Rate) -> Point | None:
    """Return the point behind a rate, ``None`` for one that nobody believes."""
    if not (0 < rate.confidence <= 1 and 0 < rate.units_per_s < math.inf):
        return None
    confidence = min(rate.confidence, confidence_of(1.0 / WEIGHT_MAX))
    variance = TRUSTED**2 * (1.0 - confidence) / confidence
    return Point(rate.model, max(1, rate.devices), math.log(rate.units_per_s), 1.0 / variance)


class Throughput:
    """An estimate from some points over a layer of belief. ``known`` is false when the unit of the rates is unknown."""

    def __init__(self, points: Iterable[Point], below: Throughput | None = None) -> None:
        self.known: bool = below is not None and below.known
        self._below = below
        self._spread = UNKNOWN if below is None else CLAIMED
        self._points: dict[tuple[str, int], Point] = {(p.model, p.devices): p for p in points}
        self._models = {name: 2 + i for i, name in enumerate(sorted({model for model, _ in self._points}))}
        self._beta: list[float] = []
        self._covariance: list[list[float]] = []
        if self._points:
            self.known = True
            self._fit()

    @classmethod
    def of(cls, claims: Mapping[tuple[str, int], float], rates: Iterable[Rate]) -> Throughput:
        """Return the estimate for a job: ``claims`` (units/s) by model and devices, corrected by measured ``rates``."""
        claimed = [Point(m, n, math.log(rate), CERTAIN) for (m, n), rate in claims.items() if 0 < rate < math.inf]
        measured = [point for point in map(point_of, rates) if point is not None]
        return cls(measured, cls(claimed) if claimed else None)

    def predict(self, model: str, devices: int) -> Prediction:
        """Return the throughput of a gang with ``devices`` devices of ``model``.

        While nothing is known it is relative to that of one device, with confidence 0.
        """
        mean, variance = self.log_rate(model, devices)
        return Prediction(math.exp(min(LOG_MAX, max(-LOG_MAX, mean))), confidence_of(variance) if self.known else 0.0)

    def log_rate(self, model: str, devices: int) -> tuple[float, float]:
        """Return the expected ln(units/s) and its variance."""
        offset, deviation = self._layer(model, devices)
        row = self._row(model, devices)
        mean = sum(row[i] * self._beta[i] for i in range(len(self._beta)))
        variance = self._variance(row, model)
        point = self._points.get((model, devices))
        if point is None:
            return offset + mean, variance + deviation
        # The deviation of a point that was measured is known as far as its mean is.
        own = deviation / (deviation + 1.0 / point.weight)
        mean += own * (point.log_rate - offset - mean)
        return offset + mean, (1.0 - own) ** 2 * variance + (1.0 - own) * deviation

    def _layer(self, model: str, devices: int) -> tuple[float, float]:
        """Return what the layer below expects here, and the variance of the deviation of this very place from that."""
        below, unsure = self._below.log_rate(model, devices) if self._below is not None else (0.0, 0.0)
        return below + self._spread.scaling * math.log(max(1, devices)), self._spread.deviation**2 + unsure

    def _row(self, model: str, devices: int) -> list[float]:
        row = [0.0] * (2 + len(self._models))
        row[0], row[1] = 1.0, math.log(max(1, devices))
        if model in self._models:
            row[self._models[model]] = 1.0
        return row

    def _variance(self, row: Sequence[float], model: str) -> float:
        spread = self._spread
        unseen = 0.0 if model in self._models else spread.model**2
        if not self._covariance:
            return spread.base**2 + spread.slope**2 * row[1] ** 2 + unseen
        size = range(len(row))
        return sum(row[i] * self._covariance[i][j] * row[j] for i in size for j in size) + unseen

    def _fit(self) -> None:
        """Solve (prior precision + X' W X) beta = X' W residuals."""
        spread, size = self._spread, 2 + len(self._models)
        stds = [spread.base, spread.slope, *[spread.model] * len(self._models)]
        precision = [[0.0] * size for _ in range(size)]
        for i, std in enumerate(stds):
            precision[i][i] = 1.0 / std**2
        right = [0.0] * size
        for (model, devices), point in self._points.items():
            row = self._row(model, devices)
            offset, deviation = self._layer(model, devices)
            weight, residual = 1.0 / (deviation + 1.0 / point.weight), point.log_rate - offset
            used = [i for i in range(size) if row[i]]
            for i in used:
                right[i] += row[i] * weight * residual
                for j in used:
                    precision[i][j] += row[i] * weight * row[j]
        self._covariance = _inverse(precision)
        self._beta = [sum(self._covariance[i][j] * right[j] for j in range(size)) for i in range(size)]


NOTHING_KNOWN = Throughput(())
"""The estimate for a job that claims nothing and whose family was never measured."""


def _inverse(matrix: list[list[float]]) -> list[list[float]]:
    """Return the inverse of a symmetric positive definite matrix (Gauss-Jordan; it needs no pivoting)."""
    size = len(matrix)
    rows = [[*matrix[i], *(1.0 if i == j else 0.0 for j in range(size))] for i in range(size)]
    for i in range(size):
        scale = 1.0 / rows[i][i]
        rows[i] = [value * scale for value in rows[i]]
        for k in range(size):
            factor = rows[k][i]
            if k != i and factor:
                rows[k] = [value - factor * by for value, by in zip(rows[k], rows[i], strict=True)]
    return [row[size:] for row in rows]
