"""Looking at the devices in a thread of its own: a driver that hangs must not stop the agent.

A call into a driver that never returns cannot be broken off. So there is one thread, one look at a time, and whoever
waits for the answer gives up on his own; the devices are then ``unknown``, and the detail says since when.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from corral.model.errors import CorralError
from corral.model.ids import DeviceId
from corral.model.resources import DeviceSpec, DeviceState, Health
from corral.ports.probe import DeviceProbe

HANGING_S = 3.0
# Finding all processes of all tasks has its price; in between only those are known that the shims named.
MEMBERS_EVERY_S = 1.0


class OwnProcesses(Protocol):
    """The pids of the node's tasks. Called in the sampler's thread."""

    def known(self) -> list[int]:
        """Return what is known without looking."""

    def refresh(self) -> list[int]:
        """Look anew."""


class Look(msgspec.Struct, frozen=True):
    """What one look found: devices and states of all probes. ``fault`` is why discovery was not complete."""

    devices: tuple[DeviceSpec, ...]
    states: tuple[DeviceState, ...]
    fault: str | None = None


class DeviceSampler:
    """Calls the probes one after the other. All methods belong to the event loop's thread.

    Attributes:
        last: The newest look, ``None`` before the first.
    """

    def __init__(
        self,
        probes: Sequence[DeviceProbe],
        own: OwnProcesses,
        on_look: Callable[[Look], None],
    ) -> None:
        """``own`` is asked in the thread, ``on_look`` called in the event loop."""
        self.last: Look | None = None if probes else Look((), ())
        self._worker = _Worker(probes, own)
        self._on_look = on_look
        self._loop: asyncio.AbstractEventLoop | None = None
        self._current: asyncio.Future[Look] | None = None
        self._next: asyncio.Future[Look] | None = None
        self._busy_since: float | None = None

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._worker.start(self._back)

    def stop(self) -> None:
        """Let the thread end after its current look."""
        self._worker.stop()

    def request(self) -> asyncio.Future[Look]:
        """Return a look that begins after this call. Requests that come while one waits share it."""
        assert self._loop is not None, "start() comes first"
        if self._next is not None:
            return self._next
        waiting = self._next = self._loop.create_future()
        if self._busy_since is None:
            self._begin()
        return waiting

    def states(self, expected: Sequence[DeviceSpec]) -> tuple[DeviceState, ...]:
        """Return the newest state of every expected device, ``unknown`` where there is none or the driver hangs.

        One that the driver did not list in a look without fault is failed: it fell off the bus.
        """
        known: dict[DeviceId, DeviceState] = {}
        missing, health = "not looked at yet", Health.UNKNOWN
        if self.last is not None:
            known = {state.uuid: state for state in self.last.states}
            missing = self.last.fault or "the driver does not list it any more"
            health = Health.UNKNOWN if self.last.fault is not None else Health.FAILED
        silent_s = 0.0 if self._busy_since is None else time.monotonic() - self._busy_since
        if silent_s > HANGING_S:
            missing = f"the driver has not answered for {silent_s:.0f} s"
            health = Health.UNKNOWN
            # A device that failed before is not better because nobody answers.
            known = {
                uuid: state if state.health is Health.FAILED else replace(state, health=Health.UNKNOWN, detail=missing)
                for uuid, state in known.items()
            }
        return tuple(known.get(spec.uuid) or DeviceState(spec.uuid, health, detail=missing) for spec in expected)

    def _begin(self) -> None:
        self._current, self._next = self._next, None
        self._busy_since = time.monotonic()
        self._worker.look()

    def _back(self, look: Look) -> None:
        """Bring a look from the thread into the event loop."""
        assert self._loop is not None, "start() comes first"
        try:
            self._loop.call_soon_threadsafe(self._took, look)
        except RuntimeError:
            # The loop was closed while the driver was at it: nobody is left who wants to know.
            return

    def _took(self, look: Look) -> None:
        current, self._current, self._busy_since = self._current, None, None
        self.last = look
        self._on_look(look)
        if current is not None and not current.done():
            current.set_result(look)
        if self._next is not None:
            self._begin()


class _Worker:
    """What happens in the thread."""

    def __init__(self, probes: Sequence[DeviceProbe], own: OwnProcesses) -> None:
        self._probes = probes
        self._own = own
        self._refreshed_at = float("-inf")
        self._found: list[tuple[DeviceSpec, ...] | None] = [None] * len(probes)
        self._states: list[tuple[DeviceState, ...]] = [()] * len(probes)
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def start(self, back: Callable[[Look], None]) -> None:
        threading.Thread(target=self._run, args=(back,), name="devices", daemon=True).start()

    def look(self) -> None:
        self._orders.put(True)

    def stop(self) -> None:
        self._orders.put(False)

    def _run(self, back: Callable[[Look], None]) -> None:
        while self._orders.get():
            back(self._look())
        for probe in self._probes:
            probe.close()

    def _look(self) -> Look:
        own = self._own.known()
        if time.monotonic() - self._refreshed_at > MEMBERS_EVERY_S:
            own = self._refresh()
        faults = self._look_at_all(own)
        foreign = {process.pid for states in self._states for state in states for process in state.foreign}
        # A process that a task started a moment ago is no stranger.
        if foreign and not foreign.isdisjoint(own := self._refresh()):
            faults = self._look_at_all(own)
        return Look(
            devices=tuple(spec for found in self._found for spec in found or ()),
            states=tuple(state for states in self._states for state in states),
            fault="; ".join(faults) or None,
        )

    def _refresh(self) -> list[int]:
        self._refreshed_at = time.monotonic()
        return self._own.refresh()

    def _look_at_all(self, own: Sequence[int]) -> list[str]:
        return [fault for place in range(len(self._probes)) if (fault := self._look_at(place, own)) is not None]

    def _look_at(self, place: int, own: Sequence[int]) -> str | None:
        """Look at one probe's devices; return why they could not even be found."""
        probe = self._probes[place]
        found = self._found[place]
        try:
            if found is None:
                found = self._found[place] = probe.discover()
            self._states[place] = probe.sample(own)
        except CorralError as error:
            fault = f"{probe.vendor}: {error}"
            if found is None:
                return fault
            states = self._states[place] or tuple(DeviceState(spec.uuid, Health.UNKNOWN) for spec in found)
            self._states[place] = tuple(replace(state, health=Health.UNKNOWN, detail=fault) for state in states)
        return None
