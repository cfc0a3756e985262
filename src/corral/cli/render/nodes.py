"""`corral nodes`: nodes and their devices with health, temperature, memory and holders."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from corral.cli.render.layout import Column, heading, stack, state, table
from corral.cli.render.units import NOTHING, counted, duration, gang_name, milli, of_memory, percent
from corral.model.report import DeviceReport, NodeReport
from corral.model.resources import Amount, Health

DEVICES_SHOWN = 64
HOLDERS_SHOWN = 3


def nodes(reports: Sequence[NodeReport], *, devices: bool | None = None) -> RenderableType:
    """Return the table of nodes and, for up to 64 devices in all (or when asked for), the table of devices."""
    total = sum(len(report.devices) for report in reports)
    parts: list[RenderableType] = [_node_table(reports)]
    if total and (devices if devices is not None else total <= DEVICES_SHOWN):
        parts += [heading(f"devices{_simulated_note(reports)}"), _device_table(reports)]
    elif total and devices is None:
        parts.append(Text(f"{counted(total, 'device')} (--devices lists them)", style="dim"))
    if any(report.spec.simulated for report in reports):
        parts.append(Text("\nSIMULATED: these devices do not exist; they were asked for with --simulated"))
    return stack(*parts)


def _simulated_note(reports: Sequence[NodeReport]) -> str:
    simulated = [device.spec.simulated for report in reports for device in report.devices]
    return " (all SIMULATED)" if all(simulated) else " (some SIMULATED)" if any(simulated) else ""


def _node_table(reports: Sequence[NodeReport]) -> RenderableType:
    several = len({report.spec.address for report in reports}) > 1
    heads = (
        Column("NODE", least=6),
        Column("STATE", wide=True, least=8),
        Column("SEEN", right=True),
        Column("GPU HELD", right=True),
        Column("CPU", right=True),
        Column("MEMORY", right=True, least=8),
        Column("LOAD", right=True, optional=True),
        *((Column("ADDRESS", optional=True),) if several else ()),
        Column("JOBS", wide=True, least=6),
    )
    rows = []
    for report in reports:
        total = node_total(report)
        rows.append(
            (
                report.spec.id,
                node_state(report),
                NOTHING if report.age_s is None else duration(report.age_s),
                f"{milli(report.held.gpu_milli)}/{milli(total.gpu_milli)}",
                f"{milli(report.held.cpus_milli)}/{milli(total.cpus_milli)}",
                of_memory(report.held.memory_mib, total.memory_mib),
                NOTHING if report.load_1m is None else f"{report.load_1m:.1f}",
                *((report.spec.address or NOTHING,) if several else ()),
                _holders([gang_name(key.job, key.gang) for key in report.gangs]),
            )
        )
    return table(heads, rows)


def node_total(report: NodeReport) -> Amount:
    """Return what a node has in all, failed devices included."""
    return Amount(len(report.devices) * 1000, report.spec.cpus_milli, report.spec.memory_mib)


def node_state(report: NodeReport) -> Text:
    """Return the state of a node in words: ``up``, ``up, cordoned: reason``, ``lost``, and what is wrong with it.

    One that is emptied is ``draining`` while jobs are on it, then ``drained``.
    """
    words = [report.state]
    if report.cordoned:
        how = "cordoned" if not report.draining else "draining" if report.gangs else "drained"
        words.append(how + (f": {report.cordon_reason}" if report.cordon_reason else ""))
    words += report.notes
    doubtful = report.state == "up" and (report.cordoned or report.notes)
    return state("cordoned" if doubtful else report.state, ", ".join(words))


def _device_table(reports: Sequence[NodeReport]) -> RenderableType:
    several = len({report.spec.rack for report in reports}) > 1
    mixed = len({device.spec.simulated for report in reports for device in report.devices}) > 1
    heads = (
        Column("NODE", least=6),
        Column("GPU", right=True),
        Column("MODEL", least=5),
        Column("HEALTH", wide=True, least=7),
        Column("TEMP", right=True, optional=True),
        Column("MEMORY", right=True, least=8),
        Column("BUSY", right=True, optional=True),
        Column("POWER", right=True, optional=True),
        Column("HELD", right=True),
        Column("BY", wide=True, least=8),
    )
    rows = [
        (f"{report.spec.rack}/{report.spec.id}" if several else report.spec.id, *_device_row(device, mixed=mixed))
        for report in reports
        for device in report.devices
    ]
    return table(heads, rows)


def _device_row(device: DeviceReport, *, mixed: bool) -> tuple[str | Text, ...]:
    seen = device.state
    used = None if seen is None else seen.memory_used_mib
    simulated = " SIMULATED" if mixed and device.spec.simulated else ""
    return (
        str(device.spec.index),
        f"{device.spec.model}{simulated}",
        device_health(device),
        NOTHING if seen is None or seen.temperature_c is None else f"{seen.temperature_c:.0f} °C",
        of_memory(used, device.spec.memory_mib),
        NOTHING if seen is None or seen.utilisation_percent is None else percent(seen.utilisation_percent / 100, 0),
        NOTHING if seen is None or seen.power_w is None else f"{seen.power_w:.0f} W",
        milli(device.held_milli),
        _holders([gang_name(key.job, key.gang) for key in device.holders]) + _foreign(device),
    )


def device_health(device: DeviceReport) -> Text:
    """Return the health with its reason; a device that never told is ``unknown``, never healthy."""
    if device.failed_reason is not None:
        return state(Health.FAILED.value, f"failed: {device.failed_reason}" if device.failed_reason else "failed")
    if device.state is None:
        return state(Health.UNKNOWN.value)
    health = device.state.health.value
    detail = device.state.detail
    return state(health, f"{health}: {detail}" if detail and device.state.health is not Health.HEALTHY else health)


def _holders(names: Sequence[str]) -> str:
    if len(names) <= HOLDERS_SHOWN + 1:
        return " ".join(names)
    return f"{' '.join(names[:HOLDERS_SHOWN])} +{len(names) - HOLDERS_SHOWN}"


def _foreign(device: DeviceReport) -> str:
    if device.state is None or not device.state.foreign:
        return ""
    names = ", ".join(f"pid {one.pid}" + (f" of {one.owner}" if one.owner else "") for one in device.state.foreign)
    return f" (not ours: {names})"
