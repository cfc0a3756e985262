"""The life of one task in its shim: begin, setup, run, end, record. Entered by the fork server's child."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable

from corral.agent import processes
from corral.agent.shim import child, linux, record, setup_result
from corral.agent.shim import ending as endings
from corral.agent.shim.child import Child, Failure, Surrounding
from corral.agent.shim.ending import Ending
from corral.agent.shim.log import LogWriter
from corral.agent.shim.notify import Notifier
from corral.agent.shim.setup_lock import SetupLock
from corral.agent.shim.signals import SignalPipe
from corral.agent.shim.spec import SetupSpec, TaskSpec
from corral.agent.shim.task_cgroup import TaskCgroup
from corral.agent.shim.tree import Tree
from corral.agent.shim.watch import Watch

# poll(2) counts CLOCK_MONOTONIC: after a suspension a deadline is seen this late at most.
_POLL_S_MAX = 60.0
_LOG_RETRY_S = 1.0
_LOG_LAST_TRIES = 3
_KILL_RETRY_S = (0.005, 0.5)
_SETUP_SCRIPT = "setup.sh"


class Shim:
    """Owns one task from its first process to its recorded end."""

    def __init__(self, spec: TaskSpec, path: str, directory: int, forked: int, boot_id: str) -> None:
        """Make the shim of ``spec`` in the directory ``path``, which is open as ``directory``, as is its ``forked``.

        The signals that it handles must be blocked.
        """
        self._spec = spec
        self._path = path
        self._directory = directory
        self._forked = forked
        self._described = False
        self._boot_id = boot_id
        self._began, self._began_wall = linux.boottime_s(), time.time()
        self._ending = Ending()
        self._degraded = linux.take_place(spec.cpus, spec.oom_score_adj)
        self._notifier = Notifier(spec.notify)
        self._signals = SignalPipe()
        self._log = LogWriter(directory, spec.log_max_bytes, spec.log_files)
        self._log_pipe, self._output = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._log_pipe, False)
        self._log_retry_at: float | None = None
        self._poll = select.poll()
        self._poll.register(self._signals.file, select.POLLIN)
        self._poll.register(self._log_pipe, select.POLLIN)
        cgroup = None if spec.cgroup is None else TaskCgroup.create(spec.cgroup, spec.memory_mib)
        self._degraded += [] if cgroup is None else cgroup.warnings
        self._tree = Tree(cgroup)
        self._watch = Watch(spec, self._tree, self._ending, self._began, self._tell)
        self._child: Child | None = None
        self._failure: Failure | None = None
        self._exit: int | None = None
        self._max_rss_mib = 0.0
        self._terminated = False
        self._asked_nobody = False
        self._kill_again_s = _KILL_RETRY_S[0]
        self._main_pid: int | None = None
        self._identity: dict[str, object] = {"task": spec.task, "incarnation": spec.incarnation}
        self._started_at: float | None = None
        self._started_boottime = self._began
        self._setup_s = 0.0

    def run(self) -> None:
        """Live the task's life. Raises what the machine refuses; then :meth:`fail` ends it."""
        if self._spec.setup is not None:
            # Else it is written once, with the main child: replacing a file costs ext4 a flush.
            self._describe()
        # A stop that came before anything ran: then nothing does.
        self._on_signals(self._signals.take(), self._began)
        if self._ending.cause is None and self._await_lease() and self._set_up() and self._await_lease():
            self._work()
        self._clear()
        self._finish()

    def fail(self, message: str) -> None:
        """End after a fault of the shim or its machine: kill everything, record that."""
        cause = endings.LAUNCH_FAILED if self._started_at is None else endings.SHIM_LOST
        self._ending.settle(cause, message)
        self._reap()
        while not self._tree.empty:
            self._tree.kill()
            time.sleep(_KILL_RETRY_S[0])
            self._reap()
        self._finish()

    # ---- phases ----------------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        """Write ``shim.json``: how to find this process, its main child and whoever writes to its log."""
        pid, main = os.getpid(), self._main_pid
        content: dict[str, object] = {
            **self._identity,
            "pid": pid,
            "start_ticks": processes.start_ticks(pid),
            "boot_id": self._boot_id,
            "child_pid": main,
            "child_start_ticks": None if main is None else processes.start_ticks(main),
            "log_pipe": os.readlink(f"/proc/self/fd/{self._log_pipe}"),  # noqa: PTH115 -- no pathlib in a shim
            "started_at": self._began_wall,
            "started_boottime": self._began,
            "degraded": self._degraded,
        }
        if self._described:
            record.write(self._directory, record.SHIM, content)
        else:
            record.write_first(self._directory, record.SHIM, content, self._forked)
        self._described = True

    def _await_lease(self) -> bool:
        """Let a lease that has run out hold the task back before its first instruction; return whether it may go on."""
        self._watch.tick(linux.boottime_s())
        if self._tree.frozen and not self._described:
            self._describe()  # who waits may be told to stop
        self._loop(lambda: not self._tree.frozen or self._ending.cause is not None)
        return self._ending.cause is None

    def _set_up(self) -> bool:
        """Run the setup, or wait until another task has run the same; return whether the task may go on."""
        setup = self._spec.setup
        if setup is None:
            return True
        began = linux.boottime_s()
        try:
            lock = SetupLock(setup.marker)
            if self._get(lock) and not lock.done() and self._run_setup(setup, lock):
                lock.mark_done(self._spec.marker)
            lock.release()
            if setup.cwd is not None and self._ending.cause is None:
                setup_result.take_over(setup.cwd, self._spec.cwd)
        except OSError as error:
            self._ending.settle(endings.SETUP_FAILED, f"setup failed: {error.strerror}: {error.filename}")
        self._setup_s = linux.boottime_s() - began
        return self._ending.cause is None

    def _get(self, lock: SetupLock) -> bool:
        """Take the setup's lock, waiting for it; return whether it was got."""
        if lock.take():
            return True
        self._watch.pause(linux.boottime_s())
        self._child = Child(lock.start_waiter(), -1)
        self._loop(lambda: self._exit is not None)
        self._watch.resume(linux.boottime_s())
        got = self._exit == 0
        self._child, self._exit = None, None
        if not got:
            self._ending.settle(endings.SETUP_FAILED, "the wait for another task's setup was broken off")
        return got and self._ending.cause is None

    def _run_setup(self, setup: SetupSpec, lock: SetupLock) -> bool:
        arguments = child.shell_command(setup.script, self._spec.env, f"{self._path}/{_SETUP_SCRIPT}")
        self._execute(arguments, keep=lock.file, cwd=setup.cwd)
        self._clear()
        code, failure = self._exit, self._failure
        if code == 0 and failure is None:
            self._child, self._exit = None, None
            return self._ending.cause is None
        why = failure.message if failure is not None else endings.describe_exit(code)
        self._ending.settle(endings.SETUP_FAILED, f"setup failed: {why}")
        return False

    def _work(self) -> None:
        """Run the task itself until its main process has ended."""
        self._execute(child.command(self._spec, self._path))
        if self._failure is not None:
            self._ending.settle(endings.EXEC_FAILED, self._failure.message)
            return
        code = self._exit or 0
        out_of_memory = self._watch.out_of_memory() if code != 0 else None
        if out_of_memory is not None:
            self._ending.settle(endings.MEMORY, out_of_memory)
        else:
            told = endings.describe_exit(code) if code else ""
            self._ending.settle(endings.SIGNAL if code < 0 else endings.EXITED, told)

    def _execute(self, command: list[str], keep: int | None = None, cwd: str | None = None) -> None:
        """Run a process to its end. ``keep``: the setup's lock; a process without it is the task's main one."""
        started = child.start(command, Surrounding(self._spec, self._path, self._output, self._tree.cgroup, keep, cwd))
        self._child, self._exit, self._failure = started, None, None
        self._tree.empty = False
        self._poll.register(started.exec_pipe, select.POLLIN)
        if keep is None:
            self._main_pid = started.pid
            self._describe()
        self._loop(lambda: self._exit is not None and self._child is not None and self._child.exec_pipe < 0)

    def _clear(self) -> None:
        """End everything that the process just ended has left behind."""
        self._reap()
        if self._tree.empty:
            return
        now = linux.boottime_s()
        self._ending.terminate_at = min(self._ending.terminate_at, now)
        self._ending.kill_by(now + self._spec.orphan_grace_s)
        self._loop(lambda: self._tree.empty)
        if self._ending.cause is None:
            # That was the setup's rest only.
            self._ending.kill_at = None
            self._terminated = False
            self._kill_again_s = _KILL_RETRY_S[0]

    def _finish(self) -> None:
        """Write the last of the log and the status, and tell the agent. Nothing of the task is alive any more."""
        ended_at = time.time()
        ran_s = 0.0 if self._started_at is None else linux.boottime_s() - self._started_boottime
        self._drain()
        if self._ending.cause not in endings.OWN:
            self._log.note(f"corral: {self._ending.message}")
            self._drain()
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        if self._tree.cgroup is not None:
            self._degraded += [f"cgroup left behind: {path}" for path in self._tree.cgroup.remove()]
        code = self._exit if self._failure is None else self._failure.exit_code
        status: dict[str, object] = {
            **self._identity,
            "cause": self._ending.cause,
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "message": self._ending.message,
            "started_at": self._started_at,
            "ended_at": ended_at,
            "ran_s": round(ran_s, 6),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 6),
            "max_rss_mib": round(max(self._max_rss_mib, self._watch.peak_mib), 1),
            "log_bytes": self._log.total_bytes,
            "log_lost_bytes": self._log.lost_bytes,
            "setup_s": round(self._setup_s, 3),
            "paused_s": round(self._watch.paused_s, 3),
            "degraded": self._degraded,
        }
        if record.write_status(self._directory, status, lambda: self._notifier.send("exited", status)):
            self._notifier.send("exited", status, patient=True)

    # ---- the loop --------------------------------------------------------------------------------------------------

    def _loop(self, until: Callable[[], bool]) -> None:
        """Handle whatever happens until ``until`` holds."""
        while not until():
            ready = {descriptor for descriptor, _ in self._poll.poll(self._timeout_ms())}
            now = linux.boottime_s()
            if self._child is not None and self._child.exec_pipe in ready:
                self._on_exec(self._child)
            if self._log_pipe in ready or (self._log_retry_at is not None and now >= self._log_retry_at):
                self._pump(now)
            if self._signals.file in ready:
                self._on_signals(self._signals.take(), now)
            self._watch.tick(now)
            self._enforce(now)

    def _timeout_ms(self) -> float | None:
        now = linux.boottime_s()
        due = [self._watch.next_s(now)]
        due.append(None if self._log_retry_at is None else self._log_retry_at - now)
        if self._ending.kill_at is not None:
            # From then on it is repeated, for those who fork while others die and those who cannot die now.
            due.append(max(self._ending.kill_at - now, 0.0) or self._kill_again_s)
            if not self._terminated:
                due.append(max(self._ending.terminate_at - now, 0.0))
        waits = [wait for wait in due if wait is not None]
        return None if not waits else 1000 * min(max(min(waits), 0.0), _POLL_S_MAX)

    def _on_signals(self, arrived: frozenset[int], now: float) -> None:
        if signal.SIGTERM in arrived:
            order = endings.read_stop(record.read(self._directory, record.STOP), self._spec.grace_s)
            saving_s = self._saving_s(order.saving_s)
            self._ending.request(order.cause, order.message, now, order.grace_s, saving_s=saving_s)
        if signal.SIGUSR1 in arrived:
            self._tell("checkpoint")
        if signal.SIGCHLD in arrived:
            self._reap()

    def _saving_s(self, wanted_s: float) -> float:
        """Ask a task that is stopped for a checkpoint; return how long it may take for it.

        One that was given no signal for it has this time undisturbed, to finish what is under way.
        """
        if not wanted_s or self._ending.kill_at is not None:
            return wanted_s
        heard = self._started_at is not None if self._spec.checkpoint_signal is None else self._tell("checkpoint")
        return wanted_s if heard else 0.0

    def _reap(self) -> None:
        for ended in self._tree.reap():
            self._max_rss_mib = max(self._max_rss_mib, ended.max_rss_mib)
            if self._child is not None and ended.pid == self._child.pid:
                self._exit = os.waitstatus_to_exitcode(ended.status)

    def _on_exec(self, started: Child) -> None:
        """Learn whether the program was executed."""
        self._failure = child.exec_result(started)
        self._poll.unregister(started.exec_pipe)
        os.close(started.exec_pipe)
        self._child = Child(started.pid, -1)
        if self._failure is None and started.pid == self._main_pid:
            self._started_at, self._started_boottime = time.time(), linux.boottime_s()
            self._notifier.send(
                "started",
                {**self._identity, "shim_pid": os.getpid(), "child_pid": started.pid, "at": self._started_at},
                patient=True,
            )

    def _enforce(self, now: float) -> None:
        """Do what an ending demands now."""
        kill_at = self._ending.kill_at
        if kill_at is None:
            return
        # Nobody may act without a lease: what is frozen is killed where it is.
        if now >= kill_at or self._tree.frozen:
            self._ending.kill_by(now)
            self._tree.kill()
            self._tree.frozen = False
            self._kill_again_s = min(2 * self._kill_again_s, _KILL_RETRY_S[1])
        elif self._ending.saving(now):
            return
        elif not self._terminated:
            self._tree.terminate()
        self._terminated = True

    def _tell(self, what: str) -> int:
        """Pass a checkpoint request on, or tell the agent what became of the lease.

        Returns how many processes a checkpoint was asked of.
        """
        if what != "checkpoint":
            self._notifier.send(what, {**self._identity, "at": time.time()})
        elif self._spec.checkpoint_signal is not None and self._main_pid is not None and not self._tree.frozen:
            # Before its exec the child has the shim's handlers, after it none: a signal in between would kill it.
            reached = (
                0
                if self._started_at is None
                else self._tree.ask_checkpoint(self._main_pid, self._spec.checkpoint_signal)
            )
            if reached or not self._asked_nobody:
                self._notifier.send(what, {**self._identity, "at": time.time(), "processes": reached})
            self._asked_nobody = reached == 0
            return reached
        return 0

    # ---- the log ---------------------------------------------------------------------------------------------------

    def _pump(self, now: float) -> None:
        """Move what the task wrote to its log. While the disk is full the task waits, and nothing is lost."""
        try:
            self._log.pump(self._log_pipe)
        except OSError:
            if self._log_retry_at is None:
                self._poll.unregister(self._log_pipe)
            self._log_retry_at = now + _LOG_RETRY_S
            return
        if self._log_retry_at is not None:
            self._poll.register(self._log_pipe, select.POLLIN)
            self._log_retry_at = None

    def _drain(self) -> None:
        """Write the rest of the log; what a full disk does not take after some tries is counted as lost."""
        for attempt in range(_LOG_LAST_TRIES):
            try:
                while self._log.pump(self._log_pipe):
                    pass
            except OSError:
                if attempt == _LOG_LAST_TRIES - 1:
                    self._log.discard(self._log_pipe)
                else:
                    time.sleep(_LOG_RETRY_S / _LOG_LAST_TRIES)
            else:
                return


def live(spec: TaskSpec, path: str, directory: int, forked: int, boot_id: str) -> None:
    """Be the shim of ``spec`` in its directory (its path, and open, like ``forked`` in it) from the fork to the end.

    Expects ``signals.HANDLED`` to be blocked. What goes wrong in the shim itself becomes the task's cause.
    """
    os.setsid()
    linux.become_subreaper()
    shim: Shim | None = None
    try:
        shim = Shim(spec, path, directory, forked, boot_id)
        shim.run()
    except Exception as error:  # noqa: BLE001 -- whatever it is, the task must end and somebody must learn why
        message = f"fault in the shim: {endings.describe_fault(error)}"
        if shim is not None:
            shim.fail(message)
        else:
            identity: dict[str, object] = {"task": spec.task, "incarnation": spec.incarnation}
            status = {**identity, "cause": endings.LAUNCH_FAILED, "message": message, "ended_at": time.time()}
            record.write_status(directory, status)
