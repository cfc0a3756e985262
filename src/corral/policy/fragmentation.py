"""What stays useful of free devices: the fragmentation gradient over the mix of shapes that a pool sees.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX
ATC'23, measure a node by the free GPU that an average task cannot use, and place where that grows least. Two things are
different here. What a need can use of a node is also bounded by the CPUs and the memory that go with its devices, so
that devices without CPUs count as lost before the last CPU is gone. And needs are priced by how scarce their room has
become in the whole pool: the pool is measured by the sum of ``weight / usable``, so a node that one need alone can use
is kept for it, once the others have enough elsewhere.

Pure and deterministic: what is remembered saves time, it never changes an answer.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from operator import mul

import msgspec

from corral.model.offer import Bid, Candidate, Holding
from corral.model.resources import MILLI, Demand, Placement
from corral.policy.feasibility import model_matches

NEEDS_MAX = 128
"""Needs of one mix, the most frequent ones: scores cost in proportion, and rarer ones hardly move a price."""

SAMPLE_MAX = 512
"""Running gangs, and lines of pending ones, that a mix is learnt from: 1 in 512 has no weight worth a look."""

STATES_MAX = 100_000
"""States remembered for one mix (about 2 KB each); beyond that all are forgotten."""

DIGITS = 9
"""Losses are compared to a billionth of a device: less is rounding, and equal states must tie."""

PRIOR: tuple[tuple[int, float], ...] = (
    (MILLI // 4, 1.0), (MILLI // 2, 1.0), (MILLI, 4.0), (2 * MILLI, 1.0), (4 * MILLI, 1.0), (8 * MILLI, 2.0),
)  # fmt: skip
"""Milli-GPUs and pseudo-counts of a pool without history: most tasks ask for one device (Jeon et al., ATC'19; Weng et
al., NSDI'22), some for shares, and a whole node is what cannot be made up for. Ten gangs outweigh it."""

PRIOR_CPUS_MILLI = 4 * MILLI
"""CPUs per device of the prior: below what nodes have per device, so that it says nothing where there are enough."""


PRIOR_BY_MODEL = 0.25
"""Pseudo-count of one-device tasks that would run on one model alone, for each of a pool with several: until somebody
has asked for a scarce model, those who can run on any leave it, since that costs them nothing."""


class Need(msgspec.Struct, frozen=True):
    """What tasks of one kind ask for; ``models`` are the device models that would do (empty: any of them)."""

    gpu_milli: int
    models: tuple[str, ...] = ()
    cpus_milli: int = 0
    memory_mib: int = 0

    @classmethod
    def of(cls, bids: Sequence[Bid]) -> Need:
        """Return the need behind a proposal: the first bid, on any model that a bid of the same size names."""
        first = bids[0].shape.demand
        return cls.over([b.shape.demand for b in bids if b.shape.demand.gpu_milli == first.gpu_milli])

    @classmethod
    def over(cls, demands: Sequence[Demand]) -> Need:
        """Return the need that any of these demands would meet; they differ in their device models only."""
        first, named = demands[0], {demand.gpu_model for demand in demands}
        models = () if None in named else tuple(sorted(name for name in named if name is not None))
        return cls(first.gpu_milli, models, first.cpus_milli, first.memory_mib)

    @classmethod
    def held(cls, placement: Placement) -> Need:
        """Return the need that a placement met, on any model."""
        return cls(placement.gpu_milli, (), placement.cpus_milli, placement.memory_mib)


Mix = tuple[tuple[Need, float], ...]
"""Needs with their weights."""


def mix_of(counts: Mapping[Need, float]) -> Mix:
    """Return the mix of needs seen so often.

    Needs without devices are left out: their room is not what runs short. Those that differ little in CPUs or memory
    count as the most frequent of them. The weight of a need is its share of all, per device that it asks for, since
    small tasks are the ones that can use what is left over. Weights are rounded to half powers of two: a mix stays
    the same, with all that is remembered about it, while the pool does.
    """
    groups: dict[tuple[object, ...], list[tuple[float, Need]]] = {}
    for need, count in counts.items():
        if need.gpu_milli > 0 and count > 0:
            size = (round(2 * math.log2(need.cpus_milli + 1)), round(2 * math.log2(need.memory_mib + 1)))
            groups.setdefault((need.gpu_milli, need.models, size), []).append((count, need))
    merged = [
        (sum(count for count, _ in group), min(group, key=lambda item: (-item[0], msgspec.structs.astuple(item[1])))[1])
        for group in groups.values()
    ]
    merged.sort(key=lambda item: (-item[0], msgspec.structs.astuple(item[1])))
    total = sum(count for count, _ in merged)
    return tuple(
        (need, 2.0 ** (round(2 * math.log2(count * MILLI / need.gpu_milli / total)) / 2))
        for count, need in merged[:NEEDS_MAX]
    )


PRIOR_NEEDS: Mapping[Need, float] = {
    Need(milli, (), PRIOR_CPUS_MILLI * milli // MILLI): count for milli, count in PRIOR
}


def prior_needs(models: Collection[str]) -> dict[Need, float]:
    """Return what a pool with these device models expects before it has seen anything."""
    counts = dict(PRIOR_NEEDS)
    if len(models) > 1:
        counts.update((Need(MILLI, (model,), PRIOR_CPUS_MILLI), PRIOR_BY_MODEL) for model in models)
    return counts


def need_of(holding: Holding) -> Need | None:
    """Return what one rank of a running gang asked for, ``None`` when it holds nothing."""
    if not holding.placements:
        return None
    return Need.of(holding.bids) if holding.bids else Need.held(holding.placements[0])


def learnt(
    holdings: Sequence[Holding],
    pending: Iterable[tuple[Candidate, int]],
    need: Callable[[Holding], Need | None] = need_of,
    models: Collection[str] = (),
) -> Mix:
    """Return the mix that a pool sees: what runs, what waits (candidates with how many are alike), and the prior.

    ``need`` says what a running gang asked for; ``models`` are the pool's device models.
    """
    counts = prior_needs(models)
    step = max(1, -(-len(holdings) // SAMPLE_MAX))
    for holding in holdings[::step]:
        asked = need(holding)
        if asked is not None:
            counts[asked] = counts.get(asked, 0.0) + step * len(holding.placements)
    for candidate, alike in islice(pending, SAMPLE_MAX):
        asked = Need.of(candidate.bids)
        counts[asked] = counts.get(asked, 0.0) + alike * candidate.shape.ranks
    return mix_of(counts)


Devices = tuple[tuple[str, int, int], ...]
"""(Model, NVLink island, free milli) of a node's devices, sorted where they are of one model."""
Key = tuple[Devices, int, int]
"""Devices, free CPUs and free memory: nodes with the same key are alike."""
Option = tuple[tuple[str, int, int] | None, "State"]
"""A device that a share may go to (``None`` where there is no choice) and the state of the node afterwards."""


class State:
    """What alike nodes have free. ``usable`` holds milli-GPUs by need; ``fates`` what placing on it does."""

    __slots__ = ("fates", "key", "usable")

    def __init__(self, key: Key, usable: array[float]) -> None:
        self.key = key
        self.usable = usable
        self.fates: dict[tuple[Demand, str | None], Fate] = {}


class Fate(msgspec.Struct, frozen=True):
    """What placing one rank does to a state: best-fit score and island split in devices, CPUs that stay, options."""

    tightness: float
    split: float
    stay: int
    options: tuple[Option, ...]


class Gauge:
    """Measures states by one mix, and remembers them."""

    def __init__(self, mix: Mix) -> None:
        self.weights = tuple(weight for _, weight in mix)
        self.sizes = tuple(need.gpu_milli for need, _ in mix)
        self._states: dict[Key, State] = {}
        self._needs = tuple(need for need, _ in mix)
        self._sizes: dict[str, tuple[_Size, ...]] = {}

    def state(self, key: Key) -> State:
        """Return the one state of a key."""
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= STATES_MAX:
                self._states.clear()
            state = self._states[key] = State(key, self._usable(key))
        return state

    def _usable(self, key: Key) -> array[float]:
        devices, cpus, memory = key
        usable = array("d", bytes(8 * len(self.weights)))
        models = {model for model, _, left in devices if left > 0}
        if len(models) == 1:
            model = models.pop()
            sizes = self._sizes.get(model)
            if sizes is None:
                on_it = [i for i, need in enumerate(self._needs) if _one_of(need.models, model)]
                sizes = self._sizes[model] = self._sizes_of(on_it)
            _measure(usable, [left for _, _, left in devices if left > 0], sizes, cpus, memory)
        elif models:
            # Needs for which the same of these models would do have the same devices.
            together: dict[tuple[str, ...], list[int]] = {}
            for i, need in enumerate(self._needs):
                together.setdefault(tuple(model for model in models if _one_of(need.models, model)), []).append(i)
            for fitting, alike in together.items():
                free = [left for model, _, left in devices if left > 0 and model in fitting]
                if free:
                    _measure(usable, free, self._sizes_of(alike), cpus, memory)
        return usable

    def _sizes_of(self, positions: Iterable[int]) -> tuple[_Size, ...]:
        sizes: dict[int, list[tuple[int, int, int]]] = {}
        for i in positions:
            need = self._needs[i]
            sizes.setdefault(need.gpu_milli, []).append((need.cpus_milli, need.memory_mib, i))
        return tuple(
            (milli, max(memory for _, memory, _ in members), sorted(members)) for milli, members in sizes.items()
        )


_Size = tuple[int, int, list[tuple[int, int, int]]]
"""Needs of so many milli-GPUs: the most memory that one wants; CPUs, memory and position in the mix, fewest CPUs first.
"""


def _measure(usable: array[float], free: list[int], sizes: Iterable[_Size], cpus: int, memory: int) -> None:
    """Enter what needs can use of free devices that would do for all of them."""
    whole, least, largest, total = MILLI * free.count(MILLI), min(free), max(free), sum(free)
    for milli, most_memory, members in sizes:
        if milli <= least:
            amount = total
        elif milli <= largest:
            amount = sum([left for left in free if left >= milli])
        elif milli <= whole:
            amount = whole
        else:
            continue
        # All is usable for those who want no more CPUs per device than this: the devices are at least one of theirs.
        enough = cpus * milli // amount
        if memory >= most_memory and memory * milli >= amount * most_memory:
            for need_cpus, _, i in members:
                if need_cpus <= enough:
                    usable[i] = amount
                elif need_cpus <= cpus:
                    usable[i] = cpus * milli / need_cpus
                else:
                    break
            continue
        for need_cpus, need_memory, i in members:
            if need_cpus <= cpus and need_memory <= memory:
                room = float(amount) if need_cpus <= enough else cpus * milli / need_cpus
                usable[i] = room if memory * milli >= room * need_memory else memory * milli / need_memory


@functools.lru_cache(maxsize=4_096)
def _one_of(models: tuple[str, ...], model: str) -> bool:
    return not models or any(model_matches(wanted, model) for wanted in models)


@functools.lru_cache(maxsize=4)
def gauge(mix: Mix) -> Gauge:
    """Return the gauge of a mix; what it remembers serves the rounds to come."""
    return Gauge(mix)


Score = tuple[float, float, int]
"""Devices that placing costs (lower is better); for ties best fit in devices, then the CPUs that stay."""


class Prices:
    """What a milli-GPU that a need can use is worth now, from what all nodes together leave it.

    The pool is measured by ``sum weight / usable``; the prices are the derivatives ``weight / usable^2``, scaled so
    that they add up to one device: losses are in devices, as the average need would count them. Without needs placing
    costs what best fit says.
    """

    def __init__(self, gauge_: Gauge, counts: Mapping[State, int]) -> None:
        totals = [float(size) for size in gauge_.sizes]
        for state, count in counts.items():
            totals = [total + count * usable for total, usable in zip(totals, state.usable, strict=True)]
        raw = [weight / (total * total) for weight, total in zip(gauge_.weights, totals, strict=True)]
        scale = MILLI * sum(raw)
        self._prices = tuple(price / scale for price in raw) if scale > 0.0 else ()
        self._values: dict[State, float] = {}
        self.scores: dict[tuple[Demand, str | None], dict[State, Score]] = {}

    def value(self, state: State) -> float:
        """Return what is free on a node in devices of the average need."""
        value = self._values.get(state)
        if value is None:
            value = self._values[state] = sum(map(mul, self._prices, state.usable))
        return value

    def loss(self, before: State, after: State) -> float:
        """Return the devices that placing takes from the average need."""
        return round(self.value(before) - self.value(after), DIGITS)

    def score(self, state: State, fate: Fate) -> Score:
        """Return what a fate costs, cold starts aside."""
        if not self._prices:
            return fate.split + fate.tightness, 0.0, fate.stay
        return fate.split + min(self.loss(state, after) for _, after in fate.options), fate.tightness, fate.stay
