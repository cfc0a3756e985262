"""The bridge's entry point: ``python -m corral.runtime.ray.bridge --state-dir DIR --epoch N --desk FD``.

It ends when the daemon does (the descriptor's other end is closed), when its raylet does, and when the GCS is said to
be elsewhere; the daemon starts it again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NamedTuple

from corral.engines.ray.bridge import Bridge, Desk
from corral.engines.ray.cluster import RayCluster, in_daemon_thread
from corral.model.errors import CorralError, StateUnusable
from corral.runtime.lineage import end_with_parent
from corral.runtime.machines.cluster import load_cluster
from corral.runtime.paths import StatePaths
from corral.runtime.poolfile import load_pool
from corral.runtime.ray.environment import ray_environment
from corral.runtime.ray.relay import make_relay

LOOK_S = 1.0
EXIT_MOVED = 3
log = logging.getLogger("corral.bridge")


def main(arguments: list[str] | None = None) -> int:
    """Be the bridge; return the exit code."""
    parser = argparse.ArgumentParser(prog="corral-bridge")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--desk", type=int, required=True)
    asked = parser.parse_args(arguments)
    end_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    paths = StatePaths(asked.state_dir)
    try:
        gcs = load_cluster(paths.cluster).gcs
        if not gcs:
            raise StateUnusable(f"{paths.cluster} names no GCS yet")
        address = load_pool(paths.pool).address
        os.environ.update(ray_environment(paths))
        return asyncio.run(_run(asked.epoch, socket.socket(fileno=asked.desk), paths, Place(gcs, address)))
    except CorralError as error:
        log.error("%s", error)  # noqa: TRY400 - expected while Ray starts: one line, no traceback
        return 1


class Place(NamedTuple):
    """Where the GCS is, and under which address Ray knows this machine."""

    gcs: str
    address: str


async def _run(epoch: int, desk: socket.socket, paths: StatePaths, place: Place) -> int:
    """Be the bridge from the moment on in which Ray is there. Raises ``EngineFault`` when it refuses us."""
    moving = asyncio.create_task(_until_moved(paths, place.gcs))
    # Ray waits for a GCS that is away for as long as it takes.
    connecting = asyncio.create_task(
        in_daemon_thread(lambda: RayCluster(place.gcs, place.address, paths.ray_temp, make_relay))
    )
    await asyncio.wait({connecting, moving}, return_when=asyncio.FIRST_COMPLETED)
    if not connecting.done():
        return EXIT_MOVED
    bridge = Bridge(connecting.result(), str(paths.bridge_socket), epoch)
    log.info("connected to Ray at %s", place.gcs)
    loop = asyncio.get_running_loop()
    _, asking = await loop.create_connection(lambda: Desk(bridge), sock=desk)
    loop.add_signal_handler(signal.SIGTERM, asking.gone.set)
    running = asyncio.create_task(bridge.run())
    ending = asyncio.create_task(asking.gone.wait())
    await asyncio.wait({running, ending, moving}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    return EXIT_MOVED if moving.done() else 0


async def _until_moved(paths: StatePaths, gcs: str) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            now = load_cluster(paths.cluster).gcs
        except StateUnusable:
            continue
        if now and now != gcs:
            log.warning("the GCS is at %s now", now)
            return


if __name__ == "__main__":
    exit_code = main()
    sys.stderr.flush()
    # Threads of Ray may wait for a GCS that is away; nothing here is left to be put in order.
    os._exit(exit_code)
