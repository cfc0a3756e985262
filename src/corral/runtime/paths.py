"""Where everything of a pool lies in its state directory."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

SOCKET_PATH_BYTES_MAX = 107
"""sockaddr_un.sun_path holds 108 bytes, the final NUL included (unix(7))."""

SHORT = Path("/tmp")  # noqa: S108 - not TMPDIR, which may be long and may change; the folder is private to the user
_LONGEST_SOCKET = "notify-node-999999.sock"
_LONGEST_RAY_SOCKET = "session_2026-12-31_23-59-59_999999_9999999/sockets/plasma_store.99"


def default_state_dir() -> Path:
    """Return ``CORRAL_STATE_DIR``, else ``~/.corral``."""
    return Path(os.environ.get("CORRAL_STATE_DIR") or Path.home() / ".corral")


@dataclass(frozen=True)
class StatePaths:
    """The layout of one state directory (absolute)."""

    root: Path

    @property
    def store(self) -> Path:
        """Return the journal's database."""
        return self.root / "corral.db"

    @property
    def token(self) -> Path:
        """Return the file of the local admin token (mode 0600)."""
        return self.root / "token"

    @property
    def daemon(self) -> Path:
        """Return the description of the running daemon."""
        return self.root / "daemon.json"

    @property
    def daemon_lock(self) -> Path:
        """Return the file that the only daemon of this directory holds locked."""
        return self.root / "daemon.lock"

    @property
    def pool(self) -> Path:
        """Return what ``corral up`` asked for."""
        return self.root / "pool.json"

    @property
    def failure(self) -> Path:
        """Return why the daemon refused to start."""
        return self.root / "failure.json"

    @property
    def supervisor_pid(self) -> Path:
        """Return the supervisor's pid file; the supervisor holds a lock on it."""
        return self.root / "supervisor.pid"

    @property
    def reserve(self) -> Path:
        """Return the file that becomes ``failure``: it takes its room before the disk is full."""
        return self.root / "failure.reserve"

    @property
    def start_lock(self) -> Path:
        """Return the file that is locked while a pool is being started."""
        return self.root / "start.lock"

    @property
    def logs(self) -> Path:
        """Return the folder of the daemons' logs."""
        return self.root / "logs"

    @property
    def nodes(self) -> Path:
        """Return the folder of the nodes."""
        return self.root / "nodes"

    @property
    def jobs(self) -> Path:
        """Return the folder of the jobs: their outputs, checkpoints and proposers' logs."""
        return self.root / "jobs"

    @property
    def run(self) -> Path:
        """Return the folder of the sockets: ``run``, or a short private one when its path were too long."""
        run = self.root / "run"
        return run if len(os.fsencode(run / _LONGEST_SOCKET)) <= SOCKET_PATH_BYTES_MAX else self._short_run()

    def _short_run(self) -> Path:
        mark = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return SHORT / f"corral-{os.getuid()}-{mark}"

    @property
    def engine_socket(self) -> Path:
        """Return the socket at which agents find the engine."""
        return self.run / "engine.sock"

    @property
    def fork_socket(self) -> Path:
        """Return the socket of the fork server."""
        return self.run / "fork.sock"

    def notify_socket(self, node: str) -> Path:
        """Return the socket at which a node's agent hears its shims."""
        return self.run / f"notify-{node}.sock"

    @property
    def bridge_socket(self) -> Path:
        """Return the socket at which a daemon with the Ray engine awaits its bridge: a relay has ``engine_socket``."""
        return self.run / "bridge.sock"

    @property
    def blobs(self) -> Path:
        """Return the folder of the files that were sent along or came back, by the hash of their content."""
        return self.root / "blobs"

    @property
    def returned_logs(self) -> Path:
        """Return the folder of the logs that came back from nodes."""
        return self.root / "returned-logs"

    # ---- serving ---------------------------------------------------------------------------------------------------

    @property
    def front(self) -> Path:
        """Return what says that this machine is a front end (:class:`corral.runtime.fronting.frontfile.FrontFile`)."""
        return self.root / "front.json"

    @property
    def front_folder(self) -> Path:
        """Return the folder of the front end: its proxy's configuration, and the routes that it was told last."""
        return self.root / "front"

    # ---- several machines ------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> Path:
        """Return where the heads and the GCS are (:class:`corral.runtime.machines.cluster.ClusterFile`); it changes."""
        return self.root / "cluster.json"

    @property
    def heads_pem(self) -> Path:
        """Return the certificates of the heads, all that a node believes."""
        return self.root / "heads.pem"

    @property
    def join_token(self) -> Path:
        """Return the file of the token with which machines join (mode 0600; on a head)."""
        return self.root / "join-token"

    @property
    def node_token(self) -> Path:
        """Return the file of this machine's token at the heads (mode 0600)."""
        return self.root / "node-token"

    @property
    def tls(self) -> Path:
        """Return the folder of the certificate that a head made for itself: ``cert.pem`` and ``key.pem``."""
        return self.root / "tls"

    @property
    def ray_token(self) -> Path:
        """Return the file of Ray's token (mode 0600): who has it commands every raylet."""
        return self.root / "ray" / "token"

    @property
    def gcs_store(self) -> Path:
        """Return the folder in which the GCS keeps its tables."""
        return self.root / "ray" / "gcs"

    @property
    def ray_temp(self) -> Path:
        """Return the folder of this machine's raylet: ``run/ray``, or a short private one where paths were too long."""
        return self._near("ray")

    @property
    def gcs_temp(self) -> Path:
        """Return the folder of the GCS's own processes: they are no node of the pool and must not be taken for one."""
        return self._near("gcs")

    def clear_short(self) -> None:
        """Remove the short folder of the sockets, with what Ray left there: nothing of this machine's part runs."""
        short = self._short_run()
        if short.is_dir() and not short.is_symlink() and short.stat().st_uid == os.getuid():
            shutil.rmtree(short, ignore_errors=True)

    def _near(self, name: str) -> Path:
        near = self.run / name
        fits = len(os.fsencode(near / _LONGEST_RAY_SOCKET)) <= SOCKET_PATH_BYTES_MAX
        return near if fits else self._short_run() / name
