"""A process with an event loop of its own, on its host's clock: production coroutines run in it step by step.

Stopped, it runs nothing while time goes on; killed, it never runs again. Blocking calls that production hands to
threads go to ``blocking``, which answers when it pleases.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, cast

from corral.model.errors import SimulationStuck
from corral.sim.storm.clocks import HostClock
from corral.sim.storm.course import Course

CALLBACKS_MAX = 100_000
RESOLUTION_S = 1e-6
"""A timer rings so much late, as the clock of a real loop has its resolution."""

Blocking = Callable[[Callable[[], Any], "asyncio.Future[Any]"], None]


class Process:
    """One process: as much of an event loop as coroutines need. ``faults`` are exceptions that nobody caught."""

    def __init__(self, course: Course, clock: HostClock, blocking: Blocking) -> None:
        self.alive = True
        self.stopped = False
        self.faults: list[str] = []
        self._course = course
        self._clock = clock
        self._blocking = blocking
        self._ready: deque[asyncio.Handle] = deque()
        self._woken = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._loop = cast("asyncio.AbstractEventLoop", self)

    # ---- life ------------------------------------------------------------------------------------------------------

    def stop_running(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.stopped = False
        self._wake()

    def kill(self) -> None:
        """SIGKILL: nothing that its coroutines do from here on has an effect."""
        self.alive = False
        for task in list(self._tasks):
            task.cancel()
        # They unwind now, in an order of ours, and not whenever they are collected: what was due included.
        self._drain()
        assert not self._tasks, f"a killed process does not unwind: {list(self._tasks)}"

    # ---- asyncio ---------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the clock on which timers run."""
        return self._clock.boottime()

    def get_debug(self) -> bool:
        """Return ``False``: asyncio asks."""
        return False

    def is_running(self) -> bool:
        """Return whether it is alive."""
        return self.alive

    def is_closed(self) -> bool:
        """Return ``False``: even a dead process unwinds its coroutines."""
        return False

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self._loop)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """Run a coroutine."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self._loop, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Call back as soon as the process runs."""
        handle = asyncio.Handle(callback, args, self._loop, context)
        self._ready.append(handle)
        self._wake()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call back as soon as the process runs."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back after a while."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back at a time of the host's boot clock."""
        handle = asyncio.TimerHandle(when, callback, args, self._loop, context)
        delay_s = self._clock.true_s(max(0.0, when - self.time())) + RESOLUTION_S
        self._course.after(delay_s, lambda: self._ring(handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing is to be done: a cancelled timer does nothing when it rings."""

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Hand a blocking call over."""
        future = self.create_future()
        if self.alive:
            self._blocking(lambda: func(*args), future)
        else:
            future.cancel()
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what nobody caught."""
        if self.alive and "exception" in context:
            error = context["exception"]
            self.faults.append(f"{context.get('message')}: {type(error).__name__}: {error}")

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _ring(self, handle: asyncio.TimerHandle) -> None:
        if self.alive and not handle.cancelled():
            self._ready.append(handle)
            self._wake()

    def _wake(self) -> None:
        if self.alive and not self.stopped and not self._woken:
            self._woken = True
            self._course.after(0.0, self._run)

    def _run(self) -> None:
        self._woken = False
        if self.alive and not self.stopped:
            self._drain()

    def _drain(self) -> None:
        events._set_running_loop(self._loop)  # noqa: SLF001 - asyncio's own interface for event loops
        try:
            for _ in range(CALLBACKS_MAX):
                if not self._ready:
                    return
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001 - the same
        finally:
            events._set_running_loop(None)  # noqa: SLF001 - the same
        raise SimulationStuck("a process never comes to rest")
