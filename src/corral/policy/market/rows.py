"""The constraints that forms share: devices by model and by topology, CPUs, memory, and the limits of tenants.

A pool is not a bag of devices: on nodes with five devices left, ranks of four fit once each, not 5/4 times. So beside
the number of devices there are rows of whole cells: with f(s) = floor(s / k), the sum of f over what a cell holds is at
most f of what it has, for every k (a dual feasible function: Fekete and Schepers, Math. Program. 91, 2001). They are
what makes the dual bound a bound on what can be *placed*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from corral.model.ids import GangKey, QueueName, TenantId
from corral.model.offer import Locality, QueueStanding, Standing
from corral.model.resources import MILLI, Amount
from corral.policy.market.contenders import Contender
from corral.policy.market.forms import Columns, Form
from corral.policy.market.ground import Floats, Ground, Ints


class Limits:
    """The limits of tenants and queues, less what is out of this round's reach.

    Contenders under the same limits are of one group. ``caps`` are GPUs or CPUs that contenders may hold together, and
    ``of`` the caps of each group as (row, whether it counts GPUs).
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        standings: Mapping[TenantId, Standing],
        queues: Mapping[QueueName, QueueStanding],
        reserved: Mapping[GangKey, object],
    ) -> None:
        self.caps: list[float] = []
        self.of: list[tuple[tuple[int, bool], ...]] = [()]
        self.groups: list[int] = []
        self._rows: dict[TenantId | QueueName | tuple[str, str], tuple[tuple[int, bool], ...]] = {}
        own = _held(contenders)
        known: dict[tuple[tuple[tuple[int, bool], ...], object], int] = {((), None): 0}
        self.reserved_group: dict[GangKey, int] = {}
        for contender in contenders:
            rows = self._tenant(contender.tenant, standings, own) + self._queue(contender.queue, queues, own)
            name = (rows, contender.key if contender.key in reserved else None)
            group = known.get(name)
            if group is None:
                group = known[name] = len(self.of)
                self.of.append(rows)
            if contender.key in reserved:
                self.reserved_group[contender.key] = group
            self.groups.append(group)

    def _tenant(
        self, name: TenantId, standings: Mapping[TenantId, Standing], own: Mapping[tuple[str, str], Amount]
    ) -> tuple[tuple[int, bool], ...]:
        label = ("tenant", str(name))
        if label not in self._rows:
            standing = standings.get(name)
            if standing is None:
                self._rows[label] = ()
            else:
                self._rows[label] = self._add(
                    standing.tenant.limit.gpu_milli, standing.tenant.limit.cpus_milli, standing.held, own.get(label)
                )
        return self._rows[label]

    def _queue(
        self, name: QueueName, queues: Mapping[QueueName, QueueStanding], own: Mapping[tuple[str, str], Amount]
    ) -> tuple[tuple[int, bool], ...]:
        label = ("queue", str(name))
        if label not in self._rows:
            standing = queues.get(name)
            if standing is None:
                self._rows[label] = ()
            else:
                self._rows[label] = self._add(
                    standing.queue.limit.gpu_milli, standing.queue.limit.cpus_milli, standing.held, own.get(label)
                )
        return self._rows[label]

    def _add(
        self, gpu_milli: int | None, cpus_milli: int | None, held: Amount, own: Amount | None
    ) -> tuple[tuple[int, bool], ...]:
        # What contenders hold is theirs to give; the rest of what is held stays.
        stays = held - (own or Amount())
        rows = []
        if gpu_milli is not None:
            rows.append((len(self.caps), True))
            self.caps.append(max(0, gpu_milli - max(0, stays.gpu_milli)) / MILLI)
        if cpus_milli is not None:
            rows.append((len(self.caps), False))
            self.caps.append(max(0, cpus_milli - max(0, stays.cpus_milli)) / MILLI)
        return tuple(rows)


def _held(contenders: Sequence[Contender]) -> dict[tuple[str, str], Amount]:
    found: dict[tuple[str, str], Amount] = {}
    for contender in contenders:
        if contender.holding is None:
            break
        for placement in contender.holding.placements:
            amount = Amount.of(placement)
            for label in (("tenant", str(contender.tenant)), ("queue", str(contender.queue))):
                found[label] = found.get(label, Amount()) + amount
    return found


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
        self._devices()
        self._hosts()
        self._limits(limits)
        self._cells()
        self._discount_reserved(limits)
        self.caps: Floats = np.asarray(self._caps, dtype=np.float64)
        self.coefs: Floats = (
            np.column_stack(self._columns) if self._columns else np.zeros((len(self._forms), 0), dtype=np.float64)
        )

    def _add(self, column: Floats, cap: float, model: int = -1, *, whole: bool = False) -> None:
        if column.any():
            self.whole.append(whole)
            self._columns.append(column)
            self._caps.append(cap)
            self.models.append(model)

    def _devices(self) -> None:
        totals, ground = self._totals, self._ground
        for model in range(len(ground.models)):
            whole = totals.whole[:, model]
            self._add(whole, float(ground.reach[ground.seat_model == model].sum()), model, whole=True)
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
        for row, cap in enumerate(limits.caps):
            column = np.zeros(len(self._forms), dtype=np.float64)
            for i, form in enumerate(self._forms):
                for index, gpus in limits.of[form.group]:
                    if index == row:
                        column[i] = totals.milli[i].sum() if gpus else totals.cpus[i] / MILLI
            self._add(column, cap)

    def _cells(self) -> None:
        ground = self._ground
        for model in range(len(ground.models)):
            here = ground.seat_model == model
            reach = ground.reach[here]
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
            kept = self._ground.footprint(self._ground.kept[key])
            for row, column in enumerate(self._columns):
                model = self.models[row]
                for i, form in enumerate(self._forms):
                    if form.group == group and form.footprint is None and model == form.model:
                        column[i] = max(0.0, column[i] - kept.milli.get(model, 0) / MILLI)


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
                for model, milli in form.footprint.milli.items():
                    self.milli[i, model] += milli / MILLI
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


def usage_of(rows: Rows, form: Ints) -> Floats:
    """Return how much of each row a choice of forms uses."""
    counts = np.bincount(form, minlength=len(rows.coefs)).astype(np.float64)
    return counts @ rows.coefs
