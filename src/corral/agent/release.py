"""Whether a device is free again after a task: its processes are off the driver's list, its memory is given back.

A driver gives memory back some time after the process is gone, and a broken one never does. The next task must not be
the one to find out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec

from corral.agent.sampler import DeviceSampler, Look
from corral.model.ids import DeviceId
from corral.model.resources import DeviceState, Health

# Drivers round and keep contexts of their own: what an idle device uses moves by some MiB.
SLACK_MIB = 64
AGAIN_S = 0.1


class ReleaseCheck:
    """Remembers what idle devices use, and compares."""

    def __init__(self) -> None:
        self._idle_mib: dict[DeviceId, int] = {}

    def observe(self, states: Iterable[DeviceState], held: Mapping[DeviceId, int]) -> None:
        """Learn from a look what devices use that nobody holds. ``held`` counts the holders of each device."""
        for state in states:
            if state.memory_used_mib is not None and not held.get(state.uuid) and not state.pids and not state.foreign:
                self._idle_mib[state.uuid] = state.memory_used_mib

    def unreleased(
        self,
        states: Iterable[DeviceState],
        devices: Iterable[DeviceId],
        held: Mapping[DeviceId, int],
        pids: frozenset[int],
    ) -> str | None:
        """Return what an ended task's devices still hold, in words; ``None`` when they are free.

        ``held`` counts the other holders of each device: on a shared one only processes can be told apart. ``pids`` are
        the processes that the task had.
        """
        by_uuid = {state.uuid: state for state in states}
        for uuid in devices:
            state = by_uuid.get(uuid)
            if state is None or state.health is Health.UNKNOWN:
                return f"the state of device {uuid} is unknown"
            if state.health is Health.FAILED:
                continue
            lingering = pids & {*state.pids, *(process.pid for process in state.foreign)}
            if lingering:
                return f"device {uuid} still lists process {min(lingering)} of the task"
            idle = self._idle_mib.get(uuid)
            used = state.memory_used_mib
            alone = not held.get(uuid) and not state.foreign
            if alone and idle is not None and used is not None and used > idle + SLACK_MIB:
                return f"device {uuid} still uses {used} MiB, {idle} MiB when idle"
        return None


class _Pending(msgspec.Struct, eq=False):
    devices: tuple[DeviceId, ...]
    pids: frozenset[int]
    done: Callable[[str | None], None]
    deadline: float
    problem: str | None = None


class Releases:
    """Waits for the devices of ended tasks, each for ``limit_s`` at most. Belongs to the event loop."""

    def __init__(self, sampler: DeviceSampler, held: Mapping[DeviceId, int], limit_s: float) -> None:
        """``held`` counts the live holders of each device and changes under our eyes."""
        self._sampler = sampler
        self._held = held
        self._limit_s = limit_s
        self._check = ReleaseCheck()
        self._pending: set[_Pending] = set()

    def observe(self, look: Look) -> None:
        """Learn what idle devices look like."""
        waited_for = {uuid: 1 for pending in self._pending for uuid in pending.devices}
        self._check.observe(look.states, {**waited_for, **self._held})

    def verify(self, devices: tuple[DeviceId, ...], pids: frozenset[int], done: Callable[[str | None], None]) -> None:
        """Call ``done`` when the devices are free, with ``None``, or when the time is up, with what they still hold."""
        if not devices:
            done(None)
            return
        deadline = asyncio.get_running_loop().time() + self._limit_s
        pending = _Pending(devices, pids, done, deadline)
        self._pending.add(pending)
        self._look(pending)

    def give_up(self) -> None:
        """Report those whose time is up: once a second."""
        now = asyncio.get_running_loop().time()
        for pending in [pending for pending in self._pending if now >= pending.deadline]:
            self._pending.discard(pending)
            problem = pending.problem or "the device driver did not answer"
            pending.done(f"{problem} {self._limit_s:g} s after the end")

    def _look(self, pending: _Pending) -> None:
        if pending in self._pending:
            self._sampler.request().add_done_callback(lambda look: self._looked(pending, look))

    def _looked(self, pending: _Pending, look: asyncio.Future[Look]) -> None:
        if pending not in self._pending or look.cancelled():
            return
        pending.problem = self._check.unreleased(look.result().states, pending.devices, self._held, pending.pids)
        if pending.problem is None:
            self._pending.discard(pending)
            pending.done(None)
        else:
            asyncio.get_running_loop().call_later(AGAIN_S, self._look, pending)
