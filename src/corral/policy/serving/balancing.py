"""Who gets a request. Pure: what is random comes as an argument.

HAProxy spreads what passes it alone; these are the same policies for requests that pass the relay, and for simulations.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from corral.model.service import Balance

BLOCK_CHARS = 256
"""Prompts are compared by blocks of this many characters, about 64 tokens: a few of vLLM's 16-token cache blocks."""

PREFIXES_MAX = 200_000


class Candidate(msgspec.Struct, frozen=True):
    """A replica that may get a request. ``outstanding`` are those that it has, ``weight`` its speed, 1..256."""

    name: str
    outstanding: int = 0
    weight: int = 100


def affinity_of(key: str, name: str) -> int:
    """Return how much a replica is meant for a key: the largest wins (Thaler and Ravishankar, 1998).

    When a replica goes only its own keys move.
    """
    digest = hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def least_outstanding(candidates: Sequence[Candidate], turn: int) -> Candidate:
    """Return the one with the fewest requests for its weight; of equals the next in turn."""
    ordered = sorted(candidates, key=lambda one: one.name)
    start = turn % len(ordered)
    rotated = ordered[start:] + ordered[:start]
    return min(rotated, key=lambda one: (one.outstanding + 1) / max(1, one.weight))


def pick(
    balance: Balance, candidates: Sequence[Candidate], *, turn: int, draws: tuple[int, int], key: str = ""
) -> Candidate:
    """Return who gets a request.

    Args:
        balance: The policy. ``PREFIX_AFFINITY`` is :class:`PrefixIndex`'s; here it is the fewest outstanding.
        candidates: Replicas that may get it, at least one.
        turn: A number that rises by one with each request.
        draws: Two random numbers, at least 0.
        key: What a consistent hash looks at.

    Raises ``ValueError`` without candidates.
    """
    if not candidates:
        raise ValueError("no replica to pick from")
    ordered = sorted(candidates, key=lambda one: one.name)
    match balance:
        case Balance.ROUND_ROBIN:
            return ordered[turn % len(ordered)]
        case Balance.WEIGHTED:
            return _weighted(ordered, turn)
        case Balance.CONSISTENT_HASH:
            return max(ordered, key=lambda one: affinity_of(key, one.name))
        case Balance.POWER_OF_TWO if len(ordered) > 1:
            first = draws[0] % len(ordered)
            second = (first + 1 + draws[1] % (len(ordered) - 1)) % len(ordered)
            return min(ordered[first], ordered[second], key=lambda one: one.outstanding / max(1, one.weight))
        case _:
            return least_outstanding(ordered, turn)


def _weighted(ordered: Sequence[Candidate], turn: int) -> Candidate:
    """Return the one at a turn of a round in which each comes as often as its weight says, spread over the round."""
    total = sum(max(1, one.weight) for one in ordered)
    # The golden ratio's multiples fall evenly, wherever a round begins (Weyl's equidistribution).
    point = (turn * 0.6180339887498949) % 1.0 * total
    for one in ordered:
        point -= max(1, one.weight)
        if point < 0:
            return one
    return ordered[-1]


class PrefixIndex:
    """Which replica has seen which beginning of a prompt; bounded, the least recently used goes first.

    What nobody has seen goes to the replica that its first block is meant for, so that several front ends that know
    nothing of each other choose alike. Whoever has more than ``imbalance_max`` requests more than the least loaded one
    is passed over.
    """

    def __init__(self, prefixes_max: int = PREFIXES_MAX) -> None:
        self._seen: OrderedDict[bytes, str] = OrderedDict()
        self._max = prefixes_max

    def __len__(self) -> int:
        return len(self._seen)

    def choose(self, prompt: str, candidates: Sequence[Candidate], imbalance_max: int) -> Candidate:
        """Return who gets a prompt, and remember it. Raises ``ValueError`` without candidates."""
        if not candidates:
            raise ValueError("no replica to choose from")
        known = {one.name: one for one in candidates}
        lowest = min(one.outstanding for one in candidates)
        blocks = list(_blocks(prompt))
        chosen = self._holder(blocks, known)
        if chosen is None:
            head = prompt[:BLOCK_CHARS]
            chosen = max(candidates, key=lambda one: affinity_of(head, one.name))
        if chosen.outstanding - lowest > imbalance_max:
            chosen = min(candidates, key=lambda one: (one.outstanding, one.name))
        for block in blocks:
            self._seen[block] = chosen.name
            self._seen.move_to_end(block)
        while len(self._seen) > self._max:
            self._seen.popitem(last=False)
        return chosen

    def _holder(self, blocks: Sequence[bytes], known: dict[str, Candidate]) -> Candidate | None:
        """Return the replica that has seen the longest beginning and is there."""
        for block in reversed(blocks):
            name = self._seen.get(block)
            if name is not None and name in known:
                return known[name]
        return None

    def forget(self, name: str) -> None:
        """Drop what a replica had seen: it is gone."""
        for block in [block for block, holder in self._seen.items() if holder == name]:
            del self._seen[block]


def _blocks(prompt: str) -> Iterable[bytes]:
    """Yield a name for each beginning of a prompt that ends with a whole block."""
    running = hashlib.blake2b(digest_size=12)
    for start in range(0, len(prompt) - BLOCK_CHARS + 1, BLOCK_CHARS):
        running.update(prompt[start : start + BLOCK_CHARS].encode(errors="surrogatepass"))
        yield running.digest()
