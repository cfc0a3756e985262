"""The setup script: once for all tasks with the same marker."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from corral.agent.shim.setup_result import UNTOUCHED_NS
from tests.contract.shim.shimworld import ShimWorld, gone, log_of, pid_in, shim_of
from tests.waiting import wait_until


def setup(world: ShimWorld, script: str) -> dict[str, Any]:
    return {"script": script, "marker": str(world.directory / "setups" / "content")}


def test_the_setup_runs_before_the_task_and_into_its_log(world: ShimWorld) -> None:
    handle = world.launch(script="echo run; cat made", setup=setup(world, "echo setup; echo data > made"))
    status = world.end(handle)
    assert status["exit_code"] == 0
    assert log_of(handle) == b"setup\nrun\ndata\n"
    assert (world.directory / "setups" / "content").read_text() == "0.0.0.1\n"


def test_it_runs_once_for_tasks_that_start_together(world: ShimWorld) -> None:
    once = setup(world, "echo x >> count; sleep 0.3")
    handles = [world.launch(number, script="cat count", setup=once) for number in range(6)]
    assert [world.end(handle)["exit_code"] for handle in handles] == [0] * 6
    assert [log_of(handle) for handle in handles] == [b"x\n"] * 6
    assert (world.directory / "count").read_text() == "x\n"


def test_it_runs_never_again(world: ShimWorld) -> None:
    for number in range(3):
        assert world.run(number, argv=["true"], setup=setup(world, "echo x >> count"))["exit_code"] == 0
    assert (world.directory / "count").read_text() == "x\n"


def test_a_failing_setup_ends_the_task(world: ShimWorld) -> None:
    handle = world.launch(argv=["touch", "ran"], setup=setup(world, "echo no such package; exit 42"))
    status = world.end(handle)
    assert (status["cause"], status["exit_code"]) == ("setup-failed", 42)
    assert status["message"] == "setup failed: exit code 42"
    assert log_of(handle) == b"no such package\ncorral: setup failed: exit code 42\n"
    assert not (world.directory / "ran").exists()
    # The next one tries again.
    assert world.run(1, argv=["true"], setup=setup(world, "true"))["exit_code"] == 0


def test_a_marker_that_cannot_be_made_is_said(world: ShimWorld) -> None:
    (world.directory / "file").write_text("")
    marker = str(world.directory / "file" / "below")
    status = world.run(argv=["true"], setup={"script": "true", "marker": marker})
    assert (status["cause"], status["message"]) == (
        "setup-failed",
        f"setup failed: File exists: {world.directory / 'file'}",
    )


def test_a_task_can_be_stopped_during_its_setup(world: ShimWorld) -> None:
    handle = world.launch(argv=["touch", "ran"], setup=setup(world, "echo busy; sleep 60"))
    world.said(handle, "busy")
    assert handle.stop("cancelled", 20)
    assert world.end(handle)["cause"] == "cancelled"
    assert not (world.directory / "ran").exists()
    assert not (world.directory / "setups" / "content").exists()


def test_a_task_can_be_stopped_while_it_waits_for_anothers_setup(world: ShimWorld) -> None:
    busy = world.launch(argv=["true"], setup=setup(world, "echo busy; sleep 60"))
    world.said(busy, "busy")
    waiting = world.launch(1, argv=["true"], setup=setup(world, "true"), max_duration_s=0.2)
    # Its time does not run while it waits, and it has a child that waits.
    wait_until(lambda: waiting.shim() is not None and waits(shim_of(waiting)), what="a waiting child")
    assert waiting.stop("preempted", 20)
    assert world.end(waiting)["cause"] == "preempted"
    assert busy.stop("cancelled", 20)
    assert world.end(busy)["cause"] == "cancelled"


def waits(shim: int) -> bool:
    return bool(Path(f"/proc/{shim}/task/{shim}/children").read_text().split())


def test_what_a_setup_leaves_running_is_ended(world: ShimWorld) -> None:
    script = (
        "(trap '' TERM; echo $BASHPID > pid; while :; do sleep 0.05; done) & while [ ! -s pid ]; do sleep 0.01; done"
    )
    handle = world.launch(script="echo run; sleep 60", setup=setup(world, script), orphan_grace_s=0.1)
    world.said(handle, "run")
    assert gone(pid_in(world.directory / "pid"))
    assert handle.stop("cancelled", 20)
    # The task's own grace was not used up by the setup's rest.
    assert world.end(handle)["signal"] == signal.SIGTERM


def test_the_time_limit_covers_the_setup(world: ShimWorld) -> None:
    status = world.run(argv=["true"], setup=setup(world, "sleep 60"), max_duration_s=0.3, grace_s=20)
    assert status["cause"] == "max-duration"


def test_a_killed_setup_lets_the_next_one_in_only_when_nothing_of_it_runs(world: ShimWorld) -> None:
    script = "(echo $BASHPID > pid; exec sleep 600) & wait"
    first = world.launch(argv=["true"], setup=setup(world, script))
    leftover = pid_in(world.directory / "pid")
    os.kill(shim_of(first), signal.SIGKILL)
    wait_until(lambda: not first.shim_lives())
    script = f"grep -q 'State:.*[RSDT] ' /proc/{leftover}/status && exit 9; exit 0"
    second = world.launch(1, argv=["true"], setup=setup(world, script))
    wait_until(lambda: second.shim() is not None and waits(shim_of(second)), what="a waiting child")
    assert not gone(leftover)
    assert first.sweep().left == frozenset()
    assert world.end(second)["exit_code"] == 0


def test_a_setup_in_a_directory_of_its_own_is_seen_by_all_that_work_in_copies_of_it(world: ShimWorld) -> None:
    base, marker = world.directory / "base", str(world.directory / "done")
    base.mkdir()
    (base / "main.sh").write_text("echo main; cat made")
    os.utime(base / "main.sh", ns=(UNTOUCHED_NS, UNTOUCHED_NS))
    script = "echo x >> count; pwd > made; sleep 0.2"
    handles = []
    for number in range(3):
        work = world.directory / f"work-{number}"
        work.mkdir()
        (work / "main.sh").write_text("echo main; cat made")
        spec = {"script": script, "marker": marker, "cwd": str(base)}
        handles.append(world.launch(number, script=". ./main.sh; pwd", setup=spec, cwd=str(work)))
    assert [world.end(handle)["exit_code"] for handle in handles] == [0] * 3
    expected = [f"main\n{base}\n{world.directory}/work-{number}\n".encode() for number in range(3)]
    assert [log_of(handle) for handle in handles] == expected
    assert (base / "count").read_text() == "x\n"
    assert not (world.directory / "work-0" / "main.sh").is_symlink()
