"""Which pool a client talks to, and whose token it shows to whom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corral.client.discovery import STARTS, Address, Discovery, checked_url
from corral.model.errors import DaemonNotRunning, StateUnusable, Unauthenticated, UsageError
from tests.needs import not_root

URL = "http://127.0.0.1:7420"


def state(path: Path, url: str = URL, token: str | None = "local") -> Path:
    path.mkdir(exist_ok=True)
    (path / "daemon.json").write_text(json.dumps({"url": url, "pid": os.getpid(), "started_at": 1.0, "version": "1"}))
    if token is not None:
        (path / "token").write_text(f"{token}\n")
    return path


def test_a_state_directory_names_its_daemon_and_token(tmp_path: Path) -> None:
    assert Discovery(state_dir=state(tmp_path), environment={}).addresses() == (Address(URL, "local"),)


def test_the_environment_names_the_pool(tmp_path: Path) -> None:
    environment = {"CORRAL_URL": "http://there:1", "CORRAL_TOKEN": "mine"}
    assert Discovery(environment=environment).addresses() == (Address("http://there:1", "mine"),)
    environment = {"CORRAL_STATE_DIR": str(state(tmp_path))}
    assert Discovery(environment=environment).addresses() == (Address(URL, "local"),)


def test_what_is_said_wins_over_the_environment(tmp_path: Path) -> None:
    environment = {"CORRAL_URL": "http://there:1", "CORRAL_TOKEN": "mine", "CORRAL_STATE_DIR": "/nowhere"}
    assert Discovery("http://here:2", "other", environment=environment).addresses() == (
        Address("http://here:2", "other"),
    )
    assert Discovery(state_dir=state(tmp_path), environment=environment).addresses() == (Address(URL, "mine"),)


def test_without_anything_it_is_the_directory_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    state(tmp_path / ".corral")
    assert Discovery(environment={}).addresses() == (Address(URL, "local"),)


def test_the_local_token_is_shown_to_the_local_daemon_alone(tmp_path: Path) -> None:
    environment = {"CORRAL_STATE_DIR": str(state(tmp_path))}
    assert Discovery(URL, environment=environment).addresses() == (Address(URL, "local"),)
    with pytest.raises(Unauthenticated, match="set CORRAL_TOKEN"):
        Discovery("http://127.0.0.1:9999", environment=environment).addresses()
    with pytest.raises(Unauthenticated):
        Discovery("https://elsewhere", environment={"CORRAL_STATE_DIR": str(tmp_path / "none")}).addresses()


def test_where_no_daemon_was_started_the_error_says_how(tmp_path: Path) -> None:
    with pytest.raises(DaemonNotRunning, match=r"no pool runs on .* \(start one with `corral up`\)"):
        Discovery(state_dir=tmp_path / "none", environment={}).addresses()
    (tmp_path / "file").touch()
    with pytest.raises(DaemonNotRunning):
        Discovery(state_dir=tmp_path / "file", environment={}).addresses()


@pytest.mark.parametrize(
    "role, has_token, hint",
    [
        ("local", False, "start one with `corral up`"),
        ("head", False, "`corral head` starts it again"),
        ("node", True, "`corral join` starts it again"),
        # It has left: plain `corral join` would ask for a head and its token.
        ("node", False, "`corral token join` on a head prints the command that makes this machine a node"),
        ("front", False, "`corral frontend start` starts it again"),
        ("of a later release", False, "start one with `corral up`"),
    ],
)
def test_the_hint_names_the_command_that_starts_what_the_machine_was(
    tmp_path: Path, role: str, has_token: bool, hint: str
) -> None:
    (tmp_path / "pool.json").write_text(json.dumps({"role": role, "host": "127.0.0.1"}))
    if has_token:
        (tmp_path / "node-token").write_text("secret\n")
    with pytest.raises(DaemonNotRunning) as refused:
        Discovery(state_dir=tmp_path, environment={}).addresses()
    assert refused.value.refusal.hint == hint
    (tmp_path / "daemon.json").write_text("{")
    command = "corral up" if "corral up" in hint else STARTS[role]
    with pytest.raises(StateUnusable, match=f"then `{command}`"):
        Discovery(state_dir=tmp_path, environment={}).addresses()


def test_a_missing_token_and_a_damaged_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated, match="there is no token in"):
        Discovery(state_dir=state(tmp_path, token=None), environment={}).addresses()
    for damaged in (b"", b"{", b"[]", b'{"url": 5}', b"\xff"):
        (tmp_path / "daemon.json").write_bytes(damaged)
        with pytest.raises(StateUnusable, match="damaged"):
            Discovery(state_dir=tmp_path, environment={}).addresses()


def test_another_users_state_is_not_read(tmp_path: Path) -> None:
    not_root()
    state(tmp_path)
    (tmp_path / "token").chmod(0)
    with pytest.raises(StateUnusable, match="another user"):
        Discovery(state_dir=tmp_path, environment={}).addresses()


def test_a_daemon_may_return_while_its_supervisor_lives(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    state(tmp_path)
    (tmp_path / "daemon.json").write_text(json.dumps({"url": URL, "pid": ended.pid}))
    assert not Discovery(state_dir=tmp_path, environment={}).may_return()
    for text in (str(ended.pid), "x", "", "9" * 30, "99999999999"):
        (tmp_path / "supervisor.pid").write_text(text)
        assert not Discovery(state_dir=tmp_path, environment={}).may_return()
    (tmp_path / "supervisor.pid").write_text(f"{os.getpid()}\n")
    assert Discovery(state_dir=tmp_path, environment={}).may_return()
    assert Discovery(URL, "t", environment={}).may_return()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "https://pool.example", "http://[::1]:7420/", "http://h/prefix/"]
)
def test_an_address_is_http(url: str) -> None:
    assert checked_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://h", "http://", "http://h:port", "http://h:99999", "http://h/?a=1", "file:///etc"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        checked_url(url)


def test_a_pool_that_gave_up_says_why(tmp_path: Path) -> None:
    found = Discovery(state_dir=state(tmp_path), environment={})
    failure = tmp_path / "failure.json"
    failure.write_text(json.dumps({"code": "STORE_FULL", "message": "the disk is full", "fatal": True}).ljust(4096))
    assert str(found.not_running(URL)).startswith("the pool stopped: STORE_FULL: the disk is full (")
    (tmp_path / "daemon.json").unlink()
    with pytest.raises(DaemonNotRunning, match="the pool stopped: STORE_FULL"):
        found.addresses()
    for text in ('{"code": "UNAVAILABLE", "message": "not yet", "fatal": false}', "{", ""):
        failure.write_text(text)
        with pytest.raises(DaemonNotRunning, match="no pool runs on"):
            found.addresses()


def test_several_heads_are_given_in_one_text(tmp_path: Path) -> None:
    environment = {"CORRAL_URL": "https://a:7420, https://b:7420/,", "CORRAL_TOKEN": "mine"}
    wanted = (Address("https://a:7420", "mine"), Address("https://b:7420", "mine"))
    assert Discovery(environment=environment).addresses() == wanted
    for wrong in ("https://a:7420,b", ",", "https://a:7420;https://b"):
        with pytest.raises(UsageError):
            Discovery(wrong, "t", environment={})


def test_a_daemon_names_the_other_heads_and_their_certificates(tmp_path: Path) -> None:
    place = state(tmp_path, "https://a:1")
    said = json.loads((place / "daemon.json").read_text())
    heads = [{"url": "https://b:2", "tls_cert": "/tls/b.pem"}, {"url": "http://c:3", "tls_cert": None}]
    (place / "daemon.json").write_text(json.dumps({**said, "pid": 1 << 22, "tls_cert": "/tls/a.pem", "heads": heads}))
    found = Discovery(state_dir=place, environment={})
    assert [address.url for address in found.addresses()] == ["https://a:1", "https://b:2", "http://c:3"]
    assert {address.token for address in found.addresses()} == {"local"}
    assert [found.certificate(url) for url in ("https://a:1", "https://b:2", "http://c:3", "https://d:4")] == [
        "/tls/a.pem",
        "/tls/b.pem",
        None,
        None,
    ]
    assert found.may_return(), "this daemon is gone, but another head may answer"
