"""A plain `corral head` comes up as it was started before, where its nodes look for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.model.errors import InvalidField
from corral.runtime.options import HeadAsked, HeadOptions
from corral.runtime.poolfile import PoolFile
from corral.runtime.starting import remembering
from corral.runtime.starting.remembering import as_last

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
