"""What every engine must do with orders that come late, twice, or from the past."""

from __future__ import annotations

import signal
from pathlib import Path

from msgspec.structs import replace

from corral.model.job import Cause, CheckpointSpec
from corral.model.messages import TaskPhase, TaskReported
from tests.contract.engine_world import Scene, World, alive


def test_a_stop_ends_a_task_with_its_children(scene: Scene, tmp_path: Path) -> None:
    child = tmp_path / "child"

    async def scenario(world: World) -> None:
        await world.start()
        script = f"trap '' TERM; setsid sleep 600 & echo $! > {child}; while :; do sleep 1; done"
        world.engine.send(world.launch(1, script=script))
        await world.until_phase(1, TaskPhase.RUNNING)
        await world.until(lambda: child.exists() and child.read_text().strip())
        world.engine.send(world.stop(1, grace_s=0.2))
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.CANCELLED
        assert not alive(int(child.read_text()))

    scene(scenario)


def test_a_preempted_task_saves_itself_until_it_is_cancelled(scene: Scene, tmp_path: Path) -> None:
    ready, saving = tmp_path / "ready", tmp_path / "saving"

    async def scenario(world: World) -> None:
        await world.start()
        script = f"trap 'touch {saving}' USR1; touch {ready}; while :; do sleep 0.05; done"
        world.engine.send(world.launch(1, script=script, checkpoint=CheckpointSpec("USR1", 3600.0)))
        await world.until_phase(1, TaskPhase.RUNNING)
        await world.until(ready.exists)
        world.engine.send(replace(world.stop(1), reason="preempted", saving_s=3600.0))
        await world.until(saving.exists)
        # Its grace is the same, and yet it must reach the task: the saving alone would take an hour.
        world.engine.send(world.stop(1))
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert (ended.exit.cause, ended.exit.signal) == (Cause.PREEMPTED, signal.SIGTERM)

    scene(scenario)


def test_a_stop_that_comes_with_the_launch_is_not_lost(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        for job in range(1, 11):
            world.engine.send(world.launch(job, "sleep", "600", devices=()))
            world.engine.send(world.stop(job))
        for job in range(1, 11):
            ended = await world.until_phase(job, TaskPhase.ENDED)
            assert ended.exit is not None
            assert ended.exit.cause is Cause.CANCELLED

    scene(scenario)


def test_a_stop_of_an_unknown_task_is_answered_with_its_end(scene: Scene) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.stop(1))
        ended = await world.until_phase(1, TaskPhase.ENDED)
        assert ended.exit is not None
        assert ended.exit.cause is Cause.SHIM_LOST
        # What was reported as ended never starts.
        world.engine.send(world.acknowledge(1))
        world.engine.send(world.launch(1, "true"))
        await world.until(lambda: len(world.reports(1)) == 2)
        again = world.last(1)
        assert again is not None
        assert again.exit is not None
        assert again.exit.cause is Cause.LAUNCH_FAILED
        assert not (world.task_dir(1) / "shim.json").exists()

    scene(scenario)


def test_a_duplicate_launch_runs_once(scene: Scene, tmp_path: Path) -> None:
    witness = tmp_path / "witness"

    async def scenario(world: World) -> None:
        await world.start()
        command = world.launch(1, script=f"echo ran >> {witness}; exit 3")
        for _ in range(3):
            world.engine.send(command)
        await world.until_phase(1, TaskPhase.ENDED)
        world.engine.send(command)
        await world.until(lambda: [r.phase for r in world.reports(1)][-2:] == [TaskPhase.ENDED] * 2)
        world.kill_agent()
        world.start_agent()
        await world.until(lambda: len(world.hellos()) == 2)
        world.engine.send(command)
        world.engine.send(world.launch(2, "true"))
        await world.until_phase(2, TaskPhase.ENDED)
        assert witness.read_text() == "ran\n"

    scene(scenario)


def test_stale_incarnations_and_stale_leaders_are_refused(scene: Scene, tmp_path: Path) -> None:
    witness = tmp_path / "witness"

    async def scenario(world: World) -> None:
        await world.start()

        def order(incarnation: int, epoch: int) -> None:
            world.epoch = epoch
            world.engine.send(world.launch(1, script=f"echo {incarnation} >> {witness}", incarnation=incarnation))

        order(3, 7)
        await world.until_phase(1, TaskPhase.ENDED, 3)
        order(2, 7)
        refused = await world.until_phase(1, TaskPhase.ENDED, 2)
        assert refused.exit is not None
        assert refused.exit.cause is Cause.LAUNCH_FAILED
        order(4, 6)
        world.epoch = 7
        # Both survive a restart of the agent.
        world.kill_agent()
        world.start_agent()
        await world.until(lambda: len(world.hellos()) == 2)
        order(4, 6)
        order(2, 7)
        await world.until(lambda: len(world.reports(1, 2)) == 2)
        assert witness.read_text() == "3\n"
        assert world.reports(1, 4) == []

    scene(scenario)


def test_a_newer_incarnation_starts_when_the_older_one_is_gone(scene: Scene, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.start()
        world.engine.send(world.launch(1, "sleep", "600"))
        old = await world.until_phase(1, TaskPhase.RUNNING)
        assert old.pid is not None
        world.engine.send(world.launch(1, script=f"kill -0 {old.pid} && exit 1; exit 0", incarnation=2))
        new = await world.until_phase(1, TaskPhase.ENDED, 2)
        assert new.exit is not None
        assert new.exit.ok
        assert [said.report.phase for said in world.heard if isinstance(said, TaskReported)][-2:] != []

    scene(scenario)
