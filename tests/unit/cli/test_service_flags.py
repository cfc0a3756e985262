"""Flags of `corral serve`: what they make of a service, what they change of one from a file, how mistakes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corral.cli.commands.serve import specs_of
from corral.cli.service_flags import PARAMETERS, percent_of, spec_of_flags, with_flags
from corral.model.ask import JobAsk
from corral.model.errors import CorralError
from corral.model.ids import ServiceName, TenantId
from corral.model.service import Balance, Guard, Probe, ProbeKind, Probes, Retry, Scaling, ServiceSpec, Traffic


def of(program: list[str], name: str = "web", **flags: Any) -> ServiceSpec:
    known = {parameter.name for parameter in PARAMETERS}
    assert flags.keys() <= known, flags.keys() - known
    values = dict.fromkeys(known) | flags
    return spec_of_flags(name, values, program, {"HOME": "/home/ann"}, "/")


def refused(program: list[str], name: str = "web", **flags: Any) -> str:
    with pytest.raises(CorralError) as caught:
        of(program, name, **flags)
    return caught.value.refusal.line()


def test_a_name_and_a_command_are_a_service() -> None:
    assert of(["python", "s.py"]) == ServiceSpec(
        ServiceName("web"), TenantId(""), JobAsk(argv=("python", "s.py"), workdir="/")
    )
    assert of(["exec python s.py --port $PORT"]).replica.script == "exec python s.py --port $PORT"


def test_every_flag_has_its_place() -> None:
    spec = of(
        ["s"],
        replicas="2-8",
        port="8000",
        model="llama",
        ready="/up",
        startup="/started",
        startup_within="30m",
        alive="/alive",
        target_outstanding="8",
        target_requests="20",
        balance="power-of-two",
        retry="never",
        guard="none",
        listen="8080",
        drain="1m",
        stream=True,
        keys=False,
        host=["chat.example.org"],
        gpus="2",
        gpu_model="H100",
        cpus="4",
        memory="8GiB",
        tenant="ann",
        queue="online",
        priority="5",
        workdir="/tmp",
        setup="true",
        env=["HOME", "A=1"],
    )
    started, up, alive = (Probe(ProbeKind.HTTP, path) for path in ("/started", "/up", "/alive"))
    assert spec == ServiceSpec(
        name=ServiceName("web"),
        tenant=TenantId("ann"),
        replica=JobAsk(
            argv=("s",),
            gpu_model="H100",
            gpu_milli=2_000,
            cpus_milli=4_000,
            memory_mib=8_192,
            queue="online",
            priority=5,
            workdir="/tmp",
            setup="true",
            envs={"HOME": "/home/ann", "A": "1"},
        ),
        model="llama",
        port=8_000,
        probes=Probes(started, up, alive, 1_800),
        scaling=Scaling(2, 8, 8, 20),
        traffic=Traffic(
            balance=Balance.POWER_OF_TWO,
            retry=Retry.NEVER,
            guard=Guard.NONE,
            listen=8_080,
            drain_s=60,
            stream=True,
            keys=False,
            hosts=("chat.example.org",),
        ),
    )


@pytest.mark.parametrize(
    "flags,said",
    [
        ({"replicas": "8-2"}, "--replicas: counts backwards (write the smaller number first)"),
        ({"port": "x"}, '--port: must be a whole number, not "x"'),
        ({"ready": "up"}, '--ready: "up" is not a path of HTTP'),
        ({"balance": "random"}, "--balance: must be one of round-robin, "),
        ({"drain": "soon"}, '--drain: "soon" is not a duration'),
        ({"host": ["a:1"]}, '--host [0]: "a:1" is not a host name'),
        ({"target_outstanding": "0"}, "--target-outstanding: must be a number between 0.001 and 1e+06"),
        ({"gpus": "2-4"}, "--gpus: a replica has one size (name one number)"),
        ({"gpus": "2", "accelerators": "H100:2"}, "--accelerators and --gpus say the same thing twice"),
        ({"env": ["NOPE"]}, "--env: NOPE is not set in this shell"),
        ({"env": ["CORRAL_X=1"]}, "--env CORRAL_X: names that begin with CORRAL_ are corral's own"),
        ({"workdir": "/no/such"}, "--workdir: "),
    ],
)
def test_a_wrong_flag_is_named(flags: dict[str, Any], said: str) -> None:
    assert refused(["s"], **flags).startswith(said)


def test_a_wrong_name_is_told_as_the_name() -> None:
    assert refused(["s"], "Web_1").startswith('NAME: "Web_1" is not a name of a service')


FROM_FILE = ServiceSpec(
    name=ServiceName("web"),
    tenant=TenantId("ann"),
    replica=JobAsk(argv=("s",), gpu_milli=1_000, cpus_milli=2_000, envs={"A": "1", "B": "2"}),
    scaling=Scaling(2, 4, target_outstanding=8),
    traffic=Traffic(stream=True, hosts=("a",)),
)


def test_flags_beside_a_file_replace_just_what_they_say() -> None:
    flags = {"replicas": "3", "gpus": "2", "keys": False, "env": ["B=3", "C=4"], "target_requests": "5"}
    assert with_flags(FROM_FILE, flags, {}, "/") == replace(
        FROM_FILE,
        replica=replace(FROM_FILE.replica, gpu_milli=2_000, envs={"A": "1", "B": "3", "C": "4"}),
        scaling=Scaling(3, 3, 8, 5),
        traffic=Traffic(stream=True, hosts=("a",), keys=False),
    )
    assert with_flags(FROM_FILE, {"stream": False}, {}, "/").traffic == Traffic(hosts=("a",))
    assert with_flags(FROM_FILE, dict.fromkeys(["stream", "env"]), {}, "/") is FROM_FILE


def test_what_is_served_comes_from_files_or_from_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("web.yaml").write_text("kind: service\nname: web\nrun: x\n")
    (spec,) = specs_of(["web.yaml"], None, {"replicas": "2"})
    assert (spec.name, spec.scaling.replicas_max) == ("web", 2)
    (spec,) = specs_of(["web"], ["python", "s.py"], {})
    assert spec.replica == JobAsk(argv=("python", "s.py"), workdir=str(tmp_path))


@pytest.mark.parametrize(
    "what,program,said",
    [
        ([], None, "there is nothing to serve (corral serve service.yaml, or corral serve NAME -- python server.py)"),
        (["web"], [], "there is no command to run (corral serve web -- python server.py)"),
        (["a", "b"], ["x"], "a command is served under one name (corral serve NAME -- COMMAND)"),
        (["/no/such.yaml"], None, "/no/such.yaml: there is no such file (a command goes after --)"),
    ],
)
def test_a_command_line_without_a_service_is_refused(what: list[str], program: list[str] | None, said: str) -> None:
    with pytest.raises(CorralError) as caught:
        specs_of(what, program, {})
    assert caught.value.refusal.line() == said


@pytest.mark.parametrize("text,percent", [("10%", 10), ("10", 10), (" 99 % ", 99), ("1%", 1)])
def test_a_part_is_written_in_percent(text: str, percent: int) -> None:
    assert percent_of(text, "--canary") == percent


@pytest.mark.parametrize("text", ["0", "100%", "x", "", "-5", "1.5%", "1e1", "10%%"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(CorralError) as caught:
        percent_of(text, "--canary")
    assert caught.value.refusal.field == "--canary"
