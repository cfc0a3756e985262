"""A pool that answers by TLS: on this machine with nothing to set, elsewhere with its certificate."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import UP, Corral
from tests.unit.client.test_tls import made


@pytest.fixture
def encrypted() -> Iterator[Corral]:
    """Give a pool whose certificate names another host than the address that it listens on."""
    directory = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))
    certificate = made(directory, "pool", "DNS:pool.example,IP:127.0.0.1")
    corral = Corral(directory)
    try:
        corral.ok(*UP, "--tls-cert", str(certificate.file), "--tls-key", str(certificate.key))
        yield corral
    finally:
        corral("down", "--force")
        shutil.rmtree(directory, ignore_errors=True)


def test_commands_reach_a_pool_with_a_certificate_of_its_own(encrypted: Corral) -> None:
    assert encrypted.ok("run", "--", "echo", "hello") == "hello\n"
    url = encrypted.json("status")["url"]
    assert url.startswith("https://127.0.0.1:")
    token = (encrypted.state_dir / "pool" / "token").read_text().strip()
    elsewhere = {"CORRAL_STATE_DIR": str(encrypted.home), "CORRAL_URL": url, "CORRAL_TOKEN": token}
    line = encrypted.refused("ps", code="USAGE", exit_code=2, **elsewhere)
    assert "not trusted: self-signed certificate" in line
    trusted = encrypted("ps", "--all", **elsewhere, CORRAL_CA_FILE=str(encrypted.state_dir / "pool.pem"))
    assert (trusted.code, "echo" in trusted.out) == (0, True), trusted.err
