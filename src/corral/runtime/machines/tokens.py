"""The tokens that a daemon keeps in files of its own: the local admin's, the join token, that of its own node."""

from __future__ import annotations

import contextlib
import platform
import secrets
from collections.abc import Collection, Mapping

from corral.control.access import digest_of
from corral.model.events import TokenIssued
from corral.model.ids import DEFAULT_TENANT, NodeId
from corral.model.tenant import Role, Token
from corral.runtime.machines.jointoken import JoinToken, secret_in, write_join_token
from corral.runtime.machines.machine import machine_id
from corral.runtime.machines.tls import fingerprint
from corral.runtime.paths import StatePaths
from corral.runtime.wholefile import write_whole

_NODE, _MACHINE = "node ", " of machine "
JOIN_LABEL = "join"


def local_token(paths: StatePaths, known: Collection[str]) -> str:
    """Return the local admin secret (mode 0600): the one in its file if its digest is known, else a new one.

    A secret that was revoked, or that comes from elsewhere, never becomes valid by a restart.
    """
    with contextlib.suppress(FileNotFoundError):
        secret = read_token(paths)
        if digest_of(secret) in known:
            return secret
    return new_token(paths)


def read_token(paths: StatePaths) -> str:
    """Return the secret in the file of the local token. Raises ``OSError``."""
    paths.token.chmod(0o600)
    return paths.token.read_text().strip()


def new_token(paths: StatePaths) -> str:
    """Write a new secret to that file and return it. Raises ``OSError``."""
    secret = f"corral_{secrets.token_urlsafe(32)}"
    write_whole(paths.token, f"{secret}\n".encode(), mode=0o600)
    return secret


def machine_tokens(
    paths: StatePaths, node: str | None, known: Mapping[str, Token], now: float, certificate: str = ""
) -> list[TokenIssued]:
    """Return the facts of the tokens that a head has in files: the join token, and that of its own node.

    One whose digest is known stays; else a new secret is made. ``certificate`` (PEM) is the head's: the file of the
    join token holds its fingerprint too. Raises ``OSError``.
    """
    wanted = [(paths.join_token, Role.JOIN, f"{JOIN_LABEL} of head {platform.node()}")]
    if node is not None:
        wanted.append((paths.node_token, Role.NODE, node_label(NodeId(node), machine_id(paths))))
    issued = []
    for place, role, label in wanted:
        secret = secret_in(place) if place.exists() else ""
        token = known.get(digest_of(secret))
        if token is not None and token.role is role and (role is Role.JOIN or token.label == label):
            if role is Role.JOIN:
                _keep_whole(paths, secret, certificate)
            continue
        secret = f"corral_{role.value}_{secrets.token_urlsafe(32)}"
        write_whole(place, f"{secret}\n".encode(), mode=0o600)
        fact = Token(secrets.token_hex(4), digest_of(secret), DEFAULT_TENANT, role, now, label)
        issued.append(TokenIssued(at=now, token=fact, by="local"))
        if role is Role.JOIN:
            _keep_whole(paths, secret, certificate)
    return issued


def _keep_whole(paths: StatePaths, secret: str, certificate: str) -> None:
    """See to it that the join token's file names this head's certificate; it may name those of other heads as well."""
    own = (fingerprint(certificate),) if certificate else ()
    named = paths.join_token.read_text().strip().split(".")[1:]
    if not own or own[0] not in named:
        write_join_token(paths.join_token, JoinToken(secret, own))


def node_label(node: NodeId, machine: str) -> str:
    """Return the label of a node's token, which says whose it is."""
    return f"{_NODE}{node}{_MACHINE}{machine}"


def node_of(token: Token) -> NodeId | None:
    """Return the node that a token was made for."""
    if token.role is not Role.NODE or not token.label.startswith(_NODE):
        return None
    return NodeId(token.label.removeprefix(_NODE).partition(_MACHINE)[0])
