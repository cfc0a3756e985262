"""`corral head`: a pool that other machines can join."""

from __future__ import annotations

import secrets
import socket

import msgspec
from msgspec.structs import replace

from corral.model.errors import CorralError, PortTaken, StateUnusable
from corral.runtime.machines.cluster import fingerprints, load_cluster
from corral.runtime.machines.jointoken import JoinToken, join_line, secret_in, write_join_token
from corral.runtime.machines.machine import own_versions
from corral.runtime.machines.tls import certificate_in, own_certificate
from corral.runtime.options import GCS_PORT, RAY_PORT_FIRST, HeadAsked, HeadOptions, PoolInfo
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, load_pool
from corral.runtime.ray.node import PORTS
from corral.runtime.starting.launcher import prepare, start_pool, usable
from corral.runtime.starting.remembering import as_last
from corral.runtime.wholefile import write_whole

JOIN_AGAIN = "nodes must join again (`corral leave --leave-tasks`, then `corral join` with the new token)"


class HeadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A running head and the command with which other machines join.

    ``join`` holds a secret. It is ``None`` on a head that stands by and has never led: the leader knows it.
    """

    pool: PoolInfo
    join: str | None


def start_head(asked: HeadAsked) -> HeadInfo:
    """Start a head and return when it serves. Raises ``InvalidField`` and what :func:`start_pool` raises."""
    own_versions()
    paths = StatePaths(asked.state_dir.absolute())
    last = _last(paths)
    options, notes = as_last(asked, last)
    head = options.head
    assert head is not None
    prepare(paths)
    with usable(paths):
        if options.tls_cert is None and not options.insecure:
            before = certificate_in(paths.tls)
            certificate, key = own_certificate(paths.tls, head.address)
            if before and before != certificate_in(paths.tls):
                notes = (*notes, f"a new certificate, for {head.address}: {JOIN_AGAIN}")
            options = replace(options, tls_cert=certificate, tls_key=key)
        paths.ray_token.parent.mkdir(mode=0o700, exist_ok=True)
        if not paths.ray_token.exists():
            write_whole(paths.ray_token, secrets.token_hex(32).encode(), mode=0o600)
    info = start_pool(replace(options, head=_with_ports(head, last.gcs_port if last else 0)))
    info = replace(info, notes=(*notes, *info.notes))
    return HeadInfo(pool=info, join=join_command(paths) if paths.join_token.exists() else None)


def join_command(paths: StatePaths) -> str:
    """Return the command with which another machine joins the pool of this head. It holds a secret.

    It names all heads that this one knows. Raises ``StateUnusable`` where no head has led.
    """
    try:
        secret = secret_in(paths.join_token)
        heads = load_cluster(paths.cluster).heads
        token = JoinToken(secret, fingerprints(heads))
        write_join_token(paths.join_token, token)
    except OSError:
        raise StateUnusable(f"no head has led a pool on {paths.root}", hint="ask where `corral head` was run") from None
    return join_line(token, [head.url for head in heads])


def _with_ports(head: HeadOptions, last: int) -> HeadOptions:
    """Settle the ports: those that are asked for, that of the last start, the usual ones, any free ones."""
    gcs = head.gcs_port
    if not gcs:
        gcs = last or (GCS_PORT if gcs is None and _free(head.address, GCS_PORT) else _any_port(head.address))
    first = head.ray_port_first
    if first is None:
        taken = not all(_free(head.address, RAY_PORT_FIRST + offset) for offset in range(PORTS))
        first = 0 if taken else RAY_PORT_FIRST
    return replace(head, gcs_port=gcs, ray_port_first=first)


def _last(paths: StatePaths) -> PoolFile | None:
    """Return what the last start of a head on this state directory asked for."""
    try:
        last = load_pool(paths.pool)
    except CorralError:
        return None
    return last if last.role == "head" else None


def _free(address: str, port: int) -> bool:
    try:
        _bind(address, port).close()
    except OSError:
        return False
    return True


def _any_port(address: str) -> int:
    try:
        with _bind(address, 0) as trial:
            return int(trial.getsockname()[1])
    except OSError as error:
        raise PortTaken(f"no port of {address} can be had: {error.strerror}", hint="is that this machine's?") from None


def _bind(address: str, port: int) -> socket.socket:
    trial = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        trial.bind((address, port))
    except OSError:
        trial.close()
        raise
    return trial
