"""Starting the pool of this machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path

from msgspec.structs import replace

from corral.client import Client
from corral.model.errors import (
    AlreadyRunning,
    CorralError,
    DaemonStartFailed,
    InvalidField,
    StateUnusable,
    by_code,
)
from corral.runtime.machines.tls import check_certificate
from corral.runtime.options import REAL_MACHINE, PoolInfo, PoolOptions
from corral.runtime.paths import StatePaths
from corral.runtime.ray.environment import SECRETS
from corral.runtime.settings import load_settings
from corral.runtime.starting.configuring import node_names, write_pool
from corral.runtime.starting.orphans import end_orphans
from corral.runtime.starting.topology import as_before

START_S = 30.0
START_HEAD_S = 120.0
STOP_S = 30.0
POLL_S = 0.02
PID_WRITTEN_S = 2.0
ANNOUNCED_S = 5.0
NODES_MAX = 4_096


def start_pool(options: PoolOptions) -> PoolInfo:
    """Start the pool and return when it serves. Raises ``AlreadyRunning`` and everything that stops a start."""
    paths = StatePaths(options.state_dir.absolute())
    check_options(options)
    if options.tls_cert is not None and options.tls_key is not None:
        check_certificate(options.tls_cert, options.tls_key)
    prepare(paths)
    with only_start(paths):
        running = running_supervisor(paths)
        if running is not None:
            raise AlreadyRunning(
                f"a pool runs already on {paths.root} (pid {running})", hint="`corral status` shows it"
            )
        options, notes = as_before(paths, options)
        with usable(paths):
            write_pool(paths, options, load_settings(paths.root))
        for stale in (paths.daemon, paths.failure):
            stale.unlink(missing_ok=True)
        process = spawn_supervisor(paths)
        try:
            info = replace(wait_ready(paths, options, process), notes=notes)
        except BaseException:
            end_supervisor(process)
            raise
    with warnings.catch_warnings():
        # It goes on without this process: that is what it was started for.
        warnings.simplefilter("ignore", ResourceWarning)
        del process
    return info


@contextlib.contextmanager
def only_start(paths: StatePaths) -> Iterator[None]:
    """Keep others from starting a pool here meanwhile. Raises ``AlreadyRunning`` when somebody does."""
    with paths.start_lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(
                f"a pool is just being started on {paths.root}", hint="`corral status` shows it"
            ) from None
        yield


def check_options(options: PoolOptions) -> None:
    """Raise ``InvalidField`` for numbers that make no pool."""
    nodes = 1 if options.nodes is None else options.nodes
    if not 1 <= nodes <= NODES_MAX:
        raise InvalidField(f"must be between 1 and {NODES_MAX}, not {nodes}", field="--nodes")
    if options.simulated in (None, REAL_MACHINE):
        if nodes > 1:
            raise InvalidField(
                "several nodes on one machine are simulated nodes", field="--nodes", hint="add --simulated h100"
            )
        if options.gpus_per_node is not None:
            raise InvalidField(
                "real devices are found, not told", field="--gpus-per-node", hint="add --simulated h100 to pretend some"
            )
    elif options.gpus_per_node is not None and not 0 <= options.gpus_per_node <= 64:
        raise InvalidField(f"must be between 0 and 64, not {options.gpus_per_node}", field="--gpus-per-node")
    if options.port is not None and not 0 <= options.port <= 65_535:
        raise InvalidField(f"must be between 0 and 65535, not {options.port}", field="--port")
    if (options.tls_cert is None) != (options.tls_key is None):
        raise InvalidField("a certificate and its key belong together", field="--tls-cert")


def prepare(paths: StatePaths) -> None:
    """Make the state directory, private to this user. Raises ``StateUnusable``."""
    with usable(paths):
        paths.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = paths.root.stat().st_uid
        if owner != os.getuid():
            raise StateUnusable(f"{paths.root} belongs to another user (uid {owner})")
        paths.root.chmod(0o700)
        for folder in (paths.logs, paths.nodes, paths.run):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # It may lie in a folder where everybody may write.
        if paths.run.is_symlink() or paths.run.stat().st_uid != os.getuid():
            raise StateUnusable(f"{paths.run} was made by another user", hint="remove it")
        paths.run.chmod(0o700)
        probe = paths.root / ".writable"
        probe.write_bytes(b"x" * 4096)
        probe.unlink(missing_ok=True)


@contextlib.contextmanager
def usable(paths: StatePaths) -> Iterator[None]:
    """Raise ``StateUnusable`` where the state directory does not take what is written to it."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StateUnusable(
            f"cannot use {paths.root}: {(error.strerror or str(error)).lower()}",
            hint="free some space, then run the command again" if full else "choose another with --state-dir",
        ) from None


def running_supervisor(paths: StatePaths) -> int | None:
    """Return the pid of the living supervisor: the one that holds the lock. A stale pid file counts for nothing."""
    deadline = time.monotonic() + PID_WRITTEN_S
    try:
        while time.monotonic() < deadline:
            with paths.supervisor_pid.open("r+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return None
                except BlockingIOError:
                    text = file.read().strip()
            if text.isdecimal():
                return int(text)
            # It holds the lock and is about to write its pid.
            time.sleep(POLL_S)
    except FileNotFoundError:
        pass
    return None


def spawn_supervisor(paths: StatePaths) -> subprocess.Popen[bytes]:
    """Start the supervisor in a session of its own; it goes on when this process ends.

    What one that was killed left behind is ended before. Only where none lives, and :func:`only_start` holds.
    """
    end_orphans(paths)
    with (paths.logs / "supervisor.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "corral.runtime.supervisor", str(paths.root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name not in SECRETS},
        )


def wait_ready(paths: StatePaths, options: PoolOptions, process: subprocess.Popen[bytes]) -> PoolInfo:
    """Wait until the API answers and all nodes are there."""
    nodes = len(node_names(options))
    info = _until(lambda: _ready(paths, nodes), START_S if options.head is None else START_HEAD_S, process)
    if info is not None:
        return info
    try:
        failure = json.loads(paths.failure.read_text())
    except (OSError, ValueError):
        failure = None
    end_supervisor(process)
    if failure is not None:
        kind = by_code().get(failure["code"], DaemonStartFailed)
        raise kind(failure["message"])
    # A daemon that is ready waits in vain when Ray does not start.
    also = "" if options.head is None else f", then {paths.logs / 'gcs.log'}"
    raise DaemonStartFailed("the daemon did not become ready", hint=f"see {paths.logs / 'daemon.log'}{also}")


def end_supervisor(process: subprocess.Popen[bytes]) -> None:
    """End a supervisor whose pool did not become ready, and with it everything that it started."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_running_supervisor(paths: StatePaths) -> None:
    """End the supervisor, if one lives, with its children. Raises ``DaemonStartFailed`` when it does not end."""
    pid = running_supervisor(paths)
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while running_supervisor(paths) is not None:
        if time.monotonic() > deadline:
            raise DaemonStartFailed(f"the supervisor (pid {pid}) does not end", hint=f"see {paths.logs}")
        time.sleep(POLL_S)


def _until(look: Callable[[], PoolInfo | None], seconds: float, process: subprocess.Popen[bytes]) -> PoolInfo | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        if process.poll() is not None:
            return None
        time.sleep(POLL_S)
    return None


def _ready(paths: StatePaths, nodes: int) -> PoolInfo | None:
    if not paths.daemon.exists():
        return None
    info = pool_info(paths.root)
    return info if info is not None and info.nodes_up >= nodes else None


def pool_info(state_dir: Path) -> PoolInfo | None:
    """Return the running pool of a state directory, or ``None`` when nothing answers there."""
    paths = StatePaths(state_dir.absolute())
    try:
        daemon = json.loads(paths.daemon.read_text())
        with Client(state_dir=paths.root, retry_s=0.0) as client:
            status = client.status()
    except (OSError, ValueError, HTTPException, CorralError):
        return None
    return PoolInfo(
        url=daemon["url"],
        pid=daemon["pid"],
        supervisor_pid=running_supervisor(paths) or 0,
        state_dir=str(paths.root),
        version=daemon["version"],
        nodes=status.nodes,
        nodes_up=status.nodes_up,
        devices=dict(status.models),
        simulated=status.simulated_devices > 0,
        cpu_pool=status.cpu_pool,
    )
