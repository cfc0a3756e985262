"""What an agent has to know before it starts: ``nodes/<node>/node.json``, written by whoever starts the pool."""

from __future__ import annotations

from pathlib import Path

import msgspec

from corral.model.errors import StateUnusable
from corral.model.ids import JobId, NodeId
from corral.model.resources import DeviceSpec

CONFIG_NAME = "node.json"
# sockaddr_un.sun_path has 108 bytes, the final NUL included (unix(7)).
SOCKET_PATH_BYTES_MAX = 107


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent. Paths are absolute; times in seconds.

    Attributes:
        node: The node that it speaks for.
        state_dir: The pool's state directory on this machine.
        engine_socket: Where the engine listens.
        fork_socket: Where the fork server listens.
        notify_socket: Where this agent listens to its shims; at most 107 bytes.
        address: Where ranks of a gang reach this node.
        cpus_milli: CPUs of the node in milli-cores.
        memory_mib: Memory of the node.
        simulated: Whether the node's CPUs and memory are pretended: then nothing is enforced on its tasks.
        simulated_devices: Devices of the simulated probe; empty when the devices are real.
        supervisor_start: Changes whenever whoever supervises the fork server starts anew.
        log_max_bytes: Size of one log file of a task before it is rotated.
        log_files: How many files of a task's log are kept.
        tasks_kept: How many directories of ended, acknowledged tasks are kept.
        tasks_kept_s: How long they are kept at most.
        release_timeout_s: How long to wait for a device to be released before the end of a task is reported anyway.
        allotted_devices: Of the real devices, those that are the pool's (uuids, or indices by bus); ``None``: all.
        cluster_path: On a pool of several machines: ``cluster.json``, which names the heads (it changes; read it when
            a head is needed). Empty on a pool of one machine.
        node_token_path: The file of the bearer token that heads accept from this node.
        cache_max_mib: How much is kept of files that were sent, for the next task.
        return_max_mib: How large the outputs of a task may be, and its checkpoint.
        ca_path: The certificates of the heads (PEM); a head's name is not checked, its certificate is.
    """

    node: NodeId
    state_dir: str
    engine_socket: str
    fork_socket: str
    notify_socket: str
    address: str = "127.0.0.1"
    hostname: str = ""
    rack: str = "rack-0"
    cpus_milli: int
    memory_mib: int
    simulated: bool = False
    simulated_devices: tuple[DeviceSpec, ...] = ()
    supervisor_start: str = ""
    log_max_bytes: int = 64 << 20
    log_files: int = 4
    tasks_kept: int = 2000
    tasks_kept_s: float = 7 * 86400.0
    release_timeout_s: float = 10.0
    allotted_devices: tuple[str, ...] | None = None
    cluster_path: str = ""
    node_token_path: str = ""
    ca_path: str = ""
    cache_max_mib: int = 20_480
    return_max_mib: int = 4_096

    @property
    def node_dir(self) -> Path:
        """Return the directory of the node."""
        return Path(self.state_dir) / "nodes" / self.node

    @property
    def tasks_dir(self) -> Path:
        """Return where the task directories are."""
        return self.node_dir / "tasks"

    @property
    def data_dir(self) -> Path:
        """Return where the node keeps its data shards: every entry is one."""
        return self.node_dir / "data"

    @property
    def devices_state_path(self) -> Path:
        """Return the file that moves the simulated devices."""
        return self.node_dir / "devices.json"

    def job_dir(self, job: JobId) -> str:
        """Return where a job keeps its checkpoints and output."""
        return f"{self.state_dir}/jobs/{job}"


def load(path: Path) -> AgentConfig:
    """Read an agent's configuration. Raises ``StateUnusable`` naming the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=AgentConfig)
    except OSError as error:
        raise StateUnusable(f"cannot read {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise StateUnusable(f"{path} is not the configuration of an agent: {error}") from None


def save(config: AgentConfig, path: Path) -> None:
    """Write an agent's configuration. Raises ``OSError``."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n")
    temporary.rename(path)
