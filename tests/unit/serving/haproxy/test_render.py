"""The configuration as text. ``UPDATE_GOLDEN=1`` writes the golden file anew: read the difference before it is kept."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.model.errors import InvalidField
from corral.model.ids import JobId, ServiceName, TenantId
from corral.model.routes import Backend, Route, RoutingTable
from corral.model.service import Balance, Guard, Retry, Secrets, Traffic
from corral.serving.haproxy.config import ProxyConfig
from corral.serving.haproxy.render import Desired, check_words, render
from corral.serving.haproxy.servers import servers_of, weights_of
from corral.serving.haproxy.template import literal, milliseconds, quoted
from tests.unit.serving.haproxy.world import PLAIN, route

GOLDEN = Path(__file__).with_name("golden.cfg")
FOLDER = Path("/run/corral/front")
CONFIG = ProxyConfig(FOLDER, relay=FOLDER / "relay.sock", access_log=FOLDER / "log.sock", threads=2)


def backends(*revisions: int, draining: tuple[int, ...] = (), weights: tuple[int, ...] = ()) -> tuple[Backend, ...]:
    return tuple(
        Backend(
            f"r{number}-1",
            JobId(str(number)),
            1,
            revision,
            f"10.0.0.{number}",
            20_000 + number,
            draining=number in draining,
            weight=weights[number] if weights else 100,
        )
        for number, revision in enumerate(revisions)
    )


def many() -> tuple[Route, ...]:
    limited = Traffic(requests_s_max=20.0, outstanding_max=4, hosts=("shop.example.org",), listen=9000)
    hashed = replace(PLAIN, balance=Balance.CONSISTENT_HASH, hash_header="X-Session", retry=Retry.NEVER)
    return (
        route("shop", limited, backends=backends(1, 1, draining=(1,)), health_path="/health"),
        route("chat", replace(Traffic(), stream=True), backends=backends(1), model="org/chat-1"),
        route("safe", replace(hashed, guard=Guard.MTLS), backends=backends(1)),
        route("rest", reason="it is at rest: nobody asked for it lately"),
    )


def test_the_configuration_is_as_it_was_read_last() -> None:
    table = RoutingTable(1, "d", many(), {"ab" * 32: TenantId("acme")})
    rendered = render(CONFIG, Desired(table, {ServiceName("shop"): {"r0-1"}}))
    assert rendered.problems == ()
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(rendered.configuration)
    assert rendered.configuration == GOLDEN.read_text()
    lines = rendered.configuration.splitlines()
    assert len(rendered.lines) == len(lines)
    about = {name: [line for line, whose in zip(lines, rendered.lines, strict=True) if whose == name] for name in "s "}
    assert about == {"s": [], " ": []}
    assert [whose for line, whose in zip(lines, rendered.lines, strict=True) if "server r0-1 10" in line] == [
        "chat",
        "safe",
        "shop",
    ]
    assert rendered.lines[lines.index("global")] == ""


def test_only_what_a_running_process_cannot_be_told_asks_for_another_one() -> None:
    table = RoutingTable(1, "d", many())
    digest = render(CONFIG, Desired(table)).digest
    shop, *others = many()
    for same in (
        replace(table, routes=tuple(reversed(table.routes))),
        replace(table, keys={"cd" * 32: TenantId("b")}, epoch=7, digest="x"),
        replace(table, routes=(replace(shop, backends=backends(1, 1, 1)), *others)),
        replace(table, routes=(replace(shop, backends=backends(1, 1, draining=(0, 1))), *others)),
        replace(table, routes=(replace(shop, reason="gone"), *others)),
    ):
        assert render(CONFIG, Desired(same)).digest == digest
    assert render(CONFIG, Desired(table, {shop.service: {"r0-1"}}, frozenset({shop.service}))).digest == digest
    for other in (
        replace(table, routes=tuple(others)),
        replace(table, routes=(replace(shop, traffic=replace(shop.traffic, idle_s=7.0)), *others)),
        replace(table, routes=(replace(shop, traffic=replace(shop.traffic, hosts=("a", "b"))), *others)),
        replace(table, routes=(replace(shop, secrets=Secrets("new")), *others)),
        replace(table, routes=(replace(shop, model="m"), *others)),
        replace(table, routes=(replace(shop, shares={1: 50, 2: 50}), *others)),
    ):
        assert render(CONFIG, Desired(other)).digest != digest
    assert render(replace(CONFIG, port=80), Desired(table)).digest != digest
    assert render(CONFIG, Desired(table, certificate=b"new")).digest != digest


def test_names_that_two_want_go_to_the_first_and_are_said() -> None:
    same = replace(PLAIN, hosts=("One.example", "a b"), listen=9000)
    routes = (route("b", same, model="m"), route("a", same, model="m"), route("c", model="# m"))
    rendered = render(CONFIG, Desired(RoutingTable(1, "d", routes)))
    said = "\n".join(rendered.problems)
    for problem in ("b: model m is that of a", "b: host One.example is that of a", "a: 'a b' is not", "c: '# m' does"):
        assert problem in said
    files = {name.split("-")[0]: content for name, content in rendered.files.items() if name.endswith(".map")}
    assert (files["ports"], files["hosts"], files["models"]) == (b"9000 a\n", b"one.example a\n", b"m a\n")
    assert rendered.ports == (9000,)
    models = json.loads(next(content for name, content in rendered.files.items() if name.endswith(".json")))
    assert [model["id"] for model in models["data"]] == ["m", "m", "# m"]


@pytest.mark.parametrize(
    "shares, revisions, draining, expected",
    [
        ({}, (1, 1), (), [100, 100]),
        ({1: 90, 2: 10}, (1, 1, 1, 2), (), [256, 256, 256, 85]),
        ({1: 50, 2: 50}, (1, 1, 1, 2), (), [85, 85, 85, 256]),
        ({1: 99, 2: 1}, (1, 2, 2, 2), (), [256, 1, 1, 1]),
        ({1: 90, 2: 10}, (1, 1, 2), (0,), [256, 256, 28]),
        ({1: 100, 2: 0}, (1, 2), (), [256, 0]),
        ({1: 90, 2: 10}, (1, 1), (), [256, 256]),
        ({3: 100}, (1, 1), (), [100, 100]),
    ],
)
def test_weights_give_each_revision_its_share(
    shares: dict[int, int], revisions: tuple[int, ...], draining: tuple[int, ...], expected: list[int]
) -> None:
    told = route(backends=backends(*revisions, draining=draining), shares=shares)
    assert list(weights_of(told).values()) == expected


def test_weights_of_devices_count_where_they_are_asked_for() -> None:
    told = route(backends=backends(1, 1, 1, weights=(300, 50, 0)))
    assert list(weights_of(told).values()) == [100, 100, 100]
    weighted = replace(told, traffic=replace(PLAIN, balance=Balance.WEIGHTED))
    assert list(weights_of(weighted).values()) == [256, 50, 1]


def test_who_drains_or_is_ejected_gets_nothing() -> None:
    told = route(backends=(*backends(1, 1, 1, draining=(1,)), replace(backends(1)[0], name="h", address="host")))
    servers = servers_of(told, {"r2-1"}, {}, {})
    assert [(server.name, server.weight) for server in servers] == [("r0-1", 100), ("r1-1", 0), ("r2-1", 0)]
    found = servers_of(told, (), {}, {"host": "2001:DB8:0::0:1"})[-1]
    assert found.words.startswith("[2001:db8::1]:20000 weight 100 id ")


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1))
def test_what_is_quoted_is_one_word_and_means_itself(text: str) -> None:
    # HAProxy's strong quotes are those of the shell (configuration manual, 2.2).
    assert shlex.split(quoted(text)) == [text]
    assert re.sub("%%", "%", shlex.split(literal(text))[0]) == text


@pytest.mark.parametrize("text", ["a\nb", "a\x00", "\t", "\x7f"])
def test_what_no_line_can_hold_is_refused(text: str) -> None:
    with pytest.raises(InvalidField):
        quoted(text)


@pytest.mark.parametrize("word", ["", "a b", "a;b", "a'b", "a\\b", "a\nb"])
def test_what_is_not_one_word_is_no_word(word: str) -> None:
    with pytest.raises(InvalidField):
        check_words("good", word)


@pytest.mark.parametrize("seconds, text", [(0.2, "200ms"), (60, "60000ms"), (0, "1ms")])
def test_times_are_written_in_milliseconds(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text
