"""Which share of time each gang should have on each device model, as the policies of Gavel compute it.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020. Let T be the
throughput of gang j on model m, X its share of time there, d its devices and c the devices of a model. Shares are
feasible when X >= 0, a gang's shares sum to at most 1, and those on a model, each times d, to at most c.
"""

from __future__ import annotations

import random

import highspy
import msgspec
import numpy as np
from numpy.typing import NDArray

from corral.model.ids import GangKey
from corral.policy.market.linear import Quiet

Floats = NDArray[np.float64]

TOLERANCE = 1e-6
"""Relative, of the least finish-time ratio."""

STEPS_MAX = 100
"""Of the search for it; it takes about five."""


class Situation(msgspec.Struct, frozen=True):
    """Who contends for what. Rows of ``rates`` (units of work per second) are gangs, in the order of their submission.

    ``devices`` are those of each gang, ``capacity`` those of each model; ``waited_s`` is the time since submission, and
    ``remaining`` the work that is left in units, not a number where nobody says.
    """

    keys: tuple[GangKey, ...]
    models: tuple[str, ...]
    rates: Floats
    devices: Floats
    capacity: Floats
    waited_s: Floats
    remaining: Floats

    def table(self, shares: Floats) -> dict[GangKey, dict[str, float]]:
        """Return shares by gang and model."""
        return {
            key: dict(zip(self.models, map(float, row), strict=True))
            for key, row in zip(self.keys, shares, strict=True)
        }


class MaxMin:
    """Maximise the least d x (sum of X T) / (the throughput in proportional shares of all models).

    Not ``heterogeneous``, all throughputs count as 1: fair shares of time.
    """

    idles = False

    def __init__(self, *, heterogeneous: bool) -> None:
        self.heterogeneous = heterogeneous

    def shares(self, situation: Situation) -> dict[GangKey, dict[str, float]]:
        """Return the shares."""
        rates = situation.rates if self.heterogeneous else np.ones_like(situation.rates)
        proportional = rates @ (situation.capacity / situation.capacity.sum())
        gains = rates * (situation.devices / proportional)[:, None]
        return situation.table(fairest(gains, situation.devices, situation.capacity))


class FinishTimeFairness:
    """Minimise the worst finish-time ratio: the expected time of completion over that on an n-th of the pool.

    The latter is what the work done so far would have taken there, by the number of gangs at each time, plus the rest.
    Needs declared work.
    """

    heterogeneous = True
    idles = False

    def __init__(self) -> None:
        self._isolated_s: dict[GangKey, float] = {}
        self._before: dict[GangKey, tuple[float, float]] = {}

    def shares(self, situation: Situation) -> dict[GangKey, dict[str, float]]:
        """Return the shares."""
        alone = self._alone(situation)
        isolated, before = self._isolated_s, self._before
        due = np.empty(len(situation.keys))
        for i, key in enumerate(situation.keys):
            left = float(situation.remaining[i])
            if key in before:
                left_then, alone_then = before[key]
                isolated[key] += max(0.0, left_then - left) / alone_then
            due[i] = isolated.setdefault(key, 0.0) + left / float(alone[i])
        self._before = {
            key: (float(left), float(rate))
            for key, left, rate in zip(situation.keys, situation.remaining, alone, strict=True)
        }
        return situation.table(_least_ratio(situation, np.maximum(due, 1.0)))

    @staticmethod
    def _alone(situation: Situation) -> Floats:
        """Return the throughput of each gang on an n-th of each model."""
        parts = situation.capacity / len(situation.keys) / situation.devices[:, None]
        parts /= np.maximum(1.0, parts.sum(axis=1))[:, None]
        return np.asarray((situation.rates * parts).sum(axis=1))


def _least_ratio(situation: Situation, due: Floats) -> Floats:
    """Minimise max (waited + remaining / throughput) / due.

    For a given ratio r, all gangs are within it when throughput x (r due - waited) / remaining is at least 1, so the
    shares for which the least of these is largest have a smaller ratio whenever any have (Dinkelbach 1967).
    """
    left, waited = np.maximum(situation.remaining, 1e-9), situation.waited_s
    shares = best = np.ones_like(situation.rates) / situation.rates.size / situation.devices[:, None]
    ratio = float("inf")
    for _ in range(STEPS_MAX):
        speed = np.maximum((situation.rates * shares).sum(axis=1), 1e-300)
        now = float(((waited + left / speed) / due).max())
        if now >= ratio * (1.0 - TOLERANCE):
            break
        ratio, best = now, shares
        gains = situation.rates * ((ratio * due - waited) / left)[:, None]
        shares = fairest(gains, situation.devices, situation.capacity)
    return best


class Arrivals:
    """First in, first out, as Gavel's simulator does it: a gang keeps the model that it was given until it ends.

    Each gives its model to the first in the queue that fits there. Of the rest, in order, each one goes to the last
    model by name that has devices left, if one has enough for it; else it and all behind it wait. So a model can be
    promised to more than fit: they take turns.
    """

    heterogeneous = False
    idles = True

    def __init__(self) -> None:
        self._given: dict[GangKey, int] = {}
        self._arrived: dict[GangKey, int] = {}
        self._random = random.Random(0)  # noqa: S311 - an experiment, no secret

    def shares(self, situation: Situation) -> dict[GangKey, dict[str, float]]:
        """Return the shares: 1 on the gang's model, 0 elsewhere."""
        rows = {key: i for i, key in enumerate(situation.keys)}
        for key in situation.keys:
            self._arrived.setdefault(key, len(self._arrived))
        left = [round(float(count)) for count in situation.capacity]
        queue = [key for key in situation.keys if key not in self._given]
        self._succeed(situation, rows, left, queue)
        open_models = [model for model, count in enumerate(left) if count > 0]
        while queue and open_models:
            key = queue.pop(0)
            need = round(float(situation.devices[rows[key]]))
            fitting = [i for i, model in enumerate(open_models) if left[model] >= need]
            if not fitting:
                break
            drawn = self._random.choice(fitting)
            model = open_models[-1]
            if not situation.rates[rows[key], model]:
                continue
            self._given[key] = model
            left[model] -= need
            if not left[model]:
                open_models.pop(drawn)
        shares = np.zeros_like(situation.rates)
        for key, model in self._given.items():
            shares[rows[key], model] = 1.0
        return situation.table(shares)

    def _succeed(self, situation: Situation, rows: dict[GangKey, int], left: list[int], queue: list[GangKey]) -> None:
        """Hand the models of those who ended to the first in the queue; count what the others hold."""
        for key, model in sorted(self._given.items(), key=lambda item: self._arrived[item[0]]):
            if key in rows:
                left[model] -= round(float(situation.devices[rows[key]]))
                continue
            del self._given[key]
            need = round(float(situation.devices[rows[queue[0]]])) if queue else 0
            if queue and need <= left[model] and situation.rates[rows[queue[0]], model]:
                self._given[queue.pop(0)] = model
                left[model] -= need


def fairest(gains: Floats, devices: Floats, capacity: Floats) -> Floats:
    """Return feasible shares for which the least sum of gain x share over the gangs is largest.

    There are many such shares, and which one is taken matters to the rounds: Gavel solves with an interior point
    method, which ends amid them, so this is done here too (HiGHS, without crossover to a vertex).
    """
    gangs, models = gains.shape
    scale = float(gains.max())
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = gangs * models + 1, 2 * gangs + models
    lp.col_cost_ = np.append(np.zeros(gangs * models), -1.0)
    lp.col_lower_ = np.append(np.zeros(gangs * models), -highspy.kHighsInf)
    lp.col_upper_ = np.full(gangs * models + 1, highspy.kHighsInf)
    lp.row_lower_ = np.concatenate((np.full(gangs, -highspy.kHighsInf), np.zeros(gangs), np.full(models, -np.inf)))
    lp.row_upper_ = np.concatenate((np.ones(gangs), np.full(gangs, highspy.kHighsInf), capacity))
    whose = np.repeat(np.arange(gangs), models)
    matrix = np.zeros((2 * gangs + models, gangs * models + 1))
    matrix[whose, np.arange(gangs * models)] = 1.0
    matrix[gangs + whose, np.arange(gangs * models)] = (gains / scale).ravel()
    matrix[gangs : 2 * gangs, -1] = -1.0
    matrix[2 * gangs + np.tile(np.arange(models), gangs), np.arange(gangs * models)] = devices[whose]
    rows, columns = np.nonzero(matrix)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.searchsorted(rows, np.arange(len(matrix) + 1)).astype(np.int32)
    lp.a_matrix_.index_ = columns.astype(np.int32)
    lp.a_matrix_.value_ = matrix[rows, columns]
    options = highspy.HighsOptions()
    options.output_flag = False
    options.threads = 1
    options.solver = "ipm"
    options.run_crossover = "off"
    solver = Quiet()
    solver.passOptions(options)
    solver.passModel(lp)
    solver.run()
    found: Floats = np.asarray(solver.getSolution().col_value)[: gangs * models].reshape(gangs, models)
    return found.clip(0.0, 1.0)
