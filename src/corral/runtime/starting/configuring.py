"""What is written before a start: the configurations of the agents, and ``pool.json``."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from corral.agent.config import AgentConfig, load, save
from corral.devices.cpu import NodeFacts, node_facts
from corral.devices.simulated import SimulatedProbe
from corral.model.ids import NodeId
from corral.runtime.options import JoinOptions, PoolOptions
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile, save_pool
from corral.runtime.settings import Settings
from corral.runtime.starting.topology import GPUS_PER_NODE, check_left_tasks


class Pretence(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are pretended: all alike. CPUs in milli-cores, memory in MiB."""

    model: str
    gpus: int
    cpus_milli: int
    memory_mib: int


def write_pool(paths: StatePaths, options: PoolOptions, settings: Settings) -> None:
    """Write what supervisor, daemon and agents read."""
    head = options.head
    names = [NodeId(name) for name in node_names(options)]
    pretence = None if options.simulated is None else _pretence(options)
    configs = [agent_config(paths, name, settings, pretence=pretence) for name in names]
    if head is not None:
        configs = [_of_several(paths, config, head.address) for config in configs]
    if not options.drop_nodes:
        check_left_tasks(paths, set(names))
    pool = PoolFile(
        host=options.host,
        port=options.port,
        tls_cert=str(options.tls_cert.absolute()) if options.tls_cert else None,
        tls_key=str(options.tls_key.absolute()) if options.tls_key else None,
        insecure=options.insecure,
        fault_dir=str(options.fault_dir.absolute()) if options.fault_dir else None,
        fork_socket=str(paths.fork_socket),
        agents=write_agents(configs),
        simulated=options.simulated,
        gpus_per_node=options.gpus_per_node,
    )
    if head is not None:
        pool = msgspec.structs.replace(
            pool,
            role="head",
            engine="ray",
            address=head.address,
            gcs_port=head.gcs_port or 0,
            ray_port_first=head.ray_port_first or None,
            store=head.store,
        )
    save_pool(paths.pool, pool)


def write_node(paths: StatePaths, options: JoinOptions, settings: Settings, node: NodeId, address: str) -> None:
    """Write what supervisor and agent of a machine read that has joined."""
    pretence = None
    if options.simulated is not None:
        usual = PoolOptions(state_dir=paths.root, simulated=options.simulated, gpus_per_node=options.gpus_per_node)
        pretence = _pretence(usual)
    config = _of_several(paths, agent_config(paths, node, settings, pretence=pretence), address)
    if options.cpus_milli is not None:
        config = msgspec.structs.replace(config, cpus_milli=min(config.cpus_milli, options.cpus_milli))
    if options.memory_mib is not None:
        config = msgspec.structs.replace(config, memory_mib=min(config.memory_mib, options.memory_mib))
    if pretence is None:
        config = msgspec.structs.replace(config, allotted_devices=options.devices)
    pool = PoolFile(
        host=address,
        fork_socket=str(paths.fork_socket),
        agents=write_agents([config]),
        simulated=options.simulated,
        gpus_per_node=options.gpus_per_node,
        role="node",
        engine="ray",
        address=address,
        address_given=options.address is not None,
        ray_port_first=options.ray_port_first or None,
    )
    save_pool(paths.pool, pool)


def node_names(options: PoolOptions) -> list[str]:
    """Return the names of the nodes that a start makes on this machine."""
    if options.head is not None:
        return [] if options.head.node is None else [options.head.node]
    if options.simulated is None:
        return [node_facts().hostname]
    return [f"node-{index + 1}" for index in range(options.nodes or 1)]


def write_agents(configs: list[AgentConfig]) -> dict[str, str]:
    """Write the configurations of agents; return their files by node."""
    places: dict[str, str] = {}
    for config in configs:
        config.node_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (config.tasks_dir, config.data_dir):
            folder.mkdir(exist_ok=True)
        place = config.node_dir / "node.json"
        save(config, place)
        places[config.node] = str(place)
    return places


def renew_agents(pool: PoolFile) -> None:
    """Tell the agents of the last start that their supervisor is another one. Raises ``OSError``, ``StateUnusable``."""
    for place in pool.agents.values():
        save(msgspec.structs.replace(load(Path(place)), supervisor_start=f"{time.time_ns():x}"), Path(place))


def move_node(paths: StatePaths, pool: PoolFile, address: str, *, given: bool) -> PoolFile:
    """Write down where a node is now. Raises ``OSError`` and ``StateUnusable``."""
    for place in pool.agents.values():
        save(msgspec.structs.replace(load(Path(place)), address=address), Path(place))
    moved = msgspec.structs.replace(pool, host=address, address=address, address_given=given)
    save_pool(paths.pool, moved)
    return moved


def agent_config(
    paths: StatePaths, node: NodeId, settings: Settings, *, pretence: Pretence | None, facts: NodeFacts | None = None
) -> AgentConfig:
    """Return the configuration of a node: of this machine, or pretended."""
    facts = facts or node_facts()
    config = AgentConfig(
        node=node,
        state_dir=str(paths.root),
        engine_socket=str(paths.engine_socket),
        fork_socket=str(paths.fork_socket),
        notify_socket=str(paths.notify_socket(node)),
        hostname=facts.hostname,
        cpus_milli=facts.cpus_milli,
        memory_mib=facts.memory_mib,
        supervisor_start=f"{time.time_ns():x}",
        log_max_bytes=settings.log_file_mib << 20,
        log_files=settings.log_files,
        tasks_kept=settings.tasks_kept,
        tasks_kept_s=settings.tasks_kept_s,
        cache_max_mib=settings.cache_max_mib,
        return_max_mib=settings.return_max_mib,
    )
    if pretence is None:
        return config
    probe = SimulatedProbe(paths.nodes / node / "devices.json", pretence.model, pretence.gpus, node)
    return msgspec.structs.replace(
        config,
        cpus_milli=pretence.cpus_milli,
        memory_mib=pretence.memory_mib,
        simulated=True,
        simulated_devices=probe.discover(),
    )


def _pretence(options: PoolOptions) -> Pretence:
    return Pretence(
        model=options.simulated or "",
        gpus=GPUS_PER_NODE if options.gpus_per_node is None else options.gpus_per_node,
        cpus_milli=options.simulated_cpus * 1000,
        memory_mib=options.simulated_memory_gib * 1024,
    )


def _of_several(paths: StatePaths, config: AgentConfig, address: str) -> AgentConfig:
    """Return a configuration with what an agent of a pool of several machines knows besides."""
    return msgspec.structs.replace(
        config,
        address=address,
        cluster_path=str(paths.cluster),
        node_token_path=str(paths.node_token),
        ca_path=str(paths.heads_pem),
    )
