"""How many devices and nodes: numbers, shares, and the sizes of elastic jobs (``2-8``, ``2-8:2``, ``2,4,8``, lists).

As the methods of :class:`corral.wire.fields.FieldReader` the readers of nodes note problems and answer ``None`` for
what is wrong. Sizes are returned smallest first; a single one is a job that is not elastic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from corral.model.resources import MILLI
from corral.policy.config import BIDS_MAX
from corral.wire import units
from corral.wire.document import Node, field_path
from corral.wire.fields import FieldReader

_SIZES = re.compile(r"\s*[0-9.]+\s*[-,][0-9.,:\s-]*")
_RANGE = re.compile(r"([0-9]{1,10})(?:\s*-\s*([0-9]{1,10})(?::([0-9]{1,10}))?)?")
_WRITE = "write it like 2-8, 2-8:2 or [2, 4, 8]"


def are_sizes(text: str) -> bool:
    """Return whether a text names several sizes: a range, or numbers with commas between them."""
    return _SIZES.fullmatch(text) is not None


def read_sizes(text: str, most: int) -> tuple[int, ...]:
    """Read ``2-8``, ``2-8:2`` or ``2,4,8``. Raises :class:`corral.wire.units.Unreadable`."""
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            if "." in part:
                raise units.Unreadable("has a share among its sizes, which only whole devices can be", _WRITE)
            raise units.Unreadable("is not a range of sizes", _WRITE)
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if step == 0 or last < first:
            raise units.Unreadable("counts backwards or in steps of 0", "write the smaller size first")
        sizes = range(first, last + 1, step)
        if len(found) + len(sizes) > BIDS_MAX:
            raise _too_many(len(found) + len(sizes))
        found.extend(sizes)
    return checked_sizes(found, most)


def _too_many(count: int) -> units.Unreadable:
    return units.Unreadable(f"has {count:,} sizes, more than {BIDS_MAX}", "name fewer, or give a step as in 8-256:8")


def checked_sizes(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """Return sizes in order that are distinct, not too many and from 1 to ``most``."""
    if not sizes:
        raise units.Unreadable("names no size", _WRITE)
    if len(sizes) > BIDS_MAX:
        raise _too_many(len(sizes))
    if min(sizes) < 1 or max(sizes) > most:
        raise units.Unreadable(f"names a size that is not between 1 and {most:,}")
    if len(set(sizes)) != len(sizes):
        raise units.Unreadable("names a size twice")
    return tuple(sorted(sizes))


def sizes_of_list(reader: FieldReader, node: Node, path: str, most: int) -> tuple[int, ...] | None:
    """Read a list of sizes."""
    shares = [
        i
        for i, item in enumerate(node.items)
        if item.kind == "float" and math.isfinite(item.number) and item.number != int(item.number)
    ]
    if shares:
        where = f"{path}[{shares[0]}]"
        reader.wrong(node.items[shares[0]], where, "is a share, but sizes are whole devices", _WRITE)
        return None
    read = [reader.whole(item, f"{path}[{i}]", 1, most) for i, item in enumerate(node.items)]
    numbers = [number for number in read if number is not None]
    if len(numbers) < len(read):
        return None
    try:
        return checked_sizes(numbers, most)
    except units.Unreadable as error:
        reader.wrong(node, path, error.message, error.hint)
        return None


def nodes(reader: FieldReader, node: Node, path: str, most: int) -> tuple[int, ...] | None:
    """Read ``num_nodes``: a number, a range or a list."""
    if node.kind == "list":
        return sizes_of_list(reader, node, path, most)
    if node.kind == "text" and are_sizes(node.text):
        return reader.quantity(node, path, lambda text: read_sizes(text, most))
    number = reader.whole(node, path, 1, most)
    return None if number is None else (number,)


Devices = tuple[str | None, int, tuple[int, ...]]
"""Model or ``None`` for any, milli-GPUs (of the largest size), and the sizes in devices of an elastic job."""


def gpus(reader: FieldReader, node: Node, path: str) -> Devices | None:
    """Read ``num_gpus``: a number of devices, a share of one, a range or a list."""
    return _with_model(None, _count(reader, node, path))


def accelerators(reader: FieldReader, node: Node, path: str) -> Devices | None:
    """Read ``H100:8``, ``{H100: 8}``, ``8``, ``H100:0.5``; elastic ``H100:2-8``, ``{H100: [2, 4, 8]}``, ``2-8``."""
    if node.kind == "map":
        entries = reader.problems.entries(node, path)
        if len(entries) != 1:
            if len(node.pairs) != 1:
                reader.wrong(node, path, f"must name one model, not {len(node.pairs)}", "write it like H100: 8")
            return None
        name, key, value = entries[0]
        as_text = Node("text", key.text, line=key.line, column=key.column)
        model = reader.quantity(as_text, path, units.read_model)
        return _with_model(model, _count(reader, value, field_path(path, name))) if model is not None else None
    if node.kind == "list":
        return gpus(reader, node, path)
    return reader.quantity(node, path, read_accelerators)


def _with_model(model: str | None, count: tuple[int, tuple[int, ...]] | None) -> Devices | None:
    return None if count is None else (model, *count)


def _count(reader: FieldReader, node: Node, path: str) -> tuple[int, tuple[int, ...]] | None:
    if node.kind != "list":
        return reader.quantity(node, path, read_gpus)
    sizes = sizes_of_list(reader, node, path, units.GPUS_MAX)
    return None if sizes is None else _of_sizes(sizes)


def read_gpus(text: str) -> tuple[int, tuple[int, ...]]:
    """Read ``8``, ``0.5``, ``2-8`` or ``2,4,8`` as milli-GPUs of the largest size, and the sizes."""
    return _of_sizes(read_sizes(text, units.GPUS_MAX)) if are_sizes(text) else (units.read_gpus_milli(text), ())


def _of_sizes(sizes: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return sizes[-1] * MILLI, sizes if len(sizes) > 1 else ()


def read_accelerators(text: str) -> Devices:
    """Read ``H100:8``, ``H100``, ``8``, ``H100:0.5``, ``H100:2-8`` or ``2-8``."""
    if are_sizes(text) or re.fullmatch(r"\s*[0-9.]+\s*", text):
        return (None, *read_gpus(text))
    model, colon, count = text.partition(":")
    return (units.read_model(model), *(read_gpus(count) if colon else (MILLI, ())))


def written_sizes(sizes: Sequence[int]) -> str | list[int]:
    """Return what reads back as these sizes: a range where they are one."""
    if len(sizes) > 1 and list(sizes) == list(range(sizes[0], sizes[-1] + 1)):
        return f"{sizes[0]}-{sizes[-1]}"
    return list(sizes)


def written_accelerators(model: str | None, gpu_milli: int, sizes: Sequence[int] = ()) -> object:
    """Return what :func:`accelerators` reads back."""
    if not sizes:
        count = units.written_gpus(gpu_milli)
        return f"{model}:{count}" if model else count
    written = written_sizes(sizes)
    if model is None:
        return written
    return f"{model}:{written}" if isinstance(written, str) else {model: written}
