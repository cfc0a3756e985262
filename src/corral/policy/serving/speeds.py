"""How fast device models answer requests, beside each other: for balancing by weight.

A request to a model is bound by the bandwidth of the device's memory rather than by its arithmetic (Pope et al.,
"Efficiently Scaling Transformer Inference", MLSys 2023), so that is what counts: GB/s, from the vendor's data sheets.
"""

from __future__ import annotations

import functools

WEIGHT_MAX = 256
"""The largest weight of a server that HAProxy takes."""

BANDWIDTH_GB_S: dict[str, float] = {
    "B200": 8_000.0,
    "GH200": 4_900.0,
    "H200": 4_800.0,
    "H100 PCIe": 2_000.0,
    "H100": 3_350.0,
    "H800": 3_350.0,
    "H20": 4_000.0,
    "A100-SXM4-80GB": 2_039.0,
    "A100 80GB": 1_935.0,
    "A100": 1_555.0,
    "A800": 2_039.0,
    "V100": 900.0,
    "L40S": 864.0,
    "L40": 864.0,
    "L4": 300.0,
    "A40": 696.0,
    "A30": 933.0,
    "A10": 600.0,
    "T4": 320.0,
    "RTX 4090": 1_008.0,
    "RTX 3090": 936.0,
    "RTX 6000 Ada": 960.0,
    "RTX A6000": 768.0,
    "P100": 732.0,
}
"""By a part of the model's name; of several that fit the longest counts."""


@functools.lru_cache(maxsize=256)
def bandwidth_gb_s(model: str) -> float | None:
    """Return the memory bandwidth of a device model by its name as the driver tells it, ``None`` when unknown."""
    plain = " ".join(model.replace("-", " ").lower().split())
    fits = [name for name in BANDWIDTH_GB_S if _within(name, plain)]
    return BANDWIDTH_GB_S[max(fits, key=len)] if fits else None


def _within(name: str, plain: str) -> bool:
    wanted = " ".join(name.replace("-", " ").lower().split())
    return f" {wanted} " in f" {plain} "


def weights(speeds: dict[str, float | None]) -> dict[str, int]:
    """Return weights 1..256 in proportion to speeds, the fastest with 256; who has no known speed counts as average."""
    known = [speed for speed in speeds.values() if speed is not None and speed > 0]
    if not known or min(known) == max(known):
        return dict.fromkeys(speeds, 100)
    usual, fastest = sum(known) / len(known), max(known)
    return {
        name: max(1, round(WEIGHT_MAX * (speed if speed is not None and speed > 0 else usual) / fastest))
        for name, speed in speeds.items()
    }
