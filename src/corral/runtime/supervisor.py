"""The supervisor of a pool on this machine: keeps fork server, daemon and agents alive. Standard library only.

It owns no state and no task. It holds a lock on its pid file for as long as it lives, so that a second one cannot
start, and ends when told by SIGTERM: agents first, then the daemon, then the fork server (tasks that are left to run
do not need it: each has its shim). A daemon that refuses to start for good says so by its exit code (78, EX_CONFIG):
then the supervisor ends too, and the reason is in ``failure.json``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from corral.runtime.lineage import end_with_parent

EXIT_CONFIG = 78
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0
STEADY_S = 10.0
STOP_S = 5.0
LOCK_S = 0.5
LOCK_AGAIN_S = 0.01
LOOK_S = 1.0
FRONT = "front"


def end_with_supervisor() -> None:
    """In a fresh child: get SIGTERM when the supervisor dies, so that no half of a pool is left behind."""
    end_with_parent(signal.SIGTERM)


def say(what: str) -> None:
    """Write a line to the log. A disk that is full does not end the supervisor."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {what}\n")
        sys.stderr.flush()


class Child:
    """One supervised process. It is restarted at once if it had become ready, else with a growing back-off.

    ``ready`` is the JSON file in which it announces its pid once it works; without one, living for ``STEADY_S`` counts.
    """

    def __init__(self, name: str, command: list[str], log: Path, ready: Path | None = None) -> None:
        self.name = name
        self._ready = ready
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._backoff_s = BACKOFF_FIRST_S
        self._due_at = 0.0
        self._pidfd = -1

    def start(self) -> None:
        """Start it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_supervisor,  # noqa: PLW1509 - this process has one thread
            )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._started_at = time.monotonic()

    def keep(self, now: float) -> int | None:
        """Restart it when it is due; return the exit code of a death that is new."""
        if self._process is None:
            if now >= self._due_at:
                self._start_again(now)
            return None
        code = self._process.poll()
        if code is None:
            return None
        if now - self._started_at > STEADY_S or self._announced(self._process.pid):
            self._backoff_s, self._due_at = BACKOFF_FIRST_S, now
        else:
            self._due_at = now + self._backoff_s
            self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
        self._let_go()
        return code

    def _start_again(self, now: float) -> None:
        """Start it, or put that off where this machine has no room for it now: the others go on."""
        try:
            self.start()
        except OSError as error:
            self._due_at = now + self._backoff_s
            self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
            say(f"{self.name} cannot be started: {error}")

    def _announced(self, pid: int) -> bool:
        if self._ready is None:
            return False
        try:
            return bool(json.loads(self._ready.read_text())["pid"] == pid)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def stop(self) -> None:
        """End it: SIGTERM, a few seconds, SIGKILL."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._let_go()

    def register(self, poll: select.poll) -> float | None:
        """Have its death wake the poll; return when its restart is due, if it is."""
        if self._process is None:
            return self._due_at
        poll.register(self._pidfd, select.POLLIN)
        return None

    def _let_go(self) -> None:
        self._process = None
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def lock_pid_file(path: Path) -> IO[str]:
    """Take the lock of the pid file and write our pid. Raises ``BlockingIOError`` when another supervisor lives."""
    file = path.open("a+")
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # Who asks whether a supervisor runs holds the lock for a moment.
            if time.monotonic() >= deadline:
                file.close()
                raise
            time.sleep(LOCK_AGAIN_S)
    file.seek(0)
    file.truncate()
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def children_of(root: Path) -> list[Child]:
    """Return what has to run, in starting order, by ``pool.json``."""
    pool = json.loads((root / "pool.json").read_text())
    logs = root / "logs"
    python = [sys.executable, "-P", "-m"]
    fork = [*python, "corral.agent.forkserver", "--socket", pool["fork_socket"]]
    daemon = [*python, "corral.runtime.daemon", "--state-dir", str(root)]
    agents = [
        Child(
            f"agent-{node}",
            [*python, "corral.runtime.agent", "--config", config],
            logs / f"agent-{node}.log",
            Path(config).with_name("agent.pid"),
        )
        for node, config in pool["agents"].items()
    ]
    role = pool.get("role", "local")
    if role == "front":
        return []
    children = [Child("forkserver", fork, logs / "forkserver.log")]
    for what in {"head": ("gcs", "raylet"), "node": ("raylet",)}.get(role, ()):
        ray = [*python, "corral.runtime.ray.node", what, str(root)]
        children.append(Child(what, ray, logs / f"{what}.log"))
    if role != "node":
        children.append(Child("daemon", daemon, logs / "daemon.log", root / "daemon.json"))
    return [*children, *agents]


def front_of(root: Path) -> Child:
    """Return the front end of this machine, for as long as ``front.json`` says that it is one."""
    command = [sys.executable, "-P", "-m", "corral.runtime.fronting.process", "--state-dir", str(root)]
    return Child(FRONT, command, root / "logs" / "front.log")


def follow_front(children: list[Child], root: Path) -> None:
    """Start the front end that this machine has become, or stop the one that it is no longer."""
    there = next((child for child in children if child.name == FRONT), None)
    wanted = (root / "front.json").exists()
    if wanted and there is None:
        front = front_of(root)
        front.start()
        children.append(front)
    elif not wanted and there is not None:
        children.remove(there)
        there.stop()


def sockets_of(root: Path) -> Path:
    """Return the folder in which the parts of the pool meet."""
    return Path(json.loads((root / "pool.json").read_text())["fork_socket"]).parent


def supervise(root: Path) -> int:
    """Run until SIGTERM or until the daemon refuses for good; return the exit code."""
    with lock_pid_file(root / "supervisor.pid"):
        asked: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _frame: asked.append(received))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        wake, bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(bell)
        children, sockets = children_of(root), sockets_of(root)
        code = 0
        try:
            sockets.mkdir(mode=0o700, exist_ok=True)
            for child in children:
                child.start()
            while not asked and not code:
                follow_front(children, root)
                _wait(children, wake)
                if not sockets.is_dir():
                    _begin_again(children, sockets)
                code = _keep(children)
        finally:
            for child in reversed(children):
                child.stop()
        return code


def _wait(children: list[Child], wake: int) -> None:
    """Wait until a child dies, a signal arrives, or a restart is due."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    due = [child.register(poll) for child in children]
    soonest = min((at for at in due if at is not None), default=math.inf)
    poll.poll(max(0.0, min(soonest - time.monotonic(), LOOK_S)) * 1000.0)
    with contextlib.suppress(BlockingIOError):
        os.read(wake, 512)


def _begin_again(children: list[Child], sockets: Path) -> None:
    """Start all parts anew in a new folder: those that live cannot be reached any more. Tasks go on."""
    say(f"{sockets} is gone: all parts start again")
    for child in reversed(children):
        child.stop()
    sockets.mkdir(mode=0o700, exist_ok=True)
    for child in children:
        child.start()


def _keep(children: list[Child]) -> int:
    now = time.monotonic()
    for child in children:
        died = child.keep(now)
        if died is None:
            continue
        say(f"{child.name} ended with {died}")
        if child.name == "daemon" and died == EXIT_CONFIG:
            return EXIT_CONFIG
    return 0


def main(arguments: list[str]) -> int:
    """Entry point: ``python -m corral.runtime.supervisor STATE_DIR``."""
    with contextlib.suppress(BlockingIOError):
        return supervise(Path(arguments[0]))
    sys.stderr.write("another supervisor runs on this state directory\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
