"""Where the pool is and with which token: arguments, environment, or the state directory of a pool on this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from corral.model.errors import DaemonNotRunning, StateUnusable, Unauthenticated, UsageError

URL_VARIABLE = "CORRAL_URL"
TOKEN_VARIABLE = "CORRAL_TOKEN"  # noqa: S105 -- the name of a variable
STATE_DIR_VARIABLE = "CORRAL_STATE_DIR"
CA_FILE_VARIABLE = "CORRAL_CA_FILE"
START_HINT = "start one with `corral up`"
STARTS = {"local": "corral up", "head": "corral head", "node": "corral join", "front": "corral frontend start"}
JOIN_ANEW = "`corral token join` on a head prints the command that makes this machine a node"


class _RoleFile(msgspec.Struct, frozen=True):
    """What the last start made this machine (``pool.json``)."""

    role: str = "local"


class HeadFile(msgspec.Struct, frozen=True):
    """Where another controller of the same pool answers. ``tls_cert`` is the file of its certificate."""

    url: str
    tls_cert: str | None = None


class DaemonFile(msgspec.Struct, frozen=True):
    """What a running daemon writes about itself (``daemon.json``). ``tls_cert`` is the file of its certificate."""

    url: str
    pid: int
    tls_cert: str | None = None
    heads: tuple[HeadFile, ...] = ()


class FailureFile(msgspec.Struct, frozen=True):
    """What a daemon leaves that gave up (``failure.json``): the error, and whether it is for good."""

    code: str
    message: str
    fatal: bool = False


class Address(msgspec.Struct, frozen=True):
    """A pool's URL and a bearer token."""

    url: str
    token: str


class Discovery:
    """Finds a pool, and finds it again after its daemon was restarted on another port.

    An explicit ``url`` wins, then an explicit ``state_dir``, then ``CORRAL_URL``, ``CORRAL_STATE_DIR`` and
    ``~/.corral``. A URL may be several, separated by commas: the heads of one pool. The token file of a state directory
    is sent to that directory's own daemon, and to the heads that this one names.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        known = os.environ if environment is None else environment
        self.url = url or (None if state_dir is not None else known.get(URL_VARIABLE)) or None
        self.urls = urls_of(self.url) if self.url is not None else ()
        self.ca_file = known.get(CA_FILE_VARIABLE) or None
        self._token = token or known.get(TOKEN_VARIABLE) or None
        self.state_dir = Path(state_dir or known.get(STATE_DIR_VARIABLE) or "~/.corral").expanduser()

    def addresses(self) -> tuple[Address, ...]:
        """Return where the pool's heads are now, at least one.

        Raises ``DaemonNotRunning``, ``Unauthenticated`` or ``StateUnusable``.
        """
        if self.urls:
            token = self._token
            if token is None:
                daemon = self._daemon()
                token = self._token_of_file() if daemon is not None and daemon.url in self.urls else None
            if token is None:
                raise Unauthenticated(f"there is no token for {self.url}", hint=f"set {TOKEN_VARIABLE}")
            return tuple(Address(url, token) for url in self.urls)
        daemon = self._daemon()
        if daemon is None:
            raise self.not_running("")
        token = self._token or self._token_of_file()
        return tuple(Address(url, token) for url in (daemon.url, *(head.url for head in daemon.heads)))

    def certificate(self, origin: str) -> str | None:
        """Return the certificate file of ``origin`` if that is this machine's own daemon, or a head that it names."""
        daemon = self._daemon()
        if daemon is None:
            return None
        known = {head.url: head.tls_cert for head in daemon.heads} | {daemon.url: daemon.tls_cert}
        return known.get(origin)

    def may_return(self) -> bool:
        """Return whether a daemon that does not answer may be back soon: it is remote, or its supervisor lives."""
        if self.url is not None:
            return True
        daemon = self._daemon()
        return _alive(self._supervisor_pid()) or (daemon is not None and (bool(daemon.heads) or _alive(daemon.pid)))

    def not_running(self, url: str) -> DaemonNotRunning:
        """Return the error for a pool that does not answer at ``url`` (empty: that says nowhere where it is)."""
        stopped = self._stopped() if self.url is None else None
        if stopped is not None:
            return stopped
        if not url:
            return DaemonNotRunning(f"no pool runs on {self.state_dir}", hint=start_hint(self.state_dir))
        hint = start_hint(self.state_dir) if self.url is None else f"check the address, or {START_HINT}"
        return DaemonNotRunning(f"no pool answers at {url}", hint=hint)

    def _stopped(self) -> DaemonNotRunning | None:
        """Return why the pool of the state directory gave up, ``None`` when it did not, or tries again."""
        try:
            failure = msgspec.json.decode(_read(self.state_dir / "failure.json") or b"", type=FailureFile)
        except msgspec.DecodeError:
            return None
        if not failure.fatal:
            return None
        text = f"the pool stopped: {failure.code}: {failure.message}"
        return DaemonNotRunning(text, hint=f"`{start_command(self.state_dir)}` starts it again")

    def _daemon(self) -> DaemonFile | None:
        path = self.state_dir / "daemon.json"
        data = _read(path)
        if data is None:
            return None
        try:
            daemon = msgspec.json.decode(data, type=DaemonFile)
            heads = tuple(HeadFile(checked_url(head.url), head.tls_cert) for head in daemon.heads)
            return DaemonFile(checked_url(daemon.url), daemon.pid, daemon.tls_cert, heads)
        except (msgspec.DecodeError, UsageError):
            command = start_command(self.state_dir)
            raise StateUnusable(f"{path} is damaged", hint=f"run `corral down`, then `{command}`") from None

    def _token_of_file(self) -> str:
        path = self.state_dir / "token"
        data = _read(path)
        if data is None and (self.state_dir / "node-token").exists():
            raise Unauthenticated(
                "this machine is a node: what it has lets nobody ask the pool",
                hint=f"set {TOKEN_VARIABLE} to what `corral token issue TENANT` on a head prints",
            )
        if data is None:
            raise Unauthenticated(f"there is no token in {path}", hint=f"set {TOKEN_VARIABLE}")
        return data.decode(errors="replace").strip()

    def _supervisor_pid(self) -> int | None:
        digits = (_read(self.state_dir / "supervisor.pid") or b"").strip()
        return int(digits) if digits.isdigit() and len(digits) < 12 else None


def start_command(state_dir: Path) -> str:
    """Return the command that starts what this machine was on a state directory, ``corral up`` where it was nothing."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return STARTS.get(msgspec.json.decode((state_dir / "pool.json").read_bytes(), type=_RoleFile).role, "corral up")
    return "corral up"


def start_hint(state_dir: Path) -> str:
    """Return what to do where nothing runs on a state directory."""
    command = start_command(state_dir)
    if command == STARTS["local"]:
        return START_HINT
    # One that left has nothing to start from.
    left = command == STARTS["node"] and not (state_dir / "node-token").exists()
    return JOIN_ANEW if left else f"`{command}` starts it again"


def _read(path: Path) -> bytes | None:
    """Return a small file's content, ``None`` when there is none. Raises ``StateUnusable`` when it may not be read."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateUnusable(f"{path} cannot be read: {error.strerror}", hint="is it another user's pool?") from None


def _alive(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def urls_of(text: str) -> tuple[str, ...]:
    """Return the URLs of a text that holds one or several, separated by commas. Raises ``UsageError``."""
    return tuple(checked_url(url.strip()) for url in text.split(",") if url.strip()) or (checked_url(text),)


def checked_url(url: str) -> str:
    """Return a URL without its trailing slash; raise ``UsageError`` when it is not http(s)://host[:port]."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is not the address of a pool", hint="write it like http://127.0.0.1:7420")
    return url.rstrip("/")
