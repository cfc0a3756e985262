from __future__ import annotations

import asyncio

import pytest

from bench.serving import GOALS, Part, lacking, missed, parts
from bench.serving_balance import DELAY_S, SHARES, central
from bench.serving_load import Load, Outcome, Target, failed, quantile
from bench.serving_vip import both
from bench.serving_wrk import filled
from tests.waiting import wait_until_async

KEYS = """kill_failed_idempotent, kill_failed_other, eject_s_max, sigstop_eject_s, drain_cut_streams, update_failed,
scale_routed_s, cpu_vs_nginx, p99_added_ms, vip_link_s_max, vip_process_s_max, vip_double_s_max, leaderless_failed,
p2c_p99_vs_rr, affinity_hit_gain"""


def test_every_goal_but_two_is_a_most() -> None:
    # Requests that are not idempotent may fail with what was under way, and a gain is better when it is larger.
    named = {key.strip() for key in KEYS.split(",")}
    assert named - set(GOALS) == {"kill_failed_other", "affinity_hit_gain"}
    assert set(GOALS) <= named


def test_what_was_missed_is_told_with_its_goal() -> None:
    found = {"eject_s_max": 0.6, "sigstop_eject_s": 1.0, "affinity_hit_gain": 1.5}
    assert missed(found) == ["eject_s_max 0.6 > 0.5", "affinity_hit_gain 1.5 < 2"]
    assert missed({"affinity_hit_gain": 2.0}) == []


def test_a_part_without_its_program_says_which_package_brings_it() -> None:
    assert lacking(Part(dict, {"no-such-program": "some-package"})) == "apt-get install some-package"
    assert lacking(Part(dict)) == ""
    assert set(parts(1.0, 1)) == {"kill", "renew", "leaderless", "cost", "vip", "balance", "affinity"}


@pytest.mark.parametrize(
    "one, two, since, longest",
    [
        ([(0.0, 5.0)], [(5.0, 9.0)], 0.0, 0.0),
        ([(0.0, 5.0)], [(4.0, 9.0)], 0.0, 1.0),
        ([(0.0, 5.0)], [(4.0, 9.0)], 4.75, 0.25),
        ([(0.0, 2.0), (6.0, 9.0)], [(1.5, 6.75)], 0.0, 0.75),
        ([], [(0.0, 9.0)], 0.0, 0.0),
    ],
)
def test_two_holders_are_timed(
    one: list[tuple[float, float]], two: list[tuple[float, float]], since: float, longest: float
) -> None:
    assert both(one, two, since) == longest


def test_a_queue_before_all_is_short_at_low_load_and_longer_at_higher() -> None:
    low, high = (central(share) for share in SHARES)
    # Nobody waits less than a service takes; the slow one takes four times as long.
    assert DELAY_S <= low <= high <= 8 * DELAY_S


def test_outcomes_count_as_failed_when_cut_or_refused() -> None:
    told = [Outcome(0.0, "GET", 0.1, 200), Outcome(0.0, "GET", 0.2, 200, cut=True), Outcome(0.0, "POST", 0.3, 503)]
    assert (failed(told), failed(told, "GET"), failed(told, "POST")) == (2, 1, 1)
    assert quantile(told, 0.99) == 0.1


def test_a_request_that_gets_no_answer_has_failed() -> None:
    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def scene() -> list[Outcome]:
        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            async with Load(Target(server.sockets[0].getsockname()[1], "shop"), 100.0) as load:
                await wait_until_async(lambda: len(load.outcomes) >= 3, what="three outcomes")
            return load.outcomes

    told = asyncio.run(scene())
    assert failed(told) == len(told) >= 3


def test_words_are_filled_in() -> None:
    assert filled("a @B@ @C@ @B@", B=1, C="c") == "a 1 c 1"
