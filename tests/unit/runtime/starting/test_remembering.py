"""A plain `corral head` comes up as it was started before, where its nodes look for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.devices.cpu import node_facts
from corral.model.errors import InvalidField
from corral.runtime.options import HeadAsked, HeadOptions, JoinOptions
from corral.runtime.poolfile import PoolFile
from corral.runtime.starting import remembering
from corral.runtime.starting.remembering import as_last, node_address, node_as_last

LAST = PoolFile(
    host="127.0.0.3",
    fork_socket="/run/fork.sock",
    agents={},
    role="head",
    bound_port=7600,
    address="127.0.0.3",
    ray_port_first=7700,
    store="postgresql://db/corral",
    tls_cert="/certs/a.pem",
    tls_key="/certs/a.key",
)


def test_what_is_not_given_is_as_at_the_last_start(tmp_path: Path) -> None:
    options, notes = as_last(HeadAsked(state_dir=tmp_path), LAST)
    assert (options.host, options.port, options.insecure) == ("127.0.0.3", 7600, False)
    assert (options.tls_cert, options.tls_key) == (Path("/certs/a.pem"), Path("/certs/a.key"))
    assert options.head == HeadOptions(
        address="127.0.0.3", node=None, ray_port_first=7700, store="postgresql://db/corral"
    )
    assert notes == ()
    # One that it made itself is looked at anew: it may have to be another.
    own = replace(LAST, tls_cert=str(tmp_path / "tls" / "cert.pem"), tls_key=str(tmp_path / "tls" / "key.pem"))
    assert as_last(HeadAsked(state_dir=tmp_path), own)[0].tls_cert is None


def test_what_is_given_goes_before_it(tmp_path: Path) -> None:
    asked = HeadAsked(state_dir=tmp_path, address="127.0.0.4", port=7601, node="n1", store="postgresql://b/c")
    options, _ = as_last(asked, LAST)
    assert (options.host, options.port) == ("127.0.0.4", 7601)
    assert options.head == HeadOptions(address="127.0.0.4", node="n1", ray_port_first=7700, store="postgresql://b/c")


def test_an_address_that_is_not_this_machines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidField, match=r"--address: 192.0.2.7 is no address of this machine"):
        as_last(HeadAsked(state_dir=tmp_path, address="192.0.2.7"), None)
    gone = PoolFile(host="192.0.2.7", fork_socket="", agents={}, role="head", address="192.0.2.7")
    with pytest.raises(InvalidField, match=r"the last start was at 192.0.2.7"):
        as_last(HeadAsked(state_dir=tmp_path), gone)


def test_a_head_that_only_its_own_machine_reaches_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering, "own_address", lambda: "127.0.0.1")
    monkeypatch.setattr(remembering, "addresses", lambda: ("10.0.0.1", "10.1.0.1"))
    _, (note,) = as_last(HeadAsked(state_dir=tmp_path), None)
    assert "only this machine can join" in note
    assert "(10.0.0.1, 10.1.0.1): --address" in note
    assert as_last(HeadAsked(state_dir=tmp_path, address="127.0.0.1"), None)[1] == ()


HEAD = "https://10.0.0.1:7420"
NODE = PoolFile(
    host="192.0.2.9", address="192.0.2.9", fork_socket="", agents={"n1": "x"}, role="node", simulated="h100",
    gpus_per_node=4, ray_port_first=7500,
)  # fmt: skip


def test_a_node_is_where_it_was_while_that_is_this_machine() -> None:
    there = replace(NODE, address="127.0.0.2", address_given=True)
    assert node_address(None, there, "https://127.0.0.1:7420") == ("127.0.0.2", True)
    assert node_address("127.0.0.3", there, "https://127.0.0.1:7420") == ("127.0.0.3", True)


def test_a_node_finds_an_address_anew_that_it_had_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering, "address_towards", {HEAD: "10.0.0.7"}.__getitem__)
    assert node_address(None, NODE, HEAD) == ("10.0.0.7", False)


@pytest.mark.parametrize("given, found", [(True, "10.0.0.7"), (False, "127.0.0.1")], ids=["given", "network down"])
def test_a_node_without_an_address_says_what_to_do(monkeypatch: pytest.MonkeyPatch, given: bool, found: str) -> None:
    monkeypatch.setattr(remembering, "address_towards", lambda _: found)
    with pytest.raises(InvalidField, match=r"the last start was at 192\.0\.2\.9, which is no address") as raised:
        node_address(None, replace(NODE, address_given=given), HEAD)
    assert "corral join --address ADDRESS" in (raised.value.refusal.hint or "")


def test_a_node_that_joins_anew_is_as_it_was_where_nothing_else_is_said() -> None:
    options = JoinOptions(state_dir=Path("x"), heads=("h",), token="t")
    kept = node_as_last(options, NODE)
    assert (kept.node, kept.simulated, kept.gpus_per_node, kept.ray_port_first) == ("n1", "h100", 4, 7500)
    # Its address is found as before, or stays the one that was named.
    assert kept.address is None
    assert node_as_last(options, replace(NODE, address="127.0.0.2", address_given=True)).address == "127.0.0.2"
    other = node_as_last(replace(options, node="n2", simulated="a100", ray_port_first=0), NODE)
    assert (other.node, other.simulated, other.gpus_per_node, other.ray_port_first) == ("n2", "a100", None, 0)
    # What a batch system gave are real devices.
    assert node_as_last(replace(options, devices=("0",)), NODE).simulated is None


def test_everything_that_is_remembered_can_be_taken_back(tmp_path: Path) -> None:
    without = replace(LAST, insecure=True, tls_cert=None, tls_key=None)
    asked = HeadAsked(state_dir=tmp_path)
    assert as_last(asked, without)[0].insecure
    secure = as_last(replace(asked, insecure=False), without)[0]
    assert (secure.insecure, secure.tls_cert) == (False, None), "one that the head makes itself"
    assert as_last(replace(asked, insecure=False), LAST)[0].tls_cert is None
    mine = replace(asked, insecure=False, tls_cert=Path("/b.pem"), tls_key=Path("/b.key"))
    assert (as_last(mine, without)[0].insecure, as_last(mine, without)[0].tls_cert) == (False, Path("/b.pem"))
    assert node_of(asked) is None
    assert node_of(replace(asked, no_node=False)) == node_facts().hostname
    assert node_of(replace(asked, no_node=False), replace(LAST, agents={"n7": "config"})) == "n7"
    assert node_of(replace(asked, no_node=True), replace(LAST, agents={"n7": "config"})) is None
    own = as_last(replace(asked, store="none"), LAST)[0].head
    assert own is not None
    assert own.store is None


def node_of(asked: HeadAsked, last: PoolFile = LAST) -> str | None:
    head = as_last(asked, last)[0].head
    assert head is not None
    return head.node
