"""Services in the core: what people ask, replicas that start, what front ends are told."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from corral.control.inputs import Serve
from corral.model.ask import JobAsk
from corral.model.errors import Refusal
from corral.model.events import RolloutEnded, ServiceScaled, ServiceSet
from corral.model.ids import ServiceName, TenantId
from corral.model.service import ReplicaPhase, Secrets, Traffic
from tests.unit.control.serving import WEB, Serving, spec


def test_a_service_starts_its_replicas_and_routes_to_those_that_were_ready() -> None:
    world = Serving(n1=2, n2=2)
    assert world.serve(spec(replicas=(2, 3))) is None
    assert world.phases() == [ReplicaPhase.STARTING] * 2
    world.begin()
    assert world.table().routes[0].backends == ()
    assert world.table().routes[0].reason == "2 replicas are starting"
    world.readiness(j2=False)
    assert world.phases() == [ReplicaPhase.SERVING, ReplicaPhase.STARTING]
    [backend] = world.table().routes[0].backends
    placed = world.job("1").gangs[0].placements[0]
    assert (backend.name, backend.address, backend.port) == ("r1-1", "127.0.0.1", placed.port)
    world.readiness()
    assert [one.name for one in world.table().routes[0].backends] == ["r1-1", "r2-1"]
    assert world.table().routes[0].reason == ""


def test_the_same_spec_again_changes_nothing_and_another_one_is_the_next_revision() -> None:
    world = Serving(n1=4)
    world.serve(spec())
    before = len(world.journal)
    assert world.serve(spec()) is None
    assert len(world.journal) == before
    assert world.serve(spec(argv="other")) is None
    assert world.service.newest.number == 2
    assert world.service.rollout is not None


@pytest.mark.parametrize(
    "changes, code, field",
    [
        ({"replicas": (3, 2)}, "INVALID_FIELD", "replicas"),
        ({"replicas": (0, 0)}, "INVALID_FIELD", "replicas"),
        ({"port": 20_500}, "INVALID_FIELD", "port"),
        ({"tenant": TenantId("who")}, "NOT_FOUND", "tenant"),
        ({"replica": JobAsk(argv=("x",), num_nodes=2)}, "INVALID_FIELD", "num_nodes"),
        ({"replica": JobAsk(argv=("x",), gpu_milli=9_000)}, "UNSCHEDULABLE", "resources.accelerators"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], code: str, field: str) -> None:
    world = Serving(n1=4)
    tenant = changes.pop("tenant", None)
    wanted = spec(**changes)
    refusal = world.serve(wanted if tenant is None else replace(wanted, tenant=tenant))
    assert refusal is not None
    assert (refusal.code, refusal.field) == (code, field)
    assert not world.core.book.state.services


def test_acts_on_what_is_not_there_are_refused() -> None:
    world = Serving(n1=4)
    missing = world.tell(Serve(ServiceScaled(at=0.0, service=WEB, replicas=2, by="me")))
    assert getattr(missing, "code", None) == "NOT_FOUND"
    world.serve(spec())
    undo = world.tell(Serve(RolloutEnded(at=0.0, service=WEB, revision=1, undone=True, by="me")))
    assert getattr(undo, "code", None) == "CONFLICT"


def test_the_table_is_told_once_for_each_change() -> None:
    world = Serving(n1=4)
    assert world.core.services.table() is None
    world.serve(spec())
    told = world.table().digest
    world.up()
    assert world.table().digest != told
    assert world.core.services.table() is None


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"model": "llama"}, "model"),
        ({"traffic": Traffic(listen=8080)}, "listen"),
        ({"traffic": Traffic(hosts=("shop.example",))}, "hosts"),
        ({"traffic": Traffic(hosts=("web.example",))}, "hosts"),
        ({"traffic": Traffic(hosts=("WEB",))}, "hosts"),
        ({"name": "shop"}, "name"),
    ],
)
def test_no_two_services_are_called_by_the_same_name(changes: dict[str, Any], field: str) -> None:
    world = Serving(n1=4)
    world.serve(spec(model="llama", traffic=Traffic(listen=8080, hosts=("shop.example",))))
    # The same service may go on being called so.
    assert world.serve(spec(model="llama", argv="next", traffic=Traffic(listen=8080, hosts=("shop.example",)))) is None
    name = ServiceName(changes.pop("name", "other"))
    other = replace(spec(**changes), name=name)
    fact = ServiceSet(at=0.0, service=name, spec=other, revision=0, by="me", secrets=Secrets("s"))
    refusal = world.tell(Serve(fact))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.field) == ("DUPLICATE_NAME", field)


@pytest.mark.parametrize("port", [22, 443, 7420, 7480, 20_000, 29_999])
def test_no_service_listens_where_a_head_or_the_pool_does(port: int) -> None:
    refused = Serving(n1=4).serve(spec(traffic=Traffic(listen=port)))
    assert (getattr(refused, "code", None), getattr(refused, "field", None)) == ("INVALID_FIELD", "listen")
