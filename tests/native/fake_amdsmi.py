"""The fake AMD SMI library, under the real Python package ``amdsmi``; needs gcc and that package."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from tests import needs
from tests.native.fake_driver import HERE, FakeDriver, compile_library

MI300X = {"name": "AMD Instinct MI300X", "total": 196592, "used": 285, "hotspot": 40, "current": 135}


def build(cache: Path) -> Path:
    """Return a directory for ``LD_LIBRARY_PATH`` that holds the library with every symbol that ``amdsmi`` binds."""
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or spec.origin is None:
        needs.unmet("needs the module amdsmi: pip install 'corral[amd]'")
    wrapper = Path(spec.origin).with_name("amdsmi_wrapper.py").read_text()
    bound = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper))
    source = (HERE / "fake_amdsmi.c").read_text()
    missing = sorted(name for name in bound if f" {name}(" not in source)
    place = cache / "amdsmi"
    place.mkdir(parents=True, exist_ok=True)
    stubs = place / "stubs.c"
    stubs.write_text("".join(f"int {name}(void) {{ return 2; }}\n" for name in missing))
    compile_library(place / "libamd_smi.so", HERE / "fake_amdsmi.c", [str(stubs)])
    return place


def driver_with(state: Path, count: int) -> FakeDriver:
    """Return a driver with ``count`` idle MI300X on one bus."""
    devices = {
        index: {
            **MI300X,
            "busy": 0,
            "ecc": 0,
            "uuid": f"{index:02x}ff74a1-0000-1000-80e9-b388cfe84658",
            "hip": f"GPU-e9b388cfe84658{index:02x}",
            "serial": f"0xE9B388CFE84658{index:02X}",
            "bus": 0x0C + index,
        }
        for index in range(count)
    }
    return FakeDriver(state, "FAKE_AMDSMI_STATE", devices)
