from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.service import Balance
from corral.policy.serving.balancing import BLOCK_CHARS, Candidate, PrefixIndex, pick

THREE = (Candidate("a"), Candidate("b"), Candidate("c"))


def names(balance: Balance, candidates: tuple[Candidate, ...], count: int) -> list[str]:
    return [pick(balance, candidates, turn=turn, draws=(turn, turn // 3)).name for turn in range(count)]


def test_round_robin_takes_turns() -> None:
    assert names(Balance.ROUND_ROBIN, THREE, 4) == ["a", "b", "c", "a"]


def test_weights_are_kept_and_spread() -> None:
    told = names(Balance.WEIGHTED, (Candidate("a", weight=100), Candidate("b", weight=50)), 600)
    assert Counter(told)["a"] == pytest.approx(400, abs=4)
    # The slower one never comes twice in a row, nor stays away for more than four turns (the three gaps of 1/3).
    assert "bb" not in "".join(told)
    assert "aaaaa" not in "".join(told)


def test_the_fewest_outstanding_for_a_weight_gets_it() -> None:
    loaded = (Candidate("a", 2), Candidate("b", 1), Candidate("c", 3, weight=256))
    # (2 + 1) / 100, (1 + 1) / 100 and (3 + 1) / 256: c is fast enough to be the least loaded.
    assert pick(Balance.LEAST_OUTSTANDING, loaded, turn=0, draws=(0, 0)).name == "c"


def test_of_equals_the_next_in_turn_gets_it() -> None:
    assert names(Balance.LEAST_OUTSTANDING, THREE, 4) == ["a", "b", "c", "a"]


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_two_choices_are_two_and_the_less_loaded_wins(first: int, second: int) -> None:
    loaded = (Candidate("a", 5), Candidate("b", 3), Candidate("c", 9))
    # The worst of three is never the better of two.
    assert pick(Balance.POWER_OF_TWO, loaded, turn=0, draws=(first, second)).name != "c"


def test_a_hash_moves_only_the_keys_of_who_went() -> None:
    keys = [f"session-{number}" for number in range(300)]

    def chosen(candidates: tuple[Candidate, ...]) -> dict[str, str]:
        return {key: pick(Balance.CONSISTENT_HASH, candidates, turn=0, draws=(0, 0), key=key).name for key in keys}

    before, after = chosen(THREE), chosen(THREE[:2])
    assert all(after[key] == name for key, name in before.items() if name != "c")
    assert min(Counter(before.values()).values()) > 60


def test_one_replica_is_enough_and_none_is_not() -> None:
    for balance in Balance:
        assert pick(balance, THREE[:1], turn=7, draws=(3, 4)).name == "a"
        with pytest.raises(ValueError, match="no replica"):
            pick(balance, (), turn=0, draws=(0, 0))


def test_prompts_that_begin_alike_meet() -> None:
    index = PrefixIndex()
    system = "s" * BLOCK_CHARS * 2
    first = index.choose(system + "one", THREE, 8)
    assert index.choose(system + "two", THREE, 8) == first
    assert PrefixIndex().choose(system + "three", THREE, 8) == first


def test_the_longest_beginning_wins() -> None:
    index = PrefixIndex()
    short = "s" * BLOCK_CHARS
    long = short + "l" * BLOCK_CHARS
    (holder,) = {index.choose(long, (Candidate("b"),), 8).name}
    # Somebody else has the short beginning since, but the long one is still where it was.
    index.choose(short, (Candidate("a"),), 8)
    assert index.choose(long + "more", THREE, 8).name == holder == "b"


def test_affinity_gives_way_to_imbalance() -> None:
    index = PrefixIndex()
    prompt = "p" * BLOCK_CHARS
    index.choose(prompt, (Candidate("a"),), 8)
    assert index.choose(prompt, (Candidate("a", 8), Candidate("b", 0)), 8).name == "a"
    assert index.choose(prompt, (Candidate("a", 9), Candidate("b", 0)), 8).name == "b"


def test_who_is_gone_is_forgotten_and_the_index_is_bounded() -> None:
    index = PrefixIndex(prefixes_max=4)
    index.choose("x" * BLOCK_CHARS * 3, (Candidate("a"),), 8)
    index.choose("y" * BLOCK_CHARS * 3, (Candidate("b"),), 8)
    assert len(index) == 4
    index.forget("b")
    assert len(index) == 1
