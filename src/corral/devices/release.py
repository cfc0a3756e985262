"""Is a device free again? Its memory is verified before it is handed out anew, not assumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec

from corral.model.ids import DeviceId
from corral.model.resources import DeviceState, Health
from corral.ports.probe import DeviceProbe

# A context of the driver itself, or a persistence daemon, keeps some MiB; a CUDA context of a process at least 200.
IDLE_MIB_MAX: Final = 128


class Unreleased(msgspec.Struct, frozen=True):
    """A device that is not free again, and what holds it."""

    uuid: DeviceId
    reason: str


def unreleased(
    states: Iterable[DeviceState],
    uuids: Collection[DeviceId],
    pids: Collection[int],
    *,
    idle_mib_max: int = IDLE_MIB_MAX,
) -> tuple[Unreleased, ...]:
    """Return which of the devices ``uuids`` are not free of the processes ``pids`` (an ended task's).

    A device is free when none of ``pids`` is on it, and its memory is at most ``idle_mib_max`` unless other processes
    are on it (a shared device). A device that does not tell its memory is judged by its processes alone; one that is
    failed, unknown or not observed is not free.
    """
    seen = {state.uuid: state for state in states}
    held = []
    for uuid in sorted(uuids):
        state = seen.get(uuid)
        if state is None:
            held.append(Unreleased(uuid, "the device was not observed"))
        elif state.health in (Health.FAILED, Health.UNKNOWN):
            held.append(Unreleased(uuid, state.detail or f"the device is {state.health}"))
        elif there := sorted(set(pids) & set(state.pids)):
            held.append(Unreleased(uuid, "still on it: process " + ", ".join(map(str, there))))
        elif not state.pids and state.memory_used_mib is not None and state.memory_used_mib > idle_mib_max:
            held.append(Unreleased(uuid, f"{state.memory_used_mib} MiB are still in use, and no process is seen"))
    return tuple(held)


def wait_released(
    probe: DeviceProbe,
    uuids: Collection[DeviceId],
    pids: Collection[int],
    *,
    timeout_s: float,
    interval_s: float = 0.05,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Unreleased, ...]:
    """Sample until the devices are free of ``pids``; return those that are not after ``timeout_s`` (none: all free).

    Blocks the calling thread, which must be the one that uses the probe. Drivers give memory back up to some seconds
    after the last process has gone.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        held = unreleased(probe.sample(()), uuids, pids)
        if not held or time.monotonic() >= deadline:
            return held
        sleep(interval_s)
