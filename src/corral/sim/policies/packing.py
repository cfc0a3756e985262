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


class Contender:
    """A gang that waits or runs. ``model`` is that of its devices where it runs, ``milli`` what it needs or holds."""

    __slots__ = ("attained_s", "bids", "holding", "key", "milli", "model", "order", "tenant")

    def __init__(self, gang: Candidate | Holding, now: float, model: str | None) -> None:
        self.key: GangKey = gang.key
        self.tenant: TenantId = gang.tenant
        self.order = gang.order
        self.bids: tuple[Bid, ...] = gang.bids
        self.model = model
        self.holding = gang if isinstance(gang, Holding) else None
        if isinstance(gang, Holding):
            self.attained_s = gang.attained_s + max(0.0, now - gang.started_at)
            self.milli = sum(placement.gpu_milli for placement in gang.placements)
        else:
            self.attained_s = gang.attained_s
            self.milli = devices_milli(gang.bids[0])

    @property
    def devices(self) -> float:
        """Return the number of devices."""
        return self.milli / MILLI


def devices_milli(bid: Bid) -> int:
    """Return the milli-GPUs of all ranks of a bid."""
    return bid.shape.demand.gpu_milli * bid.shape.ranks


class Scene:
    """A market as a baseline looks at it: all contenders, and what the offered nodes have by device model."""

    def __init__(self, market: Market) -> None:
        snapshot = market.snapshot
        self.market = market
        self.now = snapshot.at
        self.capacity: dict[str, int] = {}
        model_of: dict[DeviceId, str] = {}
        for node in snapshot.nodes:
            for device in node.devices:
                self.capacity[device.model] = self.capacity.get(device.model, 0) + MILLI
                model_of[device.uuid] = device.model
        self.running = [
            Contender(holding, self.now, _model(holding, model_of))
            for holding in snapshot.holdings
            if not holding.stopping
        ]
        self.waiting = [Contender(candidate, self.now, None) for candidate in market.pending]

    def free(self) -> dict[str, int]:
        """Return the free milli-GPUs by device model."""
        free: dict[str, int] = dict.fromkeys(self.capacity, 0)
        for node in self.market.snapshot.nodes:
            for device in node.devices:
                free[device.model] += device.free_milli
        return free


def _model(holding: Holding, model_of: dict[DeviceId, str]) -> str | None:
    first = next((share.uuid for placement in holding.placements for share in placement.devices), None)
    return model_of.get(first) if first is not None else None


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
