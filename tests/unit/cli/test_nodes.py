"""`corral nodes` as text."""

from __future__ import annotations

from corral.cli.render.layout import as_text
from corral.cli.render.nodes import nodes
from corral.model.ids import DeviceId, GangKey, JobId, NodeId
from corral.model.report import DeviceReport, NodeReport
from corral.model.resources import Amount, DeviceSpec, DeviceState, ForeignProcess, Health, NodeSpec

GIB = 1024
KEY = GangKey(JobId("12"), 0)
ELEMENTS = tuple(GangKey(JobId("9"), index) for index in range(6))


def device(index: int, *, simulated: bool = True) -> DeviceSpec:
    return DeviceSpec(DeviceId(f"GPU-{index}"), "H100", "nvidia", 80 * GIB, index, simulated=simulated)


def seen(index: int, **more: object) -> DeviceState:
    told: dict[str, object] = {"memory_used_mib": 2970, "utilisation_percent": 92.4, "temperature_c": 61.2}
    return DeviceState(DeviceId(f"GPU-{index}"), Health.HEALTHY, **told | {"power_w": 402.0} | more)  # type: ignore[arg-type]


def report(name: str, devices: tuple[DeviceReport, ...], **more: object) -> NodeReport:
    told: dict[str, object] = {
        "spec": NodeSpec(NodeId(name), "host", "10.0.0.1", 128_000, 1024 * GIB, tuple(d.spec for d in devices)),
        "state": "up",
        "cordoned": False,
        "cordon_reason": "",
        "age_s": 0.4,
        "held": Amount(1500, 8000, 64 * GIB),
        "devices": devices,
        "gangs": (KEY,),
        "load_1m": 0.31,
    }
    return NodeReport(**told | more)  # type: ignore[arg-type]


THREE = (
    DeviceReport(device(0), None, None, 0, ()),
    DeviceReport(device(1), seen(1), "XID 79", 1000, (KEY,)),
    DeviceReport(device(2), seen(2, foreign=(ForeignProcess(77, 100, "bob"),)), None, 500, (KEY, *ELEMENTS)),
)

AT_80 = """\
NODE    STATE             SEEN  GPU HELD    CPU       MEMORY  LOAD  JOBS
node-0  up               0.40s     1.5/3  8/128  64/1024 GiB   0.3  12
node-1  up, cordoned:    1m05s       0/0  0/128   0/1024 GiB     -  9 9.1 9.2 +3
        bad fan

devices (all SIMULATED)
NODE    GPU  MODEL  HEALTH       TEMP      MEMORY  BUSY  POWER  HELD  BY
node-0    0  H100   unknown         -    -/80 GiB     -      -     0
node-0    1  H100   failed:     61 °C  2.9/80 GiB   92%  402 W     1  12
                    XID 79
node-0    2  H100   healthy     61 °C  2.9/80 GiB   92%  402 W   0.5  12 9 9.1
                                                                      +4 (not
                                                                      ours: pid
                                                                      77 of bob)
"""


def test_nodes_at_80_columns() -> None:
    changed = {"cordoned": True, "cordon_reason": "bad fan", "age_s": 65.0, "load_1m": None, "held": Amount()}
    second = report("node-1", (), **changed, gangs=ELEMENTS)
    assert as_text(nodes([report("node-0", THREE), second]), width=80) == AT_80


def test_nodes_of_several_machines_have_their_addresses_where_there_is_room() -> None:
    far = NodeSpec(NodeId("node-1"), "host", "10.0.0.21", 128_000, 1024 * GIB, ())
    both = [report("node-0", ()), report("node-1", (), spec=far)]
    wide = as_text(nodes(both), width=120).splitlines()
    assert wide[0].split()[-2:] == ["ADDRESS", "JOBS"]
    assert [line.split()[-2] for line in wide[1:3]] == ["10.0.0.1", "10.0.0.21"]
    assert "ADDRESS" not in as_text(nodes(both), width=60)
    assert "ADDRESS" not in as_text(nodes(both[:1]), width=120)


def test_nodes_at_120_columns_show_power_on_one_line() -> None:
    lines = as_text(nodes([report("node-0", THREE)]), width=120).splitlines()
    assert " ".join(lines[-1].split()) == (
        "node-0 2 H100 healthy 61 °C 2.9/80 GiB 92% 402 W 0.5 12 9 9.1 +4 (not ours: pid 77 of bob)"
    )


def test_an_unknown_device_is_never_called_healthy() -> None:
    text = as_text(nodes([report("node-0", (DeviceReport(device(0), None, None, 0, ()),))]), width=80)
    assert "healthy" not in text
    assert "unknown" in text


def test_simulated_devices_beside_real_ones_are_marked_one_by_one() -> None:
    pair = (
        DeviceReport(device(0, simulated=False), seen(0), None, 0, ()),
        DeviceReport(device(1), seen(1), None, 0, ()),
    )
    lines = as_text(nodes([report("node-0", pair)]), width=120).splitlines()
    assert "devices (some SIMULATED)" in lines
    assert "SIMULATED" not in lines[-2]
    assert "H100 SIMULATED" in lines[-1]


def test_a_large_pool_lists_its_devices_only_when_asked() -> None:
    many = [report(f"n{i}", THREE) for i in range(22)]
    assert "66 devices (--devices lists them)" in as_text(nodes(many), width=80)
    assert as_text(nodes(many, devices=True), width=120).count("XID 79") == 22


def test_names_of_other_people_cannot_harm_the_terminal() -> None:
    text = as_text(nodes([report("node\x1b]0;x\x07", (), cordoned=True, cordon_reason="\x1b[2J")]), width=80)
    assert "\x1b" not in text
    assert "\\x1b]0;x\\x07" in text
