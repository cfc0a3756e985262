"""Simulations in processes of their own."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from corral.model.errors import TraceInvalid
from corral.sim.crew import News, simulate_all
from corral.sim.simulate import Options

TRACE = '{"corral_trace": 1}\n' + "".join(
    f'{{"name": "j{i}", "arrival_s": {i}, "devices": 1, "duration_s": 100}}\n' for i in range(5)
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    return str(path)


def test_reports_come_with_their_positions(trace: str) -> None:
    news: list[News] = []
    asked = [Options(trace, "corral", f"{devices}xX", "fifo") for devices in (1, 5)]
    found = dict(simulate_all(asked, 2, news.append))
    assert [round(found[i].measures.makespan_h * 3600) for i in (0, 1)] == [500, 104]
    assert {one.index for one in news} == {0, 1}
    assert all(one.total == 5 for one in news)


def test_an_error_is_raised_as_it_was_and_nothing_runs_on(trace: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n")
    with pytest.raises(TraceInvalid, match=str(broken)):
        list(simulate_all([Options(str(broken), "corral", "1xX", "fifo"), Options(trace, "corral", "1xX", "fifo")], 1))
    assert not multiprocessing.active_children()


def test_who_stops_listening_ends_the_simulations(trace: str) -> None:
    going = simulate_all([Options(trace, "corral", "1xX", "fifo")] * 3, 3)
    next(going)
    going.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()
