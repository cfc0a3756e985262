"""The end of child processes, with everything that the event loop keeps of them."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import Process

OUTPUT_S = 1.0


async def gone(process: Process) -> None:
    """Wait until a killed process is gone and its output is closed: only then has the loop let go of it.

    What it started may hold the output open; that is waited for ``OUTPUT_S`` seconds. Somebody who reads the output at
    the same time sees its end as well.
    """
    await process.wait()
    if process.stdout is not None:
        with contextlib.suppress(TimeoutError, RuntimeError, ValueError):
            async with asyncio.timeout(OUTPUT_S):
                while await process.stdout.read(1 << 16):
                    pass
