"""The join token as people carry it: a secret, and the fingerprints of the heads' certificates.

``corral_join_SECRET.FINGERPRINT[.FINGERPRINT ...]``; without a fingerprint the head is spoken to without TLS,
where that is asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from corral.model.errors import InvalidField, MissingField
from corral.runtime.wholefile import write_whole

VARIABLE = "CORRAL_JOIN_TOKEN"
_SECRET = re.compile(r"corral_[A-Za-z0-9_-]{20,100}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class JoinToken(msgspec.Struct, frozen=True):
    """A secret for ``POST /v1/join`` and the fingerprints (SHA-256, hex) of the certificates that may answer."""

    secret: str
    fingerprints: tuple[str, ...]

    def text(self) -> str:
        """Return it as one word."""
        return ".".join((self.secret, *self.fingerprints))


def join_line(token: JoinToken, urls: Sequence[str]) -> str:
    """Return the command with which a machine joins the pool of these heads. It holds a secret."""
    places = ",".join(url.partition("://")[2] for url in urls)
    return f"{VARIABLE}={token.text()} corral join {places}{'' if token.fingerprints else ' --insecure'}"


def parse_join_token(text: str, *, insecure: bool = False) -> JoinToken:
    """Return the token that a text is. Raises ``InvalidField``; the message never holds the text.

    Without a fingerprint the token would go to whoever answers, in clear: only with ``insecure``.
    """
    secret, *fingerprints = text.strip().split(".")
    if not _SECRET.fullmatch(secret) or not all(_FINGERPRINT.fullmatch(one) for one in fingerprints):
        raise InvalidField(
            "the join token is damaged: it is one word, corral_join_..., as `corral head` printed it",
            hint="`corral token join` on the head prints it again",
        )
    if not fingerprints and not insecure:
        raise InvalidField(
            "the join token names no certificate: everybody on the way could read it, and with it become a node",
            hint="take the whole one from `corral token join` on the head; "
            "where that head runs without TLS, `corral join --insecure`",
        )
    return JoinToken(secret, tuple(fingerprints))


def secret_in(place: Path) -> str:
    """Return the secret in the file of a token, without what may follow it. Raises ``OSError``."""
    return place.read_text().strip().partition(".")[0]


def write_join_token(place: Path, token: JoinToken) -> None:
    """Write the whole token, with its fingerprints: people copy the file to other machines. Raises ``OSError``."""
    text = f"{token.text()}\n"
    if not place.exists() or place.read_text() != text:
        write_whole(place, text.encode(), mode=0o600)


def find_join_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the text of the join token from a file, else from the environment. Raises ``MissingField``."""
    if file is not None:
        try:
            return file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise InvalidField(f"cannot read {file}: {reason.lower()}", field="--token-file") from None
    text = environment.get(VARIABLE, "").strip()
    if not text:
        raise MissingField(
            "there is no join token", field=VARIABLE, hint="`corral token join` on the head prints the whole command"
        )
    return text
