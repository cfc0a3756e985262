"""The constraints that forms share: devices by model and by topology, CPUs, memory, and the limits of tenants.

A pool is not a bag of devices: on nodes with five devices left, ranks of four fit once each, not 5/4 times. So beside
the number of devices there are rows of whole cells: with f(s) = floor(s / k), the sum of f over what a cell holds is at
most f of what it has, for every k (a dual feasible function: Fekete and Schepers, Math. Program. 91, 2001). They are
what makes the dual bound a bound on what can be *placed*.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corral.model.offer import Locality
from corral.model.resources import MILLI
from corral.policy.market.forms import Columns, Form
from corral.policy.market.ground import Floats, Ground, Ints
from corral.policy.market.limits import Limits


class Rows:
    """The constraints of a round: ``coefs[form, row]`` of each form against ``caps[row]``."""

    def __init__(self, columns: Columns, ground: Ground, limits: Limits) -> None:
        self._forms = columns.forms
        self._ground = ground
        self._columns: list[Floats] = []
        self._caps: list[float] = []
        self.models: list[int] = []
        """The device model of each row, -1 where it has none."""
        self.whole: list[bool] = []
        """Whether a row counts devices one by one: the price of a device is the sum over these."""
        self._totals = _Totals(columns.forms, ground)
        self._reach = self._usable()
        self._devices()
        self._hosts()
        self._limits(limits)
        self._cells()
        self._discount_reserved(limits)
        self._drop_slack(columns)
        self.caps: Floats = np.asarray(self._caps, dtype=np.float64)
        self.coefs: Floats = (
            np.column_stack(self._columns) if self._columns else np.zeros((len(self._forms), 0), dtype=np.float64)
        )

    def _drop_slack(self, columns: Columns) -> None:
        """Forget rows that could not bind even if everybody took the way that uses most of them."""
        binding = []
        for row, column in enumerate(self._columns):
            most = np.maximum.reduceat(column[columns.form], columns.starts).sum() if len(columns.starts) else 0.0
            if most > self._caps[row] + 1e-9:
                binding.append(row)
        self._columns = [self._columns[row] for row in binding]
        self._caps = [self._caps[row] for row in binding]
        self.models = [self.models[row] for row in binding]
        self.whole = [self.whole[row] for row in binding]

    def _add(self, column: Floats, cap: float, model: int = -1, *, whole: bool = False) -> None:
        if column.any():
            self.whole.append(whole)
            self._columns.append(column)
            self._caps.append(cap)
            self.models.append(model)

    def _usable(self) -> Ints:
        """Return the whole devices of each seat for which its node has CPUs and memory, if all gave way."""
        ground, totals = self._ground, self._totals
        usable = ground.reach.copy()
        for amounts, reach in ((totals.cpus, ground.reach_cpus), (totals.memory, ground.reach_memory)):
            for model in range(len(ground.models)):
                uses = totals.milli[:, model] > 0
                least = float((amounts[uses] / totals.milli[uses, model]).min()) if uses.any() else 0.0
                if least > 0.0:
                    here = ground.seat_model == model
                    hosts = np.maximum(0, reach[ground.seat_node[here]]) / least + 1e-9
                    usable[here] = np.minimum(usable[here], hosts.astype(np.int64))
        return usable

    def _devices(self) -> None:
        totals, ground = self._totals, self._ground
        for model in range(len(ground.models)):
            whole = totals.whole[:, model]
            self._add(whole, float(self._reach[ground.seat_model == model].sum()), model, whole=True)
            if not np.array_equal(whole, totals.milli[:, model]):
                self._add(totals.milli[:, model], ground.reach_milli[model] / MILLI, model, whole=True)

    def _hosts(self) -> None:
        """CPUs and memory of the pool and of the nodes of each model, where devices do not run out before."""
        ground, totals = self._ground, self._totals
        for amounts, reach, unit in (
            (totals.cpus, ground.reach_cpus, float(MILLI)),
            (totals.memory, ground.reach_memory, 1024.0),
        ):
            bare = totals.milli.sum(axis=1) == 0
            for model in range(len(ground.models)):
                uses = totals.milli[:, model] > 0
                nodes = np.unique(ground.seat_node[ground.seat_model == model])
                cap = float(np.maximum(0, reach[nodes]).sum())
                per_device = float((amounts[uses] / totals.milli[uses, model]).max()) if uses.any() else 0.0
                if per_device * ground.reach_milli[model] / MILLI > cap:
                    self._add(np.where(uses & ~totals.mixed, amounts, 0.0) / unit, cap / unit)
            if bare.any() and amounts[bare].any():
                self._add(amounts / unit, float(np.maximum(0, reach).sum()) / unit)

    def _limits(self, limits: Limits) -> None:
        totals = self._totals
        columns = [np.zeros(len(self._forms), dtype=np.float64) for _ in limits.caps]
        for i, form in enumerate(self._forms):
            for row, gpus in limits.of[form.group]:
                columns[row][i] = totals.milli[i].sum() if gpus else totals.cpus[i] / MILLI
        for column, cap in zip(columns, limits.caps, strict=True):
            self._add(column, cap)

    def _cells(self) -> None:
        ground = self._ground
        for model in range(len(ground.models)):
            here = ground.seat_model == model
            reach = self._reach[here]
            total = int(reach.sum())
            for size in self._totals.sizes(model, rack=False):
                cap = int((reach // size).sum())
                if size > 1 and cap * size < total:
                    self._add(self._totals.cells(model, size), float(cap), model)
            racks = np.bincount(ground.seat_rack[here], weights=reach, minlength=ground.racks).astype(np.int64)
            for size in self._totals.sizes(model, rack=True):
                cap = int((racks // size).sum())
                if cap * size < total:
                    self._add(self._totals.rack_cells(model, size), float(cap), model)

    def _discount_reserved(self, limits: Limits) -> None:
        """Let a gang with a reservation use what is kept for it, which is nobody else's."""
        for key, group in limits.reserved_group.items():
            kept: dict[int, float] = {}
            for placement in self._ground.kept[key]:
                for share in placement.devices:
                    at = self._ground.seat_of.get(share.uuid)
                    if at is not None:
                        model = self._ground.seats[at[0]].model
                        kept[model] = kept.get(model, 0.0) + share.milli / MILLI
            for row, column in enumerate(self._columns):
                model = self.models[row]
                for i, form in enumerate(self._forms):
                    if form.group == group and form.footprint is None and model == form.model:
                        column[i] = max(0.0, column[i] - kept.get(model, 0.0))


class _Totals:
    """What each form uses: whole devices and GPUs by model, CPUs (milli) and memory (MiB)."""

    def __init__(self, forms: Sequence[Form], ground: Ground) -> None:
        self._forms = forms
        self._ground = ground
        models = max(1, len(ground.models))
        self.whole = np.zeros((len(forms), models))
        self.milli = np.zeros((len(forms), models))
        self.cpus = np.zeros(len(forms))
        self.memory = np.zeros(len(forms))
        for i, form in enumerate(forms):
            if form.footprint is not None:
                for index, positions in form.footprint.seats.items():
                    self.whole[i, ground.seats[index].model] += len(positions)
                    self.milli[i, ground.seats[index].model] += len(positions)
                for index, _, milli in form.footprint.shares:
                    self.milli[i, ground.seats[index].model] += milli / MILLI
                self.cpus[i] = sum(form.footprint.cpus.values())
                self.memory[i] = sum(form.footprint.memory.values())
                continue
            demand, ranks = form.shape.demand, form.shape.ranks
            if form.model is not None:
                self.whole[i, form.model] = demand.gpus_whole * ranks
                self.milli[i, form.model] = demand.gpu_milli * ranks / MILLI
            self.cpus[i] = demand.cpus_milli * ranks
            self.memory[i] = demand.memory_mib * ranks
        self.mixed = (self.milli > 0).sum(axis=1) > 1

    def sizes(self, model: int, *, rack: bool) -> list[int]:
        """Return the numbers of devices that forms of a model need in one cell."""
        found = set()
        for form in self._forms:
            if form.model == model and form.shape.demand.gpus_whole:
                each = form.shape.demand.gpus_whole
                if rack and form.locality is Locality.RACK and form.shape.ranks > 1:
                    found.add(each * form.shape.ranks)
                elif not rack:
                    found.add(each * form.shape.ranks if form.together else each)
        return sorted(found)

    def cells(self, model: int, size: int) -> Floats:
        """Return how many node cells of ``size`` devices each form fills at least."""
        found = np.zeros(len(self._forms))
        for i, form in enumerate(self._forms):
            if form.footprint is not None:
                for index, positions in form.footprint.seats.items():
                    if self._ground.seats[index].model == model:
                        found[i] += len(positions) // size
            elif form.model == model:
                each = form.shape.demand.gpus_whole
                ranks = form.shape.ranks
                found[i] = each * ranks // size if form.together else each // size * ranks
        return found

    def rack_cells(self, model: int, size: int) -> Floats:
        """Return how many rack cells of ``size`` devices each form fills at least."""
        found = np.zeros(len(self._forms))
        for i, form in enumerate(self._forms):
            if form.footprint is not None:
                racks: dict[int, int] = {}
                for index, positions in form.footprint.seats.items():
                    seat = self._ground.seats[index]
                    if seat.model == model:
                        racks[seat.rack] = racks.get(seat.rack, 0) + len(positions)
                found[i] = sum(count // size for count in racks.values())
            elif form.model == model:
                each, ranks = form.shape.demand.gpus_whole, form.shape.ranks
                in_rack = form.together or form.locality is Locality.RACK
                found[i] = each * ranks // size if in_rack else each // size * ranks
        return found
