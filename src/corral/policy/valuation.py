"""What a gang's run is worth in a global round.

w = credit x max(1, projected finish-time ratio)^a x (size / remaining)^b, where the finish-time ratio is JCT over the
time alone on max(its own size, a 1/n share). Only the jobs that are elastic run faster on a larger share; a rigid one
is alone on its own size, so the ratio is its time in the pool over its service.

With b > 0 the worth per device falls with the remaining service (devices x time), so that a round without restart
costs serves the least remaining service first: the rule of Smith (Nav. Res. Logist. Q. 3, 1956) for gangs. b = 1/2
keeps that order and damps the scale: where devices differ in speed, a gang that is done ten times sooner takes the
faster ones from three others, not from ten.

The value of a bid is w x sqrt(x), where x is its throughput over the best bid's. On a pool of several device models a
critical path is added to it: c x (sqrt(x) - sqrt(the slowest bid's x)). The pool is done when its last gang is, and the
gang that needs longest decides when; so it gets the faster devices, before those who would be done sooner anyway. It
does not run more than others for that: on its slowest devices it is worth w. Where devices are all alike, c is nothing.
"""

from __future__ import annotations

import math

from corral.policy.config import SchedulingConfig


def finish_time_ratio(waited_s: float, attained_s: float, remaining_s: float) -> float:
    """Return (time since submission + remaining) over the time alone, with the job's own size."""
    alone = max(1.0, attained_s + remaining_s)
    return max(1.0, (waited_s + attained_s + remaining_s) / alone)


def weight(remaining_s: float, size: float, ratio: float, config: SchedulingConfig) -> float:
    """Return the worth of running a gang now, before its tenant's credit.

    ``size`` is what it takes of the pool, in devices or as a share: any unit, but the same for all that are compared.
    """
    return math.pow(ratio, config.fairness) * math.pow(size / max(1.0, remaining_s), config.remaining_exponent)


def critical_worth(remaining_s: float, end_s: float, config: SchedulingConfig) -> float:
    """Return what speed is worth to a gang that decides when all is done, in those of usual gangs.

    ``end_s`` is the projected end of all work of the pool, in seconds from now: the larger of all remaining service
    over the pool's size and of the longest remaining time. Who is far from it decides nothing.
    """
    return config.critical_weight * math.pow(min(1.0, remaining_s / end_s), config.critical_exponent)


def hurry_value(throughput: float, best: float, slowest: float) -> float:
    """Return how far a bid is above the slowest: sqrt(x) - sqrt(slowest x), at least 0."""
    return max(0.0, math.sqrt(min(1.0, throughput / best)) - math.sqrt(slowest / best))


def bid_value(worth: float, throughput: float, best: float) -> float:
    """Return what a bid of ``throughput`` is worth where the best bid has ``best`` (both > 0, same unit)."""
    return worth * math.sqrt(min(1.0, throughput / best))
