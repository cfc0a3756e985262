"""Placement of what cells do not take, shares of devices and jobs without any, by the rules of the fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from corral.model.ids import GangKey, NodeId
from corral.model.offer import Bid
from corral.model.resources import Placement
from corral.policy.config import SchedulingConfig
from corral.policy.cursor import FOREVER
from corral.policy.market.forms import Form
from corral.policy.market.ground import Ground
from corral.policy.placement import Wish, place
from corral.policy.trial import Trial


class General:
    """A trial of the pool that is made when it is first needed, and follows what cells did until then."""

    def __init__(self, ground: Ground, config: SchedulingConfig) -> None:
        self._ground = ground
        self._config = config
        self._trial: Trial | None = None
        self._used: set[GangKey] = set()

    def on_reservation(self, key: GangKey) -> None:
        """Note that a gang starts on its reservation, which is then nothing beside it."""
        self._used.add(key)

    @property
    def started(self) -> bool:
        """Return whether the trial exists, so that further changes have to be told."""
        return self._trial is not None

    def start(self, released: Sequence[Sequence[Placement]], taken: Sequence[Sequence[Placement]]) -> None:
        """Make the trial: who gave way, and who starts where."""
        self._trial = trial = Trial(self._ground.offers)
        for placements in released:
            trial.release(placements)
        for key, kept in self._ground.kept.items():
            if key not in self._used:
                trial.take((p for p in kept if p.node in trial.offers), FOREVER)
        for placements in taken:
            trial.take(placements, FOREVER)

    def place(
        self, bid: Bid, form: Form, without: frozenset[NodeId], extra: Mapping[NodeId, float]
    ) -> tuple[Placement, ...] | None:
        """Return placements of all ranks, on devices of the form's model, ``None`` when they do not fit together.

        ``extra`` is what nodes cost beside what the bid says of them.
        """
        assert self._trial is not None
        shape = form.shape
        if form.model is not None:
            shape = replace(shape, demand=replace(shape.demand, gpu_model=self._ground.models[form.model]))
        return place(self._trial, Wish.of(replace(bid, shape=shape), self._config, without, extra))

    def take(self, placements: Sequence[Placement]) -> None:
        """Take placements, if the trial exists."""
        if self._trial is not None:
            self._trial.take(placements, FOREVER)

    def release(self, placements: Sequence[Placement]) -> None:
        """Give back placements, if the trial exists. Those of nodes that are not offered are passed over."""
        if self._trial is not None:
            self._trial.release(placements)

    def withdraw(self, placements: Sequence[Placement]) -> bool:
        """Take back a release; return whether nobody used any of it in the meantime."""
        assert self._trial is not None
        mine = [p for p in placements if p.node in self._trial.offers]
        for node in {p.node for p in mine}:
            room = self._trial.room(node)
            for placement in mine:
                if placement.node == node:
                    room.change(placement, -1)
            if min(room.cpus_milli, room.memory_mib, *room.free) < 0:
                return False
        self._trial.take(mine, FOREVER)
        return True
