"""When a task may be started elsewhere: the arithmetic by hand, and lease against lease with clocks of other rates."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.agent.leases import Leases
from corral.agent.shim.lease import Act, LeaseWatch
from corral.agent.shim.spec import LeaseSpec
from corral.model.ids import NodeId
from corral.model.job import Fencing
from corral.policy.fencing import RATE_DIFFERENCE_MAX, STOPPING_S, margin_s, patience_s, safe_at, wrong_clocks

SHIM_LOOKS_S = 1.0


@pytest.mark.parametrize(
    "lease_s, margin",
    [(0.0, 5.0), (10.0, 5.02), (90.0, 5.18), (5_000.0, 15.0), (86_400.0, 177.8)],
)
def test_the_margin_grows_with_the_lease(lease_s: float, margin: float) -> None:
    assert margin_s(lease_s) == pytest.approx(margin)


@pytest.mark.parametrize("fencing, lease_s, granted_until, at", [
    (Fencing.NONE, 90.0, None, -math.inf),
    (Fencing.NONE, None, None, -math.inf),
    (Fencing.EXCLUSIVE, None, None, math.inf),
    (Fencing.EXCLUSIVE, 90.0, None, 1095.18),
    (Fencing.EXCLUSIVE, 90.0, 1050.0, 1095.18),
    (Fencing.EXCLUSIVE, 90.0, 2800.0, 2800.0),
])  # fmt: skip
def test_from_when_on_a_task_cannot_run_any_more(
    fencing: Fencing, lease_s: float | None, granted_until: float | None, at: float
) -> None:
    assert safe_at(fencing, lease_s, 1000.0, granted_until) == pytest.approx(at)


@pytest.mark.parametrize(
    "away, known, patience", [(0, 1, 10.0), (1, 2, 10.0), (1, 1, 20.0), (2, 4, 10.0), (3, 4, 20.0)]
)
def test_a_majority_that_is_away_is_waited_for_twice_as_long(away: int, known: int, patience: float) -> None:
    assert patience_s(10.0, away=away, known=known) == patience


@pytest.mark.parametrize("skews, wrong, own", [
    ([], [], 0.0),
    ([2.0], [], 0.0),
    ([2.1], [0], 0.0),
    ([0.0, -7.0], [1], 0.0),
    # Two nodes cannot say whose clock is wrong, three can.
    ([7.0, 7.0], [0, 1], 0.0),
    ([7.0, 7.0, 7.5], [], -7.0),
    ([7.0, 7.0, 0.0], [2], -7.0),
    ([0.5, -0.5, 3.0], [2], 0.0),
    ([0.0, 1.9, -1.9, 2.4], [3], 0.0),
])  # fmt: skip
def test_whose_clock_is_wrong(skews: list[float], wrong: list[int], own: float) -> None:
    names = [NodeId(f"n{i}") for i in range(len(skews))]
    found, off = wrong_clocks(dict(zip(names, skews, strict=True)))
    assert found == {names[i] for i in wrong}
    assert off == own


# ---- the two ends of a lease ---------------------------------------------------------------------------------------


def stops_at(
    beats: list[tuple[float, float | None, float | None]], lease_s: float, rate: float, looks: list[float]
) -> float:
    """Return the real time at which the task of a node is frozen for good.

    ``beats`` are (sent, heard, acknowledgement back) in real time, ``None`` for what was lost. ``rate`` is that of the
    node's clock, ``looks`` the real times between two looks of the shim.
    """
    leases, watch = Leases(), LeaseWatch(LeaseSpec("/lease", 10.0, math.inf))
    back = sorted((at, sent) for sent, heard, at in beats if heard is not None and at is not None)
    now, place, frozen_at = 0.0, 0, math.inf
    horizon = max(at for at, _ in back) + lease_s / rate + 10.0
    while now < horizon:
        while back and back[0][0] <= now:
            leases.confirm(back.pop(0)[1] * rate, 0.0)
        deadline = leases.deadline_s(lease_s)
        assert deadline is not None
        act = watch.step(now * rate, deadline)
        if act is Act.FREEZE:
            frozen_at = now
        elif act is Act.THAW:
            frozen_at = math.inf
        now += looks[place % len(looks)]
        place += 1
    return frozen_at


delays = st.floats(0.001, 3.0)


@given(
    count=st.integers(1, 40),
    lost=st.sets(st.integers(0, 39)),
    unanswered=st.sets(st.integers(0, 39)),
    there=st.lists(delays, min_size=40, max_size=40),
    back=st.lists(delays, min_size=40, max_size=40),
    lease_s=st.floats(10.0, 600.0),
    rates=st.tuples(st.floats(0.99, 1.01), st.floats(0.0, RATE_DIFFERENCE_MAX)),
    looks=st.lists(st.floats(0.05, SHIM_LOOKS_S), min_size=1, max_size=20),
)
def test_no_task_runs_when_it_may_be_started_elsewhere(
    count: int,
    lost: set[int],
    unanswered: set[int],
    there: list[float],
    back: list[float],
    lease_s: float,
    rates: tuple[float, float],
    looks: list[float],
) -> None:
    node_rate, difference = rates
    controller_rate = node_rate * (1.0 + difference)
    beats: list[tuple[float, float | None, float | None]] = []
    heard_last = ack_last = 0.0
    for place in range(count):
        sent = 1.0 + place
        # Messages of one connection keep their order, whatever their delays.
        heard = None if place in lost - {0} else max(heard_last, sent + there[place])
        answered = None if heard is None or place in unanswered - {0} else max(ack_last, heard + back[place])
        heard_last, ack_last = heard or heard_last, answered or ack_last
        beats.append((sent, heard, answered))
    frozen_at = stops_at(beats, lease_s, node_rate, looks)
    replaced_at = safe_at(Fencing.EXCLUSIVE, lease_s, heard_last * controller_rate, None) / controller_rate
    assert frozen_at <= replaced_at


@pytest.mark.parametrize("part, runs_on", [(0.0, True), (1.0, False)])
def test_without_the_part_for_rates_two_would_run(part: float, runs_on: bool) -> None:
    # The node's clock is 0.2 % slower: its 10,000 s are 10,020 s of the controller's.
    lease_s, rate = 10_000.0, 1.0 / (1.0 + RATE_DIFFERENCE_MAX)
    frozen_at = stops_at([(1.0, 1.0, 1.0)], lease_s, rate, [0.1])
    assert frozen_at == pytest.approx(10_021.0, abs=0.1)
    assert (frozen_at > 1.0 + lease_s + STOPPING_S + part * RATE_DIFFERENCE_MAX * lease_s) is runs_on
