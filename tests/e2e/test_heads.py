"""Two heads that share a database: one is lost with its machine, the other goes on with the nodes and their tasks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.processes import carriers, kill_carriers
from corral.client import Client
from corral.runtime.machines.cluster import load_cluster
from corral.runtime.machines.jointoken import VARIABLE
from corral.runtime.paths import StatePaths
from tests.e2e.command import Corral
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ANY_PORTS = ("--port", "0", "--gcs-port", "0", "--ray-ports", "0")
READY_S = 150.0
"""How long Ray may take to start anew on two machines while others use this one."""


class Pool:
    """Two heads and a node, all on this machine, in directories of their own."""

    def __init__(self, directory: Path) -> None:
        self.first, self.second, self.node = (Corral(directory / name) for name in "abc")

    @staticmethod
    def paths(machine: Corral) -> StatePaths:
        return StatePaths(machine.state_dir / "pool")

    def lose(self, machine: Corral) -> None:
        """Kill everything of a machine at once."""
        # The supervisor first: it would start the others again.
        supervisor = int(self.paths(machine).supervisor_pid.read_text())
        for pid in [supervisor, *carriers(machine.state_dir)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def close(self) -> None:
        self.node("leave", "--force")
        for machine in (self.second, self.first, self.node):
            machine("down", "--force")
            kill_carriers(machine.state_dir)


@pytest.fixture
def pool() -> Iterator[Pool]:
    directory = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    found = Pool(directory)
    try:
        yield found
    finally:
        found.close()
        shutil.rmtree(directory, ignore_errors=True)


def test_a_node_and_its_task_follow_the_head_that_leads(pool: Pool, database_url: str) -> None:
    arguments = ("head", "--host", "127.0.0.1", *ANY_PORTS, "--no-node", "--json")
    started = pool.first(*arguments, CORRAL_STORE=database_url)
    assert started.code == 0, started.err
    assert pool.second(*arguments, CORRAL_STORE=database_url).code == 0
    first, second = pool.paths(pool.first), pool.paths(pool.second)
    wait_until(lambda: len(load_cluster(first.cluster).heads) == 2, 30.0, 0.1, what="the first head to know the second")
    wait_until(lambda: load_cluster(second.cluster).gcs, 30.0, 0.1, what="the second head to know where the GCS is")
    assert load_cluster(second.cluster).gcs == load_cluster(first.cluster).gcs
    assert first.ray_token.read_text() == second.ray_token.read_text()
    environment, _, rest = pool.first.ok("token", "join").strip().partition(" ")
    places = rest.split()[-1]
    assert places.count(",") == 1
    secret = environment.removeprefix(f"{VARIABLE}=")
    joined = pool.node("join", places, "--name", "n1", "--ray-ports", "0", **{VARIABLE: secret})
    assert joined.code == 0, joined.err
    known = json.loads(pool.paths(pool.node).daemon.read_text())
    assert {known["url"], *(head["url"] for head in known["heads"])} == {
        f"https://{place}" for place in places.split(",")
    }
    admin = second.token.read_text().strip()

    with Client(state_dir=second.root) as client:
        job = client.submit(run="while :; do echo $CORRAL_INCARNATION; sleep 0.2; done", cpus=1, workdir=None)
        wait_until(lambda: job.status().state == "running", 60.0, 0.1, what="the task to run")
        before = load_cluster(second.cluster).gcs
        pool.lose(pool.first)
        wait_until(lambda: load_cluster(second.cluster).gcs != before, 60.0, 0.1, what="the GCS to move")

        def back() -> bool:
            nodes = json.loads(pool.second.ok("nodes", "--json"))["nodes"]
            return [node["state"] for node in nodes] == ["up"]

        wait_until(back, READY_S, 0.5, what="the node to be heard by the new leader")
        # Clients on the node follow as well.
        assert pool.node("nodes", CORRAL_TOKEN=admin).code == 0
        assert load_cluster(pool.paths(pool.node).cluster).gcs == load_cluster(second.cluster).gcs != before
        gang = job.details().gangs[0]
        assert (gang.state, gang.incarnation) == ("running", 1)
        again = client.submit(run="echo after", cpus=1, workdir=None)
        assert again.wait(60.0).exit_code == 0
        job.cancel()
        job.wait(60.0)
