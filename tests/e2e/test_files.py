"""A pool of two nodes that see nothing of each other's disks, nor of the client's: files come to jobs and back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.processes import kill_carriers
from corral.client import Client
from corral.client.handle import JobHandle
from corral.model.errors import CorralError, Unavailable
from corral.model.job import Gang, JobState
from corral.runtime.options import HeadAsked
from corral.runtime.starting.heading import start_head
from corral.runtime.starting.stopping import stop_pool
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("ray")]
START_S = 120.0
END_S = 60.0
NODES = ("a", "b")

TRAIN = """\
import os, time
place = os.path.join(os.environ["CORRAL_CHECKPOINT_DIR"], "step")
step = int(open(place).read()) if os.path.exists(place) else 0
print("from", step, "on", os.environ["CORRAL_NODE"], flush=True)
while step < 1000 and not os.path.exists(os.environ["ENOUGH"]):
    step += 1
    with open(place + ".tmp", "w") as file:
        file.write(str(step))
    os.rename(place + ".tmp", place)
    print("step", step, flush=True)
    time.sleep(3.0)
with open("result.txt", "w") as file:
    file.write(str(step))
"""


class Site:
    """A head and two nodes on this machine, each with a state directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        asked = HeadAsked(state_dir=root / "h", address="127.0.0.1", port=0, no_node=True, gcs_port=0, ray_port_first=0)
        info = start_head(asked)
        assert info.join is not None
        token, *command = info.join.split()
        name, _, secret = token.partition("=")
        for node in NODES:
            place = ["--state-dir", str(root / node), "--name", node, "--address", "127.0.0.1"]
            subprocess.run(
                [sys.executable, "-P", "-m", *command, *place],
                check=True,
                capture_output=True,
                env={"PATH": os.environ["PATH"], "HOME": str(root), name: secret},
                timeout=START_S,
            )
        self.client = Client(state_dir=root / "h")
        wait_until(lambda: sum(one.state == "up" for one in self.client.nodes()) == 2, START_S, what="two nodes")

    def destroy(self, node: str) -> None:
        """Kill everything of a node, and its disk."""
        kill_carriers(self.root / node)
        shutil.rmtree(self.root / node)

    def end(self) -> None:
        self.client.close()
        with contextlib.suppress(CorralError):
            stop_pool(self.root / "h", force=True, leave_tasks=False)
        for name in (*NODES, "h"):
            kill_carriers(self.root / name)

    def log(self, job: JobHandle, incarnation: int | None = None, element: int | None = None) -> bytes:
        """Return what there is of a log; on a busy machine its node may be out of reach for a moment."""
        found: list[bytes] = []
        ref = job.id if element is None else f"{job.id}.{element}"

        def read() -> bool:
            with contextlib.suppress(Unavailable):
                chunks = self.client.logs(ref, incarnation=incarnation)
                found.append(b"".join(chunk.data for chunk in chunks))
            return bool(found)

        wait_until(read, END_S, what="the node of the log to be in reach")
        return found[0]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    root = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    made: Site | None = None
    try:
        made = Site(root)
        yield made
    finally:
        if made is not None:
            made.end()
        else:
            for name in (*NODES, "h"):
                kill_carriers(root / name)
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / ".gitignore").write_text("*.bin\n")
    (root / "large.bin").write_bytes(bytes(1000))
    (root / "src" / "words.txt").write_text("hello\n")
    (root / "train.py").write_text(TRAIN)
    return root


def restarted(job: JobHandle) -> Gang | None:
    gang = job.details().gangs[0]
    return gang if gang.incarnation == 2 and gang.tasks[0].started_at is not None else None


def ended(job: JobHandle) -> None:
    found = job.wait(END_S)
    assert found.state is JobState.SUCCEEDED, (found, job.why().verdict)


def test_a_job_finds_its_files_and_its_outputs_come_back(site: Site, project: Path, tmp_path: Path) -> None:
    run = "ls; cat src/words.txt data/one; mkdir -p out; echo made > out/a.txt; echo own > $CORRAL_OUTPUT_DIR/b.txt"
    (tmp_path / "one").write_text("mounted\n")
    job = site.client.submit(
        run=run, cpus=1, workdir=project, file_mounts={"data/one": tmp_path / "one"}, outputs=["out/**"]
    )
    ended(job)
    assert site.log(job) == b"data\nsrc\ntrain.py\nhello\nmounted\n"
    command = [
        sys.executable,
        "-m",
        "corral",
        "fetch",
        job.id,
        str(tmp_path / "got"),
        "--state-dir",
        str(site.root / "h"),
    ]
    got = subprocess.run([*command, "--json"], check=True, capture_output=True, timeout=START_S)
    files = json.loads(got.stdout)["files"]
    found = {str(Path(path).relative_to(tmp_path / "got")): Path(path).read_text() for path in files}
    assert found == {"out/a.txt": "made\n", "b.txt": "own\n"}


def test_a_setup_runs_once_on_each_node_and_tasks_do_not_disturb_each_other(
    site: Site, project: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    jobs = [
        site.client.submit(
            setup=f"echo $CORRAL_NODE >> {ran}; echo built > built",
            run="cat built src/words.txt; echo mine > src/words.txt",
            cpus=0.1,
            workdir=project,
            array="0-3",
        )
        for _ in range(2)
    ]
    for job in jobs:
        ended(job)
        for element in range(4):
            assert site.log(job, element=element) == b"built\nhello\n"
    lines = ran.read_text().splitlines()
    assert len(lines) == len(set(lines))


def test_a_job_goes_on_elsewhere_from_its_checkpoint_when_its_node_is_destroyed(
    site: Site, project: Path, tmp_path: Path
) -> None:
    """The last test here: one of the two nodes is gone afterwards."""
    enough = tmp_path / "enough"
    job = site.client.submit(
        run=["python3", "train.py"],
        cpus=1,
        workdir=project,
        fencing="none",
        outputs="result.txt",
        envs={"ENOUGH": str(enough)},
    )
    saved = wait_until(lambda: job.details().gangs[0].saved, END_S, what="a checkpoint that came back")
    first = job.details().gangs[0].tasks[0].placement
    assert first is not None
    wait_until(lambda: b"step 1" in site.log(job), END_S, what="its log")
    site.destroy(first.node)
    gang = wait_until(lambda: restarted(job), END_S, what="the second start")
    assert gang is not None
    second = gang.tasks[0].placement
    assert second is not None
    assert second.node != first.node
    wait_until(lambda: b"step" in site.log(job), END_S, what="its log")
    enough.touch()
    ended(job)
    assert b"from 0 on %s\nstep 1\n" % first.node.encode() in site.log(job, 1)
    went_on = int(site.log(job).split()[1])
    assert went_on >= 1
    assert saved[0].incarnation == 1
    site.client.fetch(job.id, tmp_path / "got")
    assert int((tmp_path / "got" / "result.txt").read_text()) > went_on
