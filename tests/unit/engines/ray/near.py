"""Relays without Ray: in this process, with faults on demand."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

from corral.engines.ray.bridge import Bridge, Desk
from corral.engines.ray.cluster import Machine, RelayHandle, RelayLost
from corral.engines.ray.pieces import LogTold, Piece
from corral.engines.ray.relay import Relay


class Files:
    """A node's directories of one log, which a test writes; ``fenced`` is what fencing proves, ``epochs`` who asked."""

    def __init__(self) -> None:
        self.log = b""
        self.ended = False
        self.fenced: dict[str, bool | None] = {}
        self.machine = ""
        self.epochs: list[int | None] = []
        self.looked = threading.Event()

    def read_log(self, directory: Path, offset: int, limit: int) -> tuple[int, bytes, int]:
        self.looked.set()
        if directory.name != "7.0.0.1":
            raise FileNotFoundError(directory)
        return offset, self.log[offset : offset + limit], len(self.log)

    def has_ended(self, directory: Path) -> bool:
        return self.ended

    def fence(self, node_dir: Path, machine: str, epoch: int | None) -> bool | None:
        self.epochs.append(epoch)
        return self.fenced[node_dir.name] and machine == self.machine


class NearRelay:
    """A relay as the bridge sees it. ``fault`` is what every call meets; ``calls`` counts those that got through."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.fault: RelayLost | None = None
        self.calls = 0

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        self.calls += 1

    async def open(self, session: str, epoch: int) -> bool:
        await self._reach()
        return self.relay.open(session, epoch)

    async def give(self, session: str, pieces: list[Piece]) -> bool:
        await self._reach()
        return self.relay.give(session, pieces)

    async def take(self, session: str, wait_s: float) -> list[Piece] | None:
        await self._reach()
        taken = await self.relay.take(session, min(wait_s, 0.05))
        await self._reach()
        return taken

    async def read_log(self, node: str, task: str, offset: int, limit: int, wait_s: float) -> LogTold | None:
        await self._reach()
        return await self.relay.read_log(node, task, offset, limit, wait_s)

    async def fence(self, node: str, machine: str, epoch: int) -> bool | None:
        await self._reach()
        return await self.relay.fence(node, machine, epoch)


class NearCluster:
    """Machines by their Ray ids, each with a relay."""

    def __init__(self) -> None:
        self.relays: dict[Machine, NearRelay] = {}
        self.asked = 0

    async def machines(self) -> list[Machine]:
        self.asked += 1
        return list(self.relays)

    async def relay(self, machine: Machine) -> RelayHandle:
        if machine not in self.relays:
            raise RelayLost("no such machine", dead=True)
        return self.relays[machine]


class NearBridge:
    """A bridge as its engine sees it, in this process."""

    def __init__(self, cluster: NearCluster, engine_socket: Path, epoch: int, desk: socket.socket) -> None:
        self._task = asyncio.create_task(self._run(Bridge(cluster, str(engine_socket), epoch), desk.dup()))

    async def _run(self, bridge: Bridge, desk: socket.socket) -> None:
        transport, asking = await asyncio.get_running_loop().create_connection(lambda: Desk(bridge), sock=desk)
        running = asyncio.create_task(bridge.run())
        gone = asyncio.create_task(asking.gone.wait())
        try:
            await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            running.cancel()
            gone.cancel()
            await asyncio.gather(running, gone, return_exceptions=True)
            transport.close()

    async def wait(self) -> int:
        await asyncio.wait({self._task})
        return 0

    def terminate(self) -> None:
        self._task.cancel()

    def kill(self) -> None:
        self._task.cancel()
