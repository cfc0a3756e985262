"""What the baselines share: who contends in a market, and how those who were chosen find their places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.model.ids import DeviceId, GangKey, TenantId
from corral.model.market import Award, Eviction, Market, Preemption, PreemptionKind, RoundPlan
from corral.model.offer import Bid, Candidate, Holding
from corral.model.resources import MILLI, Placement
from corral.policy.config import SchedulingConfig
from corral.policy.cursor import FOREVER
from corral.policy.feasibility import model_matches
from corral.policy.placement import Wish, place
from corral.policy.trial import Trial

USABLE = 0.01
"""The part of its best throughput below which a bid is no way to run: the job does not fit on such devices."""


class Contender:
    """A gang that waits or runs. ``model`` is that of its devices where it runs, ``milli`` what it needs or holds.

    ``attained_s`` is its service until now, of one that waits until it was stopped.
    """

    __slots__ = ("attained_s", "bids", "gang", "holding", "key", "milli", "model", "order", "tenant")

    def __init__(self, gang: Candidate | Holding, milli: int) -> None:
        self.gang = gang
        self.key: GangKey = gang.key
        self.tenant: TenantId = gang.tenant
        self.order = gang.order
        best = max((bid.throughput for bid in gang.bids), default=0.0)
        self.bids: tuple[Bid, ...] = tuple(bid for bid in gang.bids if bid.throughput >= USABLE * best)
        self.milli = milli
        self.attained_s = gang.attained_s
        self.holding: Holding | None = None
        self.model: str | None = None

    @classmethod
    def waits(cls, candidate: Candidate) -> Contender:
        """Return a gang that waits."""
        shape = candidate.bids[0].shape
        return cls(candidate, shape.demand.gpu_milli * shape.ranks)

    @classmethod
    def runs(cls, holding: Holding, now: float, model: str | None) -> Contender:
        """Return a gang that runs."""
        made = cls(holding, sum(share.milli for placement in holding.placements for share in placement.devices))
        made.holding, made.model = holding, model
        made.attained_s += max(0.0, now - holding.started_at)
        return made


class Roster:
    """Remembers the waiting contenders from round to round: most of thousands are the same."""

    def __init__(self) -> None:
        self._known: dict[int, Contender] = {}

    def waiting(self, market: Market) -> list[Contender]:
        """Return those who wait."""
        known = self._known
        # A candidate is kept by its contender, so its identity is nobody else's while it is known.
        found = {id(one): known.get(id(one)) or Contender.waits(one) for one in market.pending}
        self._known = found
        return list(found.values())


class Scene:
    """A market as a baseline looks at it: who runs, and what the offered nodes have by device model."""

    def __init__(self, market: Market) -> None:
        snapshot = market.snapshot
        self.market = market
        self.now = snapshot.at
        self.capacity: dict[str, int] = {}
        self.free: dict[str, int] = {}
        self._model_of: dict[DeviceId, str] = {}
        for node in snapshot.nodes:
            for device in node.devices:
                self.capacity[device.model] = self.capacity.get(device.model, 0) + MILLI
                self.free[device.model] = self.free.get(device.model, 0) + device.free_milli
                self._model_of[device.uuid] = device.model

    def running(self) -> list[Contender]:
        """Return those who run, without those who are stopping."""
        holdings = self.market.snapshot.holdings
        return [Contender.runs(one, self.now, self._model(one)) for one in holdings if not one.stopping]

    def _model(self, holding: Holding) -> str | None:
        for placement in holding.placements:
            for share in placement.devices:
                return self._model_of.get(share.uuid)
        return None


def take(contender: Contender, left: dict[str, int]) -> bool:
    """Take what a contender needs from what is left by model, if it fits; who runs stays on its model."""
    if contender.holding is not None and contender.model is not None:
        wanted: Iterable[str] = (contender.model,)
    else:
        wanted = dict.fromkeys(name for bid in contender.bids for name in _models(bid, left))
    for name in wanted:
        if left.get(name, 0) >= contender.milli:
            left[name] -= contender.milli
            return True
    return False


def _models(bid: Bid, left: dict[str, int]) -> Iterable[str]:
    wanted = bid.shape.demand.gpu_model
    return left if wanted is None else (name for name in left if model_matches(wanted, name))


class Places:
    """Finds places for the chosen on the nodes of a market, with the production placement."""

    def __init__(self, scene: Scene, config: SchedulingConfig, victims: Sequence[Contender] = ()) -> None:
        self._scene = scene
        self._config = config
        self._victims = victims
        self._trial = Trial(scene.market.snapshot.nodes)
        self._awards: list[Award] = []
        for victim in victims:
            if victim.holding is not None:
                self._trial.release(victim.holding.placements)

    def find(self, contender: Contender) -> bool:
        """Award a contender the first of its bids that fits now; return whether there was one."""
        for bid in contender.bids:
            placements = place(self._trial, Wish.of(bid, self._config))
            if placements is not None:
                self.award(contender, bid, placements)
                return True
        return False

    def award(self, contender: Contender, bid: Bid, placements: tuple[Placement, ...]) -> None:
        """Award placements, which must be free."""
        self._trial.take(placements, FOREVER)
        self._awards.append(Award(contender.key, contender.tenant, bid, placements))

    def plan(self) -> RoundPlan:
        """Return the plan: all awards, and the victims as evictions for them."""
        snapshot = self._scene.market.snapshot
        first = self._awards[0] if self._awards else None
        preemption = Preemption(
            PreemptionKind.ROOM,
            first.key.job if first is not None else None,
            first.tenant if first is not None else None,
        )
        evictions = tuple(
            Eviction(victim.key, victim.holding.incarnation, preemption)
            for victim in self._victims
            if victim.holding is not None
        )
        return RoundPlan(snapshot.version, tuple(self._awards), evictions)
