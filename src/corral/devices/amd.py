"""AMD devices through AMD SMI (the Python package ``amdsmi``, extra ``corral[amd]``), by UUID.

The UUID is the one that ``ROCR_VISIBLE_DEVICES`` takes: ``GPU-`` and the 16 hex digits of the board's unique id.
AMD SMI says ``N/A`` for what it does not know: ``None`` here. Memory is in MiB there, that of processes in bytes
(AMD SMI Python API reference, rocm.docs.amd.com). There are no XIDs; uncorrectable memory errors that were counted
since the start of the probe make a device ``failed``.

Calls block: a sample takes some 1 to 10 ms per device, seconds while a board resets. The notes on threads in
:mod:`corral.devices.nvidia` hold here too.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from corral.devices.islands import placed
from corral.devices.models import short_model
from corral.devices.processes import foreign_processes, merged, mib
from corral.model.errors import DeviceProbeFailed
from corral.model.ids import DeviceId
from corral.model.resources import DeviceSpec, DeviceState, Health

# Values of amdsmi_status_t: not supported, not yet implemented, no permission, no data, setting unavailable...
_SILENT: Final = frozenset({2, 3, 10, 40, 55})
# I/O or file error, not found, not initialised, driver not loaded, no driver.
_DEVICE_GONE: Final = frozenset({12, 14, 31, 32, 34, 51})
_NO_DRIVER: Final = frozenset({34, 51})
_XGMI: Final = 2
_USHORT_NA: Final = 0xFFFF
_UINT_NA: Final = 0xFFFF_FFFF
_HSA_UUID: Final = re.compile(r"GPU-[0-9a-f]{16}")
_NO_UNIQUE_ID: Final = frozenset({"GPU-0000000000000000", "GPU-ffffffffffffffff"})


class _Gone(Exception):
    """The device cannot be reached any more."""


class _Device:
    """What the probe remembers of one device."""

    def __init__(self, spec: DeviceSpec, handle: Any, ecc_at_start: int | None) -> None:
        self.spec = spec
        self.handle = handle
        self.ecc_at_start = ecc_at_start
        self.complaints: list[str] = []


class AmdProbe:
    """``corral.ports.probe.DeviceProbe`` over AMD SMI. Not thread-safe: one thread uses it.

    ``reason`` says in one line why there are no devices; ``None`` when all is well.
    ``refused`` tells that the driver answers, but not for all of its devices.
    """

    vendor = "amd"

    def __init__(self) -> None:
        self.reason: str | None = None
        self.refused = False
        self._smi: Any = None
        self._devices: dict[DeviceId, _Device] = {}
        self._addresses: dict[DeviceId, str] = {}

    def discover(self) -> tuple[DeviceSpec, ...]:
        """Return the devices that answer now, by PCI bus order; none when there is no library or driver.

        Raises ``DeviceProbeFailed`` when the library is there but refuses.
        """
        self.reason = None
        smi = self._open()
        if smi is None:
            return ()
        found, left_out = [], []
        try:
            handles = list(smi.amdsmi_get_processor_handles())
        except smi.AmdSmiException as error:
            raise DeviceProbeFailed(f"AMD SMI does not list the devices: {_line(error)}") from error
        for number, handle in enumerate(handles):
            try:
                found.append((self._address(smi, handle), self._uuid(smi, handle), handle))
            except (smi.AmdSmiException, _Gone) as error:
                left_out.append(f"device {number}: {_line(error)}")
        known_before = set(self._addresses)
        self._addresses |= {uuid: address for address, uuid, _ in found}
        devices = []
        for _, uuid, handle in sorted(found, key=lambda each: each[0]):
            try:
                if uuid not in self._devices:
                    self._devices[uuid] = self._new(smi, handle, uuid)
                self._devices[uuid].handle = handle
                devices.append(self._devices[uuid])
            except (smi.AmdSmiException, _Gone) as error:
                left_out.append(f"{uuid}: {_line(error)}")
        if known_before != set(self._addresses):
            specs = [device.spec for device in self._devices.values()]
            for uuid, spec in placed(specs, self._addresses, self._linked).items():
                self._devices[uuid].spec = spec
        self.refused = bool(left_out)
        if left_out:
            self.reason = "; ".join(left_out)
        elif not devices:
            self.reason = "the AMD driver is loaded but lists no GPU"
        return tuple(device.spec for device in devices)

    def sample(self, own_pids: Sequence[int]) -> tuple[DeviceState, ...]:
        """Return one observation per device ever discovered; a vanished one is ``failed``."""
        own, states = frozenset(own_pids), []
        for device in self._devices.values():
            try:
                states.append(self._sample(device, own))
            except _Gone as gone:
                device.handle = None
                states.append(DeviceState(device.spec.uuid, Health.FAILED, detail=str(gone)))
        return tuple(states)

    def close(self) -> None:
        """Let the library go; the devices are forgotten."""
        smi, self._smi = self._smi, None
        self._devices.clear()
        self._addresses.clear()
        if smi is not None:
            with contextlib.suppress(smi.AmdSmiException):
                smi.amdsmi_shut_down()

    # ---- the library -----------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        if self._smi is not None:
            return self._smi
        smi = self._import()
        if smi is None:
            return None
        try:
            smi.amdsmi_init(smi.AmdSmiInitFlags.INIT_AMD_GPUS)
        except smi.AmdSmiException as error:
            if getattr(error, "err_code", None) in _NO_DRIVER:
                self.reason = "no AMD driver: the kernel module amdgpu is not loaded"
                return None
            hint = "run amd-smi list; the package amdsmi must be of the same ROCm release as the library"
            raise DeviceProbeFailed(f"AMD SMI refuses: {_line(error)}", hint=hint) from error
        self._smi = smi
        return smi

    def _import(self) -> Any:
        # The package prints its troubles and then fails in several ways when libamd_smi.so is not there.
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                import amdsmi
        except ModuleNotFoundError as error:
            if error.name != "amdsmi":
                raise
            self.reason = "the Python module amdsmi is missing: pip install 'corral[amd]' or ROCm's own"
        except (ImportError, OSError, KeyError, AttributeError):
            self.reason = "no AMD driver library: libamd_smi.so is not installed, or is of another release than amdsmi"
        else:
            return amdsmi
        return None

    def _ask(self, device: _Device | None, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what AMD SMI says, ``None`` when it does not; raise ``_Gone`` when the device cannot be reached."""
        try:
            return call(*arguments)
        except self._smi.AmdSmiException as error:
            code = getattr(error, "err_code", None)
            if code in _DEVICE_GONE:
                raise _Gone(_line(error)) from error
            if code not in _SILENT and device is not None:
                device.complaints.append(f"{call.__name__}: {_line(error)}")
            return None

    # ---- discovery -------------------------------------------------------------------------------------------------

    def _address(self, smi: Any, handle: Any) -> str:
        return str(smi.amdsmi_get_gpu_device_bdf(handle)).lower()

    def _uuid(self, smi: Any, handle: Any) -> DeviceId:
        """Return the UUID for ``ROCR_VISIBLE_DEVICES``; AMD SMI's own where a board has no unique id."""
        told = []
        enumerate_ = getattr(smi, "amdsmi_get_gpu_enumeration_info", None)
        if enumerate_ is not None:
            told.append(str((self._ask(None, enumerate_, handle) or {}).get("hip_uuid", "")))
        serial = str((self._ask(None, smi.amdsmi_get_gpu_asic_info, handle) or {}).get("asic_serial", ""))
        told.append("GPU-" + serial.lower().removeprefix("0x").rjust(16, "0"))
        for uuid in (each.lower().replace("gpu-0x", "gpu-").replace("gpu-", "GPU-") for each in told):
            if _HSA_UUID.fullmatch(uuid) and uuid not in _NO_UNIQUE_ID:
                return DeviceId(uuid)
        return DeviceId(str(smi.amdsmi_get_gpu_device_uuid(handle)))

    def _new(self, smi: Any, handle: Any, uuid: DeviceId) -> _Device:
        asic = self._ask(None, smi.amdsmi_get_gpu_asic_info, handle) or {}
        memory_mib = _number(smi.amdsmi_get_gpu_vram_usage(handle).get("vram_total"))
        if not memory_mib:
            raise _Gone("it does not tell its memory")
        model = short_model(str(asic.get("market_name", "")), int(memory_mib))
        device = _Device(DeviceSpec(uuid, model, self.vendor, int(memory_mib), 0), handle, None)
        device.ecc_at_start = self._uncorrectable(device)
        return device

    def _linked(self, one: DeviceId, other: DeviceId) -> bool:
        first, second = self._devices[one], self._devices[other]
        if first.handle is None or second.handle is None:
            return False
        try:
            link = self._ask(None, self._smi.amdsmi_topo_get_link_type, first.handle, second.handle) or {}
        except _Gone:
            return False
        return link.get("type") == _XGMI

    def _find(self, device: _Device) -> Any:
        """Return the handle of a device that was away, when it is back."""
        smi = self._smi
        try:
            for handle in smi.amdsmi_get_processor_handles():
                if self._uuid(smi, handle) == device.spec.uuid:
                    return handle
        except smi.AmdSmiException as error:
            raise _Gone(_line(error)) from error
        raise _Gone("the device is gone")

    # ---- observation -----------------------------------------------------------------------------------------------

    def _sample(self, device: _Device, own: frozenset[int]) -> DeviceState:
        smi = self._smi
        if smi is None:
            raise _Gone("the AMD driver is gone")
        if device.handle is None:
            device.handle = self._find(device)
            device.ecc_at_start = self._uncorrectable(device)
        handle, device.complaints = device.handle, []
        memory = self._ask(device, smi.amdsmi_get_gpu_vram_usage, handle) or {}
        load = self._ask(device, smi.amdsmi_get_gpu_activity, handle) or {}
        temperature_c, power_w = self._temperature(device), self._power(device)
        used_mib = merged(self._processes(device))
        used, busy = _number(memory.get("vram_used")), _number(load.get("gfx_activity"))
        told = any(value is not None for value in (used, busy, temperature_c, power_w))
        health, detail = self._health(device, told=told)
        return DeviceState(
            device.spec.uuid,
            health,
            memory_used_mib=None if used is None else int(used),
            utilisation_percent=busy if busy is not None and busy <= 100 else None,
            temperature_c=temperature_c,
            power_w=power_w,
            detail=detail,
            pids=tuple(sorted(used_mib)),
            foreign=foreign_processes(used_mib, own),
        )

    def _temperature(self, device: _Device) -> float | None:
        smi = self._smi
        current = smi.AmdSmiTemperatureMetric.CURRENT
        # Accelerators (MI200 and later) have no edge sensor.
        for sensor in (smi.AmdSmiTemperatureType.EDGE, smi.AmdSmiTemperatureType.HOTSPOT):
            value = _number(self._ask(device, smi.amdsmi_get_temp_metric, device.handle, sensor, current))
            if value is not None:
                return value
        return None

    def _power(self, device: _Device) -> float | None:
        power = self._ask(device, self._smi.amdsmi_get_power_info, device.handle) or {}
        # Each board fills one of the two; the other is N/A, all ones, or 0, which no running board draws.
        told = (_number(power.get(key)) for key in ("current_socket_power", "average_socket_power"))
        return next((value for value in told if value and value < _USHORT_NA), None)

    def _processes(self, device: _Device) -> Iterator[tuple[int, int | None]]:
        for process in self._ask(device, self._smi.amdsmi_get_gpu_process_list, device.handle) or ():
            # Releases before 6.0 wrap the pid in a handle; those list nothing here.
            if isinstance(process, dict) and process.get("pid"):
                used = _number((process.get("memory_usage") or {}).get("vram_mem"))
                yield int(process["pid"]), mib(None if used is None else int(used))

    def _uncorrectable(self, device: _Device) -> int | None:
        count = self._ask(device, self._smi.amdsmi_get_gpu_total_ecc_count, device.handle) or {}
        value = _number(count.get("uncorrectable_count"))
        return None if value is None else int(value)

    def _health(self, device: _Device, *, told: bool) -> tuple[Health, str | None]:
        errors, before = self._uncorrectable(device), device.ecc_at_start
        if errors is not None and before is not None and errors > before:
            return Health.FAILED, f"{errors - before} uncorrectable memory errors since the start"
        if device.complaints:
            return Health.SUSPECT, "; ".join(device.complaints)
        return (Health.HEALTHY, None) if told else (Health.UNKNOWN, "the driver tells nothing about it")


def _number(value: Any) -> float | None:
    """Return a number that AMD SMI told; ``N/A``, absence and all-ones are ``None``."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and value != _UINT_NA
    return float(value) if known else None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
