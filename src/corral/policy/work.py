"""What a job may say of its work and of its sizes, checked for every way in."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from corral.model.ask import JobAsk
from corral.model.errors import CorralError, InvalidField, Refusal
from corral.model.experience import WorkSpec
from corral.model.resources import MILLI
from corral.policy.config import BIDS_MAX, NAME_LENGTH_MAX, RANKS_MAX

GPUS_MAX = 1_000_000
"""Devices of one rank: beyond any machine."""

RATES_MAX = 256
"""Claims of one job: every size on every model of a large pool."""

RATE_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}(?::[1-9][0-9]{0,6})?")
"""``V100`` or ``V100:4``: a device model, and the devices of the whole gang."""

ENTRY_POINT = re.compile(r"(?!.*\.py:)[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
"""``package.module:function``, as entry points of Python packages are written (PyPA, entry points specification).

``file.py:function`` is a slip for ``file:function``, never a module ``py`` of a package ``file``.
"""

ENTRY_POINT_LENGTH_MAX = 256


def work_refusal(ask: JobAsk) -> Refusal | None:
    """Return what is wrong with the sizes, the work and the proposer of a job."""
    return (
        _sizes("resources.accelerators", ask.gpu_counts, GPUS_MAX)
        or _sizes("num_nodes", ask.node_counts, RANKS_MAX)
        or _elastic(ask)
        or (_work(ask.work) if ask.work is not None else None)
        or _entry_point(ask.appmaster)
    )


def _invalid(field: str, message: str, hint: str | None = None, kind: type[CorralError] = InvalidField) -> Refusal:
    return Refusal(code=kind.code, message=message, field=field, hint=hint)


def _sizes(field: str, sizes: Sequence[int], most: int) -> Refusal | None:
    if not sizes:
        return None
    if len(sizes) > BIDS_MAX:
        return _invalid(field, f"has {len(sizes)} sizes, more than {BIDS_MAX}", "name fewer")
    if min(sizes) < 1 or max(sizes) > most:
        return _invalid(field, f"names a size that is not between 1 and {most}")
    if len(set(sizes)) != len(sizes):
        return _invalid(field, "names a size twice")
    return None


def _elastic(ask: JobAsk) -> Refusal | None:
    if ask.gpu_counts and ask.node_counts:
        message = "varies, and so does the number of GPUs per node"
        return _invalid("num_nodes", message, "let one of them vary")
    if ask.gpu_counts and ask.gpu_milli != max(ask.gpu_counts) * MILLI:
        return _invalid("resources.accelerators", "is not the largest of the job's sizes")
    if ask.node_counts and ask.num_nodes != max(ask.node_counts):
        return _invalid("num_nodes", "is not the largest of the job's sizes")
    return None


def _work(work: WorkSpec) -> Refusal | None:
    if work.total is not None and not _positive(work.total):
        return _invalid("work.total", "must be a finite number above 0")
    family = work.family
    if family is not None and not (0 < len(family) <= NAME_LENGTH_MAX and family.isprintable()):
        return _invalid("work.family", f"must be a name of 1 to {NAME_LENGTH_MAX} characters")
    if len(work.throughput) > RATES_MAX:
        return _invalid("work.throughput", f"has {len(work.throughput)} entries, more than {RATES_MAX}")
    for name, rate in work.throughput.items():
        if not RATE_KEY.fullmatch(name):
            message = f"{name[:64]!r} is neither a device model nor MODEL:DEVICES"
            return _invalid("work.throughput", message, "write it like V100 or V100:4")
        if not _positive(rate):
            return _invalid("work.throughput", f"{name} must be a finite number of units per second above 0")
    return None


def _positive(number: float) -> bool:
    return isinstance(number, int | float) and math.isfinite(number) and number > 0


def _entry_point(text: str | None) -> Refusal | None:
    if text is None or (len(text) <= ENTRY_POINT_LENGTH_MAX and ENTRY_POINT.fullmatch(text)):
        return None
    hint = "write it like my_module:propose; the module is looked for in workdir"
    return _invalid("appmaster", f"{text[:64]!r} does not name a function of a module", hint)
