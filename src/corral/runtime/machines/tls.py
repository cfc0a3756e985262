"""The certificate of a pool: checked before a start, made where a head has none, known by its fingerprint."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from pathlib import Path

from corral.model.errors import DependencyMissing, InvalidField
from corral.runtime.wholefile import write_whole

VALID_DAYS = 3650

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def check_certificate(certificate: Path, key: Path) -> None:
    """Raise ``InvalidField`` where a client could not talk to a server that has these two PEM files.

    A server and a client, which believes this certificate alone, shake hands in memory: that finds what is damaged,
    what does not belong together, and what is not valid today.
    """
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server_side.load_cert_chain(certificate, key, password=_refuse_to_ask)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidField(f"{key} is not the key of {certificate}", field="--tls-key") from None
        raise InvalidField(
            f"{certificate} and {key} are not a certificate and its key (PEM)", field="--tls-cert"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidField(f"cannot use {certificate} and {key}: {reason.lower()}", field="--tls-cert") from None
    client_side = ssl.create_default_context(
        cadata=first_certificate(certificate.read_text(encoding="ascii", errors="replace"))
    )
    client_side.check_hostname = False
    client_side.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        _shake_hands(client_side, server_side)
    except ssl.SSLCertVerificationError as error:
        raise InvalidField(f"{certificate}: {error.verify_message}", field="--tls-cert") from None
    except ssl.SSLError as error:
        raise InvalidField(f"{certificate} cannot serve: {error.reason or error}", field="--tls-cert") from None


def _refuse_to_ask() -> str:
    raise ValueError("the key has a passphrase, and nobody is there to give it")


def _shake_hands(client_side: ssl.SSLContext, server_side: ssl.SSLContext, name: str | None = None) -> None:
    """Connect both ends over two buffers. Raises ``ssl.SSLError``."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    # Two flights each are all that TLS 1.2 and 1.3 take; the last one is for the client to read an alert.
    for end in (client, server, client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()


def covers(certificate: Path, key: Path, address: str) -> bool:
    """Return whether a client finds an address, or a name, among those of a certificate that is in order."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate, key)
    client_side = ssl.create_default_context(cadata=first_certificate(certificate.read_text()))
    try:
        _shake_hands(client_side, server_side, address)
    except ssl.SSLCertVerificationError:
        return False
    return True


def own_certificate(folder: Path, address: str) -> tuple[Path, Path]:
    """Return certificate and key of a head that was given none; made for ten years. Raises ``OSError``.

    Nobody vouches for it: machines know it by its fingerprint, which the join token carries. People's clients look for
    the address as well: where it is not in the certificate a new one is made, with the same key and all names so far.
    """
    certificate, key = folder / "cert.pem", folder / "key.pem"
    before: tuple[bytes, bytes] | None = None
    if certificate.exists() and key.exists():
        with contextlib.suppress(InvalidField):
            check_certificate(certificate, key)
            if covers(certificate, key, address):
                return certificate, key
            before = certificate.read_bytes(), key.read_bytes()
    folder.mkdir(mode=0o700, exist_ok=True)
    made, secret = _self_signed(address, before)
    write_whole(key, secret, mode=0o600)
    write_whole(certificate, made)
    return certificate, key


def certificate_in(folder: Path) -> str:
    """Return the certificate that a head made itself in ``folder``; empty where there is none. Raises ``OSError``."""
    place = folder / "cert.pem"
    return place.read_text() if place.exists() else ""


def _self_signed(address: str, before: tuple[bytes, bytes] | None) -> tuple[bytes, bytes]:
    """Return a new certificate and its key (PEM), with the key and the names of the one ``before``."""
    import datetime as dt
    import ipaddress

    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise DependencyMissing(
            "cryptography is not installed, so no certificate can be made",
            hint="pip install 'corral[ray]', or give --tls-cert and --tls-key",
        ) from None
    try:
        own: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        own = x509.DNSName(address)
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    key = ec.generate_private_key(ec.SECP256R1())
    if before is not None:
        known = x509.load_pem_x509_certificate(before[0]).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        names = list(known.value)
        kept = serialization.load_pem_private_key(before[1], password=None)
        key = kept if isinstance(kept, ec.EllipticCurvePrivateKey) else key
    names.append(own)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "corral head")])
    # Machines that join may have a clock that is a little behind.
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(encoding), secret


def first_certificate(pem: str) -> str:
    """Return the first certificate of a PEM text: the server's own. Raises ``ValueError``."""
    # A key may stand before it, which is to go nowhere.
    begin = pem.index(_BEGIN)
    return f"{pem[begin : pem.index(_END, begin)]}{_END}\n"


def fingerprint(pem: str) -> str:
    """Return the SHA-256 of a certificate (its DER form) in hex. Raises ``ValueError``."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first_certificate(pem))).hexdigest()
