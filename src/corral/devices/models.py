"""Short names of device models, as job files use them, and the memory that simulated devices have.

Names follow the field's custom (SkyPilot, dstack): ``H100``, ``A100`` and ``A100-80GB``, ``L40S``, ``RTX4090``,
``MI300X``. Board variants (SXM, PCIe, NVL) share a name. An unknown name is shortened by rule, never refused.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

# What the vendors' tools call a board, most specific first. Groups are joined.
_RULES: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(G[BH]\d{3})\b",  # Grace superchips: GB300, GB200, GH200
        r"\b(GB10)\b",
        r"\b(MI\d{2,3}[AX]?)\b",
        r"\b(RTX) (PRO) (\d{4})\b",
        r"\b(RTX) (\d{4}) (?=Ada)",
        r"\b(RTX) (A\d{4})\b",
        r"\b([RG]TX) ?(\d{4}) ?(Ti|Super)?\b",
        r"\b(RX) ?(\d{4}) ?(XTX|XT|GRE)?\b",
        r"\b([ABHLTVPKM]\d{1,3}[A-Z]?)\b",  # data centre boards: B200, H100, A100, L40S, A10G, T4, V100
    )
)
_ADA: Final = re.compile(r"\b(RTX \d{4}) Ada\b", re.IGNORECASE)
_NOISE: Final = re.compile(
    r"\b(nvidia|amd|corporation|advanced micro devices|inc\.?|tesla|quadro|geforce|radeon|instinct|graphics|gpu"
    r"|\d+ ?g[ib]?b|sxm\d*|pcie|nvl|hbm\d\w*)\b",
    re.IGNORECASE,
)
# Sold in two sizes under one name, where half the memory is no substitute: (name, MiB from which, name then).
_SIZES: Final = MappingProxyType({"A100": (60_000, "A100-80GB"), "V100": (24_000, "V100-32GB")})

SIMULATED_MEMORY_MIB: Final = MappingProxyType(
    {
        "A10": 23028,
        "A10G": 23028,
        "A100": 40960,
        "A100-80GB": 81920,
        "A40": 46068,
        "B200": 183359,
        "H100": 81559,
        "H20": 97871,
        "H200": 143771,
        "L4": 23034,
        "L40S": 46068,
        "MI250X": 65520,
        "MI300X": 196592,
        "RTX3090": 24576,
        "RTX4090": 24564,
        "T4": 15360,
        "V100": 16384,
        "V100-32GB": 32768,
    }
)
"""Memory of the models that can be simulated, in MiB, as the vendors' tools report it on real boards."""


def short_model(name: str, memory_mib: int | None = None) -> str:
    """Return the short name of a board: ``NVIDIA A100-SXM4-80GB`` is ``A100-80GB``.

    ``memory_mib`` tells apart what is sold under one name with different memory.
    """
    plain = " ".join(name.replace("-", " ").replace("_", " ").split())
    for rule in _RULES:
        found = rule.search(plain)
        if found:
            short = "".join(part for part in found.groups() if part)
            short = short if short.upper().startswith(("RTX", "GTX")) else short.upper()
            if _ADA.search(plain):
                short += "-Ada"
            above, larger = _SIZES.get(short, (None, short))
            return larger if above is not None and memory_mib is not None and memory_mib >= above else short
    return "-".join(_NOISE.sub(" ", plain).split()) or "unknown"
