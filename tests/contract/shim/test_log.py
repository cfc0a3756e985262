"""The log: bytes as they are, rotated, bounded, and nothing lost."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent.shim.handle import TaskHandle
from tests import needs
from tests.contract.shim.shimworld import ShimWorld, log_of, rss_mib, shim_of
from tests.waiting import wait_until

# Numbered lines: 100 bytes each, so that any loss or doubling shows.
LINES = "import sys; w = sys.stdout.write; [w('%099d\\n' % i) for i in range(int(sys.argv[1]))]"


def read_all(handle: TaskHandle, piece: int = 1 << 20) -> tuple[int, bytes]:
    """Return the offset of the first byte that is kept, and everything from there."""
    first = handle.read_log(0, piece)
    content, position = first.data, first.offset + len(first.data)
    while data := handle.read_log(position, piece).data:
        content += data
        position += len(data)
    return first.offset, content


def test_bytes_stay_as_they_are(world: ShimWorld) -> None:
    text = "grün 漢字 🐎"
    code = f"import os; os.write(1, bytes(range(256)) + {text!r}.encode()); os.write(2, b'!')"
    handle = world.python(code=code)
    assert world.end(handle)["log_bytes"] == 256 + len(text.encode()) + 1
    assert log_of(handle) == bytes(range(256)) + text.encode() + b"!"


def test_output_is_there_while_the_task_runs(world: ShimWorld) -> None:
    os.mkfifo(world.directory / "pipe")
    handle = world.launch(script="echo first; read line < pipe; echo second")
    world.said(handle, "first\n")
    assert handle.status() is None
    (world.directory / "pipe").write_text("go\n")
    assert world.end(handle)["exit_code"] == 0
    assert log_of(handle) == b"first\nsecond\n"


def test_a_hundred_megabytes_rotate_and_keep_the_tail(world: ShimWorld) -> None:
    lines = 1_048_576
    handle = world.python(
        code=LINES + "; sys.stdout.flush(); open('done', 'w'); sys.stdin.close(); import time; time.sleep(60)",
        arguments=(str(lines),),
        log_max_bytes=8 << 20,
        log_files=3,
    )
    wait_until((world.directory / "done").exists, 60, what="the end of the writing")
    assert rss_mib(shim_of(handle)) < 24
    assert handle.stop("cancelled", 5)
    total = world.end(handle)["log_bytes"]
    offset, content = read_all(handle)
    assert sorted(path.name for path in handle.directory.glob("log*")) == [
        "log", "log.1", "log.2", "log.start"
    ]  # fmt: skip
    assert offset + len(content) == total
    assert 16 << 20 < len(content) <= (24 << 20) + 300
    # Every file begins and ends at the end of a line.
    for name in ("log", "log.1", "log.2"):
        assert (handle.directory / name).read_bytes()[99:100] == b"\n"
    numbers = [int(line) for line in content.splitlines()[:-1]]
    assert numbers == list(range(offset // 100, lines))
    assert content.endswith(b"corral: stopped: cancelled\n")


def test_the_whole_log_is_kept_when_it_fits(world: ShimWorld) -> None:
    handle = world.python(code=LINES, arguments=("200000",), log_max_bytes=1 << 20, log_files=100)
    assert world.end(handle)["log_bytes"] == 20_000_000
    offset, content = read_all(handle, 300_001)
    assert offset == 0
    expected = b"".join(b"%099d\n" % number for number in range(200_000))
    assert hashlib.sha256(content).digest() == hashlib.sha256(expected).digest()


def test_a_reader_that_follows_misses_nothing_while_files_move(world: ShimWorld) -> None:
    handle = world.python(code=LINES, arguments=("100000",), log_max_bytes=64 << 10, log_files=200)
    content, position = b"", 0
    while True:
        over = handle.status() is not None
        piece = handle.read_log(position, 50_000)
        assert piece.offset == position
        content += piece.data
        position += len(piece.data)
        assert piece.end >= position
        if over and not piece.data:
            break
    assert content == b"".join(b"%099d\n" % number for number in range(100_000))


def test_one_file_only(world: ShimWorld) -> None:
    handle = world.python(code=LINES, arguments=("1000",), log_max_bytes=10_000, log_files=1)
    total = world.end(handle)["log_bytes"]
    offset, content = read_all(handle)
    assert total == 100_000
    assert offset + len(content) == total
    assert not (handle.directory / "log.1").exists()


def test_lines_without_end_are_cut_somewhere(world: ShimWorld) -> None:
    handle = world.python(code="print('x' * 1_000_000, end='')", log_max_bytes=100_000, log_files=100)
    assert world.end(handle)["log_bytes"] == 1_000_000
    assert read_all(handle) == (0, b"x" * 1_000_000)
    sizes = [path.stat().st_size for path in handle.directory.glob("log.[0-9]*")]
    assert max(sizes) <= 100_000 + (64 << 10)


def test_what_background_processes_write_at_their_end_is_kept(world: ShimWorld) -> None:
    script = (
        "(trap 'echo last words; exit' TERM; echo ready; while :; do sleep 0.05; done) & while :; do sleep 0.02; done"
    )
    handle = world.launch(script=script)
    world.said(handle, "ready")
    assert handle.stop("cancelled", 10)
    world.end(handle)
    assert b"last words\n" in log_of(handle)


@pytest.fixture
def small_disk(state_dir: Path) -> Iterator[Path]:
    needs.root()
    disk = state_dir / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=True)
    yield disk
    # The shim records the end while it still stands in the directory.
    wait_until(
        lambda: subprocess.run(["umount", disk], check=False, capture_output=True).returncode == 0, what="umount"
    )


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            return ballast
    raise AssertionError("the disk has no end")


def launch_on(world: ShimWorld, disk: Path, code: str, argument: str) -> TaskHandle:
    import sys

    handle = TaskHandle(disk / "0.0.0.1")
    argv = [sys.executable, "-S", "-c", code, argument]
    notify = str(world.directory / "n.sock")
    spec = {"task": "0.0.0", "incarnation": 1, "argv": argv, "env": {}, "cwd": "/", "grace_s": 1, "notify": notify}
    handle.write_spec(spec)
    world.handles.append(handle)
    assert world.client.launch(handle.directory).pid is not None
    return handle


def test_a_full_disk_makes_the_task_wait_and_loses_nothing(world: ShimWorld, small_disk: Path) -> None:
    started = world.directory / "go"
    code = f"import os, time\nwhile not os.path.exists({str(started)!r}): time.sleep(0.01)\n" + LINES
    handle = launch_on(world, small_disk, code, "8000")
    wait_until(handle.shim)
    ballast = fill(small_disk)
    started.touch()
    wait_until(lambda: log_of(handle) or rss_mib(shim_of(handle)), what="the shim to meet the full disk")
    ballast.unlink()
    status = world.end(handle)
    assert (status["exit_code"], status["log_bytes"], status["log_lost_bytes"]) == (0, 800_000, 0)
    assert log_of(handle) == b"".join(b"%099d\n" % number for number in range(8000))


def test_the_status_waits_for_room_and_the_lost_log_is_counted(world: ShimWorld, small_disk: Path) -> None:
    started = world.directory / "go"
    code = f"import os, time\nwhile not os.path.exists({str(started)!r}): time.sleep(0.01)\n" + LINES
    handle = launch_on(world, small_disk, code, "500")
    wait_until(handle.shim)
    ballast = fill(small_disk)
    started.touch()
    wait_until(lambda: world.processes_of(handle) == [], what="the end of the program")
    wait_until((handle.directory / ".status.json.new").exists, what="the shim to try its status")
    assert handle.status() is None
    assert handle.shim_lives()
    ballast.unlink()
    status = world.end(handle)
    assert status["exit_code"] == 0
    assert status["log_bytes"] + status["log_lost_bytes"] == 50_000
    assert status["log_lost_bytes"] > 0


def test_an_end_that_cannot_be_written_is_told_all_the_same(world: ShimWorld, small_disk: Path) -> None:
    started = world.directory / "go"
    code = f"import os, sys, time\nwhile not os.path.exists({str(started)!r}): time.sleep(0.01)\nsys.exit(7)"
    handle = launch_on(world, small_disk, code, "")
    wait_until(handle.shim)
    ballast = fill(small_disk)
    started.touch()
    # Again and again: the agent may have been away.
    for _ in range(2):
        told = world.wait_event("exited")
        assert (told["task"], told["incarnation"], told["cause"], told["exit_code"]) == ("0.0.0", 1, "exited", 7)
        assert handle.status() is None
    ballast.unlink()
    assert world.end(handle)["exit_code"] == 7
