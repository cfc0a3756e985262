"""Finding and ending real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent import processes
from tests import needs
from tests.waiting import wait_until

# Other tests of the same run have tasks too.
TASK = f"unit-{os.getpid()}.1"

Started = list[subprocess.Popen[bytes]]


@pytest.fixture
def started() -> Iterator[Started]:
    made: Started = []
    yield made
    for process in made:
        process.kill()
        process.wait()


def sleeper(started: Started, *, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    started.append(subprocess.Popen(["/bin/sleep", "600"], env=env or {}))
    return started[-1]


def shell(started: Started, script: str, **arguments: object) -> subprocess.Popen[bytes]:
    started.append(subprocess.Popen(["bash", "-c", script], **arguments))  # type: ignore[call-overload]
    return started[-1]


def ticks_of(pid: int) -> int:
    ticks = processes.start_ticks(pid)
    assert ticks is not None
    return ticks


def test_a_process_is_described(started: Started) -> None:
    child = sleeper(started)
    stat = processes.read_stat(child.pid)
    assert stat is not None
    assert (stat.pid, stat.ppid, stat.session, stat.dead) == (child.pid, os.getpid(), os.getsid(0), False)
    seconds = stat.start_ticks / os.sysconf("SC_CLK_TCK")
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert uptime - 60 < seconds <= uptime + 1


def test_a_name_may_hold_anything(started: Started, tmp_path: Path) -> None:
    program = tmp_path / ") R 1 (x"
    program.symlink_to("/bin/sleep")
    started.append(subprocess.Popen([program, "600"]))
    wait_until(lambda: b"R 1 (x" in (processes.read_small(f"/proc/{started[-1].pid}/stat") or b""))
    stat = processes.read_stat(started[-1].pid)
    assert stat is not None
    assert stat.ppid == os.getpid()


def test_a_stranger_with_the_same_pid_is_not_taken_for_it(started: Started) -> None:
    child = sleeper(started)
    ticks = ticks_of(child.pid)
    assert processes.is_alive(child.pid, ticks)
    assert not processes.is_alive(child.pid, ticks - 1)
    assert processes.open_pidfd(child.pid, ticks - 1) is None
    assert not processes.send_signal(child.pid, ticks + 1, signal.SIGKILL)
    assert child.poll() is None
    assert processes.kill_tree(child.pid, ticks + 1) == frozenset()
    assert child.poll() is None
    pidfd = processes.open_pidfd(child.pid, ticks)
    assert pidfd is not None
    os.close(pidfd)


def test_the_dead_are_not_alive(started: Started) -> None:
    child = sleeper(started)
    ticks = ticks_of(child.pid)
    child.kill()
    wait_until(lambda: (stat := processes.read_stat(child.pid)) is not None and stat.dead, what="a zombie")
    assert not processes.is_alive(child.pid, ticks)
    child.wait()
    assert processes.start_ticks(child.pid) is None
    assert not processes.send_signal(child.pid, ticks, 0)


@pytest.mark.parametrize("scan", [False, True])
def test_all_descendants_are_found(started: Started, *, scan: bool) -> None:
    child = shell(started, "sleep 601 & (setsid sleep 602 & sleep 603; true) & wait")
    find = processes._descendants_by_scan if scan else processes.descendants

    def names() -> set[str]:
        found = {stat.pid for stat in find(child.pid)}
        lines = {processes.read_small(f"/proc/{pid}/cmdline") or b"" for pid in found}
        return {line.split(b"\0")[1].decode() for line in lines if line.startswith(b"sleep")}

    wait_until(lambda: names() == {"601", "602", "603"})
    assert child.pid in {stat.pid for stat in find(os.getpid())}
    processes.kill_tree(child.pid, ticks_of(child.pid))


def test_threads_have_children_too(started: Started) -> None:
    code = "import subprocess, threading; threading.Thread(target=lambda: subprocess.run(['sleep', '600'])).start()"
    started.append(subprocess.Popen([sys.executable, "-S", "-c", code]))
    wait_until(lambda: processes.descendants(started[-1].pid))
    processes.kill_tree(started[-1].pid, ticks_of(started[-1].pid))


def test_a_tree_that_resists_is_killed(started: Started) -> None:
    child = shell(
        started,
        "trap '' TERM; f() { while :; do (sleep 600) & sleep 0.01; done; }; f & f & "
        "setsid bash -c 'trap \"\" TERM; sleep 600; true' & wait",
        env={"PATH": "/usr/bin:/bin", "CORRAL_TASK": TASK},
    )
    wait_until(lambda: len(processes.descendants(child.pid)) > 10)
    assert processes.kill_tree(child.pid, ticks_of(child.pid)) == frozenset()
    child.wait()
    assert processes.with_environment({"CORRAL_TASK": TASK}) == []


def test_processes_are_found_by_all_of_their_marks(started: Started) -> None:
    both = sleeper(started, env={"CORRAL_TASK": TASK, "CORRAL_TASK_DIR": "/a", "X": "1"})
    other = sleeper(started, env={"CORRAL_TASK": TASK, "CORRAL_TASK_DIR": "/b"})
    sleeper(started, env={"CORRAL_TASK": TASK + "1", "NOT_CORRAL_TASK": TASK})

    def found(**wanted: str) -> set[int]:
        return {stat.pid for stat in processes.with_environment(wanted)}

    assert found(CORRAL_TASK=TASK) == {both.pid, other.pid}
    assert found(CORRAL_TASK=TASK, CORRAL_TASK_DIR="/a") == {both.pid}
    assert found(CORRAL_TASK=TASK + "2") == set()


def test_a_sweep_kills_what_is_marked_and_nothing_else(started: Started) -> None:
    marked = sleeper(started, env={"CORRAL_TASK": TASK, "CORRAL_TASK_DIR": "/a"})
    elsewhere = sleeper(started, env={"CORRAL_TASK": TASK, "CORRAL_TASK_DIR": "/b"})
    assert processes.sweep(TASK, task_dir="/a") == (frozenset({marked.pid}), frozenset())
    assert marked.wait() == -signal.SIGKILL
    assert elsewhere.poll() is None
    assert processes.sweep(TASK).killed == {elsewhere.pid}


def test_a_sweep_finds_who_writes_to_the_log(started: Started) -> None:
    reader, writer = os.pipe()
    started.append(subprocess.Popen(["/bin/sleep", "600"], env={}, stderr=writer))
    os.close(writer)
    pipe = str(Path(f"/proc/self/fd/{reader}").readlink())
    assert processes.sweep(TASK, log_pipe=pipe).killed == {started[-1].pid}
    os.close(reader)


def test_files_of_the_kernel_are_read_whole_or_not_at_all() -> None:
    assert processes.read_small("/no/such/file") is None
    assert processes.read_small("/proc") is None
    own = processes.read_small("/proc/self/maps")
    assert own is not None
    assert len(own) > 5000
    assert own.endswith(b"\n")
    assert len(processes.boot_id()) == 36


def test_a_process_space_is_told_from_a_later_one_with_the_same_number() -> None:
    needs.root()
    code = "from corral.agent import processes; print(processes.process_space())"
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--", sys.executable, "-c", code]
    # One after the other: the kernel gives each of them the number that the one before it has left.
    said = [subprocess.run(unshare, check=True, capture_output=True, text=True).stdout for _ in range(3)]
    assert len(set(said)) == 3
    here = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    assert here == processes.process_space()


HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_program_whose_first_thread_has_ended_lives(started: Started, tmp_path: Path) -> None:
    log = (tmp_path / "log").open("wb")
    reader, writer = os.pipe()
    env = {"CORRAL_TASK": TASK, "CORRAL_TASK_DIR": f"{tmp_path}/tasks/x"}
    child = subprocess.Popen([sys.executable, "-c", HEADLESS], env=env, stdout=writer, stderr=log)
    started.append(child)
    pipe = str(Path(f"/proc/self/fd/{writer}").readlink())
    os.close(writer)

    def zombie() -> bool:
        return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    wait_until(zombie)
    ticks = ticks_of(child.pid)
    assert processes.is_alive(child.pid, ticks)
    assert child.pid in [stat.pid for stat in processes.descendants(os.getpid())]
    assert [stat.pid for stat in processes.with_environment({"CORRAL_TASK": TASK})] == [child.pid]
    assert [stat.pid for stat, _ in processes.with_variable("CORRAL_TASK_DIR", f"{tmp_path}/tasks/")] == [child.pid]
    assert [stat.pid for stat in processes.writing_to(pipe)] == [child.pid]
    # Stopped it is when its other threads are.
    assert processes.send_signal(child.pid, ticks, signal.SIGSTOP)

    def stopped() -> bool:
        stat = processes.read_stat(child.pid)
        return stat is not None and stat.stopped

    wait_until(stopped)
    assert processes.sweep(TASK) == processes.Sweep(frozenset({child.pid}), frozenset())
    assert child.wait(30.0) == -signal.SIGKILL
    assert not processes.is_alive(child.pid, ticks)
    os.close(reader)
    log.close()
