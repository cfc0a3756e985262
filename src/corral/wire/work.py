"""What a job says of its work and of who bids for it: ``work`` and ``appmaster``.

As the methods of :class:`corral.wire.fields.FieldReader` these note problems and answer ``None`` for what is wrong.
"""

from __future__ import annotations

import math

from corral.model.experience import WorkSpec
from corral.policy.work import ENTRY_POINT, ENTRY_POINT_LENGTH_MAX, RATE_KEY, RATES_MAX
from corral.wire.document import Node, field_path, shown
from corral.wire.fields import FieldReader

_FIELDS = ("total", "family", "throughput")
_MISPLACED = {"steps": "total", "units": "total", "rate": "throughput", "rates": "throughput", "speed": "throughput"}


def work(reader: FieldReader, node: Node, path: str) -> WorkSpec | None:
    """Read ``{total, family, throughput}``."""
    before = reader.problems.count
    fields = reader.problems.fields(node, path, _FIELDS, _MISPLACED)
    told: dict[str, object] = {}
    for name, (_, value) in fields.items():
        here = f"{path}.{name}"
        if value.kind == "null":
            continue
        if name == "total":
            told[name] = positive(reader, value, here)
        elif name == "family":
            told[name] = reader.name(value, here)
        else:
            told[name] = throughput(reader, value, here)
    return WorkSpec(**told) if reader.problems.count == before else None  # type: ignore[arg-type]


def positive(reader: FieldReader, node: Node, path: str) -> float | None:
    """Read a finite number above 0; text that is one counts, as in ``9e4``."""
    number = float(node.number) if node.kind in {"int", "float"} else math.nan
    if node.kind == "text":
        try:
            number = float(node.text)
        except ValueError:
            number = math.nan
    if not math.isfinite(number) or number <= 0:
        reader.wrong(node, path, f"must be a number above 0, not {node.described()}")
        return None
    return number


def throughput(reader: FieldReader, node: Node, path: str) -> dict[str, float]:
    """Read units per second by device model, or by model and devices of the whole gang."""
    found: dict[str, float] = {}
    entries = reader.problems.entries(node, path)
    if len(entries) > RATES_MAX:
        reader.wrong(node, path, f"has more than {RATES_MAX} entries")
        return found
    for name, key, value in entries:
        here = field_path(path, name)
        if not RATE_KEY.fullmatch(key.text):
            reader.wrong(key, here, "is neither a device model nor MODEL:DEVICES", 'write it like V100 or "V100:4"')
            continue
        rate = positive(reader, value, here)
        if rate is not None:
            found[name] = rate
    return found


def entry_point(reader: FieldReader, node: Node, path: str) -> str | None:
    """Read ``my_module:propose``."""
    text = reader.text(node, path, length_max=ENTRY_POINT_LENGTH_MAX)
    if text is None or ENTRY_POINT.fullmatch(text):
        return text
    hint = "write it like my_module:propose; the module is looked for in workdir"
    reader.wrong(node, path, f"{shown(text)} does not name a function of a module", hint)
    return None
