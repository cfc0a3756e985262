"""Checks a certificate and its key before a pool is started with them."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

from corral.model.errors import InvalidField

_END = "-----END CERTIFICATE-----"


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
    first, end, _ = certificate.read_text(encoding="ascii", errors="replace").partition(_END)
    client_side = ssl.create_default_context(cadata=f"{first[first.index('-----BEGIN') :]}{end}\n")
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


def _shake_hands(client_side: ssl.SSLContext, server_side: ssl.SSLContext) -> None:
    """Connect both ends over two buffers. Raises ``ssl.SSLError``."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    # Two flights each are all that TLS 1.2 and 1.3 take; the last one is for the client to read an alert.
    for end in (client, server, client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
