"""What a gang's run is worth in a global round.

w = credit x ratio^(f^2) x (size / remaining)^b, where f is the dial ``fairness`` and the ratio is the finish-time ratio
to be expected if the gang waits no more: its time in the pool over its service, with its own size. A rigid gang is
alone on its own size, whatever share it is due.

Where nobody says what remains, two more things are done, both so that a guess harms nobody without bound. The ratio is
the mean over all that the service may turn out to be (1 + waited x E[1 / X]): most gangs are short, and the short ones
are those that a queue harms. And the remaining time is the geometric mean, with weights 1 - f and f, of the reciprocal
Gittins index and of the service attained by the end of the next tenure. Least attained service first (Nuyens and
Wierman, Perform. Eval. 65, 2008) asks no distribution: it lets nobody wait for more than all others have had.

With b > 0 the worth per device falls with the remaining service (devices x time), so that a round without restart
costs serves the least remaining service first: the rule of Smith (Nav. Res. Logist. Q. 3, 1956) for gangs. b = 1/2
keeps that order and damps the scale: where devices differ in speed, a gang that is done ten times sooner takes the
faster ones from three others, not from ten.

The value of a bid is w x sqrt(x), where x is its throughput over the best bid's. On a pool of several device models a
critical path is added to it: c x (sqrt(x) - sqrt(the slowest bid's x)). A tenant is done when its last gang is, and the
gang that needs longest decides when; so it gets the faster devices, before those who would be done sooner anyway. It
does not run more than others for that: on its slowest devices it is worth w. Where devices are all alike, c is nothing.
"""

from __future__ import annotations

import math

from corral.policy.config import SchedulingConfig

PATIENCE_MAX = 1e9
"""More than the roots of any two services are apart (a second of one device, and a month of a million)."""


def finish_time_ratio(waited_s: float, inverse: float) -> float:
    """Return the expected time in the pool over service, after ``waited_s`` without service and with no more of it.

    ``inverse`` is the mean of 1 / all of its service, in 1/s: no more than 1.
    """
    return 1.0 + max(0.0, waited_s) * min(1.0, inverse)


def hedged(remaining_s: float, attained_s: float, config: SchedulingConfig) -> float:
    """Return a remaining time that nobody declared as it counts: the further from a guess, the larger the dial."""
    trust = 1.0 - min(1.0, config.fairness)
    return math.pow(remaining_s, trust) * math.pow(max(1.0, attained_s + config.tenure_s), 1.0 - trust)


def weight(remaining_s: float, size: float, ratio: float, config: SchedulingConfig) -> float:
    """Return the worth of running a gang now, before its tenant's credit.

    ``size`` is what it takes of the pool, in devices or as a share: any unit, but the same for all that are compared.
    A ratio has no bound, unlike the rest: so the dial counts by its square here.
    """
    fair = math.pow(ratio, config.fairness * config.fairness)
    return fair * math.pow(size / max(1.0, remaining_s), config.remaining_exponent)


def patience(waited_s: float, config: SchedulingConfig) -> float:
    """Return by how much a gang is worth more because it has waited too long: 1 while it has not.

    Least service first would let a long gang wait for ever behind short ones that do not cease to come. From
    ``patience_s`` on the worth grows by a steep power of the time waited, so that nearly the order of arrival holds
    among those who wait so long, and only those who came before can go before.
    """
    over = waited_s / max(1.0, config.patience_s)
    return 1.0 if over <= 1.0 else min(PATIENCE_MAX, math.pow(over, config.patience_exponent))


def critical_worth(remaining_s: float, end_s: float, config: SchedulingConfig) -> float:
    """Return what speed is worth to a gang that decides when its tenant is done, in those of usual gangs.

    ``end_s`` is the projected end of all work of the tenant, in seconds from now: the larger of its remaining service
    over its part of the pool and of its longest remaining time. Who is far from it decides nothing.
    """
    return config.critical_weight * math.pow(min(1.0, remaining_s / end_s), config.critical_exponent)


def hurry_value(throughput: float, best: float, slowest: float) -> float:
    """Return how far a bid is above the slowest: sqrt(x) - sqrt(slowest x), at least 0."""
    return max(0.0, math.sqrt(min(1.0, throughput / best)) - math.sqrt(slowest / best))


def bid_value(worth: float, throughput: float, best: float) -> float:
    """Return what a bid of ``throughput`` is worth where the best bid has ``best`` (both > 0, same unit)."""
    return worth * math.sqrt(min(1.0, throughput / best))
