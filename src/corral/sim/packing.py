"""How full a pool gets: tasks arrive one by one and never leave, and the production placement finds them a node.

The measure of Weng et al., "Beware of Fragmentation", USENIX ATC'23: the list of pods is topped up with pods drawn from
itself and shuffled; what counts is the share of all GPUs that is allocated when the pods that arrived have asked for as
many as there are. A pod that does not fit has arrived too. It may wait, which changes nothing here: nothing comes free.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import msgspec

from corral.model.offer import FreeDevice, NodeOffer
from corral.model.resources import MILLI, Amount, Demand, GangShape, NodeSpec
from corral.policy.cursor import FOREVER
from corral.policy.fragmentation import Mix, Need, mix_of, prior_needs
from corral.policy.placement import Wish, place_first
from corral.policy.trial import Trial
from corral.sim.formats.openb import Pod

TOPPED_UP = 1.3
"""GPUs that the shuffled list asks for together, as a multiple of the pool's."""

RELEARN_RATIO = 2.0
"""The mix is learnt again when this many times the pods have arrived since the last time."""


class Packing(msgspec.Struct, frozen=True):
    """What became of one order of arrivals. ``failed`` are pods that did not fit, ``allocated_pct`` is of all GPUs."""

    seed: int
    allocated_pct: float
    arrived: int
    failed: int
    failed_gpu_pct: float


def arrivals(pods: Sequence[Pod], capacity_milli: int, seed: int) -> list[Pod]:
    """Return the pods in the order of their arrival: topped up to ``TOPPED_UP`` of the capacity, and shuffled."""
    if not any(pod.gpu_milli for pod in pods):
        raise ValueError("no pod asks for a GPU: the list cannot be topped up")
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    chosen = list(pods)
    asked = sum(pod.gpu_milli for pod in chosen)
    while asked < TOPPED_UP * capacity_milli:
        pod = rng.choice(pods)
        chosen.append(pod)
        asked += pod.gpu_milli
    rng.shuffle(chosen)
    return chosen


def pack(nodes: Sequence[NodeSpec], pods: Sequence[Pod], seed: int) -> Packing:
    """Return what the placement makes of one order of arrivals.

    What pods ask for is learnt from those that have arrived, as a pool does from what runs and waits.
    """
    capacity = MILLI * sum(len(node.devices) for node in nodes)
    seen = _Seen({device.model for node in nodes for device in node.devices})
    trial = Trial([_offer(node) for node in nodes], seen.mix)
    wishes: dict[tuple[Demand, ...], tuple[Wish, ...]] = {}
    asked = allocated = arrived = failed = failed_milli = 0
    for pod in arrivals(pods, capacity, seed):
        if asked + pod.gpu_milli > capacity:
            break
        arrived += 1
        asked += pod.gpu_milli
        if seen.add(pod):
            trial.learn_again()
        wish = wishes.get(pod.demands)
        if wish is None:
            wish = wishes[pod.demands] = tuple(Wish(GangShape(1, demand)) for demand in pod.demands)
        found = place_first(trial, wish)
        if found is None:
            failed += 1
            failed_milli += pod.gpu_milli
            continue
        trial.take(found[1], FOREVER)
        allocated += pod.gpu_milli
    return Packing(seed, 100.0 * allocated / capacity, arrived, failed, 100.0 * failed_milli / capacity)


class _Seen:
    """The needs of the pods that have arrived."""

    def __init__(self, models: Collection[str]) -> None:
        self._counts = prior_needs(models)
        self._arrived = 0
        self._learnt_at = 0

    def add(self, pod: Pod) -> bool:
        """Count a pod; return whether it is time to learn again."""
        need = Need.over(pod.demands)
        self._counts[need] = self._counts.get(need, 0.0) + 1.0
        self._arrived += 1
        return self._arrived >= RELEARN_RATIO * self._learnt_at

    def mix(self) -> Mix:
        self._learnt_at = self._arrived
        return mix_of(self._counts)


def _offer(node: NodeSpec) -> NodeOffer:
    devices = tuple(FreeDevice(d.uuid, d.model, MILLI, d.memory_mib, d.island) for d in node.devices)
    total = Amount(MILLI * len(devices), node.cpus_milli, node.memory_mib)
    return NodeOffer(node.id, node.rack, devices, node.cpus_milli, node.memory_mib, total)
