"""The working view of one round: node offers that can be taken from, with what reservations keep. Forgotten afterwards.

A round looks at the same few shapes again and again, so the ranks that fit are kept in one table per (demand, exact
device model, binding reservations); what was touched since a table was asked for last is computed again then. Only
touched nodes are copied. Nodes that are alike share a state, on which scores are remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from corral.model.ids import DeviceId, NodeId
from corral.model.offer import NodeOffer
from corral.model.resources import MILLI, Demand, Placement
from corral.policy.fragmentation import Gauge, Mix, Prices, State, gauge
from corral.policy.room import Room

REPRICED_PARTS = 8
"""Prices are made anew when this part of the nodes was touched: a few nodes do not move what are sums over the pool."""

TABLES_MAX = 512
"""Tables that a view remembers from one snapshot to the next: about 50 KB each on a thousand nodes."""

TOUCHED_MIN = 1_024
"""After so many changes, or as many as there are nodes, all is looked at afresh: what nobody asks for any more goes."""


class Keep:
    """What reservations still lack on one node: below 0 where more than enough will be given back in time."""

    __slots__ = ("cpus_milli", "devices", "memory_mib")

    def __init__(self, devices: int) -> None:
        self.devices = [0] * devices
        self.cpus_milli = 0
        self.memory_mib = 0

    def change(self, offer: NodeOffer, placement: Placement, sign: int) -> None:
        """Add (1) what a reservation needs, or subtract (-1) what a holder gives back in time."""
        self.cpus_milli += sign * placement.cpus_milli
        self.memory_mib += sign * placement.memory_mib
        for share in placement.devices:
            for i, device in enumerate(offer.devices):
                if device.uuid == share.uuid:
                    self.devices[i] += sign * share.milli


class Constraint:
    """What has to stay free for reservations from those who end after ``binds_after`` (seconds since the epoch).

    Who ends until ``gives_until`` gives back in time, so that what it takes is not missing.
    """

    __slots__ = ("binds_after", "gives_until", "keeps")

    def __init__(self, binds_after: float, gives_until: float, keeps: dict[NodeId, Keep]) -> None:
        self.binds_after = binds_after
        self.gives_until = gives_until
        self.keeps = keeps


class _Table:
    """The ranks that fit by node, and together, as of the first ``seen`` touches."""

    __slots__ = ("fits", "seen", "total")

    def __init__(self, fits: dict[NodeId, int], total: int, seen: int) -> None:
        self.fits = fits
        self.total = total
        self.seen = seen


class Trial:
    """A mutable trial copy of the pool. ``mask`` has bit ``i`` set when constraint ``i`` binds the question.

    ``learn`` is asked for the mix of shapes that the pool sees when there is a choice to make for the first time;
    without it nodes compare by best fit. A branch starts with what its ``base`` knows, which must not change while the
    branch is in use.
    """

    def __init__(
        self, nodes: Sequence[NodeOffer], learn: Callable[[], Mix] | None = None, base: Trial | None = None
    ) -> None:
        self.offers: dict[NodeId, NodeOffer] = {offer.node: offer for offer in nodes}
        self._rooms: dict[NodeId, Room] = {}
        self._whole: dict[NodeId, Room] = {}
        self._masked: dict[int, dict[NodeId, Room]] = {}
        self._constraints: list[Constraint] = []
        self._tables: dict[tuple[Demand, str | None, int], _Table] = {}
        self._models: tuple[str, ...] | None = None
        self._learn = learn
        self._base = base
        self._gauge: Gauge | None = None
        self._prices: Prices | None = None
        self._priced_at = 0
        self._states: dict[int, dict[NodeId, State]] = {}
        self._touched: list[NodeId] = []

    @property
    def models(self) -> tuple[str, ...]:
        """Return the device models of the pool, sorted."""
        if self._models is None:
            self._models = tuple(sorted({d.model for offer in self.offers.values() for d in offer.devices}))
        return self._models

    @property
    def touched(self) -> AbstractSet[NodeId]:
        """Return the nodes that may differ from what the base, or the offers, say of them."""
        return set(self._touched)

    def room(self, node: NodeId, mask: int = 0) -> Room:
        """Return a copy of what is free on a node once the binding reservations have theirs."""
        return self.look(node, mask).copy()

    def look(self, node: NodeId, mask: int = 0) -> Room:
        """Return what is free on a node once the binding reservations have theirs; do not change it."""
        if not mask:
            room = self._rooms.get(node) or self._whole.get(node)
            if room is None:
                room = self._whole[node] = Room.of(self.offers[node])
            return room
        keeps = [c.keeps[node] for i, c in enumerate(self._constraints) if mask >> i & 1 and node in c.keeps]
        if not keeps:
            return self.look(node)
        known = self._masked.setdefault(mask, {})
        room = known.get(node)
        if room is None:
            # Constraints are about different times: each has to hold, so the largest counts, not the sum.
            room = known[node] = self.look(node).copy()
            room.cpus_milli -= max(0, *(keep.cpus_milli for keep in keeps))
            room.memory_mib -= max(0, *(keep.memory_mib for keep in keeps))
            for i, free in enumerate(room.free):
                room.free[i] = max(0, free - max(0, *(keep.devices[i] for keep in keeps)))
        return room

    def fits(self, demand: Demand, exact: str | None = None, mask: int = 0) -> dict[NodeId, int]:
        """Return the nodes that can take ranks of ``demand`` now, with how many. Do not change the answer."""
        return self._table(demand, exact, mask).fits

    def total(self, demand: Demand, exact: str | None = None, mask: int = 0) -> int:
        """Return how many ranks of ``demand`` all nodes can take together."""
        return self._table(demand, exact, mask).total

    def _table(self, demand: Demand, exact: str | None, mask: int) -> _Table:
        key = (demand, exact, mask)
        table = self._tables.get(key)
        if table is None:
            changed: Iterable[NodeId] = self.offers
            known = _Table({}, 0, 0)
            if mask:
                known, changed = self._table(demand, exact, 0), self._kept(mask)
            elif self._base is not None:
                known, changed = self._base._table(demand, exact, 0), self.touched  # noqa: SLF001 - one of its kind
            table = self._tables[key] = _Table(known.fits.copy(), known.total, 0)
        elif table.seen == len(self._touched):
            return table
        else:
            changed = dict.fromkeys(self._touched[table.seen :])
        table.seen = len(self._touched)
        fits = table.fits
        for node in changed:
            fit = self.look(node, mask).fit(demand, exact)
            before = fits.get(node, 0)
            if fit != before:
                table.total += fit - before
                if fit:
                    fits[node] = fit
                else:
                    del fits[node]
        return table

    @property
    def gauge(self) -> Gauge:
        """Return what measures the states of this view."""
        if self._gauge is None:
            if self._learn is not None:
                self._gauge = gauge(self._learn())
            else:
                self._gauge = self._base.gauge if self._base is not None else gauge(())
        return self._gauge

    def states(self, mask: int = 0) -> Mapping[NodeId, State]:
        """Return the states that are known already. Do not change the answer."""
        states = self._states.get(mask)
        if states is None:
            known: Mapping[NodeId, State] = {}
            unlike: Iterable[NodeId] = ()
            if mask:
                known, unlike = self.states(), self._kept(mask)
            elif self._base is not None and self._base.gauge is self.gauge:
                known, unlike = self._base.states(), self.touched
            states = self._states[mask] = dict(known)
            for node in unlike:
                states.pop(node, None)
        return states

    def state(self, node: NodeId, mask: int = 0) -> State:
        """Return the state of a node once the binding reservations have theirs."""
        state = self.states(mask).get(node)
        if state is None:
            if mask and node not in self._kept(mask):
                state = self.state(node)
            elif not mask and self._base is not None and node not in self._rooms and self._base.gauge is self.gauge:
                state = self._base.state(node)
            else:
                state = self.gauge.state(self.look(node, mask).key)
            self._states[mask][node] = state
        return state

    def learn_again(self) -> None:
        """Ask for the mix of shapes anew: what ran and waited may have changed much since."""
        self._gauge = self._prices = None
        self._states = {}

    def prices(self) -> Prices:
        """Return the prices of what stays free."""
        touched = len(self._touched) - self._priced_at if self.gauge.weights else 0
        if self._prices is None or REPRICED_PARTS * touched > len(self.offers):
            counts = Counter(map(self.state, self.offers)) if self.gauge.weights else {}
            self._prices = Prices(self.gauge, counts)
            self._priced_at = len(self._touched)
        return self._prices

    def take(self, placements: Iterable[Placement], end: float) -> None:
        """Take placements that end at ``end``; constraints by which that is in time count them as given back."""
        for placement in placements:
            self._own(placement.node).change(placement, -1)
            for constraint in self._constraints:
                keep = constraint.keeps.get(placement.node)
                if keep is not None and end <= constraint.gives_until:
                    keep.change(self.offers[placement.node], placement, -1)
            self._touch(placement.node)

    def release(self, placements: Iterable[Placement], needed_milli: int = 0) -> list[DeviceId]:
        """Give back placements; return their devices of which less than ``needed_milli`` was free until now.

        Nodes that are not offered are passed over, unknown devices too.
        """
        short: list[DeviceId] = []
        for placement in placements:
            node = placement.node
            if node not in self.offers:
                continue
            room = self._rooms.get(node) or self._own(node)
            room.cpus_milli += placement.cpus_milli
            room.memory_mib += placement.memory_mib
            free, positions = room.free, room.positions
            for share in placement.devices:
                i = positions.get(share.uuid)
                if i is not None:
                    left = free[i]
                    if left < needed_milli:
                        short.append(share.uuid)
                    left += share.milli
                    free[i] = min(MILLI, left)
            self._touch(node)
        return short

    def branch(self) -> Trial:
        """Return a copy without what reservations keep, for as long as this one stays as it is."""
        other = Trial((), base=self)
        other.offers = self.offers
        other._rooms = {node: room.copy() for node, room in self._rooms.items()}
        other._whole = self._whole
        other._models = self.models
        return other

    def renew(self, nodes: Sequence[NodeOffer], learn: Callable[[], Mix] | None) -> None:
        """Look at the offers of a new snapshot. Nothing may have been taken; what did not change stays known."""
        before = self.offers
        self.offers = {offer.node: offer for offer in nodes}
        changed = [node for node, offer in self.offers.items() if before.get(node) is not offer]
        much = len(self._touched) + len(changed) > max(TOUCHED_MIN, len(before))
        if much or before.keys() != self.offers.keys() or len(self._tables) > TABLES_MAX:
            self._tables, self._states, self._touched, self._whole, self._models = {}, {}, [], {}, None
        elif changed:
            self._whole = {node: room for node, room in self._whole.items() if self.offers[node] is room.offer}
            for node in changed:
                self._touch(node)
                if [d.model for d in before[node].devices] != [d.model for d in self.offers[node].devices]:
                    self._models = None
        self._learn, self._prices = learn, None
        known, self._gauge = self._gauge, None
        if self._states and self.gauge is not known:
            self._states = {}

    def constrain(self, constraints: list[Constraint]) -> None:
        """Protect what reservations need, in place of what was protected before."""
        self._constraints = constraints
        self._masked = {}
        self._tables = {key: table for key, table in self._tables.items() if key[2] == 0}
        self._states = {mask: states for mask, states in self._states.items() if mask == 0}

    def mask(self, end: float) -> int:
        """Return which constraints bind who ends at ``end``."""
        return sum(1 << i for i, c in enumerate(self._constraints) if end > c.binds_after)

    def less_bound(self, end: float) -> float:
        """Return the end until which fewer constraints bind than at ``end``, minus infinity when there is none."""
        return max((c.binds_after for c in self._constraints if c.binds_after < end), default=float("-inf"))

    def _kept(self, mask: int) -> AbstractSet[NodeId]:
        """Return the nodes on which the binding reservations keep something."""
        return {node for i, c in enumerate(self._constraints) if mask >> i & 1 for node in c.keeps}

    def _own(self, node: NodeId) -> Room:
        room = self._rooms.get(node)
        if room is None:
            room = self._rooms[node] = self.look(node).copy()
        return room

    def _touch(self, node: NodeId) -> None:
        self._touched.append(node)
        for states in self._states.values():
            states.pop(node, None)
        for rooms in self._masked.values():
            rooms.pop(node, None)
