"""What callers and replicas are shown: certificates, HTTP/2, and mutual TLS."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace

from corral.model.errors import CertificateInvalid
from corral.model.service import Guard
from corral.serving.haproxy import certificates
from corral.serving.haproxy.config import Tls
from tests import needs
from tests.unit.serving.haproxy.world import PLAIN, World, backend, becomes, in_world, route
from tests.unit.serving.relay.world import Replica, answers

DAY = dt.timedelta(days=1)
NOW = dt.datetime.now(dt.UTC)


class Authority:
    """Makes certificates; without one above it vouches for itself."""

    def __init__(self, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.certificate = self.sign(self.name, self.key, authority=True)

    def sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        authority: bool = False,
        begin: dt.datetime = NOW - DAY,
        end: dt.datetime = NOW + 365 * DAY,
    ) -> bytes:
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)

    def issue(
        self, name: str, begin: dt.datetime = NOW - DAY, end: dt.datetime = NOW + 365 * DAY
    ) -> tuple[bytes, bytes]:
        """Return a new certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        return self.sign(subject, key, begin=begin, end=end), secret(key)


def secret(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, *form)


AUTHORITY = Authority("test authority")


def files(folder: Path, pair: tuple[bytes, bytes]) -> Tls:
    folder.mkdir(exist_ok=True)
    tls = Tls(folder / "cert.pem", folder / "key.pem")
    tls.certificate.write_bytes(pair[0])
    tls.key.write_bytes(pair[1])
    return tls


def shown(port: int) -> tuple[str | None, int]:
    """Return protocol and serial number that a caller gets who trusts the test authority alone."""
    pem = ssl.get_server_certificate(("127.0.0.1", port))
    context = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
    context.set_alpn_protocols(["h2", "http/1.1"])
    import socket

    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as safe,
    ):
        return safe.selected_alpn_protocol(), x509.load_pem_x509_certificate(pem.encode()).serial_number


def test_tls_http2_and_a_renewed_certificate(tmp_path: Path) -> None:
    curl = needs.program("curl")
    first, second = AUTHORITY.issue("localhost"), AUTHORITY.issue("localhost", end=NOW + 3 * DAY)
    tls = files(tmp_path / "tls", first)
    authority = tmp_path / "authority.pem"
    authority.write_bytes(AUTHORITY.certificate)

    async def fetched(world: World, *flags: str) -> str:
        url = f"https://localhost:{world.config.port}/shop/"
        command = [curl, "-sS", "--cacert", str(authority), *flags, "-w", " %{http_version} %{http_code}", url]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout

    @in_world(tls=tls)
    async def test(world: World) -> None:
        one = await world.replica("r1", answers("one"))
        await world.serve(one)
        protocol, serial = await asyncio.to_thread(shown, world.config.port)
        assert (protocol, serial) == ("h2", x509.load_pem_x509_certificate(first[0]).serial_number)
        assert await fetched(world, "--http2") == "one 2 200"
        assert await fetched(world, "--http1.1") == "one 1.1 200"
        assert one.heard[0].headers["x-forwarded-proto"] == "https"
        # A bad one is said, and the one that is there stays.
        files(tmp_path / "tls", (second[0], first[1]))
        await becomes(lambda: "CERTIFICATE_INVALID" in world.driver.problem, "the mismatch to be said")
        assert await fetched(world) == "one 2 200"
        files(tmp_path / "tls", second)

        async def renewed() -> bool:
            _, serial = await asyncio.to_thread(shown, world.config.port)
            return serial == x509.load_pem_x509_certificate(second[0]).serial_number

        await becomes(renewed, "the new certificate")
        await becomes(lambda: "expires in 3.0 days" in world.driver.problem, "its end to be said")

    test()


def test_http2_without_tls() -> None:
    curl = needs.program("curl")

    @in_world()
    async def test(world: World) -> None:
        one = await world.replica("r1", answers("one"))
        await world.serve(one)
        url = f"http://127.0.0.1:{world.config.port}/shop/"
        command = [curl, "-sS", "--http2-prior-knowledge", "-w", " %{http_version}", url]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True, timeout=20)
        assert done.stdout == "one 2"

    test()


@pytest.mark.parametrize(
    "pair, why",
    [
        (AUTHORITY.issue("x", begin=NOW - 9 * DAY, end=NOW - DAY), "has expired"),
        (AUTHORITY.issue("x", begin=NOW + DAY, end=NOW + 9 * DAY), "is not valid yet"),
        ((AUTHORITY.issue("x")[0], AUTHORITY.issue("x")[1]), "is not the key of"),
        ((b"nonsense", AUTHORITY.issue("x")[1]), "is not a certificate"),
        ((AUTHORITY.issue("x")[0], b"nonsense"), "is not a key"),
    ],
)
def test_a_certificate_that_nobody_would_trust_is_refused(tmp_path: Path, pair: tuple[bytes, bytes], why: str) -> None:
    tls = files(tmp_path, pair)
    with pytest.raises(CertificateInvalid, match=why):
        certificates.load(tls, NOW.timestamp())

    @in_world(tls=tls)
    async def test(world: World) -> None:
        raise AssertionError("it has started")

    with pytest.raises(CertificateInvalid, match=why):
        test()


def test_a_certificate_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CertificateInvalid, match="cannot read"):
        certificates.load(Tls(tmp_path / "none", tmp_path / "none"), 0.0)


def test_the_end_of_a_certificate_is_said_in_time(tmp_path: Path) -> None:
    tls = Tls(tmp_path / "c", tmp_path / "k")
    assert certificates.expiry(tls, 15 * 86_400.0, 0.0) == ""
    assert certificates.expiry(tls, 1.5 * 86_400.0, 0.0).endswith("expires in 1.5 days")
    assert certificates.expiry(tls, 1.0, 2.0).endswith("has expired: clients refuse it")


class SafeReplica(Replica):
    """A replica that lets in who has a certificate of its authority."""

    context: ssl.SSLContext

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0, ssl=self.context)
        self.port = self._server.sockets[0].getsockname()[1]


@in_world()
async def test_replicas_that_ask_for_a_certificate_get_one_and_others_are_not_believed(world: World) -> None:
    authority, foreign = Authority("shop"), Authority("somebody else")
    replicas = []
    for name, whose in (("r1", authority), ("r2", authority), ("r3", foreign)):
        replica = SafeReplica(name, answers(name))
        replica.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls = files(world.folder / name, whose.issue(name))
        replica.context.load_cert_chain(tls.certificate, tls.key)
        replica.context.verify_mode = ssl.CERT_REQUIRED
        replica.context.load_verify_locations(cadata=authority.certificate.decode())
        await replica.start()
        world.replicas.append(replica)
        replicas.append(replica)
    traffic = replace(PLAIN, guard=Guard.MTLS)
    secrets = replace(
        route().secrets,
        authority_pem=authority.certificate.decode(),
        front_end_pem=b"".join(authority.issue("front end")).decode(),
    )
    first = route(traffic=traffic, backends=(backend(replicas[0]),))
    await world.tell(replace(first, secrets=secrets))
    assert (await world.call()).body == b"r1"
    before = world.driver._running.worker
    await world.tell(replace(first, secrets=secrets, backends=tuple(backend(one) for one in replicas)))
    assert world.driver._running.worker == before, "it is added to the running proxy"
    await becomes(lambda: world.up("r1", "r2"), "the foreign one to be taken out")
    assert {(await world.call()).body for _ in range(8)} == {b"r1", b"r2"}
    assert world.driver.problem == ""


@in_world()
async def test_the_first_replica_that_asks_for_a_certificate_may_come_later(world: World) -> None:
    authority = Authority("shop")
    replica = SafeReplica("r1", answers("r1"))
    replica.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls = files(world.folder / "r1", authority.issue("r1"))
    replica.context.load_cert_chain(tls.certificate, tls.key)
    await replica.start()
    world.replicas.append(replica)
    secrets = replace(
        route().secrets,
        authority_pem=authority.certificate.decode(),
        front_end_pem=b"".join(authority.issue("front end")).decode(),
    )
    first = replace(route(traffic=replace(PLAIN, guard=Guard.MTLS)), secrets=secrets)
    await world.tell(first)
    await world.tell(replace(first, backends=(backend(replica),)))
    assert world.driver.problem == ""
    assert (await world.call()).body == b"r1"
