"""Ending a task from outside, asking it for a checkpoint, and limiting its time."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from corral.agent import processes
from tests.contract.shim.shimworld import ShimWorld, child_of, gone, log_of, pid_in, shim_of, state_of
from tests.waiting import wait_until

DEAF = "trap '' TERM; echo deaf; while :; do sleep 0.05; done"

SAVER = """
import os, signal, sys, time
signal.signal(signal.Signals[sys.argv[1]], lambda *_: os.write(1, b"saved"))
os.write(1, b"up")
while True:
    time.sleep(0.05)
"""


def test_a_stop_gives_the_task_its_grace(world: ShimWorld) -> None:
    handle = world.launch(script="trap 'echo saving; exit 9' TERM; echo up; while :; do sleep 0.05; done")
    world.said(handle, "up")
    assert handle.stop("preempted", 30)
    status = world.end(handle)
    assert (status["cause"], status["exit_code"], status["message"]) == ("preempted", 9, "stopped: preempted")
    assert b"saving\n" in log_of(handle)


def test_a_task_that_ignores_sigterm_is_killed(world: ShimWorld) -> None:
    handle = world.launch(script=DEAF)
    world.said(handle, "deaf")
    assert handle.stop("cancelled", 0.3)
    status = world.end(handle)
    assert (status["cause"], status["exit_code"], status["signal"]) == ("cancelled", None, signal.SIGKILL)
    assert status["ran_s"] >= 0.3


def test_a_task_without_a_checkpoint_signal_is_left_alone_so_long(world: ShimWorld) -> None:
    handle = world.launch(script="trap 'echo ends; exit 3' TERM; echo up; sleep 0.3; echo done; sleep 60 & wait")
    world.said(handle, "up")
    assert handle.stop("cancelled", 30, saving_s=3600)
    # It finishes what is under way, and then hears SIGTERM because a later order leaves it no more time.
    world.said(handle, "done")
    assert b"ends" not in log_of(handle)
    assert handle.stop("cancelled", 30)
    status = world.end(handle)
    assert (status["cause"], status["exit_code"]) == ("cancelled", 3)
    assert b"ends" in log_of(handle)


def test_time_that_runs_out_ends_in_sigterm(world: ShimWorld) -> None:
    handle = world.launch(argv=["sleep", "60"])
    child_of(handle)
    wait_until(lambda: world.event()["event"] == "started")
    assert handle.stop("cancelled", 30, saving_s=0.3)
    status = world.end(handle)
    assert (status["cause"], status["signal"]) == ("cancelled", signal.SIGTERM)
    assert status["ran_s"] >= 0.3


def test_a_task_that_has_not_begun_has_nothing_under_way(world: ShimWorld) -> None:
    setup = {"script": "echo setting up; sleep 60", "marker": str(world.directory / "setup")}
    handle = world.launch(argv=["sleep", "60"], setup=setup)
    world.said(handle, "setting up")
    assert handle.stop("cancelled", 30, saving_s=3600)
    assert world.end(handle)["cause"] == "cancelled"


def test_an_order_may_explain_itself(world: ShimWorld) -> None:
    handle = world.launch(argv=["sleep", "60"], grace_s=5)
    child_of(handle)
    assert handle.stop("unhealthy", 5, message="not alive: GET /alive: HTTP 500")
    status = world.end(handle)
    assert (status["cause"], status["message"]) == ("unhealthy", "not alive: GET /alive: HTTP 500")
    assert log_of(handle) == b"corral: not alive: GET /alive: HTTP 500\n"


def test_a_second_stop_shortens_the_first(world: ShimWorld) -> None:
    handle = world.launch(script=DEAF.replace("''", "'echo heard'"))
    world.said(handle, "deaf")
    assert handle.stop("preempted", 3600)
    world.said(handle, "heard")
    assert handle.stop("cancelled", 3600)
    assert handle.stop("cancelled", 0)
    # The first reason stays: that is why it ended.
    assert world.end(handle)["cause"] == "preempted"


def test_sigterm_without_an_order_is_a_machine_going_down(world: ShimWorld) -> None:
    handle = world.launch(argv=["sleep", "60"], grace_s=5)
    child_of(handle)
    os.kill(shim_of(handle), signal.SIGTERM)
    status = world.end(handle)
    assert (status["cause"], status["signal"]) == ("node-lost", signal.SIGTERM)


def test_an_order_that_makes_no_sense_is_a_cancellation(world: ShimWorld) -> None:
    handle = world.launch(argv=["sleep", "60"], grace_s=5)
    child_of(handle)
    (handle.directory / "stop.json").write_text('{"reason": ["?"], "grace_s": "soon"')
    os.kill(shim_of(handle), signal.SIGTERM)
    assert world.end(handle)["cause"] == "cancelled"


def test_the_whole_tree_gets_sigterm(world: ShimWorld) -> None:
    script = "(trap 'echo child ends; exit' TERM; echo up; while :; do sleep 0.05; done) & setsid sleep 61 & wait"
    handle = world.launch(script=script)
    world.said(handle, "up")
    assert handle.stop("cancelled", 20)
    status = world.end(handle)
    assert status["cause"] == "cancelled"
    assert b"child ends" in log_of(handle)


def test_a_stopped_process_ends_within_its_grace(world: ShimWorld) -> None:
    handle = world.launch(argv=["sleep", "60"])
    pid = child_of(handle)
    wait_until(lambda: world.event()["event"] == "started")
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state_of(pid) == "T")
    assert handle.stop("cancelled", 60)
    assert world.end(handle)["signal"] == signal.SIGTERM


def test_a_stop_before_anything_ran_lets_nothing_run(world: ShimWorld) -> None:
    witness = world.directory / "ran"
    handle = world.prepare(script=f"touch {witness}")
    (handle.directory / "stop.json").write_text(json.dumps({"reason": "cancelled", "grace_s": 1}))
    reply = world.client.launch(handle.directory)
    assert reply.pid is not None
    # Whatever the shim has come to by now: the order is not lost.
    os.kill(reply.pid, signal.SIGTERM)
    status = world.end(handle)
    assert status["cause"] in ("cancelled", "exited")
    assert not witness.exists() or status["started_at"] is not None


def test_a_stop_after_the_end_changes_nothing(world: ShimWorld) -> None:
    handle = world.launch(script="exit 4")
    world.end(handle)
    wait_until(lambda: not handle.shim_lives())
    assert not handle.stop("cancelled", 1)
    assert (handle.status() or {})["exit_code"] == 4


def test_the_time_is_limited(world: ShimWorld) -> None:
    handle = world.launch(argv=["sleep", "60"], max_duration_s=0.4, grace_s=20)
    status = world.end(handle)
    assert (status["cause"], status["signal"]) == ("max-duration", signal.SIGTERM)
    assert status["ran_s"] >= 0.3
    assert status["message"] == "the maximum duration of 0.4 s is over"
    assert log_of(handle) == b"corral: the maximum duration of 0.4 s is over\n"


def test_the_time_limit_kills_who_ignores_it(world: ShimWorld) -> None:
    status = world.run(script=DEAF, max_duration_s=0.3, grace_s=0.2)
    assert (status["cause"], status["signal"]) == ("max-duration", signal.SIGKILL)


# Counts the checkpoints that it is asked for; ends by SIGTERM.
COUNTER = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"saved\\n"))
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"terminated\\n"), os._exit(3)))
os.write(1, b"up\\n")
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("grace_s", [1.5, 60.0], ids=["before the end", "longer than the limit"])
def test_a_checkpoint_is_asked_for_once_before_the_time_is_over(world: ShimWorld, grace_s: float) -> None:
    handle = world.python(
        code=COUNTER, checkpoint_signal="USR1", checkpoint_grace_s=grace_s, max_duration_s=3.0, grace_s=20
    )
    status = world.end(handle)
    assert (status["cause"], status["exit_code"]) == ("max-duration", 3)
    assert log_of(handle).splitlines()[:3] == [b"up", b"saved", b"terminated"]


def test_a_program_that_saves_itself_in_time_ends_by_itself(world: ShimWorld) -> None:
    script = "trap 'echo saved; exit 0' USR1; echo up; while :; do sleep 0.05; done"
    fields: dict[str, Any] = {"checkpoint_signal": "USR1", "checkpoint_grace_s": 58.0, "max_duration_s": 60.0}
    status = world.end(world.launch(script=script, **fields))
    assert (status["cause"], status["exit_code"]) == ("exited", 0)


def test_a_preempted_task_saves_itself_before_it_is_terminated(world: ShimWorld) -> None:
    handle = world.python(code=COUNTER, checkpoint_signal="USR1", checkpoint_grace_s=600)
    world.said(handle, "up")
    assert handle.stop("preempted", 20, 0.5)
    assert handle.stop("preempted", 20, 0.5)
    status = world.end(handle)
    assert (status["cause"], status["exit_code"]) == ("preempted", 3)
    assert log_of(handle).splitlines()[:3] == [b"up", b"saved", b"terminated"]


def test_a_preempted_task_that_saves_itself_gets_no_sigterm(world: ShimWorld) -> None:
    script = "trap 'echo bad' TERM; trap 'sleep 0.2; echo saved; exit 7' USR1; echo up; while :; do sleep 0.05; done"
    handle = world.launch(script=script, checkpoint_signal="USR1", checkpoint_grace_s=600)
    world.said(handle, "up")
    assert handle.stop("preempted", 0, 600)
    status = world.end(handle)
    assert (status["cause"], status["exit_code"]) == ("preempted", 7)
    assert b"bad" not in log_of(handle)


def test_a_preempted_task_that_awaits_no_checkpoint_ends_at_once(world: ShimWorld) -> None:
    handle = world.launch(argv=["sleep", "60"], checkpoint_signal="USR1", checkpoint_grace_s=600)
    world.wait_event("started")
    assert handle.stop("preempted", 600, 600)
    assert world.end(handle, 20)["signal"] == signal.SIGTERM


def test_a_preempted_task_that_saves_nothing_is_not_asked_to(world: ShimWorld) -> None:
    handle = world.python(code=COUNTER, checkpoint_signal="USR1", checkpoint_grace_s=600)
    world.said(handle, "up")
    assert handle.stop("preempted", 600, 0)
    assert world.end(handle, 20)["exit_code"] == 3
    assert log_of(handle).splitlines()[:2] == [b"up", b"terminated"]


def test_a_preempted_task_that_neither_ends_nor_listens_is_killed_after_both_graces(world: ShimWorld) -> None:
    code = "import signal, time\nfor n in (10, 15): signal.signal(n, lambda *_: print('heard', flush=True))\n"
    handle = world.python(code=code + "print('up', flush=True)\nwhile True: time.sleep(0.05)", checkpoint_signal="USR1")
    world.said(handle, "up")
    assert handle.stop("preempted", 0.2, 0.2)
    status = world.end(handle)
    assert (status["cause"], status["signal"]) == ("preempted", signal.SIGKILL)
    assert log_of(handle).splitlines()[:3] == [b"up", b"heard", b"heard"]


def test_a_task_that_saves_nothing_is_left_alone_for_its_time_and_ends_sooner_when_told_again(world: ShimWorld) -> None:
    handle = world.launch(script="trap 'echo heard; exit 3' TERM; echo up; while :; do sleep 0.05; done")
    world.said(handle, "up")
    assert handle.stop("preempted", 30, 3600)
    os.kill(shim_of(handle), signal.SIGUSR1)
    wait_until(lambda: state_of(shim_of(handle)) == "S", timeout_s=10, what="the shim has nothing left to do")
    assert b"heard" not in log_of(handle)
    assert handle.stop("preempted", 30, 0)
    status = world.end(handle)
    assert (status["cause"], status["exit_code"]) == ("preempted", 3)
    assert b"heard" in log_of(handle)


def test_a_cancellation_cuts_the_saving_short(world: ShimWorld) -> None:
    handle = world.python(code=COUNTER, checkpoint_signal="USR1", checkpoint_grace_s=600)
    world.said(handle, "up")
    assert handle.stop("preempted", 20, 600)
    world.said(handle, "saved")
    assert handle.stop("cancelled", 20)
    assert world.end(handle, 20)["exit_code"] == 3


def test_a_checkpoint_signal_reaches_a_program_that_awaits_it(world: ShimWorld) -> None:
    handle = world.python(code=SAVER, arguments=("SIGUSR1",), checkpoint_signal="USR1")
    world.said(handle, "up")
    assert handle.checkpoint()
    world.said(handle, "saved")
    assert world.wait_event("checkpoint")["processes"] == 1


def test_a_checkpoint_signal_goes_past_a_shell_that_would_die_of_it(world: ShimWorld) -> None:
    script = 'python3 -S -c "$SAVER" SIGUSR2; echo after'
    handle = world.launch(script=script, env={"SAVER": SAVER}, checkpoint_signal="SIGUSR2")
    world.said(handle, "up")
    assert handle.checkpoint()
    world.said(handle, "saved")
    assert handle.status() is None


def test_a_checkpoint_signal_kills_nobody(world: ShimWorld) -> None:
    handle = world.launch(argv=["sleep", "60"], checkpoint_signal="USR1")
    world.wait_event("started")
    assert handle.checkpoint()
    assert world.wait_event("checkpoint")["processes"] == 0
    assert not gone(child_of(handle))


def test_a_checkpoint_signal_at_any_moment_of_the_start_kills_nobody(world: ShimWorld) -> None:
    handles = [world.launch(number, argv=["sleep", "60"], checkpoint_signal="USR1") for number in range(20)]
    for handle in handles:
        wait_until(handle.checkpoint, interval_s=0, what="a shim to ask")
    for handle in handles:
        name = Path(f"/proc/{child_of(handle)}/comm")
        wait_until(lambda name=name: name.read_text() == "sleep\n", what="the program")  # type: ignore[misc]


def test_a_stop_at_any_moment_of_the_start_is_not_lost(world: ShimWorld) -> None:
    handles = [world.launch(number, argv=["sleep", "600"]) for number in range(20)]
    for handle in handles:
        wait_until(lambda handle=handle: handle.stop("cancelled", 600), interval_s=0, what="a shim to ask")  # type: ignore[misc]
    assert {world.end(handle)["signal"] for handle in handles} <= {signal.SIGTERM, None}


def test_without_a_checkpoint_signal_nothing_is_sent(world: ShimWorld) -> None:
    handle = world.launch(script="trap 'echo got it; exit 1' USR1; echo up; while :; do sleep 0.02; done")
    world.said(handle, "up")
    assert handle.checkpoint()
    assert handle.stop("cancelled", 10)
    world.end(handle)
    assert b"got it" not in log_of(handle)


def test_the_tree_is_ended_when_the_main_process_is(world: ShimWorld) -> None:
    daemon = (
        "import os, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "null = os.open('/dev/null', os.O_RDWR); [os.dup2(null, fd) for fd in (0, 1, 2)]\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    pids = world.directory / "pid"
    handle = world.launch(
        script=f'python3 -S -c "$DAEMON" {pids}; while [ ! -s {pids} ]; do sleep 0.01; done; exit 5',
        env={"DAEMON": daemon},
        grace_s=60,
        orphan_grace_s=0.2,
    )
    pid = pid_in(pids)
    status = world.end(handle)
    assert (status["cause"], status["exit_code"]) == ("exited", 5)
    assert gone(pid)


def test_a_crowd_that_forks_all_the_time_is_ended(world: ShimWorld) -> None:
    bomb = "trap '' TERM; f() { while :; do (sleep 0.01; sleep 0.01) & sleep 0.005; done; }; f & f & f & echo up; wait"
    handle = world.launch(script=bomb, orphan_grace_s=0)
    world.said(handle, "up")
    assert handle.stop("cancelled", 0)
    world.end(handle)
    assert processes.with_environment({"CORRAL_TASK_DIR": str(handle.directory)}) == []
