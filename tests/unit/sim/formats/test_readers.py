"""Every reader: a good trace, and what it says of rows that are wrong (file, line, column)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from corral.model.errors import TraceInvalid, TraceUnreadable
from corral.sim.formats.corral import read_corral
from corral.sim.formats.gavel import read_gavel
from corral.sim.formats.openb_jobs import read_openb
from corral.sim.formats.philly import read_philly
from corral.sim.formats.tiresias import read_tiresias
from corral.sim.workload import CANNOT, Workload

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,one
2017-10-09 07:01:54,0.0,1,0.0,one
2017-10-09 07:00:55,30.5,16,488.0,one
2017-10-09 07:00:55,10,64,640,one
2017-10-08 07:00:55,10,2,20,two
"""

TIRESIAS = """job_id,num_gpu,submit_time,iterations,model_name,duration,interval
0,8,30,100,vgg19,50,23
1,1,10,606,vgg16,606,30
"""

GAVEL_10 = "LM (batch size 5)\tpython3 main.py\tlm\t--steps\t0\t1000\t2\t1\t-1.000000\t86\n"
GAVEL_12 = GAVEL_10.replace("\t2\t1\t", "\t2\tgns\t1\t").replace("\t86", "\t62\t86")
GAVEL_7 = "LM (batch size 5)\tpython3 main.py\t--steps\t0\t1000\t12.500000\t1\n"
TABLE = {
    "v100": {"('LM (batch size 5)', 1)": {"null": 10.0, "('LM (batch size 5)', 1)": [4.0, 4.0]},
             "('LM (batch size 5)', 2)": {"null": 16.0}},
    "k80": {"('LM (batch size 5)', 1)": {"null": 2.0}, "('LM (batch size 5)', 2)": {"null": 0.0}},
    "k80_unconsolidated": {"('LM (batch size 5)', 1)": {"null": 1.0}},
}  # fmt: skip

OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time
late,12000,16384,2,1000,,100,400
part,6000,12288,1,460,V100M16|V100M32,50,90
cpu,6000,12288,0,0,,50,90
never,6000,12288,1,1000,,50,50
"""

CORRAL = """{"corral_trace": 1, "origin_s": 1700000000}
{"name": "b", "arrival_s": 5, "devices": 0.25, "duration_s": 60, "tenant": "vision", "declared_s": 100}
{"name": "a", "arrival_s": 0, "devices": [2, 8, 4], "work": 500, "speeds": {"H100": 2, "*:8": 3}, "model": "H100"}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def made(text: str | bytes, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return made


def philly(path: Path) -> Workload:
    return read_philly(path, 16, {"cluster": "one"})


def test_philly_jobs_are_those_that_ran_and_fit(write: Write) -> None:
    found = philly(write(PHILLY))
    assert [(job.name, job.arrival_s, job.devices, job.work) for job in found.jobs] == [
        ("line-4", 0.0, (16,), 30.5),
        ("line-2", 60.0, (1,), 66.0),
    ]
    assert (found.left_out, found.round_s, found.restart_cost_s, found.whole_steps) == (2, 360.0, 30.0, False)
    assert not any(job.steps for job in found.jobs)


def test_tiresias_counts_iterations(write: Write) -> None:
    found = read_tiresias(write(TIRESIAS))
    assert [(job.name, job.arrival_s, job.devices, job.work, job.speed("X", 1)) for job in found.jobs] == [
        ("job-1", 10.0, (1,), 606.0, 1.0),
        ("job-0", 30.0, (8,), 100.0, 2.0),
    ]


def test_gavel_reads_both_layouts_and_the_table_beside_the_trace(write: Write) -> None:
    table = write(json.dumps(TABLE), "simulation_throughputs.json")
    found = read_gavel(write(GAVEL_10 + GAVEL_7))
    late, wide = found.jobs[0], found.jobs[1]
    assert (late.arrival_s, late.devices, late.speeds) == (12.5, (1,), {"V100:1": 10.0, "K80:1": 2.0})
    assert (wide.arrival_s, wide.work, wide.devices) == (86.0, 1000.0, (2,))
    assert wide.speeds == {"V100:2": 16.0, "K80:2": 16.0 * CANNOT}
    assert wide.alone_s(("K80", "V100"), 2) == 62.5
    assert (found.whole_steps, found.table_known, found.restart_cost_s) == (True, True, 0.0)
    assert read_gavel(write(GAVEL_12)).jobs[0] == msgspec.structs.replace(wide, name="line-1")
    assert read_gavel(write(GAVEL_7, "elsewhere"), table).jobs[0].speeds == late.speeds


def test_openb_pods_come_and_go(write: Write) -> None:
    found = read_openb(write(OPENB))
    part, late = found.jobs
    assert (part.name, part.arrival_s, part.work, part.milli, part.model) == ("part", 50.0, 40.0, 460, "V100M16")
    assert (late.devices, late.work, late.milli, late.model) == ((2,), 300.0, None, None)
    assert (late.cpus_milli, late.memory_mib, found.left_out) == (12_000, 16_384, 2)


def test_our_own_traces(write: Write) -> None:
    found = read_corral(write(CORRAL))
    a, b = found.jobs
    assert (a.devices, a.work, a.steps, a.model) == ((8, 4, 2), 500.0, True, "H100")
    assert (a.speed("H100", 8), a.speed("H100", 4)) == (2.0, 2.0)
    assert (b.devices, b.milli, b.work, b.tenant, b.declared_s) == ((1,), 250, 60.0, "vision", 100.0)
    assert found.origin_s == 1_700_000_000


@pytest.mark.parametrize(
    "read, text, where, words",
    [
        (philly, PHILLY.replace("66.0,1,66.0,one", "sixty,1,66.0,one", 1), "2:21", "duration: 'sixty' is not a number"),
        (philly, PHILLY.replace("30.5,16", "-30.5,16"), "4:21", "duration: -30.5 is not at least 0"),
        (philly, PHILLY.replace("30.5,16", "30.5,1.5"), "4:26", "num_gpus: 1.5 is not a whole number"),
        (
            philly,
            PHILLY.replace("30.5,16", "30.5,1e300"),
            "4:26",
            "num_gpus: 1e300 is not a whole number up to 1,000,000,0",
        ),
        (philly, PHILLY.replace("66.0,1", '"' + "6" * 200_000, 1), "2:1", "field larger than field limit"),
        (philly, PHILLY.replace("2017-10-09 07:01:55", "yesterday"), "2:1", "'yesterday' is not a date and time"),
        (philly, PHILLY.replace("66.0,1,66.0,one\n", "66.0,1,66.0\n", 1), "2:1", "the line has 4 fields"),
        (philly, PHILLY.replace("duration", "length"), "1:1", "names no column 'duration'"),
        (philly, PHILLY.replace("one", "three"), "", "no job of cluster=one ran and fits 16 devices"),
        (philly, "", "1:1", "names no column 'timestamp'"),
        (read_tiresias, TIRESIAS.replace("0,8,30", "0,0,30"), "2:3", "num_gpu: 0 is not at least 1"),
        (read_tiresias, TIRESIAS.replace("vgg16,606", "vgg16,nan"), "3:18", "duration: nan is not above 0"),
        (read_openb, OPENB.replace("100,400", "100,40"), "2:30", "deletion_time: the pod was deleted before"),
        (read_openb, OPENB.replace("1,460", "2,460"), "3:19", "gpu_milli: 2 x 460 is neither a share"),
        (read_openb, OPENB.splitlines()[0] + "\n", "", "the list names no pod with a GPU"),
        (read_gavel, GAVEL_10 + "LM\tx\n", "2:1", "the line has 2 fields, not 7 or 10 or 12"),
        (read_gavel, GAVEL_10.replace("1000", "many"), "1:48", "total steps: 'many' is not a number"),
        (read_gavel, GAVEL_10.replace("LM", "GM"), "1:1", "'GM (batch size 5)' on 2 devices is not in"),
        (read_corral, "{}\n", "1:1", "required field `corral_trace`"),
        (read_corral, '{"corral_trace": 2}\n', "1:1", "the first line is not"),
        (read_corral, '{"corral_trace": 1}\n', "", "the trace has no job"),
        (read_corral, CORRAL.replace('"duration_s": 60,', '"duration_s": 60'), "2:65", "JSON is malformed"),
        (read_corral, CORRAL.replace('"arrival_s": 5', '"arrival_s": "5"'), "2:15", "Expected `float`, got `str`"),
        (read_corral, CORRAL.replace('"arrival_s": 5', '"arrival_s": -5'), "2:15", "arrival_s: -5 is not at least 0"),
        (read_corral, CORRAL.replace("0.25", "1.25"), "2:31", "devices: these are neither whole numbers"),
        (read_corral, CORRAL.replace("0.25", "1e300"), "2:31", "devices: more than 1,000,000,000"),
        (read_corral, CORRAL.replace('"duration_s": 60, ', ""), "2:1", "one of duration_s and work"),
        (read_corral, CORRAL.replace(', "speeds": {"H100": 2, "*:8": 3}', ""), "3:53", "work: speeds are missing"),
        (read_corral, CORRAL.replace('"tenant"', '"tennant"'), "2:66:", "unknown field `tennant`"),
        (
            read_corral,
            CORRAL.replace('"b"', '"arrival_s"').replace("5,", '"5",'),
            "2:23",
            "Expected `float`, got `str`",
        ),
    ],
)
def test_what_is_wrong_is_told_by_file_line_and_column(
    read: Callable[[Path], Workload], text: str, where: str, words: str, write: Write
) -> None:
    write(json.dumps(TABLE), "simulation_throughputs.json")
    path = write(text)
    with pytest.raises(TraceInvalid) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}:{where}" if where else str(path)), str(refused.value)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_trace_that_cannot_be_read_says_why(write: Write, tmp_path: Path) -> None:
    with pytest.raises(TraceUnreadable, match="No such file"):
        read_tiresias(tmp_path / "nowhere")
    with pytest.raises(TraceUnreadable, match="not UTF-8"):
        read_tiresias(write(b"\xff\xfe"))
    with pytest.raises(TraceUnreadable, match="No such file"):
        read_gavel(write(GAVEL_7))


def test_a_broken_table_of_throughputs_is_named(write: Write) -> None:
    table = write('{"v100": {"LM": {"null": 1.0}}}', "simulation_throughputs.json")
    with pytest.raises(TraceInvalid) as refused:
        read_gavel(write(GAVEL_7))
    assert str(refused.value).startswith(str(table))
