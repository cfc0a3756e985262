"""A pool's own history as a trace: what finished jobs did comes back as jobs."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from corral.model.ids import DeviceId, JobId, NodeId, TenantId
from corral.model.job import Cause, CheckpointSpec, Gang, Job, JobSpec, JobState, Task, TaskExit, TaskState
from corral.model.resources import Demand, DeviceShare, GangShape, Placement
from corral.sim.formats.corral import lines_of, read_corral

PLACED = Placement(0, NodeId("n"), (DeviceShare(DeviceId("d"), 1_000),), 1_000, 1)


def ran(rank: int, started_at: float, ended_at: float) -> Task:
    exit_ = TaskExit(Cause.EXITED, exit_code=0)
    return Task(rank, TaskState.SUCCEEDED, replace(PLACED, rank=rank), started_at, ended_at, exit_)


def finished(number: int, spec: JobSpec, at: float, *gangs: Gang) -> Job:
    return Job(JobId(str(number)), spec, at, dict(enumerate(gangs)), JobState.SUCCEEDED)


def test_every_gang_that_ran_on_devices_becomes_a_job(tmp_path: Path) -> None:
    two = GangShape(2, Demand(gpu_milli=4_000, gpu_model="H100"))
    training = JobSpec("train", TenantId("vision"), two, priority=3, max_duration_s=7_200.0)
    saving = replace(training, shape=GangShape(1, Demand(gpu_milli=250)), checkpoint=CheckpointSpec())
    cpu_only = replace(training, shape=GangShape(1, Demand()))
    jobs = [
        # Newest first, as the pool lists them.
        finished(4, cpu_only, 1_400.0, Gang(0, (ran(0, 1_400.0, 1_500.0),))),
        finished(3, replace(training, is_array=True, indices=(5, 6)), 1_300.0, Gang(0, (Task(0), Task(1))),
                 Gang(1, (ran(0, 1_310.0, 1_400.0), ran(1, 1_312.0, 1_401.0)))),
        finished(2, saving, 1_200.5, Gang(0, (ran(0, 1_250.0, 1_260.0),), attained_s=40.0)),
        finished(1, training, 1_100.0, Gang(0, (ran(0, 1_100.0, 1_300.0), ran(1, 1_105.0, 1_300.0)), attained_s=50.0)),
    ]  # fmt: skip
    path = tmp_path / "own.jsonl"
    path.write_bytes(b"".join(lines_of(jobs)))
    found = read_corral(path)
    assert found.origin_s == 1_100.0
    first, second, third = found.jobs
    assert (first.name, first.arrival_s, first.devices, first.model) == ("1", 0.0, (8,), "H100")
    # Without checkpoints only the last run counts: from the last start of a rank to the first end.
    assert (first.work, first.declared_s, first.tenant, first.priority) == (195.0, 7_200.0, "vision", 3)
    # With checkpoints the earlier runs count too.
    assert (second.name, second.arrival_s, second.milli, second.work) == ("2", 100.5, 250, 50.0)
    # The first element never ran.
    assert (third.name, third.work) == ("3.1", 88.0)


def test_an_elastic_job_keeps_its_sizes(tmp_path: Path) -> None:
    shapes = tuple(GangShape(ranks, Demand(gpu_milli=1_000)) for ranks in (4, 2, 1))
    spec = JobSpec("train", TenantId("a"), shapes[0], shapes=shapes)
    path = tmp_path / "own.jsonl"
    path.write_bytes(b"".join(lines_of([finished(1, spec, 0.0, Gang(0, (ran(0, 0.0, 10.0),)))])))
    assert read_corral(path).jobs[0].devices == (4, 2, 1)


def test_an_empty_history_is_a_first_line_only() -> None:
    assert list(lines_of([])) == [b'{"corral_trace":1}\n']
