"""Leadership: election, renewal, lapse, deposition, lost answers; and that two never believe at the same time."""

from __future__ import annotations

import heapq
import random

import pytest

from corral.control.leadership import Change, Leadership, Terms
from corral.ports.leadership import Answer, Ask, Candidate, Claim, LeaderRow, Look, Renew, Resign

TERMS = Terms(lease_s=5.0, renew_s=1.5, look_s=0.5, retry_s=0.25, drift=0.01)


class Database:
    """The row, as the contract of ``LeaderStore.campaign`` has it."""

    def __init__(self) -> None:
        self.row = LeaderRow()

    def do(self, me: Candidate, ask: Ask) -> Answer:
        row, done = self.row, True
        match ask:
            case Look():
                return Answer(row, True)
            case Claim(seen) if seen == row:
                self.row = LeaderRow(row.epoch + 1, row.beat + 1, me.holder, me.place, me.url)
            case Renew(epoch) if (row.epoch, row.holder) == (epoch, me.holder):
                self.row = LeaderRow(epoch, row.beat + 1, row.holder, row.place, row.url)
            case Resign(epoch) if (row.epoch, row.holder) == (epoch, me.holder):
                self.row = LeaderRow(epoch, row.beat + 1)
            case _:
                done = False
        return Answer(self.row, done)


def candidate(name: str, place: str = "") -> Candidate:
    return Candidate(name, place, f"https://{name}:7420")


def turn(core: Leadership, database: Database, sent_at: float, now: float | None = None) -> Change | None:
    """Let one ask reach the database and its answer come back at once, or at ``now``."""
    ask = core.ask(sent_at)
    return core.answered(sent_at, sent_at if now is None else now, ask, database.do(core.me, ask))


def elected(name: str, database: Database, now: float = 0.0) -> Leadership:
    core = Leadership(candidate(name), TERMS)
    assert turn(core, database, now) is None
    assert turn(core, database, now) is Change.ELECTED
    return core


def test_nobody_leads_yet_so_the_first_claims_at_once() -> None:
    database = Database()
    core = elected("a", database, 100.0)
    assert core.epoch == 1
    assert database.row == LeaderRow(1, 1, "a", "", "https://a:7420")
    assert core.due == 101.5


def test_a_lease_is_believed_from_the_sending_of_the_renewal_less_the_drift() -> None:
    database = Database()
    core = elected("a", database, 100.0)
    assert core.valid(104.9)
    assert not core.valid(104.95)
    assert turn(core, database, 102.0, 103.5) is None
    assert core.valid(106.9)
    assert not core.valid(106.95)
    assert core.due == 103.5


def test_a_standby_waits_for_the_lease_and_the_drift_from_when_it_first_saw_the_row() -> None:
    database = Database()
    elected("a", database, 0.0)
    core = Leadership(candidate("b"), TERMS)
    assert turn(core, database, 10.0, 10.2) is None
    assert core.due == pytest.approx(10.7)
    assert turn(core, database, 15.2) is None
    assert core.epoch is None
    assert core.due == pytest.approx(15.25)
    assert core.ask(15.25) == Claim(database.row)
    assert turn(core, database, 15.25) is Change.ELECTED
    assert database.row == LeaderRow(2, 2, "b", "", "https://b:7420")


def test_a_row_that_goes_on_changing_is_never_claimed() -> None:
    database = Database()
    leader, standby = elected("a", database), Leadership(candidate("b"), TERMS)
    for tick in range(100):
        at = tick * 0.5
        if at >= leader.due:
            turn(leader, database, at)
        turn(standby, database, at)
        assert isinstance(standby.ask(at), Look)
    assert (leader.epoch, standby.epoch) == (1, None)


def test_a_lease_that_lapsed_is_renewed_when_nobody_else_came() -> None:
    database = Database()
    core = elected("a", database)
    for at in (1.5, 4.0, 100.0):
        core.failed(at)
        assert core.due == at + 0.25
    assert not core.valid(100.0)
    assert core.epoch == 1
    assert turn(core, database, 180.0) is None
    assert core.valid(184.0)


def test_a_deposed_leader_learns_it_and_stands_by() -> None:
    database = Database()
    old, new = elected("a", database), Leadership(candidate("b"), TERMS)
    turn(new, database, 0.0)
    assert turn(new, database, 6.0) is Change.ELECTED
    assert turn(old, database, 7.0) is Change.DEPOSED
    assert (old.epoch, old.valid(7.0), old.row) == (None, False, database.row)
    assert isinstance(old.ask(11.0), Look)


def test_a_claim_whose_answer_got_lost_is_found_and_renewed_before_it_counts() -> None:
    database = Database()
    core = Leadership(candidate("a"), TERMS)
    turn(core, database, 0.0)
    database.do(core.me, core.ask(0.0))
    core.failed(0.1)
    assert turn(core, database, 0.4) is None, "the same claim again is refused: the row has changed"
    assert core.epoch is None
    assert core.ask(0.4) == Renew(1)
    assert turn(core, database, 0.5) is Change.ELECTED
    assert core.valid(5.4)


def test_only_one_of_two_claims_is_done() -> None:
    database = Database()
    a, b = Leadership(candidate("a"), TERMS), Leadership(candidate("b"), TERMS)
    turn(a, database, 0.0)
    turn(b, database, 0.0)
    asks = (a.ask(0.0), b.ask(0.0))
    assert a.answered(0.0, 0.0, asks[0], database.do(a.me, asks[0])) is Change.ELECTED
    assert b.answered(0.0, 0.0, asks[1], database.do(b.me, asks[1])) is None
    assert (a.epoch, b.epoch) == (1, None)


def test_who_survived_the_leader_of_its_own_place_need_not_wait() -> None:
    database = Database()
    first = Leadership(candidate("a1", "here"), TERMS)
    turn(first, database, 0.0)
    turn(first, database, 0.0)
    again, elsewhere = Leadership(candidate("a2", "here"), TERMS), Leadership(candidate("b", "there"), TERMS)
    turn(elsewhere, database, 1.0)
    assert isinstance(elsewhere.ask(1.0), Look)
    turn(again, database, 1.0)
    assert turn(again, database, 1.0) is Change.ELECTED
    assert again.epoch == 2


def test_a_resignation_counts_at_once_and_the_next_claims_without_waiting() -> None:
    database = Database()
    core = elected("a", database)
    ask = core.resign()
    assert ask == Resign(1)
    assert not core.valid(0.1)
    assert core.answered(0.1, 0.1, ask, database.do(core.me, ask)) is None
    assert isinstance(core.ask(0.2), Look), "who has resigned does not claim again"
    other = Leadership(candidate("b"), TERMS)
    turn(other, database, 0.2)
    assert turn(other, database, 0.2) is Change.ELECTED
    assert Leadership(candidate("c"), TERMS).resign() is None


class Clock:
    """A clock that runs ``rate`` times as fast as true time."""

    def __init__(self, rate: float, offset: float) -> None:
        self.rate, self.offset = rate, offset

    def at(self, true_s: float) -> float:
        return self.offset + true_s * self.rate


def run(seed: int, drift: float) -> tuple[float, int]:
    """Let three controllers campaign over a network that delays, loses and cuts; clocks run up to 1 % wrong.

    Return for how long two believed in their lease at the same time, and how many epochs there were.
    """
    dice = random.Random(seed)
    database, terms = Database(), Terms(drift=drift)
    cores = [Leadership(candidate(name), terms) for name in "abc"]
    clocks = [Clock(rate, dice.uniform(0.0, 1e6)) for rate in dice.sample([0.99, 1.0, 1.01], 3)]
    beliefs: list[list[tuple[float, float]]] = [[], [], []]
    cut_until = [0.0, 0.0, 0.0]
    queue = [(dice.uniform(0.0, 1.0), turn, index) for turn, index in enumerate(range(3))]
    count = 3
    while queue:
        true, _, index = heapq.heappop(queue)
        if true > 120.0:
            break
        core, clock = cores[index], clocks[index]
        if dice.random() < 0.08:
            cut_until[index] = true + dice.uniform(1.0, 12.0)
        sent = clock.at(true)
        ask = core.ask(sent)
        back = true + dice.choice([0.001, 0.01, 0.3])
        reached = true >= cut_until[index] or dice.random() < 0.2
        answer = database.do(core.me, ask) if reached else None
        if answer is None or true < cut_until[index]:
            back = true + 1.0
            core.failed(clock.at(back))
        else:
            core.answered(sent, clock.at(back), ask, answer)
            if core.epoch is not None:
                beliefs[index].append((back, (core.expires_at - clock.offset) / clock.rate))
        following = max(back, (core.due - clock.offset) / clock.rate) if core.due > 0 else back
        count += 1
        heapq.heappush(queue, (following, count, index))
    both = 0.0
    for one in range(3):
        for other in range(one):
            for begin, end in beliefs[one]:
                for start, stop in beliefs[other]:
                    both = max(both, min(end, stop) - max(begin, start))
    return both, database.row.epoch


def test_two_never_believe_at_the_same_time_whatever_the_network_and_the_clocks_do() -> None:
    outcomes = [run(seed, drift=0.01) for seed in range(300)]
    assert max(both for both, _ in outcomes) <= 1e-6
    assert sum(epochs for _, epochs in outcomes) > 600, "the runs must have changes of leaders in them"


def test_without_the_margin_for_drift_two_would() -> None:
    assert max(both for both, _ in (run(seed, drift=0.0) for seed in range(300))) > 0.01
