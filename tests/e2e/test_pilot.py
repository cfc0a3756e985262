"""A pilot: one batch script whose machines join the pool, on a real Slurm over several machines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bench import hosts as bench_hosts
from bench import slurm as bench_slurm
from bench.hosts import Hosts
from bench.slurm import Slurm
from bench.slurm_config import TUNED, Shape
from bench.slurm_hosts import HostedNodes
from corral.client import Client
from corral.client.handle import JobHandle
from corral.runtime.options import HeadAsked
from corral.runtime.starting.heading import HeadInfo, start_head
from corral.runtime.starting.stopping import stop_pool
from tests import needs
from tests.waiting import wait_until

JOIN_S = 100.0
"""How long Ray may take to start on two machines at once while others use this one."""


@pytest.fixture
def ground() -> Iterator[Path]:
    """Give a short directory on machines that can have Slurm and namespaces."""
    needs.root()
    for name, package in {**bench_slurm.PACKAGES, **bench_hosts.PACKAGES}.items():
        needs.program(name, package=package)
    directory = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


SAVES = "trap 'echo 7 >$CORRAL_CHECKPOINT_DIR/$NODE_RANK; exit 0' USR1; echo begun; while :; do sleep 0.1; done"
CHECKPOINT = {"signal": "USR1", "grace": "30s"}


def begun(job: JobHandle, rank: int) -> bool:
    return b"begun" in b"".join(chunk.data for chunk in job.logs(rank=rank))


def head_at(address: str, state_dir: Path) -> HeadInfo:
    return start_head(
        HeadAsked(state_dir=state_dir, address=address, port=0, no_node=True, gcs_port=0, ray_port_first=0)
    )


def script_of(info: HeadInfo, ground: Path) -> str:
    """Return the path of the batch script that joins the pool of a head."""
    place = info.pool.url.removeprefix("https://")
    command = [sys.executable, "-P", "-m", "corral", "join", place, "--slurm", "--simulated", "h100"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    file = ground / "pilot.sh"
    file.write_text(said.stdout)
    return str(file)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_machines_of_an_allocation_join_with_what_slurm_gave_and_leave(ground: Path) -> None:
    shape = Shape(nodes=2, gpus_per_node=4, cpus_per_node=8, memory_per_node_mib=16_000, extra=TUNED)
    with (
        Hosts(["s1", "s2"]) as hosts,
        Slurm(shape, HostedNodes(hosts), directory=ground) as cluster,
    ):
        info = head_at(hosts.address, ground / "h")
        try:
            assert info.join is not None
            secret = info.join.split()[0]
            asked = ["--parsable", "--nodes=2", "--cpus-per-task=3", "--mem=6000", "--gres=gpu:2"]
            log = f"--output={ground}/pilot.log"
            environment = ["env", secret, f"TMPDIR={ground}"]
            job = cluster.run([*environment, "sbatch", *asked, log, script_of(info, ground)]).strip()
            with Client(state_dir=ground / "h") as client:
                wait_until(lambda: client.status().nodes_up == 2, JOIN_S, 0.5, what="two nodes to be up")
                nodes = {node.spec.id: node for node in client.nodes()}
                assert nodes.keys() == {"n1", "n2"}
                for node in nodes.values():
                    assert (node.spec.cpus_milli, node.spec.memory_mib, len(node.devices)) == (3000, 6000, 2)
                assert {node.spec.address for node in nodes.values()} == {host.address for host in hosts.values()}
                gang = client.submit(run="echo $NODE_RANK of $NNODES on $(hostname)", gpus=2, num_nodes=2, workdir=None)
                assert gang.wait(30.0).exit_code == 0
                said = {b"".join(chunk.data for chunk in gang.logs(rank=rank)).decode() for rank in (0, 1)}
                assert {line.split(" on ")[0] for line in said} == {"0 of 2", "1 of 2"}
                assert {line.split(" on ")[1].strip() for line in said} == {"s1", "s2"}
                assert secret not in (ground / "pilot.sh").read_text()
                saving = client.submit(run=SAVES, gpus=2, num_nodes=2, workdir=None, checkpoint=CHECKPOINT)
                for rank in (0, 1):
                    wait_until(partial(begun, saving, rank), 60.0, 0.2, what="both ranks to begin")
                cluster.run(["scancel", "--batch", "--signal=TERM", job])
                cluster.wait_until_idle(60.0)
                wait_until(lambda: client.nodes() == (), 60.0, 0.5, what="the pool to forget the nodes that left")
                kept = saving.details().gangs[0]
                assert (kept.state, kept.preemptions, kept.restarts) == ("pending", 1, 0)
                assert {saved.rank for saved in kept.saved} == {0, 1}, "what they saved came back before they left"
        finally:
            stop_pool(ground / "h", force=True, leave_tasks=False)
