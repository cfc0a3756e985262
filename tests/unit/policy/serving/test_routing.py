"""What front ends are told of a service."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.model.service import Probe, ProbeKind, Probes, Secrets
from corral.model.tenant import Role, Token
from corral.policy.serving.routing import table_of
from corral.policy.serving.speeds import bandwidth_gb_s, weights
from tests.unit.control.serving import WEB, Serving, spec

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"


def test_front_ends_get_their_own_secrets_and_replicas_theirs() -> None:
    secrets = Secrets("token", KEY + CERTIFICATE, KEY + CERTIFICATE, "front")
    assert secrets.for_front_end() == Secrets("token", CERTIFICATE, "", "front")
    assert secrets.for_replica() == Secrets("token", CERTIFICATE, KEY + CERTIFICATE, "")


def test_keys_are_the_tokens_of_whoever_may_call() -> None:
    world = Serving(n1=1)
    tokens = world.core.book.state.tokens
    for i, role in enumerate(Role):
        tokens[str(i)] = Token(str(i), f"digest-{role}", spec().tenant, role, 0.0)
    # Without a service nobody needs to know who may call.
    assert table_of(world.core.book.state, 1).keys == {}
    world.serve(spec())
    assert sorted(table_of(world.core.book.state, 1).keys) == ["digest-admin", "digest-caller", "digest-user"]


def test_the_digest_names_the_content_and_not_who_tells_it() -> None:
    world = Serving(n1=2)
    world.serve(spec())
    first = table_of(world.core.book.state, 1)
    assert table_of(world.core.book.state, 2).digest == first.digest
    world.up()
    assert table_of(world.core.book.state, 1).digest != first.digest


def test_replicas_are_asked_by_the_path_that_all_of_them_have() -> None:
    world = Serving(n1=2)
    path = Probes(readiness=Probe(ProbeKind.HTTP, path="/ready"))
    world.serve(spec(probes=path))
    assert world.table().routes[0].health_path == "/ready"
    world.serve(spec(probes=Probes()))
    assert world.table().routes[0].health_path is None


def test_a_replica_that_moved_is_another_backend() -> None:
    world = Serving(n1=1, n2=1)
    world.serve(spec())
    world.up()
    assert [one.name for one in world.table().routes[0].backends] == ["r1-1"]
    [node] = world.placed_on("1")
    world.specs[node] = replace(world.specs[node], incarnation="boot-2")
    world.hello(world.specs[node])
    assert world.table().routes[0].backends == ()
    world.up()
    assert [one.name for one in world.table().routes[0].backends] == ["r1-2"]


def test_a_failed_service_says_why_it_does_not_serve() -> None:
    world = Serving(n1=1)
    world.serve(spec())
    world.begin()
    world.end("1", code=3)
    reason = world.table().routes[0].reason
    assert reason == "a replica is starting: rank 0 on n1 exited with code 3"
    world.begin()
    world.end("2", code=3)
    assert world.table().routes[0].reason == "no replica runs: rank 0 on n1 exited with code 3"
    assert world.service.name == WEB


@pytest.mark.parametrize(
    "model, expected",
    [
        ("NVIDIA H100 80GB HBM3", 3_350.0),
        ("NVIDIA H100 PCIe", 2_000.0),
        ("NVIDIA A100-SXM4-80GB", 2_039.0),
        ("NVIDIA A100-PCIE-40GB", 1_555.0),
        ("NVIDIA L40S", 864.0),
        ("NVIDIA L4", 300.0),
        ("NVIDIA GeForce RTX 4090", 1_008.0),
        ("Tesla T4", 320.0),
        ("something else", None),
    ],
)
def test_device_models_are_known_by_their_drivers_names(model: str, expected: float | None) -> None:
    assert bandwidth_gb_s(model) == expected


@pytest.mark.parametrize(
    "speeds, expected",
    [
        ({}, {}),
        ({"a": None, "b": None}, {"a": 100, "b": 100}),
        ({"a": 900.0, "b": 900.0}, {"a": 100, "b": 100}),
        ({"a": 3_350.0, "b": 900.0}, {"a": 256, "b": 69}),
        # One of unknown speed counts as their average, 2,000.
        ({"a": 3_000.0, "b": 1_000.0, "c": None}, {"a": 256, "b": 85, "c": 171}),
        ({"a": 100_000.0, "b": 1.0}, {"a": 256, "b": 1}),
    ],
)
def test_weights_are_in_proportion(speeds: dict[str, float | None], expected: dict[str, int]) -> None:
    assert weights(speeds) == expected
