"""NVIDIA devices through NVML (nvidia-ml-py), by UUID.

Every value that the driver does not tell is ``None``: a missing symbol of an old driver, a board that does not support
a query, missing permission. A device that is lost, needs a reset or disappeared is ``failed`` and is looked for by its
UUID at each sample. A fatal XID keeps its device ``failed`` until the device was away and came back (a reset), or the
probe is made anew; another XID shows for ``xid_shown_s`` seconds.

Calls block. On a healthy machine a sample takes about 1 ms per device with persistence mode, up to some 100 ms without.
When a board's system processor dies (XID 119), each call can take the driver's timeout of 45 s and more; a driver bug
can hold a call for ever, in a state that no signal ends. The caller must run the probe in a thread (or process) of its
own, treat an old sample as unknown, and not wait for the thread when it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final

from corral.devices import xid as xids
from corral.devices.cpu import memory_total_mib
from corral.devices.islands import placed
from corral.devices.models import short_model
from corral.devices.processes import foreign_processes, merged, mib
from corral.model.errors import DeviceProbeFailed
from corral.model.ids import DeviceId
from corral.model.resources import DeviceSpec, DeviceState, Health

# Values of nvmlReturn_t (nvml.h), which are part of its ABI.
_NOT_FOUND: Final = 6
_TIMEOUT: Final = 10
_LIBRARY_NOT_FOUND: Final = 12
_DRIVER_GONE: Final = frozenset({1, 9, 18})  # uninitialised, driver not loaded, driver and library differ
_DEVICE_GONE: Final = frozenset({_NOT_FOUND, 15, 16, 28}) | _DRIVER_GONE  # is lost, needs a reset, not found
# Invalid argument, not supported, no permission, no such function, no data, other version, deprecated, not ready:
# the device is there, but will not tell.
_SILENT: Final = frozenset({2, 3, 4, 13, 21, 25, 26, 27})

_UINT_NA: Final = 0xFFFF_FFFF
_ULONG_NA: Final = 0xFFFF_FFFF_FFFF_FFFF
_EVENTS_KEPT: Final = 1000
_EVENTS_PER_SAMPLE: Final = 100


class _Gone(Exception):
    """The device cannot be reached any more."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


class _Device:
    """What the probe remembers of one device."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec
        self.handle: Any = None
        self.events: Any = None
        self.fatal: int | None = None
        self.newest: tuple[int, float] | None = None
        self.complaints: list[str] = []


class NvidiaProbe:
    """``corral.ports.probe.DeviceProbe`` over NVML. Not thread-safe: one thread uses it.

    ``reason`` says in one line why devices were left out, or why there are none; ``None`` when all is well.
    ``refused`` tells that the driver answers, but not for all of its devices.
    """

    vendor = "nvidia"

    def __init__(self, *, xid_shown_s: float = 300.0) -> None:
        self.reason: str | None = None
        self.refused = False
        self._xid_shown_s = xid_shown_s
        self._nvml: Any = None
        self._devices: dict[DeviceId, _Device] = {}
        self._addresses: dict[DeviceId, str] = {}
        self._events: deque[xids.XidEvent] = deque(maxlen=_EVENTS_KEPT)

    # ---- the port --------------------------------------------------------------------------------------------------

    def discover(self) -> tuple[DeviceSpec, ...]:
        """Return the devices that answer now, by PCI bus order; none when there is no driver (see ``reason``).

        Devices in MIG mode are left out. Raises ``DeviceProbeFailed`` when the driver is there but refuses.
        """
        self.reason = None
        nvml = self._open()
        if nvml is None:
            return ()
        found, left_out = [], []
        try:
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            raise DeviceProbeFailed(f"NVML does not list the devices: {error}") from error
        for index in range(count):
            try:
                found.append(self._found(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
            except (nvml.NVMLError, _Gone) as error:
                left_out.append(f"device {index}: {error}")
        known_before = set(self._addresses)
        self._addresses |= {uuid: address for address, _, uuid, *_ in found}
        devices = []
        for _, handle, uuid, name, memory_mib, mig in sorted(found, key=lambda each: each[0]):
            if mig:
                left_out.append(f"{uuid}: MIG mode is on, corral gives out whole devices and shares of them")
                continue
            if uuid not in self._devices:
                spec = DeviceSpec(uuid, short_model(name, memory_mib), self.vendor, memory_mib, 0)
                self._devices[uuid] = _Device(spec)
            self._attach(nvml, self._devices[uuid], handle)
            devices.append(self._devices[uuid])
        if known_before != set(self._addresses):
            self._place()
        self.refused = bool(left_out)
        if left_out:
            self.reason = "; ".join(left_out)
        elif not devices:
            self.reason = "the NVIDIA driver is loaded but lists no device"
        return tuple(device.spec for device in devices)

    def sample(self, own_pids: Sequence[int]) -> tuple[DeviceState, ...]:
        """Return one observation per device ever discovered; a vanished one is ``failed``."""
        own, states, why = frozenset(own_pids), [], ""
        try:
            if self._devices and self._open() is None:
                why = self.reason or "the NVIDIA driver is gone"
        except DeviceProbeFailed as error:
            why = str(error)
        for device in self._devices.values():
            if why:
                states.append(self._failed(device, why))
                continue
            try:
                states.append(self._sample(self._nvml, device, own))
            except _Gone as gone:
                self._detach(device)
                states.append(self._failed(device, gone.why))
                if gone.code in _DRIVER_GONE:
                    why = gone.why
                    self._let_go()
        return tuple(states)

    def take_xids(self) -> tuple[xids.XidEvent, ...]:
        """Return the XID errors that were read since the last call, oldest first (the newest 1,000)."""
        taken = tuple(self._events)
        self._events.clear()
        return taken

    def close(self) -> None:
        """Let the library go; the devices are forgotten."""
        for device in self._devices.values():
            self._detach(device)
        self._devices.clear()
        self._addresses.clear()
        self._let_go()

    # ---- the library -----------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        if self._nvml is not None:
            return self._nvml
        nvml = self._import()
        if nvml is None:
            return None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            if error.value == _LIBRARY_NOT_FOUND:
                self.reason = "no NVIDIA driver: libnvidia-ml.so.1 is not installed"
                return None
            raise DeviceProbeFailed(
                f"the NVIDIA driver refuses: {error}",
                hint="run nvidia-smi; after an update of the driver, reload it or reboot",
            ) from error
        self._nvml = nvml
        return nvml

    def _import(self) -> ModuleType | None:
        try:
            import pynvml
        except ImportError:
            self.reason = "the Python module pynvml is missing: pip install nvidia-ml-py"
            return None
        module: ModuleType = pynvml
        return module

    def _let_go(self) -> None:
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
        for device in self._devices.values():
            device.handle = device.events = None

    def _ask(self, device: _Device, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what NVML says, ``None`` when it does not; raise ``_Gone`` when the device cannot be reached."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in _DEVICE_GONE:
                raise _Gone(error.value, str(error)) from error
            if error.value not in _SILENT:
                device.complaints.append(f"{call.__name__}: {error}")
            return None

    # ---- discovery -------------------------------------------------------------------------------------------------

    def _found(self, nvml: Any, handle: Any) -> tuple[str, Any, DeviceId, str, int, bool]:
        """Return (PCI address, handle, UUID, name, memory in MiB, whether MIG is on) of a device."""
        nameless = _Device(DeviceSpec(DeviceId(""), "", self.vendor, 0, 0))
        uuid = DeviceId(_text(nvml.nvmlDeviceGetUUID(handle)))
        name = _text(nvml.nvmlDeviceGetName(handle))
        pci = self._ask(nameless, nvml.nvmlDeviceGetPciInfo, handle)
        memory = self._memory(nameless, handle)
        if memory is None and nameless.complaints:
            raise _Gone(_NOT_FOUND, "; ".join(nameless.complaints))
        # Integrated GPUs (Grace, Jetson) have none of their own and use the machine's.
        total_mib = (memory.total + (1 << 19)) >> 20 if memory is not None else memory_total_mib()
        mig = self._ask(nameless, nvml.nvmlDeviceGetMigMode, handle)
        address = "" if pci is None else _text(pci.busId).lower()
        return address, handle, uuid, name, total_mib, mig is not None and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE

    def _attach(self, nvml: Any, device: _Device, handle: Any) -> None:
        """Take a handle into use and listen to its XID errors."""
        if device.handle is not None:
            return
        device.handle = handle
        events = None
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            # Without events the XIDs are unknown, and all else still holds.
            if events is not None:
                with contextlib.suppress(nvml.NVMLError):
                    nvml.nvmlEventSetFree(events)
            events = None
        device.events = events

    def _detach(self, device: _Device) -> None:
        nvml, events = self._nvml, device.events
        device.handle = device.events = None
        if nvml is not None and events is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(events)

    def _place(self) -> None:
        """Number the devices along the PCI bus and find what NVLink joins."""
        specs = [device.spec for device in self._devices.values()]
        for uuid, spec in placed(specs, self._addresses, self._linked).items():
            self._devices[uuid].spec = spec

    def _linked(self, one: DeviceId, other: DeviceId) -> bool:
        nvml, first, second = self._nvml, self._devices[one], self._devices[other]
        if first.handle is None or second.handle is None:
            return False
        arguments = (first.handle, second.handle, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        try:
            return bool(self._ask(first, nvml.nvmlDeviceGetP2PStatus, *arguments) == nvml.NVML_P2P_STATUS_OK)
        except _Gone:
            return False

    # ---- observation -----------------------------------------------------------------------------------------------

    def _sample(self, nvml: Any, device: _Device, own: frozenset[int]) -> DeviceState:
        if device.handle is None:
            self._look_for(nvml, device)
        handle, device.complaints = device.handle, []
        self._read_xids(nvml, device)
        memory = self._memory(device, handle)
        load = self._ask(device, nvml.nvmlDeviceGetUtilizationRates, handle)
        power_mw = self._ask(device, nvml.nvmlDeviceGetPowerUsage, handle)
        temperature_c = self._temperature(device, handle)
        used_mib = merged(self._processes(device, handle))
        told = any(value is not None for value in (memory, load, power_mw, temperature_c))
        health, detail = self._health(device, handle, told=told)
        return DeviceState(
            device.spec.uuid,
            health,
            memory_used_mib=None if memory is None else mib(memory.used),
            utilisation_percent=float(load.gpu) if load is not None and load.gpu <= 100 else None,
            temperature_c=temperature_c,
            power_w=None if power_mw is None or power_mw == _UINT_NA else power_mw / 1000,
            xid=self._shown_xid(device),
            detail=detail,
            pids=tuple(sorted(used_mib)),
            foreign=foreign_processes(used_mib, own),
        )

    def _look_for(self, nvml: Any, device: _Device) -> None:
        handle = self._ask(device, nvml.nvmlDeviceGetHandleByUUID, device.spec.uuid)
        if handle is None:
            raise _Gone(_NOT_FOUND, "the device does not answer")
        # It answers without failing first: only then is it back.
        self._ask(device, nvml.nvmlDeviceGetUtilizationRates, handle)
        device.fatal = device.newest = None
        self._attach(nvml, device, handle)

    def _memory(self, device: _Device, handle: Any) -> Any:
        """Return ``used`` and ``total`` in bytes; version 2 leaves the driver's reserve out of what is used."""
        nvml = self._nvml
        memory = self._ask(device, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        if memory is None:
            memory = self._ask(device, nvml.nvmlDeviceGetMemoryInfo, handle)
        return None if memory is None or _ULONG_NA in (memory.used, memory.total) else memory

    def _temperature(self, device: _Device, handle: Any) -> float | None:
        nvml = self._nvml
        for call in (nvml.nvmlDeviceGetTemperature, nvml.nvmlDeviceGetTemperatureV):
            value = self._ask(device, call, handle, nvml.NVML_TEMPERATURE_GPU)
            if value is not None and value & _UINT_NA != _UINT_NA:
                return float(value)
        return None

    def _processes(self, device: _Device, handle: Any) -> Iterator[tuple[int, int | None]]:
        nvml = self._nvml
        for newer, older in (
            (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetComputeRunningProcesses_v2),
            (nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, nvml.nvmlDeviceGetGraphicsRunningProcesses_v2),
        ):
            processes = self._ask(device, newer, handle)
            if processes is None:
                processes = self._ask(device, older, handle)
            for process in processes or ():
                yield int(process.pid), mib(process.usedGpuMemory)

    def _read_xids(self, nvml: Any, device: _Device) -> None:
        """Take the XID errors that wait in the driver, without waiting for more."""
        for _ in range(_EVENTS_PER_SAMPLE if device.events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait(device.events, 0)
            except nvml.NVMLError as error:
                if error.value in _DEVICE_GONE:
                    raise _Gone(error.value, str(error)) from error
                if error.value not in _SILENT | {_TIMEOUT}:
                    device.complaints.append(f"nvmlEventSetWait: {error}")
                return
            if event.eventType != nvml.nvmlEventTypeXidCriticalError:
                continue
            xid = int(ctypes.c_ulonglong(event.eventData).value)
            self._events.append(xids.XidEvent(device.spec.uuid, xid, time.time()))
            device.newest = (xid, time.monotonic())
            if xids.health_of(xid) is Health.FAILED:
                device.fatal = xid

    def _shown_xid(self, device: _Device) -> int | None:
        if device.fatal is not None:
            return device.fatal
        if device.newest is None or time.monotonic() - device.newest[1] >= self._xid_shown_s:
            return None
        return device.newest[0]

    def _health(self, device: _Device, handle: Any, *, told: bool) -> tuple[Health, str | None]:
        xid = self._shown_xid(device)
        remapped = self._ask(device, self._nvml.nvmlDeviceGetRemappedRows, handle)
        if device.fatal is not None:
            return Health.FAILED, xids.explain(device.fatal)
        if remapped is not None and remapped[3]:
            return Health.FAILED, "a memory row could not be remapped"
        if device.complaints:
            return Health.SUSPECT, "; ".join(device.complaints)
        if remapped is not None and remapped[2]:
            return Health.SUSPECT, "a memory row waits for its remapping: reset the GPU"
        if xid is not None:
            return xids.health_of(xid), xids.explain(xid)
        return (Health.HEALTHY, None) if told else (Health.UNKNOWN, "the driver tells nothing about it")

    def _failed(self, device: _Device, why: str) -> DeviceState:
        return DeviceState(device.spec.uuid, Health.FAILED, xid=self._shown_xid(device), detail=why)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
