"""The benchmark on public traces: what it does without them, and with small ones in their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import traces

OPENB_NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,T4\n"
OPENB_PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
    "p1,1000,1024,1,1000,,0,10\np2,1000,1024,1,500,,0,10\n"
)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["traces", *arguments])
    return traces.main()


def test_a_trace_that_is_not_there_is_named_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--json", "--data", str(tmp_path), "--only", "philly-ee9e8c") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert str(tmp_path / "philly" / "philly_jobs.csv") in said.err
    assert "https://github.com/msr-fiddle/philly-traces" in said.err


def test_rows_have_what_the_table_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"2017-10-09 07:0{i}:00,{600 * (i + 1)},1,0,b436b2" for i in range(3)]
    (tmp_path / "philly").mkdir()
    (tmp_path / "philly" / "philly_jobs.csv").write_text(
        "\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *lines]) + "\n"
    )
    assert run(monkeypatch, "--json", "--data", str(tmp_path), "--only", "philly-b436b2") == 0
    found = json.loads(capsys.readouterr().out)
    assert {(row["policy"], row["information"]) for row in found["rows"]} == {
        ("corral", "blind"), ("corral", "progress"), ("fifo", "blind"), ("easy", "oracle"), ("las", "blind"),
        ("srtf-oracle", "oracle"),
    }  # fmt: skip
    wanted = "trace cluster policy information avg_jct_h p99_jct_h makespan_h utilisation worst_ftr p95_ftr preemptions"
    assert all(
        {*wanted.split(), "allocated_pct", "seconds", "gap_mean", "restarts"} <= row.keys() for row in found["rows"]
    )
    fifo = next(row for row in found["rows"] if row["policy"] == "fifo")
    # All three start at once on 64 devices: 10, 20 and 30 minutes.
    assert fifo["avg_jct_h"] == pytest.approx(1 / 3)


def test_the_dial_is_drawn_with_las_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(traces, "DIALS", (0.0, 1.0))
    (tmp_path / "philly").mkdir()
    lines = [f"2017-10-09 07:0{i}:00,{6000 * (i + 1)},64,0,b436b2" for i in range(3)]
    (tmp_path / "philly" / "philly_jobs.csv").write_text(
        "\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *lines]) + "\n"
    )
    folder = tmp_path / "out"
    arguments = ("--data", str(tmp_path), "--only", "philly-b436b2", "--frontier", str(folder))
    assert run(monkeypatch, "--json", *arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(point["policy"], point["fairness"]) for point in found["frontier"]] == [
        ("corral", 0.0), ("corral", 1.0), ("las", None)
    ]  # fmt: skip
    assert sorted(path.name for path in folder.iterdir()) == ["frontier-philly-b436b2.png", "frontier.json"]


def test_pods_fill_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "alibaba-gpu-v2023"
    folder.mkdir()
    (folder / "openb_node_list_gpu_node.csv").write_text(OPENB_NODES)
    (folder / "openb_pod_list_default.csv").write_text(OPENB_PODS)
    assert run(monkeypatch, "--json", "--data", str(tmp_path), "--only", "openb-default") == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["seeds"] == list(range(42, 52))
    assert 50.0 <= row["allocated_pct"] <= 100.0


def test_every_case_has_a_source_and_ours_first() -> None:
    for case in traces.CASES:
        assert case.source.startswith("https://")
        assert not case.runs or case.runs[0][0] == "corral"
