"""Certificates: of an own authority, of the pool of this machine, and those that are not trusted."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import uvicorn

from corral.api.app import create_app
from corral.client import Client
from corral.model.errors import UsageError
from tests.needs import program
from tests.unit.api.memory_pool import ADMIN, MemoryPool
from tests.unit.client.test_calls import free_port
from tests.waiting import wait_until


class Certificate(NamedTuple):
    key: Path
    file: Path


def made(directory: Path, name: str, names: str) -> Certificate:
    """Return a certificate that signs itself, for the alternative names ``names``."""
    key, file = directory / f"{name}.key", directory / f"{name}.pem"
    subprocess.run(
        [program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}", "-keyout", key, "-out", file],
        check=True, capture_output=True,
    )  # fmt: skip
    return Certificate(key, file)


@contextmanager
def serving(certificate: Certificate) -> Iterator[str]:
    """Serve a pool in memory with TLS; give its URL."""
    config = uvicorn.Config(
        create_app(MemoryPool(), version="1"),
        port=free_port(),
        log_level="critical",
        lifespan="off",
        ssl_keyfile=certificate.key,
        ssl_certfile=certificate.file,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, what="the server")
        yield f"https://127.0.0.1:{config.port}"
    finally:
        server.should_exit = True
        thread.join(20)


def state(directory: Path, url: str, certificate: Path) -> Path:
    """Write what the daemon of a state directory says of itself."""
    directory.mkdir()
    (directory / "token").write_text(ADMIN)
    document = {"url": url, "pid": os.getpid(), "tls_cert": str(certificate)}
    (directory / "daemon.json").write_text(json.dumps(document))
    return directory


def test_a_certificate_of_an_own_authority_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = made(tmp_path, "pool", "IP:127.0.0.1")
    with serving(certificate) as url:
        with Client(url, ADMIN, ca_file=certificate.file) as client:
            assert client.submit(run="x").id == "1"
        with Client(url, ADMIN) as client, pytest.raises(UsageError, match=r"not trusted.*CORRAL_CA_FILE"):
            client.status()
        monkeypatch.setenv("CORRAL_CA_FILE", str(certificate.file))
        with Client(url, ADMIN) as client:
            assert client.summary("1").id == "1"


def test_the_name_in_a_certificate_is_checked(tmp_path: Path) -> None:
    certificate = made(tmp_path, "pool", "DNS:pool.example")
    with (
        serving(certificate) as url,
        Client(url, ADMIN, ca_file=certificate.file) as client,
        pytest.raises(UsageError, match="not trusted: IP address mismatch"),
    ):
        client.status()


def test_the_pool_of_this_machine_is_known_by_its_certificate_alone(tmp_path: Path) -> None:
    """It may bear any name: the pool listens on an address, its certificate names a host."""
    own, other = made(tmp_path, "own", "DNS:pool.example"), made(tmp_path, "other", "IP:127.0.0.1")
    with serving(own) as url, Client(state_dir=state(tmp_path / "a", url, own.file)) as client:
        assert client.submit(run="x").id == "1"
    with (
        serving(other) as url,
        Client(state_dir=state(tmp_path / "b", url, own.file)) as client,
        pytest.raises(UsageError, match="not trusted"),
    ):
        client.status()


def test_the_first_certificate_of_a_chain_is_the_pools(tmp_path: Path) -> None:
    own, authority = made(tmp_path, "own", "DNS:pool.example"), made(tmp_path, "authority", "IP:127.0.0.1")
    chain = tmp_path / "chain.pem"
    chain.write_text(own.key.read_text() + own.file.read_text() + authority.file.read_text())
    with serving(own) as url, Client(state_dir=state(tmp_path / "a", url, chain)) as client:
        assert client.submit(run="x").id == "1"
    with (
        serving(authority) as url,
        Client(state_dir=state(tmp_path / "b", url, chain)) as client,
        pytest.raises(UsageError, match="not trusted"),
    ):
        client.status()


def test_a_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    certificate = made(tmp_path, "pool", "IP:127.0.0.1")
    empty = tmp_path / "empty.pem"
    empty.touch()
    with serving(certificate) as url:
        for file in (empty, certificate.key, tmp_path / "none.pem"):
            with Client(url, ADMIN, ca_file=file) as client, pytest.raises(UsageError, match="holds no certificate"):
                client.status()
        with (
            Client(state_dir=state(tmp_path / "a", url, empty)) as client,
            pytest.raises(UsageError, match=r"empty.pem holds no certificate"),
        ):
            client.status()


def test_an_address_that_a_certificate_does_not_name_is_told_from_one_nobody_trusts(tmp_path: Path) -> None:
    elsewhere = made(tmp_path, "elsewhere", "IP:127.0.0.9")
    with serving(elsewhere) as url, Client(url, ADMIN, ca_file=elsewhere.file) as client:
        with pytest.raises(UsageError, match="mismatch") as caught:
            client.status()
        assert "--address" in (caught.value.refusal.hint or "")
