"""`corral frontend`: a head, a node or a machine of its own becomes a front end, and stops being one."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import time
import warnings
from pathlib import Path

import msgspec

from corral.client import Client
from corral.model.errors import (
    AlreadyRunning,
    CorralError,
    DaemonNotRunning,
    DaemonStartFailed,
    HeadUnreachable,
    InvalidField,
    MissingField,
    Unavailable,
)
from corral.model.ids import DEFAULT_TENANT
from corral.model.tenant import Role
from corral.runtime.fronting.frontfile import FrontFile, check_installed, load_front, load_ready, save_front
from corral.runtime.machines.cluster import Head, certificate_file, load_cluster
from corral.runtime.machines.heads import head_of
from corral.runtime.machines.jointoken import JoinToken, parse_join_token
from corral.runtime.machines.tls import fingerprint
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, load_pool, save_pool
from corral.runtime.starting.launcher import (
    end_supervisor,
    only_start,
    prepare,
    running_supervisor,
    spawn_supervisor,
    usable,
)
from corral.runtime.wholefile import write_whole
from corral.serving.vrrp.render import Vip, checked

VARIABLE = "CORRAL_FRONT_TOKEN"
READY_S = 30.0
STOP_S = 30.0
POLL_S = 0.05


class FrontOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. ``heads`` (HOST[:PORT]) and ``token`` are needed where no head and no front end was before."""

    state_dir: Path
    heads: tuple[str, ...] = ()
    token: str | None = None
    name: str | None = None
    host: str = "127.0.0.1"
    port: int = 7480
    address: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    metrics_port: int = 7481
    vip: Vip | None = None
    insecure: bool = False


class FrontInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A front end that serves."""

    name: str
    url: str
    state_dir: str
    pid: int


def start_front_end(options: FrontOptions) -> FrontInfo:
    """Make this machine a front end, or one with other options, and return when it serves.

    Raises ``InvalidField``, ``MissingField``, ``DependencyMissing``, ``HeadUnreachable``, ``CertificateMismatch``,
    ``Unauthenticated``, ``AlreadyRunning`` and everything that stops a start.
    """
    check_installed()
    if (options.tls_cert is None) != (options.tls_key is None):
        raise InvalidField("a certificate and its key belong together", field="--tls-cert")
    if options.vip is not None:
        checked(options.vip)
    paths = StatePaths(options.state_dir.absolute())
    prepare(paths)
    with only_start(paths):
        token_file = _introduced(paths, options)
        front = FrontFile(
            name=options.name or platform.node(),
            host=options.host,
            port=options.port,
            address=options.address,
            tls_cert=str(options.tls_cert.absolute()) if options.tls_cert else None,
            tls_key=str(options.tls_key.absolute()) if options.tls_key else None,
            token_file=token_file,
            metrics_port=options.metrics_port,
            vip=options.vip,
        )
        before = _serving(paths)
        with usable(paths):
            save_front(paths.front, front)
        if before is not None:
            # The supervisor starts it again at once, with the new file; the proxy goes on meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(before, signal.SIGHUP)
        process = spawn_supervisor(paths) if running_supervisor(paths) is None else None
        try:
            pid = _wait_serving(paths, front, before, process)
        except BaseException:
            if process is not None:
                end_supervisor(process)
            raise
    with warnings.catch_warnings():
        # It goes on without this process: that is what it was started for.
        warnings.simplefilter("ignore", ResourceWarning)
        del process
    return FrontInfo(name=front.name, url=front.url, state_dir=str(paths.root), pid=pid)


def stop_front_end(state_dir: Path) -> None:
    """Let this machine be a front end no longer. Raises ``DaemonNotRunning`` where it is none."""
    paths = StatePaths(state_dir.absolute())
    if load_front(paths.front) is None:
        raise DaemonNotRunning(f"{paths.root} is no front end", hint="`corral frontend start` makes it one")
    pid = _serving(paths)
    with usable(paths):
        paths.front.unlink(missing_ok=True)
        (paths.root / "front-token").unlink(missing_ok=True)
    supervisor = running_supervisor(paths)
    alone = _role(paths) == "front"
    if supervisor is not None and alone:
        os.kill(supervisor, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while (pid is not None and _lives(pid)) or (alone and running_supervisor(paths) is not None):
        if time.monotonic() > deadline:
            raise DaemonStartFailed(f"the front end (pid {pid}) does not end", hint=f"see {paths.logs / 'front.log'}")
        time.sleep(POLL_S)
    # Routes, keys and certificates of services are secrets of the pool.
    shutil.rmtree(paths.front_folder, ignore_errors=True)


def front_command(state_dir: Path) -> str:
    """Make a token and return the command with which another machine becomes a front end. It holds a secret."""
    paths = StatePaths(state_dir.absolute())
    with Client(state_dir=paths.root) as client:
        _, secret = client.issue_token(DEFAULT_TENANT, Role.FRONT, "front end")
    try:
        heads = load_cluster(paths.cluster).heads
    except CorralError:
        raise MissingField(
            "this pool is of one machine: other machines do not reach it",
            field="HEAD",
            hint="start it with `corral head`",
        ) from None
    token = JoinToken(secret, tuple(fingerprint(head.certificate) for head in heads if head.certificate))
    places = ",".join(head.url.partition("://")[2] for head in heads)
    return f"{VARIABLE}={token.text()} corral frontend start {places}{'' if token.fingerprints else ' --insecure'}"


# ---- heads -----------------------------------------------------------------------------------------------------------


def _role(paths: StatePaths) -> str | None:
    try:
        return load_pool(paths.pool).role
    except CorralError:
        return None


def _introduced(paths: StatePaths, options: FrontOptions) -> str:
    """Make sure that the heads are known and know this machine; return the file of its token, empty on a head."""
    role = _role(paths)
    if not options.heads:
        if role in ("local", "head"):
            if running_supervisor(paths) is None:
                raise DaemonNotRunning(f"no pool runs on {paths.root}", hint="`corral up` or `corral head` first")
            return ""
        known = load_front(paths.front)
        if known is not None and known.token_file:
            return known.token_file
        raise MissingField(
            "this machine is no head: name the heads",
            field="HEAD",
            hint="`corral frontend token` on a head prints the command",
        )
    if role in ("local", "head"):
        raise AlreadyRunning(f"{paths.root} is a pool of its own", hint="leave HEAD out, or choose another --state-dir")
    if options.token is None:
        raise MissingField(f"is missing: set {VARIABLE}, or --token-file", field="token")
    token = parse_join_token(options.token, insecure=options.insecure)
    heads = _heads(options.heads, token)
    place = paths.root / "front-token"
    with usable(paths):
        # What another pool said does not count.
        (paths.front_folder / "routes.json").unlink(missing_ok=True)
        write_whole(place, f"{token.secret}\n".encode(), mode=0o600)
        if role is None or role == "front":
            known_heads = [
                {"url": head.url, "tls_cert": certificate_file(paths.tls, head.certificate)} for head in heads
            ]
            said = {**known_heads[0], "pid": os.getpid(), "heads": known_heads[1:]}
            write_whole(paths.daemon, msgspec.json.encode(said))
            save_pool(
                paths.pool, PoolFile(host=options.host, fork_socket=str(paths.fork_socket), agents={}, role="front")
            )
    # Whether they let it in is said now, not in a log.
    with Client(state_dir=paths.root, token=token.secret, retry_s=5.0) as client:
        client.routes(None, 0.0)
    return str(place)


def _heads(places: tuple[str, ...], token: JoinToken) -> tuple[Head, ...]:
    """Return the heads that answer and are who they should be. Raises what the last one was refused for."""
    found: list[Head] = []
    refused: CorralError = HeadUnreachable("no head was named")
    for place in places:
        try:
            found.append(head_of(place, token.fingerprints))
        except Unavailable as error:
            refused = error
    if not found:
        raise refused
    return tuple(found)


# ---- its process -----------------------------------------------------------------------------------------------------


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _serving(paths: StatePaths) -> int | None:
    """Return the process of the front end that serves now."""
    ready = load_ready(paths)
    return ready.pid if ready is not None and _lives(ready.pid) else None


def _wait_serving(
    paths: StatePaths, front: FrontFile, before: int | None, process: subprocess.Popen[bytes] | None
) -> int:
    deadline = time.monotonic() + READY_S
    while True:
        ready = load_ready(paths)
        if ready is not None and ready.pid != before and ready.url == front.url and _lives(ready.pid):
            return ready.pid
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            raise DaemonStartFailed(
                f"the front end does not serve: {_last_words(paths)}", hint=f"see {paths.logs / 'front.log'}"
            )
        time.sleep(POLL_S)


def _last_words(paths: StatePaths) -> str:
    try:
        lines = (paths.logs / "front.log").read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].partition(" corral.")[2].partition(" ")[2] or lines[-1] if lines else "it said nothing"
