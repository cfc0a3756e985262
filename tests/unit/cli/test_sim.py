"""`corral sim` as a process, and the texts of its reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corral.cli.render.layout import as_text
from corral.cli.render.sim import report, reports
from corral.cli.simulating import level, selected, watched
from corral.model.errors import InvalidField
from corral.sim.information import Information
from corral.sim.simulate import Options, simulate
from tests.unit.cli.test_entry import corral, refused

TRACE = """{"corral_trace": 1}
{"name": "a", "arrival_s": 0, "devices": 1, "duration_s": 3600}
{"name": "b", "arrival_s": 0, "devices": 1, "duration_s": 1800}
"""


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    return str(path)


def test_a_run_prints_one_object(trace: str, tmp_path: Path) -> None:
    ended = corral("sim", "run", trace, "-c", "1xX", "-p", "fifo", "--json", "--jobs", state_dir=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    found = json.loads(ended.stdout)
    # a ends after 1 h, b waits for it and ends after 1.5 h.
    assert (found["policy"], found["information"], found["jobs"][1]["jct_h"]) == ("fifo", "blind", 1.5)
    assert (found["avg_jct_h"], found["makespan_h"], found["utilisation"], found["worst_ftr"]) == (1.25, 1.5, 1.0, 3.0)
    assert found["moments"]["rows"] == [[0.0, 1.0, 1, 2], [3600.0, 1.0, 0, 1], [5400.0, 0.0, 0, 0]]


def test_a_comparison_prints_a_row_for_each_policy_and_draws(trace: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plots = tmp_path / "plots"
    ended = corral(
        "sim", "compare", trace, "-c", "1xX", "-p", "fifo,srtf-oracle", "-w", "2", "--plots", str(plots),
        state_dir=tmp_path, COLUMNS="200",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    rows = [line.split() for line in ended.stdout.splitlines()]
    assert rows[1][:3] == ["fifo", "blind", "1.25"]
    # b first: (0.5 + 1.5) / 2.
    assert rows[2][:3] == ["srtf-oracle", "oracle", "1.00"]
    assert sorted(path.name for path in plots.iterdir()) == [
        "finish-time-ratio.png", "jct.png", "queue.png", "utilisation.png"
    ]  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots.iterdir())


def test_a_comparison_leaves_out_who_cannot_run_with_what_is_known(trace: str, tmp_path: Path) -> None:
    def compare(policies: str) -> tuple[str, dict[str, Any]]:
        ended = corral("sim", "compare", trace, "-c", "1xX", "-p", policies, "--json", state_dir=tmp_path)
        assert ended.returncode == 0, ended.stderr
        return ended.stderr, json.loads(ended.stdout)

    said, found = compare("easy,fifo, finish-time-fairness")
    assert said.splitlines() == [
        "left out: easy needs durations (use declared or oracle)",
        "left out: finish-time-fairness needs durations (use declared or oracle)",
    ]
    assert [row["policy"] for row in found["rows"]] == ["fifo"]
    assert found["left_out"] == ["easy needs durations", "finish-time-fairness needs durations"]
    said, found = compare("srtf-oracle,fifo")
    assert (said, found["left_out"], len(found["rows"])) == ("", [], 2)
    refused(
        "sim", "compare", trace, "-c", "1xX", "-p", "easy,finish-time-fairness", state_dir=tmp_path,
        code="INVALID_FIELD", exit_code=2, said="--information: easy needs durations (use declared or oracle)",
    )  # fmt: skip


def test_mistakes_are_one_line(trace: str, tmp_path: Path) -> None:
    def wrong(*arguments: str, code: str = "INVALID_FIELD", said: str) -> None:
        refused("sim", *arguments, state_dir=tmp_path, code=code, exit_code=2, said=said)

    wrong("run", trace, "-c", "8", said="is not a group of nodes")
    wrong("run", trace, "-c", "1xX", "-p", "best", said="there is no policy 'best'")
    wrong("run", trace, "-c", "1xX", "-f", "pgm", said="there is no format 'pgm'")
    wrong("run", trace, "-c", "1xX", "-i", "blnd", said="did you mean blind?")
    wrong("run", trace, "-c", "1xX", "-p", "easy", said="easy needs durations")
    wrong("run", trace, "-c", "1xX", "--select", "cluster", said="is not COLUMN=VALUE")
    wrong("run", trace, "-c", "1xX", "--select", "cluster=a", said="format corral have nothing to select")
    wrong("run", trace, "-c", "1xX", "--throughputs", "table", said="format corral need no table")
    wrong("compare", trace, "-c", "1xX", "-p", "fifo,best", said="there is no policy 'best'")
    wrong("run", "nowhere", "-c", "1xX", code="TRACE_UNREADABLE", said="nowhere: the trace cannot be read")
    Path(trace).write_text(TRACE.replace("1800", "-1"))
    wrong("run", trace, "-c", "1xX", code="TRACE_INVALID", said=f"{trace}:3:45: duration_s: -1 is not above 0")
    wrong("compare", trace, "-c", "1xX", "-p", "fifo", code="TRACE_INVALID", said="duration_s: -1 is not above 0")


def test_levels_and_selections() -> None:
    assert level("oracle") is Information.ORACLE
    assert selected(["cluster=a", "user=b=c"]) == {"cluster": "a", "user": "b=c"}
    with pytest.raises(InvalidField):
        selected(["=a"])


def test_reports_name_level_gap_and_definition(trace: str) -> None:
    found = simulate(Options(trace, "corral", "1xX", "las", Information.PROGRESS))
    text = as_text(report(found), width=160)
    assert "las, information: progress" in text
    assert "finish-time ratio = JCT / (time alone" in text
    assert "trace.jsonl: 2 jobs" in text
    side = as_text(reports([found]), width=200)
    assert side.splitlines()[1].split()[:2] == ["las", "progress"]


def test_a_bar_moves_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with watched(["fifo"]) as bars:
        assert bars is None
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with watched(["fifo", "las"]) as bars:
        assert bars is not None
        bars.of(1)(3, 12)
        bars._progress.refresh()
    said = capsys.readouterr()
    assert "3/12" in said.err
    assert said.out == ""
