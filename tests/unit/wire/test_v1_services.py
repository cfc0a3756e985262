"""Objects about services: what the server writes, the client reads as the same value; what is accepted is described."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from pydantic import BaseModel, ValidationError

from corral.model import routes as routes_model
from corral.model import service, service_report
from corral.model.ask import JobAsk
from corral.model.ids import JobId, NodeId, ServiceName, TenantId
from corral.wire.service import REPLICA_FIELDS, SERVICE_FIELDS, document_of_service
from corral.wire.service_fields import ROLLOUT, SCALING, TRAFFIC
from corral.wire.v1 import routes, service_requests, services
from corral.wire.v1.base import Answer
from tests.unit.wire.test_service import specs

CHAT = ServiceName("chat")
SPEC = service.ServiceSpec(
    CHAT,
    TenantId("vision"),
    JobAsk(argv=("serve", "--port"), gpu_milli=1_000, envs={"A": "1"}),
    "llama",
    8_000,
    service.Probes(service.Probe(service.ProbeKind.HTTP, "/up"), service.Probe(), None, 60.0),
    service.Scaling(0, 4, 8.0),
    service.Renewal(2),
    service.Traffic(service.Balance.PREFIX_AFFINITY, hosts=("chat.example.org",), stream=True),
)
SEEN = routes_model.BackendLoad("chat-1", True, True, 1, 2, 3, 4, drained=True)
LOAD = routes_model.RouteLoad(CHAT, 1, 2, 3, 4, 5, 6, 0.25, 1.5, (SEEN,))
REPLICA = service_report.ReplicaReport(
    JobId("7"), 3, 2, service.ReplicaPhase.SERVING, "running", NodeId("n0"), "10.0.0.1:20001", 5.0, True, SEEN, "x"
)
REPORT = service_report.ServiceReport(
    CHAT, TenantId("vision"), 1, 2, 1, 0, 4, "llama", ("http://127.0.0.1:7480/chat/",), 1.0, (REPLICA,),
    service.Rollout(2, 3.0, "vision/t1", 10, 4.0), (service.Revision(1, SPEC, 1.0, "vision/t1"),), LOAD, "m", "w", True,
)  # fmt: skip
BACKEND = routes_model.Backend("chat-1", JobId("7"), 2, 1, "10.0.0.1", 20_001, True, 50)
TABLE = routes_model.RoutingTable(
    3,
    "abc",
    (
        routes_model.Route(
            CHAT, TenantId("vision"), SPEC.traffic, SPEC.scaling, service.Secrets("s", "a", "r", "f"), (BACKEND,),
            "llama", {1: 90, 2: 10}, "why", "/up", 0.25,
        ),
    ),
    {"ab" * 32: TenantId("vision")},
)  # fmt: skip
STATUS = service_report.FrontEndStatus("f1", "http://10.0.0.1:7480", 0.5, True, ("10.0.0.9",), "bad")
SERVING = service.ServingTask(CHAT, 1, 2, None, SPEC.probes, service.Guard.MTLS, 30.0, (NodeId("n9"),))


@pytest.mark.parametrize(
    "kind,value",
    [
        (services.ServiceReport, REPORT),
        (services.FrontEndStatus, STATUS),
        (services.ServingTask, SERVING),
        (routes.RoutingTable, TABLE),
    ],
)
def test_what_is_written_reads_back_as_the_same_value(kind: type[Answer], value: object) -> None:
    assert msgspec.json.decode(kind.of(value).json_bytes(), type=type(value)) == value


@pytest.mark.parametrize(
    "kind,model",
    [
        (services.Probe, service.Probe),
        (services.Probes, service.Probes),
        (services.ServingTask, service.ServingTask),
        (services.Scaling, service.Scaling),
        (services.Renewal, service.Renewal),
        (services.Traffic, service.Traffic),
        (services.ServiceSpec, service.ServiceSpec),
        (services.Revision, service.Revision),
        (services.Rollout, service.Rollout),
        (services.BackendLoad, routes_model.BackendLoad),
        (services.RouteLoad, routes_model.RouteLoad),
        (services.ReplicaReport, service_report.ReplicaReport),
        (services.ServiceReport, service_report.ServiceReport),
        (services.FrontEndStatus, service_report.FrontEndStatus),
        (routes.Backend, routes_model.Backend),
        (routes.Secrets, service.Secrets),
        (routes.Route, routes_model.Route),
        (routes.RoutingTable, routes_model.RoutingTable),
        (routes.BackendSeen, routes_model.BackendLoad),
        (routes.RouteSeen, routes_model.RouteLoad),
        (routes.ReportRequest, routes_model.FrontEndReport),
    ],
)
def test_no_field_of_the_model_is_forgotten(kind: type[BaseModel], model: type) -> None:
    assert set(kind.model_fields) == {field.name for field in msgspec.structs.fields(model)}


def test_a_report_of_a_front_end_becomes_the_model() -> None:
    report = routes_model.FrontEndReport("f1", "http://x", 3, "abc", (LOAD,), ("10.0.0.9",), "p", "1.0")
    said = msgspec.json.decode(msgspec.json.encode(report))
    assert routes.ReportRequest.model_validate(said).to_model() == report


def test_a_newer_front_end_is_heard_without_what_only_it_knows() -> None:
    load = {"service": "chat", "mood": "good", "backends": [{"name": "b", "up": True, "mood": "bad"}]}
    said = {"name": "f", "address": "a", "epoch": 1, "digest": "d", "loads": [load], "mood": 3}
    told = routes.ReportRequest.model_validate(said).to_model()
    seen = routes_model.RouteLoad(CHAT, backends=(routes_model.BackendLoad("b", up=True),))
    assert told == routes_model.FrontEndReport("f", "a", 1, "d", (seen,))


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"epoch": -1},
        {"loads": [{"service": "a", "outstanding": -1}]},
        {"loads": [{"service": "a", "latency_p50_s": float("nan")}]},
        {"loads": [{"service": "a", "backends": [{"name": "b"}]}]},
        {"problem": "x" * 1_025},
    ],
)
def test_a_report_that_cannot_be_meant_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        routes.ReportRequest.model_validate({"name": "f", "address": "a", "epoch": 1, "digest": "d"} | change)


def test_the_schema_of_a_service_has_the_fields_that_are_read() -> None:
    assert set(service_requests.ServiceRequest.model_fields) == {*SERVICE_FIELDS, *REPLICA_FIELDS, "files", "user"}
    for kind, rules in (
        (service_requests.ScalingFields, SCALING),
        (service_requests.RolloutFields, ROLLOUT),
        (service_requests.TrafficFields, TRAFFIC),
    ):
        assert list(kind.model_fields) == list(rules)


def test_every_attribute_of_the_model_can_be_said() -> None:
    for model, rules, elsewhere in (
        (service.Scaling, SCALING, {"replicas_min", "replicas_max"}),
        (service.Renewal, ROLLOUT, set()),
        (service.Traffic, TRAFFIC, set()),
    ):
        said = {rule.attribute for rule in rules.values()}
        assert said == {field.name for field in msgspec.structs.fields(model)} - elsewhere


@settings(max_examples=40)
@given(specs())
def test_the_schema_takes_what_clients_write(spec: service.ServiceSpec) -> None:
    service_requests.SetServiceRequest.model_validate({"service": document_of_service(spec)})
