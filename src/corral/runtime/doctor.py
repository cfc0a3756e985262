"""``corral doctor``: what this machine and this pool have, lack, and what to do about it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from corral.agent.cgroup import probe as probe_cgroup
from corral.client import Client
from corral.client.discovery import start_command, start_hint
from corral.devices.discovery import discover
from corral.model.errors import CorralError
from corral.runtime.doctor_machines import Finding, controllers, machines, role_of
from corral.runtime.machines.membership import SKEW_S_MAX
from corral.runtime.paths import StatePaths
from corral.runtime.settings import load_settings
from corral.runtime.starting.launcher import pool_info, running_supervisor
from corral.storage import SqliteStore
from corral.storage.schema import HEAD, VERSION_TABLE

DISK_FREE_MIB_MIN = 1024


def examine(state_dir: Path) -> list[Finding]:
    """Make all checks; each answers by itself, none raises."""
    paths = StatePaths(state_dir.absolute())
    checks: list[Callable[[StatePaths], list[Finding]]] = [
        _python,
        _state_dir,
        _disk,
        _settings,
        _devices,
        _cgroup,
        _limits,
        _shared_memory,
        _journal,
        _pool,
        machines,
    ]
    found: list[Finding] = []
    for check in checks:
        try:
            found.extend(check(paths))
        except (CorralError, OSError) as error:
            found.append(Finding(check.__name__.strip("_").replace("_", " "), ok=False, detail=str(error)))
    return found


def _python(paths: StatePaths) -> list[Finding]:
    del paths
    return [Finding("python", sys.version_info >= (3, 11), sys.version.split()[0])]


def _state_dir(paths: StatePaths) -> list[Finding]:
    if not paths.root.exists():
        return [Finding("state directory", ok=None, detail=f"{paths.root} is made by `corral up`")]
    mode = paths.root.stat().st_mode & 0o777
    token_mode = paths.token.stat().st_mode & 0o777 if paths.token.exists() else 0o600
    found = [
        Finding(
            "state directory",
            os.access(paths.root, os.W_OK | os.X_OK) and mode == 0o700,
            f"{paths.root}, mode {mode:03o}",
            None if mode == 0o700 else f"chmod 700 {paths.root}",
        )
    ]
    if token_mode != 0o600:
        found.append(Finding("token file", ok=False, detail=f"mode {token_mode:03o}", hint=f"chmod 600 {paths.token}"))
    return found


def _disk(paths: StatePaths) -> list[Finding]:
    place = paths.root if paths.root.exists() else paths.root.parent
    while not place.exists():
        place = place.parent
    free_mib = shutil.disk_usage(place).free >> 20
    ok = free_mib >= DISK_FREE_MIB_MIN
    return [
        Finding("disk", ok, f"{free_mib / 1024:.1f} GiB free", None if ok else "free some space: the journal needs it")
    ]


def _settings(paths: StatePaths) -> list[Finding]:
    load_settings(paths.root)
    return [Finding("settings", ok=True, detail="valid")]


def _devices(paths: StatePaths) -> list[Finding]:
    del paths
    seen = discover()
    found = []
    for probe in seen.probes:
        devices = [d for d in seen.devices if d.vendor == probe.vendor]
        names = ", ".join(sorted({d.model for d in devices}))
        found.append(Finding(f"{probe.vendor} devices", ok=True, detail=f"{len(devices)}: {names}"))
        probe.close()
    found.extend(
        Finding(f"{gap.vendor} devices", ok=False if gap.refused else None, detail=gap.reason) for gap in seen.absences
    )
    if not seen.probes:
        found.append(Finding("pool kind", ok=None, detail="no GPU found: this machine makes a CPU pool"))
    return found


def _cgroup(paths: StatePaths) -> list[Finding]:
    del paths
    support = probe_cgroup()
    usable = ", ".join(sorted(support.controllers)) or "none usable"
    gaps = "; ".join(f"{role}: {why}" for role, why in sorted(support.missing.items()))
    detail = f"{usable} ({gaps})" if gaps else usable
    hint = "limits are kept by affinity and watching instead" if gaps else None
    return [Finding("cgroup", ok=None, detail=detail, hint=hint)]


def _limits(paths: StatePaths) -> list[Finding]:
    del paths
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ok = hard == resource.RLIM_INFINITY or hard >= 4096
    return [Finding("open files", ok, f"{soft} (at most {hard})", None if ok else "raise `ulimit -n` to 4096 or more")]


def _shared_memory(paths: StatePaths) -> list[Finding]:
    del paths
    place = Path("/dev/shm")  # noqa: S108 - looked at, not used
    if not place.exists():
        return [Finding("shared memory", ok=None, detail="missing", hint="data loaders often need it")]
    return [Finding("shared memory", ok=True, detail=f"{shutil.disk_usage(place).total >> 30} GiB in /dev/shm")]


def _journal(paths: StatePaths) -> list[Finding]:
    """Read the journal of a pool that does not run; one that runs has read it, and goes on to watch it."""
    if running_supervisor(paths) is not None or not paths.store.exists():
        return []
    if _revision(paths.store) not in (None, HEAD):
        migrates = f"`{start_command(paths.root)}` checks and migrates it"
        return [Finding("journal", ok=None, detail=f"of another release; {migrates}")]
    store = SqliteStore(paths.store)
    try:
        store.open()
        entries = len(store.recover().entries)
    except CorralError as error:
        return [Finding("journal", ok=False, detail=f"{error.code}: {error.refusal.message}", hint=error.refusal.hint)]
    finally:
        store.close()
    return [Finding("journal", ok=True, detail=f"read through, {entries} entries since its last snapshot")]


def _revision(store: Path) -> str | None:
    """Return the schema revision of a database, ``None`` when it cannot be read."""
    address = f"file:{quote(str(store))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608 - our name
    except sqlite3.Error:
        return None
    return str(row[0]) if row else None


def _pool(paths: StatePaths) -> list[Finding]:
    pid = running_supervisor(paths)
    if role_of(paths) == "node":
        words = "not running" if pid is None else f"this machine is a node of another's; supervisor {pid} lives"
        return [Finding("pool", ok=None, detail=words, hint=None if pid else start_hint(paths.root))]
    if pid is None:
        failed = last_failure(paths)
        detail = f"not running; it stopped or did not start: {failed}" if failed else "not running"
        return [Finding("pool", ok=False if failed else None, detail=detail, hint=start_hint(paths.root))]
    info = pool_info(paths.root)
    if info is None:
        return [
            Finding("pool", ok=False, detail=f"supervisor {pid} lives, the API does not answer", hint=str(paths.logs))
        ]
    with Client(state_dir=paths.root, retry_s=0.0) as client:
        began = time.monotonic()
        status = client.status()
        answer_ms = (time.monotonic() - began) * 1000
    skew = status.clock_offset_s
    return [
        Finding("pool", ok=True, detail=f"{info.url}, {info.nodes_up} of {info.nodes} nodes up, {answer_ms:.0f} ms"),
        Finding(
            "clock",
            abs(skew) <= SKEW_S_MAX,
            f"the wall clock moved {skew:+.1f} s since the daemon started",
            None if abs(skew) <= SKEW_S_MAX else "let NTP settle; the pool's own time goes on steadily",
        ),
        Finding(
            "devices",
            status.devices_failed == 0,
            f"{status.devices} known, {status.devices_failed} failed",
            "`corral nodes` names them" if status.devices_failed else None,
        ),
        *controllers(status),
    ]


def last_failure(paths: StatePaths) -> str | None:
    """Return code and message of why the daemon gave up last, ``None`` when it did not."""
    try:
        failure = json.loads(paths.failure.read_text())
        return f"{failure['code']}: {failure['message']}"
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return f"{paths.failure} cannot be read"
