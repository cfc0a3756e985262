"""What ``corral doctor`` finds out about a pool of several machines."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from corral.model.errors import CorralError
from corral.model.report import HEAD_SILENT_S, PoolStatus
from corral.runtime.machines.cluster import load_cluster
from corral.runtime.machines.machine import own_versions
from corral.runtime.machines.membership import SKEW_S_MAX
from corral.runtime.machines.rejoining import rejoin
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, load_pool
from corral.runtime.ray.node import answers
from corral.runtime.starting.launcher import running_supervisor
from corral.runtime.starting.remembering import LOOPBACK, alone_note

AWAY_S_MIN = 1.0


class Finding(msgspec.Struct, frozen=True):
    """One check: ``ok`` is ``None`` when it is information only or could not be made."""

    check: str
    ok: bool | None
    detail: str
    hint: str | None = None


def role_of(paths: StatePaths) -> str:
    """Return what the last start made this machine: local, head or node."""
    try:
        return load_pool(paths.pool).role
    except CorralError:
        return "local"


def controllers(status: PoolStatus) -> list[Finding]:
    """Return what is found about the heads that share a database, and about that; nothing where there are none."""
    if not status.heads:
        return []
    away_s = status.store_away_s
    found = [Finding("database", ok=True, detail="answers")]
    if away_s >= AWAY_S_MIN:
        words = f"has not answered for {away_s:.0f} s: nothing is taken in, what runs goes on"
        found = [Finding("database", ok=False, detail=words, hint="is its server up, and reachable from the heads?")]
    silent = [head for head in status.heads if not head.leads and head.seen_s >= HEAD_SILENT_S]
    found += [
        Finding(
            f"head {head.name}",
            ok=False,
            detail=f"at {head.url} was last heard {head.seen_s:.0f} s ago",
            hint="`corral head` there starts it; one that is gone for good is forgotten after a day",
        )
        for head in silent
    ]
    return found


def machines(paths: StatePaths) -> list[Finding]:
    """Return what is found about the other machines; nothing for a pool of this machine alone."""
    if role_of(paths) == "local":
        return []
    pool = load_pool(paths.pool)
    versions = own_versions()
    found = [Finding("versions", ok=True, detail=f"corral {versions.corral}, Ray {versions.ray}")]
    if pool.role == "head" and pool.address == LOOPBACK:
        found.append(Finding("address", ok=None, detail=alone_note()))
    if running_supervisor(paths) is None:
        return found
    checks: list[Callable[[StatePaths, PoolFile], list[Finding]]] = [_gcs]
    if pool.role == "node":
        checks.append(_heads)
    for check in checks:
        found.extend(check(paths, pool))
    return found


def _gcs(paths: StatePaths, pool: PoolFile) -> list[Finding]:
    gcs = load_cluster(paths.cluster).gcs
    if not gcs:
        return [Finding("GCS", ok=False, detail="nobody says where it is", hint=f"see {paths.logs}")]
    there = answers(gcs)
    hint = f"see {paths.logs / 'gcs.log'}" if pool.role == "head" else "is its port open for this machine?"
    return [Finding("GCS", there, f"{'answers' if there else 'no answer'} at {gcs}", None if there else hint)]


def _heads(paths: StatePaths, pool: PoolFile) -> list[Finding]:
    cluster = load_cluster(paths.cluster)
    began = time.time()
    try:
        joined = rejoin(paths)
    except CorralError as error:
        return [Finding("heads", ok=False, detail=error.refusal.message, hint=error.refusal.hint)]
    took = time.time() - began
    # The head read its clock somewhere between the question and the answer.
    skew = began + took / 2 - joined.clock
    right = abs(skew) <= SKEW_S_MAX + took / 2
    heads = ", ".join(head.url for head in load_cluster(paths.cluster).heads)
    return [
        Finding("heads", ok=True, detail=f"{heads}, {took * 1000:.0f} ms"),
        Finding(
            "node",
            joined.connected,
            f"{cluster.node} at {pool.address} is {'heard' if joined.connected else 'not heard'} by the pool",
            None if joined.connected else f"see {paths.logs / 'raylet.log'} and the agent's log",
        ),
        Finding("clock", right, f"{skew:+.1f} s from the head's", None if right else "let NTP set both"),
    ]
