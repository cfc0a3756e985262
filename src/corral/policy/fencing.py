"""When a task of a node that is not heard may be started elsewhere, as pure decisions.

A lease runs on the node's CLOCK_BOOTTIME, from the *sending* of the last hello or heartbeat that the controller
acknowledged; the controller counts on its own CLOCK_BOOTTIME from when it *heard* that message, which is never earlier.
No clock is ever compared with another, only durations are: so wall clocks may be wrong, and what must be bounded is how
far the rates of two clocks differ (Gray and Cheriton, "Leases", SOSP 1989, section 5).

The margin has two parts:

- ``RATE_DIFFERENCE_MAX`` of the lease. A crystal is off by less than 0.01 % and the kernel lets a clock be disciplined
  by 0.05 % (``MAXFREQ`` of 500 ppm; adjtimex(2), RFC 5905 appendix A.5.5.6), so two clocks that are wrong in opposite
  directions, by crystal and discipline alike, differ by 0.12 %.
- ``STOPPING_S`` for what does not grow with the lease: the shim looks up to a second late and freezes within 0.2 s, an
  agent that finds the task not frozen kills it within another two, and a time daemon that moves a clock fast by slewing
  (chrony's ``maxslewrate`` of 8 %) moves it by no more than the clock was wrong: up to ``SKEW_MAX_S`` on a node that
  takes tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from corral.model.ids import NodeId
from corral.model.job import Fencing

RATE_DIFFERENCE_MAX = 0.002
"""The rates of the clocks of two machines differ by at most this part."""

STOPPING_S = 5.0
"""How long after the end of a lease the last process of its task may run, on the node's clock."""

SKEW_MAX_S = 2.0
"""A node whose wall clock is off by more gets no new tasks."""

CLOCKS_TO_JUDGE = 3
"""With so many nodes the one clock that most of them contradict is the controller's own."""


def margin_s(lease_s: float) -> float:
    """Return how long to wait beyond a lease, in seconds."""
    return STOPPING_S + RATE_DIFFERENCE_MAX * lease_s


def safe_at(fencing: Fencing, lease_s: float | None, heard_at: float, granted_until: float | None) -> float:
    """Return the time (controller's clock) from which a task cannot run any more on a node that is not heard.

    Args:
        fencing: What the job declares. Without fencing the old task may go on: nothing is waited for.
        lease_s: The task's lease; ``None`` when it has none (the engine cannot lose contact): only a proof ends it.
        heard_at: When the node was heard last, or when the controller took over, whichever is later.
        granted_until: The end of a longer lease that was granted for a planned outage, margin included.
    """
    if fencing is Fencing.NONE:
        return float("-inf")
    if lease_s is None:
        return float("inf")
    end = heard_at + lease_s + margin_s(lease_s)
    return end if granted_until is None else max(end, granted_until)


def patience_s(node_lost_s: float, *, away: int, known: int) -> float:
    """Return how long a suspect node is waited for before it is given up.

    When more than half of the nodes are away at once, the fault is likelier near the controller than at each of them:
    then twice as long.
    """
    return 2 * node_lost_s if 2 * away > known else node_lost_s


def wrong_clocks(skews: Mapping[NodeId, float]) -> tuple[frozenset[NodeId], float]:
    """Return the nodes whose wall clock is off by more than ``SKEW_MAX_S``, and how far the controller's own is off.

    ``skews`` are wall clocks less the controller's (seconds) of the nodes that answer. Where ``CLOCKS_TO_JUDGE`` nodes
    or more are heard, their median is taken for the time: a controller with a wrong clock keeps nobody out.
    """
    reference = median(skews.values()) if len(skews) >= CLOCKS_TO_JUDGE else 0.0
    own = -reference if abs(reference) > SKEW_MAX_S else 0.0
    return frozenset(node for node, skew in skews.items() if is_wrong(skew, own)), own


def is_wrong(skew_s: float, own_s: float) -> bool:
    """Return whether a clock is off by too much; the controller's own is by ``own_s``."""
    return abs(skew_s + own_s) > SKEW_MAX_S
