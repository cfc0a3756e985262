"""By which address others reach a machine."""

from __future__ import annotations

import socket

import pytest

from corral.model.errors import InvalidField
from corral.runtime.machines import machine


class NoWay(socket.socket):
    """A socket of a machine without a route to anywhere."""

    def connect(self, address: object) -> None:
        raise OSError(101, f"Network is unreachable: {address}")


@pytest.mark.parametrize(
    "found, expected",
    [((), "127.0.0.1"), (("10.0.0.1",), "10.0.0.1"), (("10.0.0.1", "10.1.0.1"), "127.0.0.1")],
)
def test_without_a_way_out_the_only_address_is_taken(
    monkeypatch: pytest.MonkeyPatch, found: tuple[str, ...], expected: str
) -> None:
    monkeypatch.setattr(socket, "socket", NoWay)
    monkeypatch.setattr(machine, "addresses", lambda: found)
    assert machine.own_address() == expected


def test_an_own_address_is_told_from_another() -> None:
    assert machine.is_own_address("127.0.0.1")
    assert machine.is_own_address("localhost")
    assert not machine.is_own_address("192.0.2.7")
    assert not machine.is_own_address("no.such.name.invalid")
    assert all(machine.is_own_address(address) for address in machine.addresses())
    assert not any(address.startswith("127.") for address in machine.addresses())


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_every_address_is_none(address: str) -> None:
    with pytest.raises(InvalidField, match="is no address of this machine"):
        machine.check_own_address(address)


@pytest.mark.parametrize("url, address, seen", [
    ("https://10.0.0.1:7420", "127.0.0.1", False),
    ("https://10.0.0.1:7420", "localhost", False),
    ("https://[2001:db8::1]:7420", "::1", False),
    ("https://10.0.0.1:7420", "10.0.0.2", True),
    # A head that only its own machine reaches.
    ("https://127.0.0.1:7420", "127.0.0.2", True),
    ("https://localhost:7420", "127.0.0.1", True),
])  # fmt: skip
def test_a_node_of_another_machines_head_is_not_on_loopback(url: str, address: str, seen: bool) -> None:
    if seen:
        machine.check_seen_from(url, address)
        return
    with pytest.raises(InvalidField, match=f"at {address} only this machine reaches itself, and the head is at"):
        machine.check_seen_from(url, address)
