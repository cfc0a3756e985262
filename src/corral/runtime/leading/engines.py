"""Builds the engine that the pool asks for."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

from corral.agent.nodefiles import NodeFiles
from corral.engines.local import LocalEngine
from corral.engines.ray import RayEngine
from corral.model.ids import NodeId
from corral.ports.engine import Engine
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import PoolFile


def make_engine(asked: PoolFile, paths: StatePaths, epoch: int) -> Engine:
    """Return the engine, not started yet. ``epoch`` is the leader's: relays refuse the bridges of older ones."""
    if asked.engine == "local":
        return LocalEngine(paths.engine_socket, paths.root, NodeFiles(), epoch)
    server = LocalEngine(paths.bridge_socket, paths.root, NodeFiles(), epoch)
    return RayEngine(server, BridgeStarter(paths, epoch), [NodeId(name) for name in asked.agents])


class BridgeStarter:
    """Starts ``corral.runtime.ray.bridge`` with its log beside the daemon's."""

    def __init__(self, paths: StatePaths, epoch: int) -> None:
        self._paths = paths
        self._epoch = epoch

    async def __call__(self, desk: socket.socket) -> asyncio.subprocess.Process:
        """Start one. Raises ``OSError``."""
        log: Path = self._paths.logs / "bridge.log"
        command = [sys.executable, "-P", "-m", "corral.runtime.ray.bridge", "--state-dir", str(self._paths.root)]
        with log.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *command,
                f"--epoch={self._epoch}",
                f"--desk={desk.fileno()}",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(desk.fileno(),),
            )
