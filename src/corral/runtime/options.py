"""What ``corral up`` is asked for. Light to import: the command line builds it."""

from __future__ import annotations

from pathlib import Path

import msgspec

DEFAULT_PORT = 7420
GCS_PORT = 7421
RAY_PORT_FIRST = 7430
ANY_PORT = 0
DRAIN_S = 60.0
"""How long the tasks of a machine that leaves a pool have to save themselves, unless told otherwise."""
OWN_STORE = "none"
"""The word for ``store`` that asks for a journal of the head's own."""
REAL_MACHINE = "none"
"""The word for ``simulated`` that asks for the real machine."""


class PoolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A pool on this machine. ``port`` 0 takes any free one. ``simulated`` names the device model to pretend.

    ``port`` ``None`` is the default port, or any free one when that is taken. ``tls_cert`` and ``tls_key`` are PEM
    files; without them only loopback is bound, unless ``insecure``. Where ``nodes``, ``gpus_per_node`` and
    ``simulated`` are all ``None``, the nodes are those of the last start on this state directory;
    ``simulated`` "none" is the real machine. ``drop_nodes`` gives up nodes that still have running tasks.
    """

    state_dir: Path
    host: str = "127.0.0.1"
    port: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    simulated: str | None = None
    simulated_cpus: int = 128
    simulated_memory_gib: int = 1024
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    fault_dir: Path | None = None
    drop_nodes: bool = False
    head: HeadOptions | None = None


class HeadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a pool one of several machines. ``address`` is where other machines reach this one.

    ``node`` is the name of this machine's own node, ``None`` when it is to be none. ``gcs_port`` and ``ray_port_first``
    ``None`` take the usual ports, or any where those are taken; 0 takes any. ``store`` is a database's URL.
    """

    address: str
    node: str | None
    gcs_port: int | None = None
    ray_port_first: int | None = None
    store: str | None = None


class HeadAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What ``corral head`` was asked for; ``None`` is as at the last start.

    ``no_node`` and ``node`` exclude each other; ``no_node`` ``False`` makes the machine a node that was none.
    ``insecure`` ``False`` is TLS, with a certificate that the head makes itself unless TLS files are given. ``store``
    "none" is a journal of its own again. The rest is as in :class:`PoolOptions` and :class:`HeadOptions`.
    """

    state_dir: Path
    host: str | None = None
    address: str | None = None
    port: int | None = None
    gcs_port: int | None = None
    ray_port_first: int | None = None
    node: str | None = None
    no_node: bool | None = None
    store: str | None = None
    simulated: str | None = None
    gpus_per_node: int | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool | None = None


class JoinOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that becomes a node. ``heads`` are HOST[:PORT]; ``token`` is a join token with its fingerprints.

    ``address`` ``None`` is the one from which the head is reached, ``node`` ``None`` the host's name. ``cpus_milli``,
    ``memory_mib`` and ``devices`` (uuids or indices) limit what of the machine is the pool's: ``None`` is all of it.
    A token without fingerprints is sent in clear, which has to be asked for: ``insecure``.
    """

    state_dir: Path
    heads: tuple[str, ...]
    token: str
    node: str | None = None
    address: str | None = None
    ray_port_first: int | None = None
    simulated: str | None = None
    gpus_per_node: int | None = None
    cpus_milli: int | None = None
    memory_mib: int | None = None
    devices: tuple[str, ...] | None = None
    insecure: bool = False


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that has joined."""

    node: str
    url: str
    address: str
    state_dir: str
    supervisor_pid: int


class PoolInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A running pool. ``devices`` counts by model; ``simulated`` says that nodes and devices are pretended."""

    url: str
    pid: int
    supervisor_pid: int
    state_dir: str
    version: str
    nodes: int
    nodes_up: int
    devices: dict[str, int]
    simulated: bool
    cpu_pool: bool
    notes: tuple[str, ...] = ()


class StopReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a pool was stopped: the tasks that were left running, and those that were killed without a checkpoint.

    ``one_head``: of a pool that other heads share; it goes on at them. ``last_head``: no other head of it answers, so
    it goes on when one is started.
    """

    tasks_left: int
    forced: bool
    one_head: bool = False
    last_head: bool = False
    tasks_killed: int = 0
