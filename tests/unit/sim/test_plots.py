from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral.model.errors import DependencyMissing
from corral.sim import plots
from corral.sim.record import Moment


def test_without_matplotlib_plots_name_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(DependencyMissing, match=r"corral\[plots\]"):
        plots.draw([], str(tmp_path))


def test_a_curve_is_made_of_averages_over_equal_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "BINS", 4)
    # 1 for 3 h, then 5 until 8 h: spans of 2 h hold 1, (1 + 5) / 2, 5 and 5.
    moments = [Moment(0, 1, 0, 0), Moment(3 * 3_600, 5, 0, 0), Moment(8 * 3_600, 0, 0, 0)]
    times, values = plots.averages(moments, lambda moment: moment.held)
    assert times == pytest.approx([1, 3, 5, 7])
    assert values == pytest.approx([1, 3, 5, 5])
    assert plots.averages(moments[:1], lambda moment: moment.held) == ([], [])


def test_the_frontier_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points: list[dict[str, Any]] = [
        {"policy": "corral", "fairness": 0.0, "avg_jct_h": 5.0, "worst_ftr": 40.0},
        {"policy": "corral", "fairness": 1.0, "avg_jct_h": 6.0, "worst_ftr": 9.0},
        {"policy": "las", "fairness": None, "avg_jct_h": 9.0, "worst_ftr": 12.0},
    ]
    assert plots.frontier(tmp_path / "frontier.png", "dial", points).read_bytes().startswith(b"\x89PNG")
