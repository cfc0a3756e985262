"""What every engine must do with logs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from corral.model.errors import NotFound
from corral.model.messages import TaskPhase
from corral.ports.engine import LogChunk
from tests.contract.engine_world import NODE, Scene, World, task, whole_log


def test_a_log_is_followed_live_over_rotations_with_every_byte(scene: Scene, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    first = bytes(range(256)) * 40 + "\nµ\n".encode()
    rest = b"".join(b"%06d %s\n" % (number, bytes([number % 256]) * 20) for number in range(1500))
    (tmp_path / "first").write_bytes(first)
    (tmp_path / "rest").write_bytes(rest)

    async def scenario(world: World) -> None:
        await world.start()
        script = f"cat {tmp_path}/first; read _ < {gate}; cat {tmp_path}/rest; read _ < {gate}"
        world.engine.send(world.launch(1, script=script))
        await world.until_phase(1, TaskPhase.RUNNING)
        chunks: list[LogChunk] = []

        async def follow() -> None:
            async for chunk in world.engine.follow_log(NODE, task(1), 1, 0):
                chunks.append(chunk)  # noqa: PERF401 - the list is looked at while it grows

        def size() -> int:
            return sum(len(chunk.data) for chunk in chunks)

        following = asyncio.create_task(follow())
        await world.until(lambda: size() == len(first), "what the task wrote first")
        assert not following.done()
        gate.write_text("\n")
        await world.until(lambda: size() == len(first) + len(rest), "the rest of the log")
        assert not any(chunk.complete for chunk in chunks)
        gate.write_text("\n")
        await following
        assert b"".join(chunk.data for chunk in chunks) == first + rest
        assert chunks[-1].complete
        # Resuming in the middle gives the rest, and one piece can be read alone.
        begin = len(first) + len(rest) - 5000
        assert await whole_log(world, 1, begin) == rest[-5000:]
        piece = await world.engine.read_log(NODE, task(1), 1, begin, 100)
        assert (piece.offset, piece.data, piece.complete) == (begin, rest[-5000:-4900], False)
        # Only the newest files are kept; what is gone is skipped, and the offset says so.
        oldest = await world.engine.read_log(NODE, task(1), 1, 0, 10)
        kept = sum(path.stat().st_size for path in world.task_dir(1).glob("log*") if path.name != "log.start")
        assert oldest.offset == max(0, len(first) + len(rest) - kept)

    scene(scenario)


def test_there_is_no_log_of_what_never_was(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        with pytest.raises(NotFound):
            await world.engine.read_log(NODE, task(99), 1, 0, 10)
        with pytest.raises(NotFound):
            await whole_log(world, 99)

    scene(scenario)
