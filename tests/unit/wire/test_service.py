"""Services as documents: what is written reads back, files are read as meant, mistakes are named at their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.model.ask import JobAsk
from corral.model.errors import CorralError, Refusal
from corral.model.files import JobFiles
from corral.model.ids import ServiceName, TenantId
from corral.model.service import (
    Balance,
    Guard,
    Probe,
    ProbeKind,
    Probes,
    Renewal,
    Retry,
    Scaling,
    ServiceSpec,
    Traffic,
)
from corral.wire.document import Checked
from corral.wire.request import FIELDS
from corral.wire.service import (
    NOT_FOR_REPLICAS,
    REPLICA_FIELDS,
    SERVICE_FIELDS,
    document_of_service,
    spec_of_fields,
    spec_of_json,
)
from corral.wire.servicefile import load_services, parse_service_text
from tests.unit.wire.test_request import asks

seconds = st.floats(1, 3_000).map(lambda s: round(s, 3))
counts = st.integers(1, 1_000)
probes = st.one_of(
    st.builds(Probe, st.just(ProbeKind.TCP), period_s=seconds, timeout_s=seconds, failures=counts, successes=counts),
    st.builds(Probe, st.just(ProbeKind.HTTP), st.sampled_from(["/", "/health?deep=1"]), failures=counts),
    st.builds(Probe, st.just(ProbeKind.COMMAND), argv=st.sampled_from([("true",), ("/bin/sh", "-c", "a b")])),
)
traffics = st.builds(
    Traffic,
    balance=st.sampled_from(Balance),
    imbalance_max=st.integers(0, 100),
    connect_s=seconds,
    response_s=seconds,
    idle_s=seconds,
    queue_s=seconds,
    outstanding_max=st.none() | counts,
    retry=st.sampled_from(Retry),
    hedge_after_s=st.none() | seconds,
    body_max_bytes=st.integers(1, 2**40),
    stream=st.booleans(),
    guard=st.sampled_from(Guard),
    listen=st.none() | st.integers(1, 65_535),
    hosts=st.sampled_from([(), ("chat.example.org", "x")]),
    keys=st.booleans(),
    requests_s_max=st.none() | seconds,
    drain_s=seconds,
).map(lambda t: replace(t, hash_header="X-Session") if t.balance is Balance.CONSISTENT_HASH else t)


@st.composite
def specs(draw: st.DrawFn) -> ServiceSpec:
    low = draw(st.integers(0, 1_000))
    job = draw(asks())
    kept = {name: getattr(job, name) for name in ("queue", "setup", "cpus_milli", "memory_mib", "envs", "priority")}
    replica = JobAsk(**kept, argv=job.argv, script=job.script, gpu_milli=draw(st.integers(0, 1_000)))
    return ServiceSpec(
        name=ServiceName(draw(st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True).filter("v1".__ne__))),
        tenant=TenantId(draw(st.sampled_from(["", "vision"]))),
        replica=replica,
        model=draw(st.none() | st.just("meta/llama-3:8b")),
        port=draw(st.none() | st.integers(1, 65_535)),
        probes=Probes(draw(st.none() | probes), draw(probes), draw(st.none() | probes), draw(seconds)),
        scaling=Scaling(
            low,
            draw(st.integers(max(low, 1), 1_000)),
            draw(st.none() | seconds),
            draw(st.none() | seconds),
            draw(seconds),
            draw(seconds),
            draw(seconds),
            draw(counts),
        ),
        renewal=Renewal(draw(counts), draw(counts), draw(seconds), draw(st.floats(0, 1)), draw(counts), draw(seconds)),
        traffic=draw(traffics),
    )


@settings(max_examples=40)
@given(specs())
def test_what_is_written_reads_back_as_the_same_service(spec: ServiceSpec) -> None:
    document = document_of_service(spec)
    assert spec_of_fields(document, Checked()) == spec
    body = json.dumps({"service": document, "canary_percent": 10}).encode()
    assert spec_of_json(body, spec.name) == (spec, 10)


def read(text: str, base: Path | None = None) -> list[ServiceSpec]:
    return parse_service_text(text, source="s.yaml", base=str(base) if base else None)


def lines(text: str) -> list[str]:
    with pytest.raises(CorralError) as caught:
        read(text)
    return [refusal.line() for refusal in (caught.value.refusal, *caught.value.also)]


MINIMAL = "kind: service\nname: hello\nrun: python -m http.server $PORT\n"


def test_the_smallest_service_has_one_replica_that_is_ready_when_it_can_be_connected_to() -> None:
    assert read(MINIMAL) == [
        ServiceSpec(ServiceName("hello"), TenantId(""), JobAsk(script="python -m http.server $PORT"))
    ]  # fmt: skip


def test_a_service_file_with_every_field_is_read(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    text = """\
kind: service
name: chat
tenant: team-a
model: llama-3-8b
port: 8000
replicas: {min: 2, max: 8}
startup: {http: /health, period: 5s, timeout: 2s}
startup_within: 30m
readiness: /ready
liveness: {command: [python, check.py], failures: 5, successes: 2}
scaling: {target_outstanding: 8, target_requests_s: 20.5, down_after: 2m, idle: 10m, cold_start: 3m,
          cold_requests_max: 7}
rollout: {surge: 2, max_unavailable: 1, ready_within: 15m, errors_max: 2.5%, requests_min: 50, watch: 30s}
traffic:
  balance: consistent-hash
  hash_header: X-Session
  imbalance_max: 4
  connect: 500ms
  response: 2m
  idle: 1m
  queue: 5s
  outstanding_max: 16
  retry: before_first_token
  hedge_after: 1s
  body_max: 2MiB
  stream: true
  guard: mtls
  listen: 8443
  hosts: [Chat.Example.Org.]
  keys: false
  requests_s_max: 100
  drain: 5m
resources: {accelerators: H100:2}
workdir: .
file_mounts: {models: weights}
queue: online
run: python serve.py
"""
    (spec,) = read(text, tmp_path)
    assert spec == ServiceSpec(
        name=ServiceName("chat"),
        tenant=TenantId("team-a"),
        replica=JobAsk(
            queue="online",
            script="python serve.py",
            gpu_model="H100",
            gpu_milli=2_000,
            workdir=str(tmp_path),
            file_mounts={"models": str(tmp_path / "weights")},
        ),
        model="llama-3-8b",
        port=8000,
        probes=Probes(
            Probe(ProbeKind.HTTP, "/health", period_s=5, timeout_s=2),
            Probe(ProbeKind.HTTP, "/ready"),
            Probe(ProbeKind.COMMAND, argv=("python", "check.py"), failures=5, successes=2),
            1_800,
        ),
        scaling=Scaling(2, 8, 8, 20.5, 120, 600, 180, 7),
        renewal=Renewal(2, 1, 900, 0.025, 50, 30),
        traffic=Traffic(
            Balance.CONSISTENT_HASH, "X-Session", 4, 0.5, 120, 60, 5, 16, Retry.BEFORE_FIRST_TOKEN, 1, 2 * 2**20, True,
            Guard.MTLS, 8443, ("chat.example.org",), False, 100, 300,
        ),
    )  # fmt: skip


def test_a_command_of_one_line_is_asked_of_the_shell() -> None:
    (spec,) = read(MINIMAL + "liveness: {command: test -e ok}\n")
    assert spec.probes.liveness == Probe(ProbeKind.COMMAND, argv=("/bin/sh", "-c", "test -e ok"))


def test_a_file_holds_several_services(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(MINIMAL + "---\n" + MINIMAL.replace("hello", "other") + "---\n")
    assert [spec.name for spec in load_services(file)] == ["hello", "other"]
    assert lines(MINIMAL + "---\n" + MINIMAL) == ['s.yaml:6:7: name: "hello" names two services']


MISTAKES: list[tuple[str, str]] = [
    ("name: hello\nrun: x", "1:1: kind: is missing (say kind: service; jobs are submitted with corral submit)"),
    ("kind: job\nname: a\nrun: x", '1:7: kind: must be service, not "job" (jobs have no kind: corral submit takes'),
    ("kind: service\nrun: x", "1:1: name: is missing"),
    ("kind: service\nname: a", "1:1: run: is missing (say what to run)"),
    ("- 1", "1:1: a service must be a mapping of fields, not a list"),
    (MINIMAL.replace("hello", "Hello"), '2:7: name: "Hello" is not a name of a service (it is a host name, too'),
    (MINIMAL.replace("hello", "a_b"), '2:7: name: "a_b" is not a name of a service'),
    (MINIMAL.replace("hello", "v1"), '2:7: name: "v1" is the beginning of front ends\' own paths'),
    (MINIMAL.replace("hello", "x" * 64), f'2:7: name: "{"x" * 57}..." is not a name of a service'),
    (MINIMAL + "replicas: 8-2", "4:11: replicas: counts backwards"),
    (MINIMAL + "replicas: 0", "4:11: replicas: must be at most 1,000 replicas, and at least 1 where there is load"),
    (MINIMAL + "replicas: 1001", "4:11: replicas: must be at most 1,000 replicas"),
    (MINIMAL + "replicas: two", '4:11: replicas: "two" is not a number of replicas (write it like 3 or 2-8)'),
    (MINIMAL + "replicas: {min: 2}", "4:11: replicas.max: is missing"),
    (MINIMAL + "port: 70000", "4:7: port: must be between 1 and 65,535, not 70000"),
    (MINIMAL + "array: 0-3", "4:1: array: does not go with a service (replicas says how many there are)"),
    (MINIMAL + "num_nodes: 2", "4:1: num_nodes: does not go with a service (a replica runs on one node)"),
    (MINIMAL + "num_gpus: 2-8", "4:11: resources.accelerators: a replica has one size"),
    (MINIMAL + "resources: {cpu: 2}", "4:13: resources.cpu: unknown field (did you mean cpus?)"),
    (MINIMAL + "retries: 3", "4:1: retries: unknown field (did you mean traffic.retry?)"),
    (MINIMAL + "min_replicas: 2", "4:1: min_replicas: unknown field (did you mean replicas, for example"),
    (MINIMAL + "trafic: {}", "4:1: trafic: unknown field (did you mean traffic?)"),
    (MINIMAL + "traffic: {policy: x}", "4:11: traffic.policy: unknown field (did you mean balance?)"),
    (MINIMAL + "traffic: {balance: random}", "4:20: traffic.balance: must be one of round-robin, weighted, "),
    (MINIMAL + "traffic: {hash_header: A}", "4:10: traffic.hash_header: has no effect with balance least-outstanding"),
    (MINIMAL + "traffic: {hash_header: 'a b'}", '4:24: traffic.hash_header: "a b" is not a name of a header'),
    (MINIMAL + "traffic: {keys: no}", '4:17: traffic.keys: must be true or false, not "no"'),
    (MINIMAL + "traffic: {body_max: 1.5}", "4:21: traffic.body_max: 1.5 must be whole bytes, from 1 to 1 TiB"),
    (MINIMAL + "traffic: {body_max: much}", '4:21: traffic.body_max: "much" is not a size (write it like 10MiB'),
    (MINIMAL + "traffic: {hosts: [a, A]}", '4:22: traffic.hosts[1]: names "A" twice'),
    (MINIMAL + "traffic: {hosts: 'a:80'}", '4:18: traffic.hosts: "a:80" is not a host name'),
    (MINIMAL + "traffic: {drain: -1}", "4:18: traffic.drain: must not be negative, but is -1"),
    (MINIMAL + "scaling: {replicas: 3}", "4:11: scaling.replicas: unknown field (did you mean replicas, beside"),
    (MINIMAL + "scaling: {target_outstanding: 0}", "4:31: scaling.target_outstanding: must be a number between 0.001"),
    (MINIMAL + "rollout: {surge: 0}", "4:10: rollout: allows no replica more and none fewer"),
    (MINIMAL + "rollout: {errors_max: 120%}", '4:23: rollout.errors_max: must be a number between 0 and 1, not "120%"'),
    (MINIMAL + "readiness: health", '4:12: readiness: "health" is not a path of HTTP (write tcp, an HTTP path like'),
    (MINIMAL + "readiness: {http: /a, tcp: true}", "4:23: readiness: asks in two ways: http and tcp (choose one)"),
    (MINIMAL + "readiness: {command: []}", "4:22: readiness.command: has no program to run"),
    (MINIMAL + "readiness: {path: /a}", "4:13: readiness.path: unknown field (did you mean http?)"),
    (MINIMAL + "liveness: {tcp: false}", "4:17: liveness.tcp: must be true (leave it out)"),
    (MINIMAL + "startup_within: 0", "4:17: startup_within: must be between 1 s and 604800 s, not 0"),
    (MINIMAL + "model: a b", '4:8: model: "a b" is not a name of a model (printable ASCII without blanks)'),
    (MINIMAL + "name: other", "4:1: name: given twice (first on line 2)"),
    (MINIMAL + "files: {}", "4:1: files: unknown field"),
]  # fmt: skip


@pytest.mark.parametrize("text,said", MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_named_at_its_place(text: str, said: str) -> None:
    found = lines(text)
    assert len(found) == 1, found
    assert found[0].startswith(f"s.yaml:{said}"), found[0]


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    said = lines("kind: service\nname: A\nreplicas: x\nsweep: {a: [1]}\ntraffic: {keys: 1}\nresources: {cpus: x}\n")
    fields = {line.split(": ")[1] for line in said}
    assert fields == {"name", "run", "replicas", "sweep", "traffic.keys", "resources.cpus"}


def test_files_that_are_no_service_files_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "s.sh"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(CorralError, match="is a script, not a service file"):
        load_services(script)
    with pytest.raises(CorralError, match="holds no service"):
        read("# nothing\n")
    with pytest.raises(CorralError, match="no such file"):
        load_services(tmp_path / "absent.yaml")


def refusal_of(body: Any, name: str = "hello") -> Refusal:
    with pytest.raises(CorralError) as caught:
        spec_of_json(body if isinstance(body, bytes) else json.dumps(body).encode(), name)
    return caught.value.refusal


def test_a_body_names_the_service_by_its_address() -> None:
    spec, canary = spec_of_json(b'{"service": {"run": "x"}}', "hello")
    assert (spec.name, canary) == ("hello", None)
    refused = refusal_of({"service": {"run": "x", "name": "other"}})
    assert refused.line() == 'service.name: is "other", but the address names "hello" (leave it out)'


@pytest.mark.parametrize(
    "body,said",
    [
        (b"{", "not JSON"),
        ([], "must be a mapping of names to values, not a list"),
        ({}, "service: is missing (the fields of a service file)"),
        ({"run": "x"}, 'run: unknown field (did you mean put it under "service"?)'),
        ({"service": 3}, "service: a service must be a mapping of fields, not 3"),
        ({"service": {"run": "x", "replicas": "x"}}, 'service.replicas: "x" is not a number of replicas'),
        ({"service": {"run": "x", "resources": {"cpus": -1}}}, "service.resources.cpus: must not be negative"),
        ({"service": {"run": "x"}, "canary_percent": 100}, "canary_percent: must be between 1 and 99, not 100"),
        ({"service": {"run": "x", "workdir": "a"}}, "service.workdir: "),
    ],
)
def test_a_body_is_refused_as_a_file_is(body: Any, said: str) -> None:
    assert refusal_of(body).line().startswith(said)


def test_a_body_may_say_which_files_were_sent_along() -> None:
    files = {"tree": "ab" * 32, "workdir": True, "targets": []}
    spec, _ = spec_of_json(json.dumps({"service": {"run": "x", "workdir": "/w", "files": files}}).encode(), "a")
    assert spec.replica.files == JobFiles("ab" * 32)


def test_every_field_of_a_job_either_goes_with_a_service_or_is_refused_with_a_reason() -> None:
    assert {*REPLICA_FIELDS, *NOT_FOR_REPLICAS, "name", "tenant"} == set(FIELDS)
    assert not set(REPLICA_FIELDS) & set(SERVICE_FIELDS)


@pytest.mark.parametrize("name", ["10", "2024", "localhost"])
def test_a_service_is_not_called_as_machines_are(name: str) -> None:
    with pytest.raises(CorralError) as caught:
        parse_service_text(f"kind: service\nname: '{name}'\nrun: serve\n")
    assert (caught.value.code, caught.value.refusal.field) == ("INVALID_FIELD", "name")
