"""Stopping a task while its files are on their way: nobody waits for them, and nothing of it is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from corral.agent import preparing
from corral.agent.config import AgentConfig
from corral.agent.depot import Depot, Unwanted
from corral.agent.layouts import Layouts
from corral.agent.outputs import Launch
from corral.agent.preparing import PreparationFailed, Prepared, Preparer
from corral.agent.travelling import Travelling
from corral.agent.workview import build_view
from corral.model.files import JobFiles
from corral.model.job import Cause
from corral.model.messages import TaskPhase
from corral.model.resources import Placement
from tests.unit.agent.scene import Play, Scene
from tests.unit.agent.travels import Node, Pool
from tests.unit.agent.words import NODE, key, launch, stop
from tests.waiting import wait_until


class SlowPool(Pool):
    """A pool whose blobs come one by one, each when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Semaphore(0)
        self.give = threading.Semaphore(0)

    def fetch(self, names: Sequence[str]) -> list[bytes | None]:
        self.asked.release()
        assert self.give.acquire(timeout=30.0)
        self.fetched.append(names[0])
        return [self.blobs.get(names[0])]


def test_what_is_not_wanted_any_more_is_fetched_no_further(node: Node, pool: Pool, project: Path) -> None:
    files = JobFiles(pool.send(project))
    directory = node.config.tasks_dir / "1.0.0.1"
    directory.mkdir()
    with pytest.raises(Unwanted):
        node.travelling.lay_out(launch(key(1), files=files), str(directory), lambda: len(pool.fetched) < 2)
    begun = list(pool.fetched)
    assert 0 < len(begun) < len(pool.blobs)
    # What has come is kept, and the thread serves another one as ever.
    _, packed = node.lay_out(2, files=files)
    assert Path(packed.cwd, "run.sh").exists()
    assert sorted(pool.fetched) == sorted(pool.blobs)


def test_a_task_that_is_called_off_is_over_at_once(config: AgentConfig, project: Path) -> None:
    pool = SlowPool()
    files = JobFiles(pool.send(project))
    travelling = Travelling(config, Depot(config.node_dir / "cache", 1 << 20, pool.fetch))
    layouts = Layouts(Preparer(config, None, None, {"PATH": "/bin"}, travelling))

    async def scenario() -> None:
        assert not layouts.call_off("1.0.0.1")
        preparing_it = asyncio.ensure_future(
            layouts.prepare("1.0.0.1", Launch(launch(key(1), files=files), deadline_boottime_s=None))
        )
        await asyncio.to_thread(pool.asked.acquire)
        assert layouts.call_off("1.0.0.1")
        # The blob is still on its way.
        assert await preparing_it is None
        assert not layouts.call_off("1.0.0.1")

    asyncio.run(scenario())
    pool.give.release()
    wait_until(lambda: pool.fetched and not list((config.tasks_dir / "1.0.0.1").iterdir()))
    assert len(pool.fetched) == 1

    async def again() -> Prepared:
        order = Launch(launch(key(1), 2, files=files), deadline_boottime_s=None)
        for _ in pool.blobs:
            pool.give.release()
        prepared = await layouts.prepare("1.0.0.2", order)
        with pytest.raises(PreparationFailed):
            await layouts.prepare("1.0.0.2", order)
        assert prepared is not None
        return prepared

    assert Path(asyncio.run(again()).directory, "work", "run.sh").exists()


def test_a_stop_does_not_wait_for_the_files_of_its_task(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow_view(view: Path, workdir: Path | None, mounts: dict[str, str]) -> None:
        begun.set()
        assert go_on.wait(30.0)
        build_view(view, workdir, mounts)

    monkeypatch.setattr(preparing, "build_view", slow_view)

    async def scenario(scene: Scene) -> None:
        await scene.fork_server()
        await scene.agent()
        await scene.until(scene.hellos)
        placement = Placement(0, NODE, (), 0, 0)
        task = launch(key(1), argv=("sleep", "600"), placement=placement, file_mounts={"data": str(tmp_path)})
        scene.engine.send(task)
        await scene.until(begun.is_set)
        scene.engine.send(stop(key(1)))
        ended = await scene.until_phase(key(1), TaskPhase.ENDED)
        assert ended.exit is not None
        assert (ended.exit.cause, ended.exit.message) == (Cause.CANCELLED, "stopped before its files were there")
        assert ended.exit.started_at is None
        go_on.set()
        # Of the next start of the same task nothing is in the way; of the first one nothing was started.
        scene.engine.send(launch(key(1), 2, argv=("true",), placement=placement, file_mounts={"data": str(tmp_path)}))
        await scene.until_phase(key(1), TaskPhase.ENDED, 2)
        assert not (scene.config.tasks_dir / "1.0.0.1" / "shim.json").exists()

    play(scenario)
