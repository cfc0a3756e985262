"""Launching, stopping and watching the tasks of a node. What happens to them is told to the core as its inputs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from corral.agent import processes, taskdir, usage
from corral.agent.config import AgentConfig
from corral.agent.fitness import Fitness
from corral.agent.forklink import ALREADY_FORKED, UNREACHABLE, ForkAnswer, ForkLink
from corral.agent.guarding import boottime_s, is_overdue, runs_free
from corral.agent.inputs import Input, LaunchFailed, TaskBegan, TaskFinished
from corral.agent.layouts import Layouts
from corral.agent.members import Members
from corral.agent.outputs import ExtendLease, Launch, Record, Stop
from corral.agent.preparing import PreparationFailed, Prepared, Preparer
from corral.agent.returning import Returner
from corral.agent.running import (
    News,
    NotifySocket,
    Running,
    StopOrder,
    end_without_shim,
    extend_lease,
    record_end,
    unwatch_shim,
    watch_shim,
    with_problem,
)
from corral.agent.shim.handle import TaskHandle
from corral.agent.shim.lease import read_deadline
from corral.agent.threads import in_thread
from corral.model.ids import DeviceId
from corral.model.job import Cause, TaskExit
from corral.model.messages import Usage

_log = logging.getLogger(__name__)

# Most tasks that live shorter than this are never looked at: their datagrams say everything.
LOOK_AFTER_S = 0.5
STOP_AGAIN_S = 0.02
SHIM_PATIENCE_S = 10.0
SWEEP_AGAIN_S = 2.0

Verify = Callable[[tuple[DeviceId, ...], frozenset[int], Callable[[str | None], None]], None]


class Runner:
    """The live tasks of one node.

    Attributes:
        held: How many live tasks hold each device.
    """

    def __init__(
        self,
        config: AgentConfig,
        preparer: Preparer,
        members: Members,
        tell: Callable[[Input], None],
        verify: Verify,
        held: dict[DeviceId, int],
        fitness: Fitness,
        returner: Returner | None = None,
    ) -> None:
        """``verify`` calls back when an ended task's devices are free, or with what they still hold.

        ``returner`` brings back what tasks write; ``None`` where everybody sees this machine's disk.
        """
        self.held = held
        self._config = config
        self._preparer = preparer
        self._layouts = Layouts(preparer)
        self._members = members
        self._tell = tell
        self._verify = verify
        self._fitness = fitness
        self._returner = returner
        self._running: dict[str, Running] = {}
        self._forks = ForkLink(config.fork_socket)
        self._socket = NotifySocket(config.notify_socket, self._on_news)
        self._chores: set[asyncio.Task[None]] = set()
        self._turns: usage.Turns[Running] = usage.Turns()
        self._halts = usage.Halts()

    def start(self) -> None:
        """Listen to shims and connect to the fork server. Raises ``OSError``."""
        self._socket.open()
        self._forks.start()

    async def stop(self) -> None:
        """Let go of everything; the tasks go on."""
        self._socket.close()
        await self._forks.stop()
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        for running in self._running.values():
            unwatch_shim(running)

    # ---- launching -------------------------------------------------------------------------------------------------

    def launch(self, order: Launch) -> None:
        """Prepare a task and ask for its shim."""
        command = order.command
        marker = taskdir.marker(command.task, command.incarnation)
        devices = tuple(share.uuid for share in command.placement.devices)
        running = Running(command.task, command.incarnation, marker, self._preparer.directory(command), devices)
        running.cpus_milli = command.placement.cpus_milli
        running.deadline_s = order.deadline_boottime_s
        self._hold(running)
        if self._preparer.slow(command):
            # Laying out a large working directory takes its time, in which nobody may ask the fork server for it.
            running.asked = True
            self._chore(self._prepare_slowly(running, order))
            return
        try:
            prepared = self._preparer.prepare(command, order.deadline_boottime_s)
        except PreparationFailed as error:
            self._fail(running, str(error))
            return
        self._prepared(running, prepared)

    def _prepared(self, running: Running, prepared: Prepared) -> None:
        running.cpus = prepared.cpus
        if self._returner is not None:
            self._returner.watch(running)
        self._ask(running)

    async def _prepare_slowly(self, running: Running, order: Launch) -> None:
        try:
            prepared = await self._layouts.prepare(running.marker, order)
        except PreparationFailed as error:
            self._fail(running, str(error))
            return
        if prepared is None:
            return
        if running.deadline_s is not None and running.deadline_s != order.deadline_boottime_s:
            # There was contact meanwhile.
            extend_lease(running)
        self._prepared(running, prepared)

    def adopt(self, running: Running) -> None:
        """Take a task over that an earlier run of the agent left, and see what became of it."""
        self._preparer.hold(running.cpus, running.cpus_milli)
        running.deadline_s = read_deadline(f"{running.directory}/{taskdir.LEASE}")
        self._hold(running)
        if self._returner is not None:
            self._returner.watch(running, adopted=True)
        if taskdir.is_prepared(running.directory):
            self._look(running)
        else:
            self._fail(running, "the agent ended while it prepared the task")

    def _ask(self, running: Running) -> None:
        running.asked = True
        running.asked_at = time.monotonic()
        self._forks.launch(running.directory, lambda answer: self._on_answer(running, answer))

    def _on_answer(self, running: Running, answer: ForkAnswer) -> None:
        running.asked = False
        if running.ending:
            return
        if answer.ok:
            running.shim_pid = answer.pid
            self._members.add(running.marker, answer.pid)
        elif answer.code != ALREADY_FORKED and (answer.code != UNREACHABLE or taskdir.forbid_fork(running.directory)):
            self._fail(running, answer.message)
            return
        if running.stop is not None:
            self._deliver(running)

    def _fail(self, running: Running, message: str, cause: Cause = Cause.LAUNCH_FAILED) -> None:
        self._drop(running)
        self._preparer.give_back(running.cpus, running.cpus_milli)
        if self._returner is not None:
            self._returner.forget(running)
        cause, message = self._fitness.judge(cause, message)
        self._tell(LaunchFailed(running.task, running.incarnation, message, cause))

    def _hold(self, running: Running) -> None:
        self._running[running.marker] = running
        for uuid in running.devices:
            self.held[uuid] = self.held.get(uuid, 0) + 1

    def _drop(self, running: Running) -> frozenset[int]:
        """Take a task out whose processes are gone; return the pids that it had."""
        running.ending = True
        unwatch_shim(running)
        for uuid in running.devices:
            self.held[uuid] -= 1
            if not self.held[uuid]:
                del self.held[uuid]
        del self._running[running.marker]
        return self._members.remove(running.marker)

    # ---- stopping --------------------------------------------------------------------------------------------------

    def stop_task(self, order: Stop) -> None:
        """Stop a task as soon as it can hear it."""
        running = self._running.get(taskdir.marker(order.task, order.incarnation))
        if running is None:
            return
        before = running.stop
        running.stop = StopOrder(order.reason, order.grace_s, order.saving_s, order.message)
        if before is not None and before.kill_at is not None:
            # The same order comes again when the controller has not heard of the end: the patience runs on.
            if order.grace_s >= before.grace_s and order.saving_s >= before.saving_s:
                running.stop = before
                return
            running.stop.kill_before = before.kill_at
        self._deliver(running)

    def _deliver(self, running: Running) -> None:
        order = running.stop
        if order is not None and self._layouts.call_off(running.marker):
            self._fail(running, "stopped before its files were there", Cause(order.reason))
            return
        if order is None or running.ending or running.asked or order.kill_at is not None:
            return
        try:
            told = TaskHandle(running.path).stop(order.reason, order.grace_s, order.saving_s, order.message)
        except OSError as error:
            _log.warning("task %s cannot be told to stop: %s", running.marker, error)
            told = False
        if told:
            kill_at = time.monotonic() + order.saving_s + order.grace_s + SHIM_PATIENCE_S
            order.kill_at = kill_at if order.kill_before is None else min(kill_at, order.kill_before)
            return
        # A shim hears once it has written shim.json; one that is gone shows in its directory.
        self._look(running)
        asyncio.get_running_loop().call_later(STOP_AGAIN_S, self._deliver, running)

    def _kill_silent(self, running: Running, order: StopOrder) -> None:
        """Kill a shim that was told to stop and did not, with everything below it."""
        order.kill_at = None if order.kill_at is None else order.kill_at + SHIM_PATIENCE_S
        shim = taskdir.read_shim(running.directory)
        if shim is not None:
            _log.warning("the shim of task %s does not answer: killing it", running.marker)
            self._chore(self._kill(shim.pid, shim.start_ticks))

    @staticmethod
    async def _kill(pid: int, ticks: int) -> None:
        left = await in_thread(lambda: processes.kill_tree(pid, ticks))
        if left:
            _log.error("processes that cannot be killed: %s", sorted(left))

    # ---- watching --------------------------------------------------------------------------------------------------

    def _on_news(self, news: list[News]) -> None:
        ended = {told.datagram.task + f".{told.datagram.incarnation}" for told in news if told.status is not None}
        for told in news:
            datagram = told.datagram
            marker = f"{datagram.task}.{datagram.incarnation}"
            running = self._running.get(marker)
            if running is None:
                continue
            if told.status is not None:
                self._over(running, told.status.task_exit())
            elif datagram.event == "started" and marker not in ended:
                self._members.add(marker, datagram.shim_pid, datagram.child_pid)
                self._began(running, datagram.child_pid, datagram.at)
            elif datagram.event in ("frozen", "thawed", "checkpoint"):
                _log.info("task %s: %s", marker, datagram.event)

    def _began(self, running: Running, pid: int | None, at: float) -> None:
        if not running.began:
            running.began = True
            self._tell(TaskBegan(running.task, running.incarnation, pid, at))

    def tend(self) -> None:
        """Look after the tasks that live longer: once a second."""
        now = time.monotonic()
        for running in list(self._running.values()):
            order = running.stop
            if order is not None and order.kill_at is not None and now > order.kill_at:
                self._kill_silent(running, order)
            young = running.asked or now - running.asked_at < LOOK_AFTER_S
            if not young and (running.pidfd is None or not running.began):
                self._look(running)
            if is_overdue(running.deadline_s, boottime_s()) and not (running.guarded or running.ending):
                self._chore(self._guard(running))

    async def _guard(self, running: Running) -> None:
        """Kill a task that runs without a lease, and the shim that lets it."""
        running.guarded = True
        try:
            free = await in_thread(lambda: runs_free(running.path))
        finally:
            running.guarded = False
        shim = taskdir.read_shim(running.directory)
        if not free or shim is None or running.ending or not is_overdue(running.deadline_s, boottime_s()):
            return
        _log.error("the shim of task %s lets it run without a lease: killing both", running.marker)
        if running.stop is None:
            running.stop = StopOrder(Cause.LEASE_EXPIRED, 0.0)
        await self._kill(shim.pid, shim.start_ticks)

    def _look(self, running: Running) -> None:
        """Learn from its directory how far a task is."""
        if running.ending or running.asked:
            return
        handle = TaskHandle(running.path)
        # In this order: who was forked and does not live is dead, and the status appears before the shim is gone.
        forked = handle.was_forked()
        lives = handle.shim_lives()
        status = taskdir.read_status(running.directory)
        if status is not None:
            self._over(running, status.task_exit())
            return
        if not forked:
            self._ask(running)
            return
        shim = taskdir.read_shim(running.directory)
        if not lives:
            self._lost(running)
        elif shim is not None:
            self._members.add(running.marker, shim.pid, shim.child_pid)
            if running.pidfd is None and not watch_shim(running, shim, self._on_death):
                # It went between the two looks.
                asyncio.get_running_loop().call_soon(self._look, running)
            elif shim.child_pid is not None:
                self._began(running, shim.child_pid, shim.started_at)

    def _on_death(self, running: Running) -> None:
        unwatch_shim(running)
        self._look(running)

    # ---- ending ----------------------------------------------------------------------------------------------------

    def _lost(self, running: Running) -> None:
        running.ending = True
        unwatch_shim(running)
        self._chore(self._sweep(running))

    async def _sweep(self, running: Running) -> None:
        """Kill what a dead shim left. The task ends when nothing of it is alive: its devices are not free before."""
        handle = TaskHandle(running.path)
        killed = 0
        while True:
            swept = await in_thread(handle.sweep)
            killed += len(swept.killed)
            if not swept.left:
                break
            _log.error("task %s left processes that do not die: %s", running.marker, sorted(swept.left))
            await asyncio.sleep(SWEEP_AGAIN_S)
        exit_ = end_without_shim(running, killed)
        self.record(Record(running.task, running.incarnation, exit_))
        self._over(running, exit_)

    def _over(self, running: Running, exit_: TaskExit) -> None:
        """A task has ended and its record is written: hand its devices back when the driver has let go of them."""
        if running.marker not in self._running:
            return
        pids = self._drop(running)
        self._verify(running.devices, pids, lambda problem: self._finish(running, exit_, problem))

    def _finish(self, running: Running, exit_: TaskExit, problem: str | None) -> None:
        self._preparer.give_back(running.cpus, running.cpus_milli)
        exit_ = with_problem(self._fitness.judge_end(exit_), problem)
        if self._returner is None:
            self._tell(TaskFinished(running.task, running.incarnation, exit_))
        else:
            self._chore(self._tell_when_back(self._returner, running, exit_))

    async def _tell_when_back(self, returner: Returner, running: Running, exit_: TaskExit) -> None:
        """Tell the end of a task when its files and its log have gone back."""
        exit_ = with_problem(exit_, await returner.finish(running))
        self._tell(TaskFinished(running.task, running.incarnation, exit_))

    def record(self, order: Record) -> None:
        """Write down an end that no shim writes, and let no shim be forked there any more."""
        record_end(self._config.tasks_dir, order)

    # ---- the rest --------------------------------------------------------------------------------------------------

    def extend(self, order: ExtendLease) -> None:
        """Write the new end of a task's lease."""
        running = self._running.get(taskdir.marker(order.task, order.incarnation))
        if running is None:
            return
        running.deadline_s = order.deadline_boottime_s
        extend_lease(running)

    def usage(self) -> tuple[Usage, ...]:
        """Return samples of running tasks: all of them, or in turn where there are very many."""
        began = self._turns.next([one for one in self._running.values() if one.began and one.pidfd is not None])
        self._halts.forget_others({(one.task, one.incarnation) for one in self._running.values()})
        return tuple(usage.sample(one.task, one.incarnation, one.path, one.shim_pid, self._halts) for one in began)

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        chore = asyncio.get_running_loop().create_task(work)
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)
