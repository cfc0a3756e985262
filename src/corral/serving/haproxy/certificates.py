"""The certificate that a front end shows: checked before it is used, watched while it is."""

from __future__ import annotations

import datetime as dt

from corral.model.errors import CertificateInvalid, DependencyMissing
from corral.serving.haproxy.config import Tls

WARN_S = 14 * 86_400.0


def load(tls: Tls, now: float) -> tuple[bytes, float]:
    """Return certificate and key as HAProxy reads them, and when it expires (epoch seconds).

    ``now`` are epoch seconds. Raises ``CertificateInvalid`` for one that nobody would trust or that cannot serve.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise DependencyMissing(
            "cryptography is not installed, so no certificate can be used", hint="pip install 'corral[serve]'"
        ) from None
    try:
        chain, secret = tls.certificate.read_bytes(), tls.key.read_bytes()
    except OSError as error:
        raise CertificateInvalid(f"cannot read {error.filename}: {error.strerror or error}") from None
    try:
        certificate = x509.load_pem_x509_certificate(chain)
    except ValueError:
        raise CertificateInvalid(f"{tls.certificate} is not a certificate (PEM)") from None
    try:
        key = serialization.load_pem_private_key(secret, password=None)
    except (ValueError, TypeError):
        raise CertificateInvalid(f"{tls.key} is not a key (PEM) without a passphrase") from None
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise CertificateInvalid(f"{tls.key} is not the key of {tls.certificate}")
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if end.timestamp() <= now:
        raise CertificateInvalid(f"{tls.certificate} has expired: it was valid until {_day(end)}")
    if begin.timestamp() > now:
        raise CertificateInvalid(f"{tls.certificate} is not valid yet: it will be from {_day(begin)}")
    return chain.rstrip() + b"\n" + secret, end.timestamp()


def _day(when: dt.datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"


def expiry(tls: Tls, expires_at: float, now: float) -> str:
    """Return what people should know of a certificate that is in use; empty while there is time enough."""
    left_s = expires_at - now
    if left_s > WARN_S:
        return ""
    if left_s <= 0:
        return f"{tls.certificate} has expired: clients refuse it"
    return f"{tls.certificate} expires in {left_s / 86_400:.1f} days"
