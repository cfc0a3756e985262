"""A client of a pool with several heads finds the leader, follows it, and goes on when another head takes over."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import pytest

from corral.client import Client, calls
from corral.client.follow import events
from corral.client.transport import Broken, NotSent, Reply, Stream
from corral.model.errors import DaemonNotRunning, NotLeader, StoreAway
from corral.model.tenant import Tenant

A, B = "http://a:1", "http://b:2"
URLS = (A, B)
EMPTY = Reply(200, {}, b'{"queues": []}')


def elsewhere(leader: str | None) -> Reply:
    """Return what a head answers that stands by."""
    status, headers = (307, {"location": f"{leader}/v1/anything?x=1"}) if leader else (503, {})
    body = {"code": "NOT_LEADER", "message": "another controller leads the pool", "status": status}
    return Reply(status, headers, msgspec.json.encode(body))


class Lines:
    """A stream of the given bytes, which breaks off after them where it is told to."""

    def __init__(self, reply: Reply, *pieces: bytes, breaks: bool = False) -> None:
        self.status, self.headers = reply.status, reply.headers
        self._pieces = list(pieces) if reply.status == 200 else [reply.body]
        self._breaks = breaks

    def read(self) -> bytes:
        if not self._pieces and self._breaks:
            raise Broken("cut")
        return self._pieces.pop(0) if self._pieces else b""

    def close(self) -> None:
        pass


Answer = Reply | Exception | Lines


class Heads:
    """A transport to pretended heads: what each answers, in order; the last answer is repeated."""

    def __init__(self, **answers: list[Answer]) -> None:
        self._answers = answers
        self.asked: list[str] = []
        self.resumed: list[str | None] = []

    def _next(self, url: str) -> Answer:
        head = url[7]
        self.asked.append(head)
        answers = self._answers[head]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float) -> Reply:
        answer = self._next(url)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Reply)
        return answer

    def stream(self, url: str, headers: Mapping[str, str], idle_timeout_s: float) -> Stream:
        answer = self._next(url)
        self.resumed.append(headers.get("Last-Event-ID"))
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Lines) else Lines(answer)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "BACKOFF_FIRST_S", 0.001)


def client(heads: Heads, retry_s: float = 20.0) -> Client:
    return Client(token="t", transport=heads, retry_s=retry_s, urls=URLS)


def asked_of(**answers: list[Answer]) -> list[str]:
    heads = Heads(**answers)
    assert client(heads).queues() == ()
    return heads.asked


def test_a_head_that_stands_by_names_the_leader_and_later_calls_go_there_at_once() -> None:
    heads = Heads(a=[elsewhere(B)], b=[EMPTY])
    found = client(heads)
    found.queues()
    found.queues()
    assert heads.asked == ["a", "b", "b"]


def test_a_head_that_is_gone_or_breaks_off_leaves_the_others() -> None:
    assert asked_of(a=[NotSent("refused")], b=[EMPTY]) == ["a", "b"]
    assert asked_of(a=[Broken("reset")], b=[EMPTY]) == ["a", "b"]


def test_while_nobody_leads_the_heads_are_asked_in_turn() -> None:
    nobody = elsewhere(None)
    assert asked_of(a=[nobody, nobody, EMPTY], b=[nobody]) == ["a", "b", "a", "b", "a"]


def test_a_leader_that_is_named_but_gone_is_not_asked_for_ever() -> None:
    stale = elsewhere(B)
    assert asked_of(a=[stale, stale, EMPTY], b=[NotSent("refused")])[-1] == "a"


def test_two_heads_that_name_each_other_are_given_pauses() -> None:
    heads = Heads(a=[elsewhere(B)], b=[elsewhere(A)])
    with pytest.raises(NotLeader, match="another controller leads"):
        client(heads, retry_s=0.2).queues()
    assert 2 <= len(heads.asked) < 200


def test_what_may_not_be_repeated_still_follows_the_leader_for_it_was_not_carried_out() -> None:
    heads = Heads(a=[elsewhere(None), elsewhere(B)], b=[elsewhere(None), Reply(201, {}, b"")])
    client(heads).set_tenant(Tenant("t"), create=True)  # type: ignore[arg-type]
    assert heads.asked == ["a", "b", "a", "b"]


def test_a_database_that_is_away_is_waited_for_as_far_as_patience_goes() -> None:
    away = Reply(503, {}, b'{"code": "STORE_AWAY", "message": "the database does not answer"}')
    heads = Heads(a=[away, EMPTY], b=[away])
    client(heads).queues()
    assert heads.asked == ["a", "b", "a"]
    with pytest.raises(StoreAway):
        client(Heads(a=[away], b=[away]), retry_s=0.05).queues()


@pytest.mark.parametrize("gone", [NotSent("refused"), Broken("reset"), elsewhere(None)])
@pytest.mark.parametrize("answers", [1, 2])
def test_that_the_database_is_away_tells_more_than_a_head_that_is_gone(gone: Answer, answers: int) -> None:
    away = Reply(503, {}, b'{"code": "STORE_AWAY", "message": "the database is away", "hint": "nothing was changed"}')
    answered: list[Answer] = [away] * answers
    heads = Heads(a=[gone], b=[*answered, NotSent("refused")])
    with pytest.raises(StoreAway, match="the database is away") as caught:
        client(heads, retry_s=0.1).cancel("1")
    sure = answers == 1 and not isinstance(gone, Broken)
    assert caught.value.refusal.hint == ("nothing was changed" if sure else calls.IN_DOUBT)


def test_a_leader_that_is_cut_off_from_its_database_is_left_for_the_one_that_leads_now() -> None:
    away = Reply(503, {}, b'{"code": "STORE_AWAY", "message": "the database does not answer"}')
    assert asked_of(a=[elsewhere(B), away], b=[away, EMPTY]) == ["a", "b", "a", "b"]


def test_nobody_at_all_is_said_after_the_patience() -> None:
    with pytest.raises(DaemonNotRunning):
        client(Heads(a=[NotSent("x")], b=[NotSent("x")]), retry_s=0.05).queues()


def fact(seq: int) -> bytes:
    return b"id: %d\nevent: fact\ndata: {}\n\n" % seq


def streamed(make: Callable[[], Heads]) -> tuple[list[str], Heads]:
    heads = make()
    found = client(heads)
    seen = [id_ for id_, _, _ in events(found._caller, "/events", {}, None)]
    return seen, heads


def test_a_stream_goes_on_at_the_next_leader_after_the_last_event() -> None:
    end = b"event: end\ndata: {}\n\n"
    ok = Reply(200, {}, b"")
    seen, heads = streamed(
        lambda: Heads(
            a=[Lines(ok, fact(1), fact(2), breaks=True), NotSent("gone")],
            b=[elsewhere(None), elsewhere(A), Lines(ok, fact(3), end)],
        )
    )
    assert seen == ["1", "2", "3"]
    assert heads.resumed[0] is None
    assert set(heads.resumed[1:]) == {"2"}
