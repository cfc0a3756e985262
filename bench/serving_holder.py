"""A front end's part that holds a virtual address, alone.

    python -m bench.serving_holder FOLDER OWN PEER PRIORITY ADDRESS/LENGTH

A process of its own answers on port 8080 of all addresses with this machine's own; it is asked ten times a second, as a
front end asks its proxy, and started again where it has ended. Whether the address is here is looked at a hundred times
a second: ``FOLDER/holds`` has a line for each change, ``SECONDS 0|1`` (since the epoch).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path

from corral.serving.vrrp.keeper import Keeper
from corral.serving.vrrp.render import Vip

PORT = 8080
LOOK_S = 0.01
WATCH_S = 0.1
AGAIN_S = 2.0
"""Later than a proxy comes back: so it is the address that moves, which is what is measured."""


async def answer(own: str) -> None:
    """Answer everybody with one's own address: the proxy's part."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.write(own.encode())
        writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", PORT, backlog=1024)  # noqa: S104 - in a namespace
    async with server:
        await server.serve_forever()


async def proxied(folder: Path, own: str) -> None:
    """Keep the answering process running; ``FOLDER/proxy.pid`` names it."""
    while True:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.serving_holder", "answer", own, stdin=asyncio.subprocess.DEVNULL
        )
        (folder / "proxy.pid").write_text(str(process.pid))
        await process.wait()
        await asyncio.sleep(AGAIN_S)


async def watched(keeper: Keeper) -> None:
    """Tell whether the proxy answers."""
    while True:
        well = False
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(WATCH_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
                well = bool(await reader.read())
                writer.close()
        keeper.tell(well=well)
        await asyncio.sleep(WATCH_S)


async def noted(folder: Path, address: str) -> None:
    """Write down when the address comes and goes."""
    local, before = f"|-- {address}\n", None
    routes = Path("/proc/self/net/fib_trie")
    with (folder / "holds").open("a", buffering=1) as file:
        while True:
            holds = local in routes.read_text()  # noqa: ASYNC240 - it is in memory
            if holds is not before:
                file.write(f"{time.time():.4f} {int(holds)}\n")
                before = holds
            await asyncio.sleep(LOOK_S)


async def main(folder: Path, own: str, peer: str, priority: int, address: str) -> None:
    """Hold the address in turn with the peer until killed."""
    vip = Vip(address=address, interface="eth0", own=own, peers=(peer,), priority=priority)
    keeper = Keeper(vip, folder / "vrrp", folder / "keepalived.log")
    async with asyncio.TaskGroup() as group:
        group.create_task(keeper.run())
        group.create_task(proxied(folder, own))
        group.create_task(watched(keeper))
        group.create_task(noted(folder, vip.bare))


if __name__ == "__main__":
    if sys.argv[1] == "answer":
        asyncio.run(answer(sys.argv[2]))
    else:
        (Path(sys.argv[1]) / "vrrp").mkdir(parents=True, exist_ok=True)
        asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]))
