"""The contract's machine with the Ray engine: one Ray for all tests, a bridge and a relay session for each."""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec.structs import replace

from corral.agent import processes
from corral.agent.config import AgentConfig
from corral.agent.nodefiles import NodeFiles
from corral.engines.local import LocalEngine
from corral.engines.ray import RayEngine
from corral.model.ids import NodeId
from corral.ports.engine import Engine
from corral.runtime.leading.engines import BridgeStarter
from tests.contract.engine_world import World
from tests.contract.ray_cluster import RayGround, command_line

# A bridge imports Ray, and where it lost its raylet it waits for another one.
REACH_S = 60.0


class RayWorld(World):
    """Agents connect to the relay's socket; logs and fencing go over Ray as if the nodes were far away."""

    limit_s = 240.0

    def __init__(self, ground: RayGround) -> None:
        ground.clear()
        super().__init__(ground.paths.root)
        self.ground = ground

    def make_engine(self) -> Engine:
        paths = self.ground.paths
        server = LocalEngine(paths.bridge_socket, paths.root, NodeFiles())
        # No node is here: not one log may be read, and nothing killed, but through the relay.
        return RayEngine(server, BridgeStarter(paths, self.epoch), here=())

    @property
    def bridge_pid(self) -> int:
        words = f"corral.runtime.ray.bridge --state-dir {self.state_dir}"
        [pid] = [found.pid for found in processes.descendants(os.getpid()) if words in command_line(found.pid)]
        return pid

    async def until(
        self, predicate: Callable[[], object], what: str = "the condition", *, timeout_s: float = REACH_S
    ) -> None:
        await super().until(predicate, what, timeout_s=timeout_s)

    def config(self, node: NodeId) -> AgentConfig:
        return replace(super().config(node), engine_socket=str(self.ground.paths.engine_socket))

    def agent_logs(self) -> str:
        log = self.ground.paths.logs / "bridge.log"
        return super().agent_logs() + (f"{log.name}\n{log.read_text()}" if log.exists() else "")
