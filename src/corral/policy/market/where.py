"""Where a contender may go and what nodes cost it: places where it failed, cold starts, and its kin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.model.ids import NodeId
from corral.model.resources import Placement
from corral.policy.config import SchedulingConfig
from corral.policy.market.cells import Wanted
from corral.policy.market.contenders import Contender
from corral.policy.market.forms import Form
from corral.policy.market.ground import Ground

NO_COST: dict[NodeId, float] = {}


class Where:
    """What contenders want of nodes, as far as gangs of their kin were seated by now."""

    def __init__(self, ground: Ground, now: float, config: SchedulingConfig) -> None:
        self._ground = ground
        self._now = now
        self._config = config

    def wanted(self, contender: Contender, form: Form, bid: int) -> Wanted:
        """Return what is looked for in cells."""
        node_of = self._ground.node_of
        avoid = frozenset(node_of[node] for node in self.without(contender) if node in node_of)
        preferred, extra = contender.bids[bid].preferred, self.dearer(contender)
        cost = None
        if preferred or extra:
            weight = self._config.cold_start_weight
            listed = {node_of[p.node]: p.cold_start_s for p in preferred if p.node in node_of}
            worst = max(listed.values(), default=0.0) + self._config.cold_start_unlisted_s if preferred else 0.0
            cost = [weight * listed.get(node, worst) for node in range(len(self._ground.offers))]
            for name, more in extra.items():
                cost[node_of[name]] += more
        return Wanted(form.shape, form.locality, form.model or 0, avoid, cost)

    def without(self, contender: Contender) -> frozenset[NodeId]:
        """Return the nodes that a contender does not go to."""
        kin = contender.of.kin
        barred = self._ground.apart.without(kin) if kin is not None else frozenset[NodeId]()
        return barred.union(contender.avoid) if contender.avoid and self._backs_off(contender) else barred

    def dearer(self, contender: Contender) -> Mapping[NodeId, float]:
        """Return what nodes cost a contender for its kin."""
        kin = contender.of.kin
        return self._ground.apart.cost(kin) if kin is not None else NO_COST

    def note(self, contender: Contender, placements: Sequence[Placement]) -> None:
        """Note where a contender was seated."""
        if contender.of.kin is not None:
            self._ground.apart.add(contender.of.kin, placements)

    def _backs_off(self, contender: Contender) -> bool:
        doubled = self._config.avoid_back_off_s * 2.0 ** (len(contender.avoid) - 1)
        return self._now < contender.queued_at + min(doubled, self._config.avoid_back_off_max_s)
