"""The devices that a node is expected to have: those of this boot, also when the driver does not list them any more.

A device that falls off the bus just vanishes from the driver's list, now or for the next run of the agent. It stays the
node's until the machine is restarted, and is failed: else nobody would miss it, and its tasks would seem to be well.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from corral.agent import processes, taskdir
from corral.model.resources import DeviceSpec

_log = logging.getLogger(__name__)

FILE_NAME = "devices-found.json"


class _Kept(msgspec.Struct, frozen=True):
    boot_id: str
    devices: tuple[DeviceSpec, ...] = ()


class ExpectedDevices:
    """What was found on this boot of the machine; kept in a file for the next run of the agent."""

    def __init__(self, node_dir: Path, *, pretended: bool) -> None:
        """``pretended`` devices are as many as were asked for last."""
        self._path = node_dir / FILE_NAME
        self._pretended = pretended
        self._known = self._load()

    @property
    def known(self) -> tuple[DeviceSpec, ...]:
        """Return the devices that were found on this boot."""
        return self._known

    def _load(self) -> tuple[DeviceSpec, ...]:
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except (FileNotFoundError, msgspec.MsgspecError):
            return ()
        return kept.devices if kept.boot_id == processes.boot_id() else ()

    def take(self, listed: tuple[DeviceSpec, ...]) -> tuple[DeviceSpec, ...]:
        """Take in what the driver lists now and return all devices of the node.

        A disk that is full costs the next run of the agent the knowledge, not this one the look.
        """
        there = {device.uuid for device in listed}
        before = () if self._pretended else self._known
        found = (*listed, *(device for device in before if device.uuid not in there))
        if found != self._known:
            self._known = found
            try:
                taskdir.replace_file(str(self._path), msgspec.json.encode(_Kept(processes.boot_id(), found)))
            except OSError as error:
                _log.error("what devices there are cannot be written down: %s", error)
        return found
