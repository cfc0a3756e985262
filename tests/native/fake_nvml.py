"""The fake NVML. Any test of a process that asks NVML may use it; needs gcc."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.native.fake_driver import HERE, FakeDriver, compile_library

H100 = {"name": "NVIDIA H100 80GB HBM3", "total": 81559, "reserved": 561, "used": 4, "util": 0, "temp": 31}


def build(cache: Path, *omit: str) -> Path:
    """Return a directory for ``LD_LIBRARY_PATH`` that holds the library without the functions ``omit``."""
    place = cache / ("nvml-" + hashlib.sha256(repr(sorted(omit)).encode()).hexdigest()[:12])
    compile_library(place / "libnvidia-ml.so.1", HERE / "fake_nvml.c", [f"-DOMIT_{name}" for name in omit])
    return place


def driver_with(state: Path, count: int) -> FakeDriver:
    """Return a driver with ``count`` idle H100 on one bus."""
    devices = {
        index: {
            **H100,
            "uuid": f"GPU-00000000-0000-0000-0000-{index:012x}",
            "bus": f"00000000:{0x1B + index:02X}:00.0",
            "power": 70_000 + index,
        }
        for index in range(count)
    }
    return FakeDriver(state, "FAKE_NVML_STATE", devices)
