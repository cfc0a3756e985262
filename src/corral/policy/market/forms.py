"""Bids as columns: every way to run every contender, its worth, and what it uses of which constraint.

Ways that use the same are one *form*, so that prices are applied to a few hundred forms and not to a million bids.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain

import numpy as np

from corral.model.offer import Bid, Locality
from corral.model.resources import Demand, GangShape, Placement
from corral.policy.config import SchedulingConfig
from corral.policy.feasibility import model_matches
from corral.policy.market.contenders import Contender
from corral.policy.market.ground import Floats, Footprint, Ground, Ints

LOCALITIES = tuple(Locality)
_LOCALITY_CODE = {locality: code for code, locality in enumerate(LOCALITIES)}
KEEP = -1
"""The bid number of going on as it runs."""

_NO_SHAPE = GangShape(0, Demand())


class Form:
    """A shape on one device model (``None``: no devices), or the footprint of a running gang."""

    __slots__ = ("footprint", "group", "locality", "model", "shape")

    def __init__(
        self,
        shape: GangShape,
        locality: Locality,
        model: int | None,
        group: int,
        footprint: Footprint | None = None,
    ) -> None:
        self.shape = shape
        self.locality = locality
        self.model = model
        self.group = group
        self.footprint = footprint

    @property
    def together(self) -> bool:
        """Return whether all ranks have to be on one node."""
        return self.locality in (Locality.NODE, Locality.NVLINK)

    @property
    def plain(self) -> bool:
        """Return whether cells can take it: whole devices of one model."""
        return self.model is not None and self.shape.demand.gpus_whole > 0


class Seated:
    """A gang that starts: by which bid, in which form and where."""

    __slots__ = ("bid", "form", "placements", "value")

    def __init__(self, bid: int, form: Form, value: float, placements: tuple[Placement, ...]) -> None:
        self.bid = bid
        self.form = form
        self.value = value
        self.placements = placements


class Columns:
    """All ways, sorted by contender: ``value``, ``form`` and ``bid`` of each.

    Those of contender ``owner[i]`` begin at ``starts[i]``. Contenders without any way are not in ``owner``.
    """

    __slots__ = ("bid", "form", "forms", "owner", "sizes", "starts", "value")

    def __init__(self, job: Ints, bid: Ints, form: Ints, value: Floats, forms: list[Form]) -> None:
        order = np.argsort(job, kind="stable")
        job = job[order]
        self.bid: Ints = bid[order]
        self.form: Ints = form[order]
        self.value: Floats = value[order]
        first = np.flatnonzero(np.diff(job, prepend=-1)) if len(job) else np.zeros(0, dtype=np.int64)
        self.owner: Ints = job[first]
        self.starts: Ints = first
        self.sizes: Ints = np.diff(np.append(first, len(job)))
        self.forms = forms


def columns_of(
    contenders: Sequence[Contender],
    groups: Sequence[int],
    ground: Ground,
    config: SchedulingConfig,
    reserved: Collection[int] = (),
) -> Columns:
    """Return all ways to run the contenders that could be had if all others gave way.

    ``groups`` tells apart contenders that are alike but under different limits, ``reserved`` are those of gangs with
    devices of their own: theirs are always ways.
    """
    table = _Forms(ground, 1 + max(groups, default=0), reserved)
    job, number, code, value = _bids(contenders, groups, table)
    lists = table.expand()
    sizes = np.fromiter((len(x) for x in lists), np.int64, len(lists))
    firsts = np.cumsum(sizes) - sizes
    repeats = sizes[code] if len(code) else code
    way = np.repeat(np.arange(len(code)), repeats)
    within = np.arange(len(way)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    flat = np.fromiter(chain.from_iterable(lists), np.int64, int(sizes.sum()))
    form = flat[firsts[code[way]] + within] if len(way) else way
    kept_job, kept_form, kept_value = _keeps(contenders, groups, ground, table, config)
    return Columns(
        np.concatenate((kept_job, job[way])),
        np.concatenate((np.full(len(kept_job), KEEP), number[way])),
        np.concatenate((kept_form, form)),
        np.concatenate((kept_value, value[way])),
        table.forms,
    )


def _bids(contenders: Sequence[Contender], groups: Sequence[int], table: _Forms) -> tuple[Ints, Ints, Ints, Floats]:
    """Return contender, bid number, kind and value of every bid."""
    counts = np.fromiter((len(c.bids) for c in contenders), np.int64, len(contenders))
    total = int(counts.sum())
    job = np.repeat(np.arange(len(contenders)), counts)
    number = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    kind = table.kinds(list(chain.from_iterable(c.bids for c in contenders)), np.asarray(groups, dtype=np.int64)[job])
    value = np.fromiter(chain.from_iterable(map(c.value_of, c.rates) for c in contenders), np.float64, total)
    return job, number, kind, value


def _keeps(
    contenders: Sequence[Contender],
    groups: Sequence[int],
    ground: Ground,
    table: _Forms,
    config: SchedulingConfig,
) -> tuple[Ints, Ints, Floats]:
    """Return contender, form and value of going on. What giving way would cost counts for staying."""
    job, form, value = [], [], []
    for i, contender in enumerate(contenders):
        if contender.holding is None:
            break
        job.append(i)
        form.append(table.keep(ground.footprints[contender.key], groups[i]))
        value.append(contender.kept_value + contender.lost_value(config))
    return np.asarray(job, dtype=np.int64), np.asarray(form, dtype=np.int64), np.asarray(value, dtype=np.float64)


class _Forms:
    """Numbers kinds (shape, locality, limits) of bids, and turns each into the forms that could be had."""

    def __init__(self, ground: Ground, groups: int, reserved: Collection[int]) -> None:
        self._reserved = reserved
        self._ground = ground
        self._groups = groups
        self._shapes: dict[GangShape, int] = {}
        self._kinds: dict[tuple[int, int, int], int] = {}
        self.forms: list[Form] = []

    def kinds(self, bids: Sequence[Bid], groups: Ints) -> Ints:
        """Return the kind of each bid. To be asked once."""
        shapes = self._shapes
        # Alike bids often are one object: looking at its address first saves most of the comparing.
        seen: dict[int, int] = {}
        shape_codes = []
        for bid in bids:
            shape = bid.shape
            code = seen.get(id(shape))
            if code is None:
                code = seen[id(shape)] = shapes.setdefault(shape, len(shapes))
            shape_codes.append(code)
        count = len(bids)
        locality = np.fromiter([_LOCALITY_CODE[bid.locality] for bid in bids], np.int64, count)
        packed = (np.fromiter(shape_codes, np.int64, count) * len(LOCALITIES) + locality) * self._groups + groups
        kinds, found = np.unique(packed, return_inverse=True)
        for kind in kinds.tolist():
            rest, group = divmod(kind, self._groups)
            self._kinds[(*divmod(rest, len(LOCALITIES)), group)] = len(self._kinds)
        codes: Ints = found.reshape(-1)
        return codes

    def keep(self, footprint: Footprint, group: int) -> int:
        """Return the form of a running gang's footprint."""
        self.forms.append(Form(_NO_SHAPE, Locality.ANY, None, group, footprint))
        return len(self.forms) - 1

    def expand(self) -> list[list[int]]:
        """Return the forms of each kind: one for each device model that could take it."""
        shapes = list(self._shapes)
        found: list[list[int]] = []
        for shape, locality, group in self._kinds:
            mine: list[int] = []
            for model in self._models(shapes[shape]):
                form = Form(shapes[shape], LOCALITIES[locality], model, group)
                if group in self._reserved or could(form, self._ground):
                    mine.append(len(self.forms))
                    self.forms.append(form)
            found.append(mine)
        return found

    def _models(self, shape: GangShape) -> list[int | None]:
        if shape.demand.gpu_milli == 0:
            return [None]
        return [i for i, name in enumerate(self._ground.models) if model_matches(shape.demand.gpu_model, name)]


def could(form: Form, ground: Ground) -> bool:
    """Return whether a form fits if all contenders gave way."""
    fits = fits_of(form, ground)
    if form.together:
        return bool((fits >= form.shape.ranks).any())
    if form.locality is Locality.RACK and form.model is not None and form.shape.ranks > 1:
        racks = np.bincount(ground.seat_rack, weights=fits, minlength=ground.racks)
        return bool((racks >= form.shape.ranks).any())
    return int(fits.sum()) >= form.shape.ranks


def fits_of(form: Form, ground: Ground) -> Ints:
    """Return how many ranks each seat (without devices: each node) could take if all contenders gave way."""
    demand = form.shape.demand
    if form.model is None:
        return _room(ground.reach_cpus, ground.reach_memory, form.shape)
    nodes = ground.seat_node
    room = _room(ground.reach_cpus[nodes], ground.reach_memory[nodes], form.shape)
    if demand.is_share:
        fits = ground.share_fits(demand.gpu_milli)
    elif form.locality is Locality.NVLINK:
        # All ranks on one island: count them as one.
        whole = demand.gpus_whole * form.shape.ranks
        fits = np.where(ground.island_max() >= whole, form.shape.ranks, 0)
    else:
        fits = ground.reach // demand.gpus_whole
    return np.where(ground.seat_model == form.model, np.minimum(fits, room), 0)


def _room(cpus: Ints, memory: Ints, shape: GangShape) -> Ints:
    demand = shape.demand
    room = np.full(len(cpus), shape.ranks, dtype=np.int64)
    if demand.cpus_milli > 0:
        room = np.minimum(room, cpus // demand.cpus_milli)
    if demand.memory_mib > 0:
        room = np.minimum(room, memory // demand.memory_mib)
    return np.maximum(room, 0)
