"""`serve`, `services`, `scale`, `rollout` and `logs --replica` over the real API, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.cli.entry import run
from corral.model.ids import JobId, NodeId, ServiceName
from corral.model.service import ReplicaPhase
from corral.model.service_report import ReplicaReport
from tests.unit.api.conftest import own_server, server, shared_server
from tests.unit.api.memory_pool import ALICE
from tests.unit.api.memory_services import MemoryServices
from tests.unit.api.serving import Served

__all__ = ["own_server", "server", "shared_server"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def services(server: Served) -> Iterator[MemoryServices]:
    made = server.app.state.services = MemoryServices()
    yield made
    server.app.state.services = None


@pytest.fixture
def corral(
    server: Served,
    services: MemoryServices,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    tmp_path: Path,
) -> Run:
    monkeypatch.setenv("CORRAL_URL", server.url)
    monkeypatch.setenv("CORRAL_TOKEN", ALICE)
    monkeypatch.delenv("CORRAL_STATE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return call


def test_a_service_is_made_from_a_command_and_changed_from_a_file(corral: Run, services: MemoryServices) -> None:
    code, out, err = corral("serve", "web", "-r", "2", "--", "python", "s.py")
    assert (code, out, err) == (0, "", "service web: revision 1, 0 of 2 replicas ready\n")
    Path("web.yaml").write_text("kind: service\nname: web\nreplicas: 2\nrun: x\n")
    code, _, err = corral("serve", "web.yaml", "--canary", "10%")
    assert (code, err) == (0, "service web: revision 2 follows 1, held at 10 %\n")
    code, out, _ = corral("serve", "web.yaml", "--json")
    assert json.loads(out)["services"][0]["rollout"]["revision"] == 3
    assert [spec.replica.argv for spec in services.specs[ServiceName("web")]] == [("python", "s.py"), (), ()]


def test_a_mistake_in_a_file_is_told_with_its_place(corral: Run, services: MemoryServices) -> None:
    Path("web.yaml").write_text("kind: service\nname: web\nreplicas: 3-2\nruns: x\n")
    code, _, err = corral("serve", "web.yaml")
    assert code == 2
    assert err.splitlines() == [
        "error[MISSING_FIELD]: web.yaml:1:1: run: is missing (say what to run)",
        "error[INVALID_FIELD]: web.yaml:3:11: replicas: counts backwards (write the smaller number first)",
        "error[UNKNOWN_FIELD]: web.yaml:4:1: runs: unknown field (did you mean run?)",
    ]
    assert services.specs == {}


def test_a_service_is_listed_shown_scaled_and_stopped_by_its_name(corral: Run) -> None:
    assert corral("services")[1] == "no services\n"
    corral("serve", "stop", "--", "s")
    listed = corral("services")[1].splitlines()
    assert listed[1].split()[:3] == ["stop", "alice", "0/1"]
    # A service may be called as a command is.
    assert corral("services", "show", "stop")[1].splitlines()[0].split() == "service stop of tenant alice".split()
    corral("serve", "chat", "--", "s")
    assert "service   chat of tenant alice" in corral("services", "chat")[1]
    assert json.loads(corral("services", "chat", "--json")[1])["name"] == "chat"
    assert corral("scale", "chat", "3")[2] == "service chat: 0 of 3 replicas ready\n"
    assert corral("services", "stop", "chat")[2] == "service chat ends; its replicas finish what they are at\n"
    code, _, err = corral("services", "chat")
    assert (code, err) == (5, "error[NOT_FOUND]: there is no service 'chat'\n")


def test_a_rollout_is_shown_widened_and_undone(corral: Run) -> None:
    corral("serve", "web", "--", "one")
    corral("serve", "web", "--canary", "5", "--", "two")
    assert "held at 5 %" in corral("rollout", "status", "web")[1]
    assert corral("rollout", "widen", "web", "50%")[2] == "service web: revision 2 may have 50% of the replicas\n"
    assert corral("rollout", "widen", "web")[2] == "service web: revision 2 may have all of the replicas\n"
    assert corral("rollout", "undo", "web")[2] == "service web stays at revision 1\n"
    code, _, err = corral("rollout", "widen", "web")
    assert (code, err) == (6, "error[CONFLICT]: service web has no rollout\n")
    assert json.loads(corral("rollout", "status", "web", "--json")[1])["rollout"] is None


def test_a_job_is_told_from_a_service(corral: Run, server: Served, services: MemoryServices) -> None:
    corral("serve", "web", "--", "one")
    code, _, err = corral("logs", "web")
    assert (code, err.split(" (")[0]) == (5, "error[NOT_FOUND]: web is a service, not a job")
    code, _, err = corral("why", "web")
    assert (code, err.split(":")[1].strip()) == (5, "web is a service, not a job")
    code, _, err = corral("logs", "web", "--replica", "3")
    assert (code, err) == (5, "error[NOT_FOUND]: service web has no replica 3\n")


def test_the_log_of_a_replica_is_that_of_its_job(corral: Run, server: Served, services: MemoryServices) -> None:
    corral("serve", "web", "--", "one")
    corral("run", "--detach", "--name", "web-4", "--", "s")
    replica = ReplicaReport(
        JobId("1"), 4, 1, ReplicaPhase.SERVING, "running", NodeId("n"), "127.0.0.1:1", 1.0, ready=True
    )  # fmt: skip
    services.replicas = (replica,)
    started = (0, "", "job 1 (web-4) is pending: no task was started yet\n")
    assert corral("logs", "web", "--replica", "4") == started
    # Another job has its name: the replica's own is meant.
    corral("run", "--detach", "--name", "web-4", "--", "s")
    assert corral("logs", "web", "--replica", "4") == started


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--kill", "disk"], "--kill: 'disk' cannot be killed (one of replica, node, frontend, controller)"),
        (["--kill", "replica", "--rate", "0"], "--rate: 0 requests a second (from 1 to 1000)"),
        (["--kill", "replica", "--rate", "nan"], "--rate: nan requests a second (from 1 to 1000)"),
        (["--kill", "replica", "--rate", "1e9"], "--rate: 1e+09 requests a second (from 1 to 1000)"),
        (["--kill", "replica", "--seconds", "1"], "--seconds: 1 seconds (from 3 to 600)"),
        (["--kill", "replica", "--seconds", "inf"], "--seconds: inf seconds (from 3 to 600)"),
        (["--kill", "replica", "--path", "x"], "--path: 'x' is no path (write it like /health, without blanks)"),
        (["--kill", "replica", "--path", "/a b"], "--path: '/a b' is no path (write it like /health, without blanks)"),
    ],
)
def test_a_drill_that_makes_no_sense_is_refused(corral: Run, flags: list[str], said: str) -> None:
    assert corral("drill", "web", *flags)[0::2] == (2, f"error[INVALID_FIELD]: {said}\n")


def test_a_drill_says_what_it_kills(corral: Run) -> None:
    code, _, err = corral("drill", "web")
    assert (code, err.split(" (")[0]) == (2, "error[USAGE]: missing option '--kill'")
