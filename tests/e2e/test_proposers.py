"""Jobs that bring their own proposer, on a real pool: it is heeded, and whatever it does it holds nobody up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from corral.client.handle import JobHandle
from corral.model.errors import InvalidField
from tests.e2e.livepool import END_S, LivePool, alive
from tests.waiting import wait_until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "proposer"


@contextmanager
def full(pool: LivePool) -> Iterator[None]:
    """Hold all devices while the block runs."""
    holders = [pool.submit(["sleep", "600"], gpus=4) for _ in range(2)]
    for job in holders:
        pool.started(job)
    yield
    for job in holders:
        job.cancel()


def gpus_of(pool: LivePool, job: JobHandle) -> str:
    found = pool.result(job)
    assert found.exit_code == 0, found.message
    return pool.log(job).decode().strip()


def submit(pool: LivePool, workdir: Path, **fields: Any) -> JobHandle:
    """Submit an elastic job of 1, 2 or 4 GPUs that prints how many it got."""
    return pool.submit("echo $CORRAL_NUM_GPUS", num_gpus=[1, 2, 4], workdir=workdir, **fields)


def first_bid(job: JobHandle) -> int:
    """Return the GPUs of the first bid that stands for a waiting job: the largest, for all bids here."""
    report = job.why()
    return (report.largest or report.shape).demand.gpus_whole


def test_the_bids_of_a_job_s_own_proposer_stand(shared: LivePool, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def propose(offer, job):\n"
        "    assert job['name'] == 'picky' and len(offer['nodes']) == 2\n"
        "    return [{'num_gpus': 1}]\n"
    )
    with full(shared):
        job = submit(shared, tmp_path, name="picky", appmaster="mine:propose")
        wait_until(lambda: first_bid(job) == 1, END_S, 0.02, what="its own bids to stand")
    assert gpus_of(shared, job) == "1"


def test_the_example_runs_as_it_is(shared: LivePool) -> None:
    with full(shared):
        job = submit(shared, EXAMPLE, appmaster="thrifty:propose")
        wait_until((shared.paths.jobs / job.id / "proposer.log").exists, END_S, 0.02, what="it to be asked")
    assert gpus_of(shared, job) in ("1", "2", "4")
    assert (shared.paths.jobs / job.id / "proposer.log").read_text() == ""


def test_one_that_crashes_leaves_the_default_bids(shared: LivePool, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def propose(offer, job): raise RuntimeError('I broke')\n")
    with full(shared):
        job = submit(shared, tmp_path, appmaster="mine:propose")
        notice = f"the proposer of job {job.id}"
        log = shared.paths.logs / "daemon.log"
        wait_until(lambda: notice in log.read_text(), END_S, 0.02, what="the daemon to tell")
        assert first_bid(job) == 4
        [note] = job.why().notes
        assert "those of the default bidder stand: it ended without an answer (RuntimeError: I broke); see /" in note
    assert gpus_of(shared, job) == "4"
    assert "I broke" in (shared.paths.jobs / job.id / "proposer.log").read_text()


def test_one_that_is_silent_holds_nobody_up_and_is_gone_with_its_job(shared: LivePool, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "def propose(offer, job): time.sleep(600)\n"
    )
    job = submit(shared, tmp_path, appmaster="mine:propose")
    assert gpus_of(shared, job) == "4"
    wait_until(lambda: not (tmp_path / "pid").exists() or not alive(int((tmp_path / "pid").read_text())), END_S, 0.02,
               what="it to be gone")  # fmt: skip


def test_one_that_is_killed_from_outside_is_started_again(shared: LivePool, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, pathlib\n"
        "pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "def propose(offer, job): return [{'num_gpus': 2}]\n"
    )
    with full(shared):
        job = submit(shared, tmp_path, appmaster="mine:propose")
        wait_until(lambda: first_bid(job) == 2, END_S, 0.02, what="its own bids to stand")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert gpus_of(shared, job) in ("2", "4")


@pytest.mark.parametrize("appmaster", ["mine", "mine.py:propose", "a/b:propose"])
def test_what_is_no_proposer_is_refused_at_once(shared: LivePool, tmp_path: Path, appmaster: str) -> None:
    with pytest.raises(InvalidField, match="does not name a function"):
        submit(shared, tmp_path, appmaster=appmaster)
