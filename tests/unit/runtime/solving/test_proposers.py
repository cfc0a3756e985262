"""Own proposers as real processes: they answer, break, are silent, talk nonsense, and never hold anybody up."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corral.model.errors import ProposerFault, Refusal
from corral.model.files import JobFiles
from corral.model.ids import DeviceId, JobId, NodeId, TenantId
from corral.model.job import Job, JobSpec
from corral.model.offer import Bid, FreeDevice, NodeOffer, Offer, Snapshot
from corral.model.resources import Amount, Demand, GangShape
from corral.policy.bidding import default_bids
from corral.policy.config import SchedulingConfig
from corral.runtime.leading.filestore import lay_tree
from corral.runtime.solving.proposers import ProposerProcesses, last_line
from corral.storage.blobs import DirectoryBlobs
from corral.wire.treefiles import gather, scan
from tests.e2e.livepool import alive
from tests.waiting import wait_until

JOB = JobId("7")
SIZES = tuple(GangShape(1, Demand(n * 1_000, None, n * 4_000, n * 8_000)) for n in (4, 2, 1))
DEVICES = tuple(FreeDevice(DeviceId(f"d{i}"), "V100", 1_000, 16_384) for i in range(4))
NODE = NodeOffer(NodeId("n0"), "rack-0", DEVICES, 16_000, 32_000, Amount(4_000, 16_000, 32_000))
OFFER = Offer(Snapshot(3, 100.0, (NODE,), (), Amount(4_000, 16_000, 32_000)), 0.25, {"V100": 0.5})

SPEC = JobSpec("train", TenantId("a"), SIZES[0], ("x",), shapes=SIZES, appmaster="mine:propose")
BIDS = default_bids(SPEC, OFFER)


class Ground:
    """A working directory for the user's module, and the processes under test."""

    def __init__(self, root: Path) -> None:
        self.workdir = root / "work"
        self.workdir.mkdir()
        self.jobs = root / "jobs"
        self.patience: dict[str, Any] = {}

    def asked(self, code: str) -> Job:
        (self.workdir / "mine.py").write_text(code)
        return Job(JOB, replace(SPEC, workdir=str(self.workdir)), 0.0, {})

    def log(self) -> str:
        return (self.jobs / "7" / "proposer.log").read_text()

    def run(
        self, scenario: Callable[[ProposerProcesses], Awaitable[None]], environment: dict[str, str] | None = None
    ) -> None:
        async def whole() -> None:
            found = ProposerProcesses(
                self.jobs,
                SchedulingConfig(),
                environment=environment if environment is not None else {"PATH": os.environ["PATH"]},
                **self.patience,
            )
            try:
                await scenario(found)
            finally:
                await found.close()

        asyncio.run(whole())


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def refused(answer: object) -> str:
    assert isinstance(answer, Refusal), answer
    assert (answer.code, answer.field) in ((ProposerFault.code, "appmaster"), ("INVALID_FIELD", "appmaster"))
    assert answer.line().isprintable()
    return answer.message


def test_it_answers_with_bids_of_its_own_and_keeps_its_state(ground: Ground) -> None:
    asked = ground.asked(
        "calls = 0\n"
        "def propose(offer, job):\n"
        "    global calls; calls += 1; print('not an answer')\n"
        "    assert job['id'] == '7' and offer['models'] == {'V100': {'devices': 4, 'free': 4.0}}, (offer, job)\n"
        "    return [{**bid, 'throughput': bid['throughput'] * calls} for bid in reversed(offer['bids'])]\n"
    )

    async def scenario(proposers: ProposerProcesses) -> None:
        first = await proposers.propose(asked, OFFER)
        pid = proposers.pid(JOB)
        second = await proposers.propose(asked, OFFER)
        assert isinstance(first, tuple)
        assert isinstance(second, tuple)
        assert len(BIDS) >= 3
        assert [bid.shape for bid in first] == [bid.shape for bid in reversed(BIDS)]
        assert [bid.throughput for bid in second] == [2 * bid.throughput for bid in reversed(BIDS)]
        assert proposers.pid(JOB) == pid is not None
        proposers.forget(JOB)
        assert proposers.pid(JOB) is None
        await asyncio.to_thread(wait_until, lambda: not alive(pid), what="it to end")

    ground.run(scenario)
    assert ground.log() == "not an answer\n" * 2


@pytest.mark.parametrize(
    "code,words,logged",
    [
        ("def propose(offer, job): raise RuntimeError('I broke')", "ended without an answer", "I broke"),
        ("import nothing_of_this_name", "ended without an answer", "nothing_of_this_name"),
        ("propose = 3", "ended without an answer", "is no function"),
        ("import os\ndef propose(offer, job): os._exit(3)", "ended without an answer", ""),
        ("def propose(offer, job): return object()", "ended without an answer", "float"),
        ("def propose(offer, job): return [{'throughput': float('nan')}]", "not JSON", ""),
        ("def propose(offer, job): return []", "1 to 32 bids, not 0 bids", ""),
        ("def propose(offer, job): return None", "1 to 32 bids, not no list", ""),
        ("def propose(offer, job): return [{}] * 33", "not 33 bids", ""),
        ("def propose(offer, job): return [{'preferred': {'x' * 2_000_000: 1}}]", "more than 1048576 bytes", ""),
        ("def propose(offer, job): return [{'num_gpus': 3}]", "bid 0: 1 nodes with 3 GPUs each is no size", ""),
        ("def propose(offer, job): bytearray(8 << 30)", "ended without an answer", "MemoryError"),
    ],
)
def test_one_that_breaks_or_talks_nonsense_is_refused_in_one_line(
    ground: Ground, code: str, words: str, logged: str
) -> None:
    asked = ground.asked(code)

    async def scenario(proposers: ProposerProcesses) -> None:
        said = refused(await proposers.propose(asked, OFFER))
        assert words in said
        assert logged in said
        assert proposers.pid(JOB) is None

    ground.run(scenario)
    assert logged in ground.log()


def test_why_it_broke_is_the_last_line_of_its_log_made_harmless(tmp_path: Path) -> None:
    log = tmp_path / "proposer.log"
    assert last_line(log) == ""
    log.write_bytes(b"")
    assert last_line(log) == ""
    log.write_bytes(b"Traceback:\n  x\nValueError: a \x1b[2J b\xff\n\n")
    assert last_line(log) == "ValueError: a \\x1b[2J b\ufffd"
    log.write_bytes(b"x" * 20_000)
    assert last_line(log) == "x" * 200 + "..."


def test_a_directory_that_is_gone_is_told(ground: Ground) -> None:
    asked = ground.asked("")
    (ground.workdir / "mine.py").unlink()
    ground.workdir.rmdir()

    async def scenario(proposers: ProposerProcesses) -> None:
        assert "ended without an answer" in refused(await proposers.propose(asked, OFFER))

    ground.run(scenario)
    assert "No such file or directory" in ground.log()


def test_a_silent_one_is_killed_with_what_it_started(ground: Ground) -> None:
    asked = ground.asked(
        "import pathlib, subprocess, time\n"
        "def propose(offer, job):\n"
        "    if pathlib.Path('child').exists(): time.sleep(600)\n"
        "    pathlib.Path('child').write_text(str(subprocess.Popen(['sleep', '600']).pid))\n"
        "    return offer['bids']\n"
    )
    ground.patience = {"start_s": 60.0, "answer_s": 0.3}

    async def scenario(proposers: ProposerProcesses) -> None:
        assert await proposers.propose(asked, OFFER) == BIDS
        assert "has not answered within 0.3 s and was killed" in refused(await proposers.propose(asked, OFFER))
        assert proposers.pid(JOB) is None

    ground.run(scenario)
    child = int((ground.workdir / "child").read_text())
    wait_until(lambda: not alive(child), what="its child to end")


def test_only_the_first_answer_may_take_as_long_as_an_import(ground: Ground) -> None:
    asked = ground.asked(
        "import time\ncalls = []\n"
        "def propose(offer, job):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 1: time.sleep(600)\n"
        "    return offer['bids']\n"
    )
    ground.patience = {"start_s": 60.0, "answer_s": 0.3}

    async def scenario(proposers: ProposerProcesses) -> None:
        assert await proposers.propose(asked, OFFER) == BIDS
        assert "within 0.3 s" in refused(await proposers.propose(asked, OFFER))

    ground.run(scenario)


def test_one_that_fails_is_left_alone_for_a_while_and_then_tried_again(ground: Ground) -> None:
    broken = ground.asked("raise SystemExit(1)")
    ground.patience = {"back_off_s": 0.2}

    async def scenario(proposers: ProposerProcesses) -> None:
        async def again() -> tuple[Bid, ...] | Refusal:
            """Ask until it is not resting any more."""
            while True:
                answer = await proposers.propose(broken, OFFER)
                if not (isinstance(answer, Refusal) and "it is left alone" in answer.message):
                    return answer
                await asyncio.sleep(0.01)

        assert "ended" in refused(await proposers.propose(broken, OFFER))
        resting = refused(await proposers.propose(broken, OFFER))
        assert resting.startswith("it ended without an answer")
        assert "after 1 failures in a row" in resting
        assert "ended" in refused(await again())
        assert "after 2 failures in a row" in refused(await proposers.propose(broken, OFFER))
        ground.asked("def propose(offer, job): return offer['bids']")
        assert await again() == BIDS
        assert await proposers.propose(broken, OFFER) == BIDS

    ground.run(scenario)


def test_one_that_is_busy_is_not_asked_twice(ground: Ground) -> None:
    asked = ground.asked("def propose(offer, job): return offer['bids']")

    async def scenario(proposers: ProposerProcesses) -> None:
        first = asyncio.create_task(proposers.propose(asked, OFFER))
        await asyncio.sleep(0)
        assert "is still at the last offer" in refused(await proposers.propose(asked, OFFER))
        assert await first == BIDS

    ground.run(scenario)


def test_many_first_offers_at_once_start_no_more_than_the_most(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.runtime.solving.proposers.PROCESSES_MAX", 2)
    asked = ground.asked("def propose(offer, job): return offer['bids']")
    jobs = [replace(asked, id=JobId(str(number))) for number in range(1, 6)]

    async def scenario(proposers: ProposerProcesses) -> None:
        answers = await asyncio.gather(*(proposers.propose(job, OFFER) for job in jobs))
        assert answers[:2] == [BIDS, BIDS]
        assert all("has to wait: 2 own proposers run already" in refused(answer) for answer in answers[2:])
        proposers.forget(jobs[0].id)
        assert await proposers.propose(jobs[4], OFFER) == BIDS

    ground.run(scenario)


LOOKER = """
import json, os, pathlib, sys

def files():
    for number in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{number}"):
            yield os.readlink(f"/proc/self/fd/{number}")

def propose(offer, job):
    seen = [sorted(os.environ), list(files()), os.getcwd(), sys.path[0], os.getsid(0) == os.getpid(), sys.stdin.read()]
    pathlib.Path("seen").write_text(json.dumps(seen))
    return offer["bids"]
"""


def test_one_whose_job_ends_while_it_starts_does_not_stay(ground: Ground) -> None:
    asked = ground.asked("def propose(offer, job): return offer['bids']")

    async def scenario(proposers: ProposerProcesses) -> None:
        asking = asyncio.create_task(proposers.propose(asked, OFFER))
        await asyncio.sleep(0)
        proposers.forget(JOB)
        refused(await asking)
        assert proposers.pid(JOB) is None

    ground.run(scenario)


def test_it_sees_nothing_of_the_daemon_s_environment_and_no_open_files(ground: Ground) -> None:
    asked = ground.asked(LOOKER)
    secret = os.open(ground.workdir, os.O_RDONLY)

    async def scenario(proposers: ProposerProcesses) -> None:
        assert await proposers.propose(asked, OFFER) == BIDS

    ground.run(scenario, {"PATH": os.environ["PATH"], "HOME": "/h", "CORRAL_TOKEN": "secret", "LD_PRELOAD": "x"})
    os.close(secret)
    names, files, cwd, path, alone, said = json.loads((ground.workdir / "seen").read_text())
    assert set(names) - {"LC_CTYPE"} == {
        "PATH", "HOME", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
    }  # fmt: skip
    assert not any(str(ground.workdir) == file for file in files)
    assert (cwd, path, alone, said) == (str(ground.workdir), str(ground.workdir), True, "")
    assert "secret" not in (ground.workdir / "seen").read_text()


def test_a_proposer_that_came_along_runs_in_a_copy_here_until_its_job_ends(ground: Ground, tmp_path: Path) -> None:
    code = "import helper\ndef propose(offer, job):\n    return offer['bids'][:1]\n"
    job = ground.asked(code)
    (ground.workdir / "helper.py").write_text("")
    blobs = DirectoryBlobs(tmp_path / "blobs")
    gathered = gather(scan(str(ground.workdir), bytes_max=1 << 20))
    blobs.put([gathered.read(name) for name in gathered.sizes])
    for path in ground.workdir.iterdir():
        path.unlink()
    brought = replace(job, spec=replace(job.spec, workdir="/of/the/client", files=JobFiles(gathered.tree.name)))
    lost = replace(job, id=JobId("8"), spec=replace(brought.spec, files=JobFiles("ab" * 32)))
    ground.patience = {"lay": partial(lay_tree, blobs)}
    copy = ground.jobs / "7" / "proposer-files"

    async def scenario(proposers: ProposerProcesses) -> None:
        assert await proposers.propose(brought, OFFER) == BIDS[:1]
        assert (copy / "helper.py").exists()
        refused = await proposers.propose(lost, OFFER)
        assert isinstance(refused, Refusal)
        assert "is not there" in refused.message
        proposers.forget(JOB)
        assert not copy.exists()

    ground.run(scenario)
    blobs.close()
