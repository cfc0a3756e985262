"""Certificates that no pool could serve with are named before anything is started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from corral.model.errors import InvalidField
from corral.runtime.leading.announcing import certificate_of
from corral.runtime.machines.tls import check_certificate, covers, fingerprint, own_certificate
from tests.needs import program
from tests.unit.client.test_tls import made


def test_a_certificate_and_its_key_are_fine(tmp_path: Path) -> None:
    good = made(tmp_path, "good", "DNS:elsewhere.example")
    check_certificate(good.file, good.key)


def test_a_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    one, other = made(tmp_path, "one", "DNS:a.example"), made(tmp_path, "other", "DNS:a.example")
    with pytest.raises(InvalidField, match=r"--tls-key: .*other.key is not the key of .*one.pem"):
        check_certificate(one.file, other.key)


def test_a_certificate_that_has_expired_is_named(tmp_path: Path) -> None:
    good = made(tmp_path, "good", "DNS:a.example")
    past = ["-days", "0", "-set_serial", "1", "-signkey", str(good.key)]
    request = subprocess.run(
        [program("openssl"), "req", "-new", "-subj", "/CN=old", "-key", good.key], check=True, capture_output=True
    ).stdout
    old = subprocess.run(
        [program("openssl"), "x509", "-req", *past], input=request, check=True, capture_output=True
    ).stdout
    expired = tmp_path / "old.pem"
    expired.write_bytes(old)
    with pytest.raises(InvalidField, match=r"--tls-cert: .*old.pem: certificate has expired"):
        check_certificate(expired, good.key)


@pytest.mark.parametrize("text", ["", "garbage", "-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n"])
def test_files_that_hold_something_else_are_named(tmp_path: Path, text: str) -> None:
    good = made(tmp_path, "good", "DNS:a.example")
    (tmp_path / "bad").write_text(text)
    for certificate, key in ((tmp_path / "bad", good.key), (good.file, tmp_path / "bad"), (tmp_path / "no", good.key)):
        with pytest.raises(InvalidField, match="--tls-cert"):
            check_certificate(certificate, key)


def test_a_head_makes_its_certificate_once(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path / "tls", "10.0.0.1")
    check_certificate(certificate, key)
    assert key.stat().st_mode & 0o777 == 0o600
    before = certificate.read_bytes(), key.read_bytes()
    own_certificate(tmp_path / "tls", "10.0.0.1")
    assert (certificate.read_bytes(), key.read_bytes()) == before


@pytest.mark.parametrize("other", ["10.0.0.2", "head.example", "fd00::1"])
def test_a_head_at_another_address_gets_a_certificate_that_names_it_too(tmp_path: Path, other: str) -> None:
    certificate, key = own_certificate(tmp_path / "tls", "10.0.0.1")
    before = fingerprint(certificate.read_text()), key.read_bytes()
    assert not covers(certificate, key, other)
    own_certificate(tmp_path / "tls", other)
    assert fingerprint(certificate.read_text()) != before[0]
    assert key.read_bytes() == before[1]
    check_certificate(certificate, key)
    assert all(covers(certificate, key, name) for name in ("10.0.0.1", "localhost", other))


def test_a_damaged_certificate_of_its_own_is_made_anew(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path / "tls", "head.example")
    key.write_text("damaged")
    own_certificate(tmp_path / "tls", "head.example")
    check_certificate(certificate, key)


def test_a_fingerprint_is_what_openssl_says(tmp_path: Path) -> None:
    good = made(tmp_path, "good", "DNS:a.example")
    command = [program("openssl"), "x509", "-noout", "-fingerprint", "-sha256", "-in", str(good.file)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    expected = said.strip().partition("=")[2].replace(":", "").lower()
    assert fingerprint(f"{good.file.read_text()}\n{good.file.read_text()}") == expected


def test_a_key_that_stands_before_its_certificate_in_one_file_is_never_told(tmp_path: Path) -> None:
    good = made(tmp_path, "good", "DNS:a.example")
    both = tmp_path / "both.pem"
    both.write_text(good.key.read_text() + good.file.read_text())
    check_certificate(both, both)
    told = certificate_of(str(both))
    assert fingerprint(told) == fingerprint(good.file.read_text())
    assert "PRIVATE" not in told
    assert certificate_of(str(good.key)) == ""
