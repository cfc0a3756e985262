"""How long a service waits before it starts a replica again after others ended by themselves."""

from __future__ import annotations

PAUSE_FIRST_S = 10.0
PAUSE_MAX_S = 300.0
"""A crash loop makes a job for each attempt: one in five minutes at last (ADR 16)."""


def pause_s(failures: int, replicas: int) -> float:
    """Return the pause in seconds after so many failures in a row of a service with so many replicas.

    Each replica may fail once without a pause: that is what somebody who pulls a plug does, and what it costs must be
    the start of the replacement and nothing more. When all of them have failed once, every further round of failures
    doubles the pause: 10, 20, 40 ... 300 s.
    """
    rounds = (failures - 1) // max(1, replicas) if failures > 0 else 0
    if rounds <= 0:
        return 0.0
    return min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(rounds - 1, 10))
