"""Asks one address a hundred times a second: ``python -m bench.serving_caller ADDRESS PORT FILE``.

``FILE`` gets a line for each answer, ``SECONDS WHO``: when it was asked (since the epoch), and what was answered. No
request waits for those before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import TextIO

EVERY_S = 0.01
ANSWER_S = 0.5


async def ask(address: str, port: int, file: TextIO) -> None:
    """Ask once; who does not answer leaves no line."""
    began = time.time()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(address, port)
            said = await reader.read()
            writer.close()
            if said:
                file.write(f"{began:.4f} {said.decode()}\n")


async def main(address: str, port: int, path: Path) -> None:
    """Ask until killed."""
    asking: set[asyncio.Task[None]] = set()
    with path.open("a", buffering=1) as file:
        while True:
            task = asyncio.create_task(ask(address, port, file))
            asking.add(task)
            task.add_done_callback(asking.discard)
            await asyncio.sleep(EVERY_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
