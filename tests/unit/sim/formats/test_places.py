"""What turns out to be wrong with a row only on a cluster is told by file, line and column too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corral.model.errors import CorralError
from corral.sim.information import Information
from corral.sim.simulate import Options, simulate
from corral.sim.workload import Workload
from tests.unit.sim.formats.test_readers import GAVEL_7, GAVEL_10, OPENB, PHILLY, TABLE, TIRESIAS
from tests.unit.sim.worlds import job, world

HEAD = '{"corral_trace": 1}\n{"name": "ok", "arrival_s": 0, "devices": 1, "duration_s": 10}\n'


def own(**changes: object) -> str:
    """Return a trace whose third line has these fields, in this order after the name."""
    fields = {"name": "devices", "arrival_s": 1, "devices": 1, "duration_s": 10, **changes}
    return HEAD + json.dumps({name: value for name, value in fields.items() if value is not None}) + "\n"


def refusal(directory: Path, text: str, format_: str, cluster: str = "2x2xX") -> str:
    path = directory / "trace"
    path.write_text(text)
    (directory / "simulation_throughputs.json").write_text(json.dumps(TABLE))
    options = Options(str(path), format_, cluster, "corral", Information.DECLARED)
    with pytest.raises(CorralError) as refused:
        simulate(options)
    said = str(refused.value)
    assert said.startswith(f"{path}:"), said
    return f"{type(refused.value).code} {said.removeprefix(f'{path}:')}"


@pytest.mark.parametrize(
    "text,format_,said",
    [
        (own(priority=5000), "corral", "INVALID_FIELD 3:69: priority: must be between -1000 and 1000, not 5000"),
        (own(devices=10), "corral", "UNSCHEDULABLE 3:37: devices: 5 x 2 GPUs is more than the pool can ever run"),
        (own(model="Y"), "corral", "UNSCHEDULABLE 3:69: model: the pool has no Y"),
        (own(declared_s=1e9), "corral", "INVALID_FIELD 3:69: declared_s: must be more than 0 and at most"),
        (own(duration_s=2e8), "corral", "TRACE_INVALID 3:51: duration_s: the job takes 2e+08 s at its best, more"),
        (own(duration_s=1.01e8), "corral", "TRACE_INVALID 3:51: duration_s: the job takes 1.01e+08 s"),
        (own(arrival_s=1e300), "corral", "TRACE_INVALID 3:21: arrival_s: 1e+300 s are more than 1e+10"),
        (
            own(duration_s=None, work=5, speeds={"X": 1e-9, "Y": 1}),
            "corral",
            "TRACE_INVALID 3:51: work: the job takes 5e+09 s at its best",
        ),
        (
            own(duration_s=None, work=5, speeds={"Y": 1}),
            "corral",
            "TRACE_INVALID 3:62: speeds: no speed on X for 1 devices (the cluster needs devices that the trace knows)",
        ),
        (PHILLY.replace("66.0,1", "1e9,1", 1), "philly", "TRACE_INVALID 2:21: duration: the job takes 1e+09 s"),
        (TIRESIAS.replace("606,30", "6e8,30"), "tiresias", "TRACE_INVALID 3:18: duration: the job takes 6e+08 s"),
        (TIRESIAS, "tiresias", "UNSCHEDULABLE 2:3: num_gpu: 4 x 2 GPUs is more than the pool can ever run"),
        (OPENB.replace("100,400", "100,4e8"), "openb", "TRACE_INVALID 2:30: deletion_time: the job takes 4e+08 s"),
        (OPENB, "openb", "UNSCHEDULABLE 3:23: gpu_spec: the pool has no V100M16"),
        (OPENB.splitlines()[0] + "\nlate,99000000,1,1,1000,,100,400\n", "openb", "UNSCHEDULABLE 2:6: cpu_milli: "),
        (GAVEL_7, "gavel", "TRACE_INVALID 1:1: job type: no speed on X for 1 devices"),
    ],
)
def test_the_place_of_a_row_that_is_wrong_here(tmp_path: Path, text: str, format_: str, said: str) -> None:
    assert refusal(tmp_path, text, format_).startswith(said)


@pytest.mark.parametrize(
    "text,cluster,said",
    [
        (GAVEL_7 + GAVEL_10, "1xV100", "UNSCHEDULABLE 2:53: devices: 2 x 1 GPU is more than the pool can ever run"),
        (GAVEL_10.replace("1000", "1e11"), "2xV100", "TRACE_INVALID 1:48: total steps: the job takes 6.25e+09 s"),
    ],
)
def test_gavel_s_rows_have_columns_without_names(tmp_path: Path, text: str, cluster: str, said: str) -> None:
    assert refusal(tmp_path, text, "gavel", cluster).startswith(said)


def test_jobs_that_come_from_no_file_are_named() -> None:
    with pytest.raises(CorralError, match=r"^hand: job wide: num_nodes: 3 x 1 GPU is more than the pool"):
        world("corral", "2x1xX", Workload("hand", (job("wide", 0.0, 3, 10.0),))).run()
