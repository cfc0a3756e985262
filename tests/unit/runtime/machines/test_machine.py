"""By which address others reach a machine."""

from __future__ import annotations

import socket

import pytest

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
