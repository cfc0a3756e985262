"""Heads are known by their certificates, and what they refuse arrives as the error it is."""

from __future__ import annotations

import datetime as dt
import http.server
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from corral.model.errors import (
    CertificateMismatch,
    ClockSkew,
    CorralError,
    HeadUnreachable,
    InvalidField,
    NotLeader,
    VersionMismatch,
)
from corral.model.ids import NodeId
from corral.ports.membership import JoinAsk, Versions
from corral.runtime.machines.cluster import Head
from corral.runtime.machines.heads import address_of, head_of, join_at
from corral.runtime.machines.tls import fingerprint, own_certificate

ASK = JoinAsk(node=NodeId("n1"), machine="m", versions=Versions("1", "3.11.2", "2.60.0"), clock=5.0)
ANSWER = {"gcs": "10.0.0.1:7421", "ray_token": "r", "heads": [], "node_token": "t", "connected": False, "clock": 5.0}


class Speaker(http.server.BaseHTTPRequestHandler):
    """Answers every POST with what the class says, and keeps what was asked."""

    status: ClassVar[int] = 200
    document: ClassVar[dict[str, Any]] = ANSWER
    leader: ClassVar[str] = ""
    asked: ClassVar[list[tuple[str, str | None, Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, self.headers["Authorization"], json.loads(body or b"null")))
        data = json.dumps(self.document).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(data)))
        if self.leader:
            self.send_header("Location", f"{self.leader}{self.path}")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the library names it
        """Say nothing."""


class Listening:
    """A head as far as TLS and one answer go."""

    def __init__(self, folder: Path, made: tuple[Path, Path] | None = None) -> None:
        class Here(Speaker):
            asked: ClassVar[list[tuple[str, str | None, Any]]] = []

        self.kind = Here
        certificate, key = made or own_certificate(folder, "127.0.0.1")
        self.pem = certificate.read_text()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.kind)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.place = f"127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Listening]:
    listening = Listening(tmp_path / "tls")
    yield listening
    listening.close()


@pytest.mark.parametrize(
    "text, url",
    [
        ("10.0.0.1", "https://10.0.0.1:7420"),
        ("head.example:8000", "https://head.example:8000"),
        ("https://head.example:8000/", "https://head.example:8000"),
        ("[fd00::1]", "https://[fd00::1]:7420"),
    ],
)
def test_an_address_may_leave_out_the_port(text: str, url: str) -> None:
    assert address_of(text, tls=True) == url


@pytest.mark.parametrize("text", ["", ":7420", "a b", "host:x", "host:99999", "user@host", "host/path", "http://"])
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(InvalidField, match="HEAD"):
        address_of(text, tls=False)


def test_a_head_with_the_named_certificate_is_asked(head: Listening) -> None:
    found = head_of(head.place, ("0" * 64, fingerprint(head.pem)))
    assert found == Head(f"https://{head.place}", head.pem)
    before = time.time()
    joined = join_at(found, "secret", ASK)
    assert (joined.gcs, joined.node_token) == ("10.0.0.1:7421", "t")
    ((path, authorization, body),) = head.kind.asked
    assert (path, authorization) == ("/v1/join", "Bearer secret")
    # Not the clock of when it was made: a head that was asked before may have been waited for since.
    assert before <= body.pop("clock") <= time.time()
    assert body == {
        "node": "n1",
        "machine": "m",
        "versions": {"corral": "1", "python": "3.11.2", "ray": "2.60.0"},
        "incarnation": "",
        "address": "",
    }


def test_another_certificate_ends_it_before_the_token_is_sent(head: Listening, tmp_path: Path) -> None:
    with pytest.raises(CertificateMismatch, match="not the one that the join token names"):
        head_of(head.place, ("0" * 64,))
    other, _ = own_certificate(tmp_path / "other", "127.0.0.1")
    with pytest.raises(CertificateMismatch, match="another certificate than before"):
        join_at(Head(f"https://{head.place}", other.read_text()), "secret", ASK)
    assert head.kind.asked == []


def test_a_refusal_of_the_head_arrives_as_the_error_it_is(head: Listening) -> None:
    head.kind.status = 409
    head.kind.document = {"code": "VERSION_MISMATCH", "message": "this machine has Ray 1", "hint": "install Ray 2"}
    with pytest.raises(VersionMismatch, match="this machine has Ray 1"):
        join_at(Head(f"https://{head.place}", head.pem), "secret", ASK)


def test_a_head_that_stands_by_says_who_leads(head: Listening) -> None:
    head.kind.status, head.kind.leader = 503, "https://10.0.0.2:7420"
    head.kind.document = {"code": "NOT_LEADER", "message": "another controller leads the pool"}
    with pytest.raises(NotLeader) as caught:
        join_at(Head(f"https://{head.place}", head.pem), "secret", ASK)
    assert caught.value.leader == "https://10.0.0.2:7420"


def test_nobody_there_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(HeadUnreachable, match=f"no head answers at https://{place}: connection refused"):
            head_of(place, ("0" * 64,))
        with pytest.raises(HeadUnreachable, match=f"no head answers at http://{place}: connection refused"):
            join_at(head_of(place, ()), "secret", ASK)


def test_a_head_that_speaks_tls_gets_no_token_in_clear(head: Listening) -> None:
    with pytest.raises(InvalidField, match=f"the head at {head.place} speaks TLS: no token goes there in clear"):
        head_of(head.place, ())
    assert head.kind.asked == []


def test_a_head_without_tls_is_asked_in_clear() -> None:
    class Here(Speaker):
        asked: ClassVar[list[tuple[str, str | None, Any]]] = []

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Here) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        place = f"127.0.0.1:{server.server_address[1]}"
        assert head_of(place, ()) == Head(f"http://{place}")
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("begins, ends, kind, words", [
    (dt.timedelta(days=2), dt.timedelta(days=9), ClockSkew, r"the clock of this machine says .* is not valid yet"),
    (-dt.timedelta(days=9), -dt.timedelta(days=2), CertificateMismatch, r"has expired: the clock of this machine says"),
])  # fmt: skip
def test_a_certificate_whose_time_is_not_now_is_no_other_one(
    tmp_path: Path, begins: dt.timedelta, ends: dt.timedelta, kind: type[CorralError], words: str
) -> None:
    made = made_for(tmp_path / "tls", begins, ends)
    listening = Listening(tmp_path / "tls", made)
    try:
        with pytest.raises(kind, match=words):
            join_at(head_of(listening.place, (fingerprint(listening.pem),)), "s", ASK)
        assert listening.kind.asked == []
    finally:
        listening.close()


def made_for(folder: Path, begins: dt.timedelta, ends: dt.timedelta) -> tuple[Path, Path]:
    """Make a certificate of 127.0.0.1 that is valid from and to so long after now."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "head")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now + begins, now + ends)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir()
    files = folder / "cert.pem", folder / "key.pem"
    pem = serialization.Encoding.PEM
    files[0].write_bytes(certificate.public_bytes(pem))
    plain = serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return files
