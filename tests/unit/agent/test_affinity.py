from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral.agent.affinity import CpuChooser


def test_tasks_get_cpus_of_their_own_while_there_are_some() -> None:
    chooser = CpuChooser(range(8))
    assert chooser.take(2000) == (0, 1)
    assert chooser.take(1500) == (2, 3)
    assert chooser.take(500) == (4,)
    assert chooser.take(3000) == (5, 6, 7)


def test_cpus_that_came_back_are_given_again() -> None:
    chooser = CpuChooser(range(4))
    first = chooser.take(2000)
    chooser.take(1000)
    assert first is not None
    chooser.give_back(first, 2000)
    assert chooser.take(2000) == (0, 1)


def test_small_tasks_share_the_least_held_cpu() -> None:
    chooser = CpuChooser(range(2))
    assert [chooser.take(300) for _ in range(4)] == [(0,), (1,), (0,), (1,)]


def test_no_limit_for_none_or_for_all() -> None:
    chooser = CpuChooser(range(2))
    assert chooser.take(0) is None
    assert chooser.take(2000) is None
    assert chooser.take(64_000) is None


def test_what_runs_already_is_counted() -> None:
    chooser = CpuChooser(range(3))
    chooser.hold((0,), 1000)
    chooser.hold((99,), 1000)
    assert chooser.take(1000) == (1,)


@given(st.lists(st.integers(1, 3000), max_size=20))
def test_taking_and_giving_back_leaves_nothing(demands: list[int]) -> None:
    chooser = CpuChooser(range(4))
    taken = [(cpus, milli) for milli in demands if (cpus := chooser.take(milli)) is not None]
    for cpus, milli in taken:
        chooser.give_back(cpus, milli)
    assert chooser.take(3000) == (0, 1, 2)
