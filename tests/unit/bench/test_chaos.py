from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import chaos, chaos_task
from bench.chaos import Times, fenced, split
from bench.chaos_faults import HEAD_FAULTS, NODE_FAULTS, Proof
from bench.chaos_load import Submitted
from bench.witness import Mark, Overlap, Witness, append, overlaps
from corral.model.job import Fencing


def submitted(name: str, fencing: Fencing, elements: int = 1, ranks: int = 1) -> Submitted:
    return Submitted("7", name, fencing, seed=5, steps=3, elements=elements, ranks=ranks)


def test_a_job_knows_its_tasks_and_what_each_element_must_end_with() -> None:
    job = submitted("a", Fencing.NONE, elements=2, ranks=2)
    assert job.tasks() == ["a.0.0", "a.0.1", "a.1.0", "a.1.1"]
    assert job.result(1) == chaos_task.result(6, 3, 2)


def test_only_exclusive_tasks_must_not_run_twice() -> None:
    jobs = [submitted("a", Fencing.NONE), submitted("b", Fencing.EXCLUSIVE, ranks=2)]
    assert fenced(jobs) == ["b.0.0", "b.0.1"]


@pytest.mark.parametrize(
    "found, paused, doubles, longest",
    [
        ([], set(), 0, 0.0),
        ([Overlap("a", 1, 2, 0.4)], set(), 1, 0.0),
        ([Overlap("a", 1, 2, 0.4)], {("a", 1)}, 0, 0.4),
        ([Overlap("a", 1, 2, 0.4)], {("a", 2)}, 1, 0.0),
        ([Overlap("a", 1, 2, 1.01)], {("a", 1)}, 1, 0.0),
        ([Overlap("a", 1, 2, 0.4), Overlap("b", 1, 2, 0.9)], {("a", 1), ("b", 1)}, 0, 0.9),
    ],
)
def test_a_task_may_run_beside_its_successor_only_after_its_whole_machine_was_paused_and_for_a_second(
    found: Sequence[Overlap], paused: set[tuple[str, int]], doubles: int, longest: float
) -> None:
    left, overlap_s = split(found, paused)
    assert (len(left), overlap_s) == (doubles, longest)


def test_the_longest_time_is_kept() -> None:
    times = Times()
    for seconds in (1.0, 3.0, 2.0):
        times.take("detect", seconds)
    assert times == Times(detect=3.0, again_unfenced=None, again_proof=None, again_over_lease=None)


def test_what_tasks_write_is_what_the_witness_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CORRAL_GANG": "3", "CORRAL_RANK": "1", "CORRAL_INCARNATION": "2"}.items():
        monkeypatch.setenv(name, value)
    said = chaos_task.Said(tmp_path, "job")
    said("end", 2**64 - 1)
    append(tmp_path / "job.3.1", Mark(1, 0.0, "step"))
    marks = Witness(tmp_path).marks("job.3.1")
    assert [(mark.incarnation, mark.word, mark.value) for mark in marks] == [(2, "end", 2**64 - 1), (1, "step", 0)]
    assert [(found.older, found.newer) for found in overlaps("job.3.1", marks)] == [(1, 2)]


def test_faults_have_names_of_their_own_and_those_that_are_timed_outlast_what_is_promised() -> None:
    kinds = [*NODE_FAULTS, *HEAD_FAULTS]
    assert len({fault.name for fault in kinds}) == len(kinds)
    for fault in kinds:
        assert fault.seconds[0] <= fault.seconds[1]
        if fault.proof is Proof.NONE:
            assert fault.seconds[0] >= chaos.LEASE_S + 15.0
