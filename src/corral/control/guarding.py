"""What front ends and replicas of a new service know each other by: a token, and for mutual TLS three certificates."""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from typing import TYPE_CHECKING

from corral.model.errors import DependencyMissing
from corral.model.service import Guard, Secrets, ServiceSpec

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

VALID_DAYS = 3650


def make_secrets(spec: ServiceSpec) -> Secrets:
    """Return secrets of a service's own. Raises ``DependencyMissing`` where certificates are needed and cannot be made.

    The certificates hold for ten years, as long as the service: a new one has others.
    """
    token = secrets.token_urlsafe(32)
    if spec.traffic.guard is not Guard.MTLS:
        return Secrets(token)
    try:
        return _with_certificates(token, spec.name)
    except ImportError:
        raise DependencyMissing(
            "cryptography is not installed, so no certificates can be made for guard mtls",
            hint="pip install 'corral[serve]' where the controller runs, or say guard: token",
        ) from None


def _with_certificates(token: str, name: str) -> Secrets:
    """Make an authority that vouches for two certificates and nothing else.

    A replica asks itself, too, when its agent probes it: its certificate serves as a client's as well.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority_key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(f"corral service {name}", f"corral service {name}", authority_key)
    authority = _signed(builder, authority_key, authority_key, is_authority=True)
    made = {}
    for part, usages in (
        ("replica", [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
        ("front-end", [ExtendedKeyUsageOID.CLIENT_AUTH]),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        known_as: list[x509.GeneralName] = [
            x509.DNSName(name),
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        builder = _builder(f"corral {part} of {name}", f"corral service {name}", key)
        builder = builder.add_extension(x509.SubjectAlternativeName(known_as), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        made[part] = _signed(builder, key, authority_key, is_authority=False)
    return Secrets(token, authority, made["replica"], made["front-end"])


def _builder(subject: str, issuer: str, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    from cryptography import x509

    # Machines of the pool may have a clock that is a little behind.
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text[:64])]) for text in (subject, issuer)]
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=VALID_DAYS))
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: EllipticCurvePrivateKey,
    authority: EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> str:
    """Return key and certificate as one PEM text (what RFC 5280 asks of each stands in it)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    own, issuer = (x509.SubjectKeyIdentifier.from_public_key(one.public_key()) for one in (key, authority))
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), True)
        .add_extension(usage, critical=True)
        .add_extension(own, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        .sign(authority, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return (secret + certificate.public_bytes(encoding)).decode()
