"""A front end's part that holds a virtual address, alone: ``python holder.py FOLDER OWN PEER PRIORITY ADDRESS``.

It answers on port 8080 of all addresses of its machine with its own, as a front end would, and is well while the file
``FOLDER/ill`` is not there.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from corral.serving.vrrp.keeper import Keeper
from corral.serving.vrrp.render import Vip


async def main(folder: Path, own: str, peer: str, priority: int, address: str) -> None:
    vip = Vip(address=address, interface="eth0", own=own, peers=(peer,), priority=priority)
    keeper = Keeper(vip, folder / "vrrp", folder / "keepalived.log")

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(own.encode())
        writer.close()

    async def tell() -> None:
        while True:
            keeper.tell(well=not (folder / "ill").exists())
            (folder / "problem").write_text(keeper.problem)
            await asyncio.sleep(0.05)

    server = await asyncio.start_server(answer, None, 8080)
    async with server, asyncio.TaskGroup() as group:
        group.create_task(keeper.run())
        group.create_task(tell())


if __name__ == "__main__":
    (Path(sys.argv[1]) / "vrrp").mkdir(parents=True, exist_ok=True)
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]))
