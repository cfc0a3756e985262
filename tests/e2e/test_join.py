"""A head and a node as real processes on this machine: joining, its refusals, working, leaving."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.processes import carriers, kill_carriers
from corral.client import Client
from corral.client.handle import JobHandle
from corral.runtime.machines.jointoken import VARIABLE
from tests.e2e.command import Corral, Ended
from tests.e2e.livepool import alive
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
READY_S = 100.0
"""How long Ray may take to start while others use this machine."""


class Machines:
    """A head that runs no jobs and a machine that joins; both on this one, in directories of their own."""

    def __init__(self, directory: Path) -> None:
        self.head = Corral(directory / "a")
        self.node = Corral(directory / "b")
        started = self.head("head", "--host", "127.0.0.1", *ANY_PORTS, "--no-node", "--json")
        assert started.code == 0, started.err
        self.environment, _, rest = json.loads(started.out)["join"].partition(" ")
        self.place = rest.split()[-1]
        self.token = self.environment.partition("=")[2]
        self.client = Client(state_dir=self.state(self.head))

    @staticmethod
    def state(machine: Corral) -> Path:
        return machine.state_dir / "pool"

    def join(self, machine: Corral, *arguments: str, token: str | None = None, place: str | None = None) -> Ended:
        secret = {VARIABLE: self.token if token is None else token}
        return machine("join", place or self.place, "--ray-ports", "0", *arguments, **secret)

    def nodes(self) -> dict[str, Any]:
        return {node.spec.id: node for node in self.client.nodes()}

    def close(self) -> None:
        self.client.close()
        self.node("leave", "--force")
        self.head("down", "--force")
        for machine in (self.node, self.head):
            kill_carriers(machine.state_dir)


ANY_PORTS = ("--port", "0", "--gcs-port", "0", "--ray-ports", "0")


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    directory = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    found = Machines(directory)
    try:
        joined = found.join(found.node, "--name", "n1", "--simulated", "h100", "--gpus-per-node", "2")
        assert joined.code == 0, joined.err
        yield found
    finally:
        found.close()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def other(machines: Machines) -> Iterator[Corral]:
    """Give a machine that has not joined; whatever it is told must start nothing."""
    directory = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    machine = Corral(directory)
    yield machine
    assert carriers(directory) == []
    shutil.rmtree(directory)


def test_a_machine_that_has_joined_is_a_node_with_its_devices(machines: Machines) -> None:
    node = machines.nodes()["n1"]
    assert (node.state, len(node.devices)) == ("up", 2)


def test_a_job_runs_there_and_sees_none_of_the_secrets(machines: Machines) -> None:
    script = "env; tr '\\0' ' ' </proc/$$/cmdline; tr '\\0' ' ' </proc/$PPID/cmdline"
    job = machines.client.submit(run=script, gpus=1, workdir=None)
    assert job.wait(60.0).exit_code == 0
    said = b"".join(chunk.data for chunk in job.logs()).decode()
    assert "CORRAL_NODE=n1" in said
    for machine in (machines.head, machines.node):
        for name in ("ray/token", "node-token", "join-token", "token"):
            place = machines.state(machine) / name
            assert not place.exists() or place.read_text().strip() not in said


@pytest.mark.parametrize(
    "change, code, words",
    [
        ({"token": "nonsense"}, "INVALID_FIELD", "the join token is damaged"),
        ({"token": ""}, "MISSING_FIELD", "there is no join token"),
        ({"place": "127.0.0.1:1"}, "HEAD_UNREACHABLE", "no head answers at https://127.0.0.1:1"),
        ({"place": "a b"}, "INVALID_FIELD", "is no HOST or HOST:PORT"),
    ],
)
def test_what_speaks_against_joining_is_one_line(
    machines: Machines, other: Corral, change: dict[str, str], code: str, words: str
) -> None:
    refused = machines.join(other, **change)
    assert refused.code != 0
    assert f"error[{code}]" in refused.err
    assert words in refused.err
    assert len(refused.err.strip().splitlines()) == 1


def test_another_certificate_another_secret_and_a_taken_name_are_told_apart(machines: Machines, other: Corral) -> None:
    secret, _, print_ = machines.token.partition(".")
    wrong_print = f"{secret}.{print_[:-1]}{'0' if print_[-1] != '0' else '1'}"
    assert "error[CERTIFICATE_MISMATCH]" in machines.join(other, token=wrong_print).err
    wrong_secret = f"{secret[:-1]}{'A' if secret[-1] != 'A' else 'B'}.{print_}"
    assert "error[UNAUTHENTICATED]" in machines.join(other, token=wrong_secret).err
    assert "error[NODE_NAME_TAKEN]" in machines.join(other, "--name", "n1").err
    assert machines.nodes().keys() == {"n1"}


def test_another_release_of_ray_is_said_before_anything_starts(machines: Machines, other: Corral) -> None:
    about = other.state_dir / "packages" / "ray-1.2.3.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 1.2.3\n")
    secret = {VARIABLE: machines.token, "PYTHONPATH": str(about.parent)}
    refused = other("join", machines.place, **secret)
    assert "error[VERSION_MISMATCH]: this machine has Ray 1.2.3 (the head has 2." in refused.err
    assert not (machines.state(other) / "node-token").exists()


def test_a_machine_is_one_thing_at_a_time(machines: Machines) -> None:
    again = machines.join(machines.node)
    assert f"this machine is node n1 of the pool at https://{machines.place} already" in again.err
    assert "error[ALREADY_RUNNING]" in machines.join(machines.head).err
    assert "error[ALREADY_RUNNING]" in machines.node("up").err


def test_the_token_of_a_machine_opens_nothing_else(machines: Machines) -> None:
    for name in ("join-token", "node-token"):
        file = machines.state(machines.head if name == "join-token" else machines.node) / name
        told = machines.head("status", CORRAL_TOKEN=file.read_text().strip().partition(".")[0])
        assert "error[FORBIDDEN]" in told.err


def test_on_a_node_the_pool_is_asked_with_a_token_of_people(machines: Machines) -> None:
    assert "error[UNAUTHENTICATED]: this machine is a node" in machines.node("status").err
    secret = (machines.state(machines.head) / "token").read_text().strip()
    told = machines.node("nodes", "--json", CORRAL_TOKEN=secret)
    assert [node["spec"]["id"] for node in json.loads(told.out)["nodes"]] == ["n1"]


def test_a_join_token_that_is_issued_is_the_whole_command(machines: Machines, other: Corral) -> None:
    line = machines.head.ok("token", "issue", "default", "--role", "join", "--label", "second").strip()
    secret, _, command = line.partition(" ")
    assert command == f"corral join {machines.place}"
    assert secret.partition(".")[2] == machines.token.partition(".")[2], "the fingerprint is that of the head"
    assert secret != machines.environment
    # It opens the door: what is refused is the name.
    assert "error[NODE_NAME_TAKEN]" in machines.join(other, "--name", "n1", token=secret.partition("=")[2]).err


def test_the_doctor_is_content_on_both(machines: Machines) -> None:
    for machine, words in ((machines.head, "GCS"), (machines.node, "n1 at 127.0.0.1 is heard by the pool")):
        examined = machine("doctor")
        assert words in examined.out
        findings = machine.json("doctor")["findings"]
        assert [
            found for found in findings if found["ok"] is False and found["check"] in {"GCS", "heads", "node"}
        ] == []


def test_a_raylet_that_dies_is_started_again_and_the_task_never_knows(machines: Machines) -> None:
    job = machines.client.submit(run="while :; do date; sleep 0.1; done", gpus=1, workdir=None)
    wait_until(lambda: job.status().state == "running", 60.0, 0.1, what="the task to run")
    lived = machines.state(machines.node)
    raylets = [pid for pid in carriers(lived) if b"raylet/raylet" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert raylets
    for pid in raylets:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: machines.nodes()["n1"].state != "up", 30.0, 0.1, what="the head to miss the node")
    wait_until(lambda: machines.nodes()["n1"].state == "up", READY_S, 0.5, what="the node to be back")
    found = job.details().gangs[0]
    assert (found.incarnation, found.state) == (1, "running")
    job.cancel()
    job.wait(60.0)


def join_again(machines: Machines) -> None:
    joined = machines.join(machines.node, "--name", "n1", "--simulated", "h100", "--gpus-per-node", "2")
    assert joined.code == 0, joined.err


def running(machines: Machines, script: str, **fields: Any) -> JobHandle:
    """Submit a job and wait until it has begun."""
    job = machines.client.submit(run=f"echo begun; {script}", gpus=1, workdir=None, **fields)
    wait_until(lambda: b"begun" in b"".join(chunk.data for chunk in job.logs()), 60.0, 0.1, what="the task to begin")
    return job


SAVING = {"signal": "USR1", "grace": "60s"}
SAVES = "trap 'echo 7 >$CORRAL_CHECKPOINT_DIR/step; sleep 1; echo saved; exit 0' USR1; while :; do sleep 0.1; done"
DEAF = "trap '' USR1 TERM; while :; do sleep 0.1; done"


def test_who_leaves_lets_its_tasks_save_themselves_and_they_go_on_without_charge(machines: Machines) -> None:
    job = running(machines, SAVES, checkpoint=SAVING)
    left = machines.node.json("leave")
    assert (left["tasks_left"], left["tasks_killed"], left["forced"]) == (0, 0, False)
    gang = job.details().gangs[0]
    assert (gang.state, gang.preemptions, gang.moves, gang.restarts) == ("pending", 1, 1, 0)
    assert len(gang.saved) == 1, "the checkpoint came back before the machine left"
    assert b"saved" in b"".join(chunk.data for chunk in job.logs())
    assert "gives way: node n1 is emptied" in machines.head.ok("history", job.id)
    wait_until(lambda: machines.nodes() == {}, 60.0, 0.5, what="the head to forget the node")
    join_again(machines)
    wait_until(lambda: job.details().gangs[0].incarnation == 2, 60.0, 0.1, what="the job to go on")
    assert not machines.nodes()["n1"].cordoned
    job.cancel()
    job.wait(60.0)


def test_who_does_not_end_in_time_is_killed_and_that_is_said(machines: Machines) -> None:
    job = running(machines, DEAF, checkpoint=SAVING)
    left = machines.node("down", "--drain-timeout", "2s")
    assert "this machine has left the pool; killed 1 task that had not ended in time" in left.err
    assert job.status().state == "pending", "its end is proven: nobody waits for the lease"
    job.cancel()
    join_again(machines)


def test_with_force_they_are_killed_at_once_and_go_on_elsewhere(machines: Machines) -> None:
    job = running(machines, SAVES, checkpoint=SAVING)
    left = machines.node("down", "--force")
    assert "this machine has left the pool; killed 1 task\n" in left.err
    wait_until(lambda: machines.nodes() == {}, 60.0, 0.5, what="the head to forget the node")
    gang = job.details().gangs[0]
    assert (gang.state, gang.restarts, len(gang.saved)) == ("pending", 0, 0)
    lived = machines.state(machines.node)
    assert carriers(lived) == []
    assert [name for name in ("ray/token", "node-token") if (lived / name).exists()] == []
    job.cancel()
    join_again(machines)


def stopped_agent(machines: Machines) -> int:
    """Kill the supervisor of the node while its agent is stopped, which therefore stays behind; return its pid."""
    lived = machines.state(machines.node)
    agent = int(json.loads((lived / "nodes" / "n1" / "agent.pid").read_text())["pid"])
    os.kill(agent, signal.SIGSTOP)
    os.kill(int((lived / "supervisor.pid").read_text()), signal.SIGKILL)
    return agent


def test_joining_takes_over_what_a_killed_supervisor_left_behind(machines: Machines) -> None:
    job = running(machines, SAVES)
    agent = stopped_agent(machines)
    refused = machines.node("leave")
    assert "error[JOBS_RUNNING]: node n1 does not run, but 1 task runs on it" in refused.err
    joined = machines.node("join")
    assert joined.code == 0, joined.err
    assert not alive(agent)
    gang = job.details().gangs[0]
    assert (gang.state, gang.incarnation) == ("running", 1)
    job.cancel()
    job.wait(60.0)


def test_leaving_ends_what_a_killed_supervisor_left_behind(machines: Machines) -> None:
    job = running(machines, SAVES)
    stopped_agent(machines)
    left = machines.node("down", "--force")
    assert left.code == 0, left.err
    assert "this machine has left the pool; killed 1 task\n" in left.err
    wait_until(lambda: carriers(machines.state(machines.node)) == [], 20.0, what="everything to end")
    assert "error[DAEMON_NOT_RUNNING]: no node runs" in machines.node("leave").err
    job.cancel()
    join_again(machines)
