"""What a gang's run is worth in a global round.

w = credit x max(1, projected finish-time ratio)^a / remaining^b, where the finish-time ratio is JCT over the time alone
on max(its own size, a 1/n share). The value of a bid is w x sqrt(its throughput / the best bid's).
"""

from __future__ import annotations

import math

from corral.policy.config import SchedulingConfig


def finish_time_ratio(waited_s: float, attained_s: float, remaining_s: float) -> float:
    """Return (time since submission + remaining) over the time alone, with the job's own size."""
    alone = max(1.0, attained_s + remaining_s)
    return max(1.0, (waited_s + attained_s + remaining_s) / alone)


def weight(remaining_s: float, ratio: float, config: SchedulingConfig) -> float:
    """Return the worth of running a gang now, before its tenant's credit."""
    return math.pow(ratio, config.fairness) / math.pow(max(1.0, remaining_s), config.remaining_exponent)


def bid_value(worth: float, throughput: float, best: float) -> float:
    """Return what a bid of ``throughput`` is worth where the best bid has ``best`` (both > 0, same unit)."""
    return worth * math.sqrt(min(1.0, throughput / best))
