"""Which devices of a node have failed, by the newest look at them."""

from __future__ import annotations

from corral.agent.table import Entry
from corral.model.ids import DeviceId
from corral.model.resources import DeviceState, Health


class Failures:
    """The newest observation of all devices (``states``), and what is said of those that failed."""

    def __init__(self) -> None:
        self.states: tuple[DeviceState, ...] = ()
        self._failed: dict[DeviceId, str] = {}

    def observe(self, states: tuple[DeviceState, ...]) -> bool:
        """Take an observation in; return whether any device has failed."""
        self.states = states
        self._failed = {
            state.uuid: f"device {state.uuid} failed" + (f": {state.detail}" if state.detail else "")
            for state in states
            if state.health is Health.FAILED
        }
        return bool(self._failed)

    def of(self, entry: Entry) -> str | None:
        """Return how a device of a task failed, ``None`` when all are well."""
        return next((self._failed[uuid] for uuid in entry.devices if uuid in self._failed), None)
