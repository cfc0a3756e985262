"""One request of a caller: whose replica gets it, again where another one fails, until an answer has begun."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from corral.model.routes import Route
from corral.model.service import Balance, Retry
from corral.policy.serving.prompts import prompt_of
from corral.serving.relay.board import RETRY_AFTER_S, Board, Live, Place
from corral.serving.relay.http import Problem, Request
from corral.serving.relay.upstream import Answer, Connection, Pool

ATTEMPTS_MAX = 3
"""So often at most a request is sent; replicas that cannot be reached do not count."""

RETRIED_STATUS = frozenset({500, 502, 503, 504})


class Refused(Exception):
    """The relay answers itself."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Attempt(msgspec.Struct, eq=False):
    """A request at a replica. ``connection`` is ``None`` when none could be made."""

    live: Live
    answer: Answer
    connection: Connection | None
    began_at: float

    @property
    def failed(self) -> bool:
        """Return whether there is no answer that could be passed on."""
        return self.answer.failure is not None and not self.answer.pieces

    @property
    def poor(self) -> bool:
        """Return whether another replica might do better."""
        return self.failed or self.answer.status in RETRIED_STATUS

    def abandon(self) -> None:
        """Let go of it."""
        if self.connection is not None and not self.answer.complete:
            self.connection.drop()


class Exchange:
    """Finds an answer for one request. What is found is counted as under way until ``over``."""

    def __init__(self, board: Board, place: Place, request: Request, pool_of: Callable[[Place, Live], Pool]) -> None:
        self._board = board
        self._place = place
        self._request = request
        self._pool_of = pool_of
        self._tried: dict[str, None] = {}
        self._under_way: list[Attempt] = []
        self._prompt = prompt_of(request.body) if place.route.traffic.balance is Balance.PREFIX_AFFINITY else None

    @property
    def _route(self) -> Route:
        return self._place.route

    async def answered(self) -> Attempt:
        """Return the first attempt whose answer may be passed on. Raises ``Refused``."""
        self._place.requests += 1
        self._place.budget.note(time.monotonic(), requests=1)
        last: Attempt | None = None
        sent = 0
        while sent < ATTEMPTS_MAX:
            live = await self._replica(wait=last is None)
            if live is None:
                break
            if last is not None:
                self._place.retries += 1
                last.live.retries += 1
                self._end(last)
            last = await self._first_of(live) if self._hedged(sent) else await self._attempt(live)
            sent += last.connection is not None
            if not last.poor or not self._may_repeat(last):
                break
        assert last is not None, "without a replica it was refused"
        if last.failed:
            self._end(last)
            self._place.errors += 1
            raise Refused(
                Problem(502, "REPLICA_FAILED", f"{self._route.service}: {last.answer.failure}", RETRY_AFTER_S)
            )
        return last

    def over(self, attempt: Attempt) -> None:
        """Count an attempt whose answer was passed on, whole or not."""
        good = attempt.answer.complete and attempt.answer.status < 500
        self._place.errors += not good
        self._end(attempt)

    def give_up(self) -> None:
        """Let go of everything: the caller has gone."""
        for attempt in list(self._under_way):
            attempt.abandon()
            attempt.live.outstanding -= 1
        self._under_way.clear()
        self._place.look_again()

    # ---- replicas --------------------------------------------------------------------------------------------------

    async def _replica(self, *, wait: bool) -> Live | None:
        """Return who gets it now. The first time it may wait: for a start from nothing, or for a turn."""
        live = self._board.choose(self._place, self._request, self._tried, self._prompt)
        if live is not None or not wait:
            return live
        scaling, traffic = self._route.scaling, self._route.traffic
        cold = scaling.replicas_min == 0 and not any(not one.backend.draining for one in self._place.replicas.values())
        full = traffic.outstanding_max is not None and any(one.up for one in self._place.replicas.values())
        if not cold and not full:
            self._refuse(self._board.refusal(self._place))
        if self._place.waiting >= scaling.cold_requests_max:
            words = f"{self._place.waiting} requests wait for service {self._route.service} already"
            self._refuse(Problem(503, "TOO_MANY_WAIT", words, RETRY_AFTER_S))
        return await self._waited(scaling.cold_start_s if cold else traffic.queue_s)

    async def _waited(self, limit_s: float) -> Live:
        self._place.waiting += 1
        deadline = time.monotonic() + limit_s
        try:
            while True:
                changed = self._place.changed
                live = self._board.choose(self._place, self._request, self._tried, self._prompt)
                if live is not None:
                    return live
                try:
                    async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                        await changed.wait()
                except TimeoutError:
                    self._refuse(self._board.refusal(self._place))
        finally:
            self._place.waiting -= 1

    def _refuse(self, problem: Problem) -> None:
        self._place.errors += 1
        raise Refused(problem)

    # ---- attempts --------------------------------------------------------------------------------------------------

    def _may_repeat(self, last: Attempt) -> bool:
        """Return whether a request may go to another replica after one failed it."""
        if last.connection is None:
            # It was not sent: any request may be.
            return True
        retry = self._route.traffic.retry
        allowed = retry is Retry.BEFORE_FIRST_TOKEN or (retry is Retry.IDEMPOTENT and self._request.idempotent)
        return allowed and self._place.may_retry and self._place.budget.spend(time.monotonic())

    def _hedged(self, sent: int) -> bool:
        return sent == 0 and self._route.traffic.hedge_after_s is not None and self._request.method == b"GET"

    async def _attempt(self, live: Live) -> Attempt:
        attempt = await self._send(live)
        if attempt.connection is not None:
            await self._await_begin(attempt)
        return attempt

    async def _send(self, live: Live) -> Attempt:
        traffic, began_at = self._route.traffic, time.monotonic()
        self._tried[live.backend.name] = None
        answer = Answer(head_only=self._request.method == b"HEAD")
        live.outstanding += 1
        attempt = Attempt(live, answer, None, began_at)
        self._under_way.append(attempt)
        pool = self._pool_of(self._place, live)
        try:
            attempt.connection = await pool.get(traffic.connect_s)
        except OSError as error:
            live.bad += 1
            answer.fail(f"replica {live.backend.name} cannot be reached ({str(error) or type(error).__name__})")
            return attempt
        token = self._route.secrets.token if self._route.traffic.guard == "token" else None
        attempt.connection.send(self._request, answer, token)
        return attempt

    async def _await_begin(self, attempt: Attempt) -> None:
        try:
            async with asyncio.timeout(self._route.traffic.response_s):
                await asyncio.shield(attempt.answer.begun)
        except TimeoutError:
            words = f"replica {attempt.live.backend.name} gave no answer in {self._route.traffic.response_s:g} s"
            attempt.answer.fail(words)
            attempt.abandon()

    async def _first_of(self, live: Live) -> Attempt:
        """Ask a second replica when the first has no answer in time; the first good answer counts."""
        first = asyncio.create_task(self._attempt(live))
        running = {first}
        try:
            hedge_after_s = self._route.traffic.hedge_after_s
            done, _ = await asyncio.wait(running, timeout=hedge_after_s)
            other = None if done else self._board.choose(self._place, self._request, self._tried, self._prompt)
            if other is not None and self._place.may_retry and self._place.budget.spend(time.monotonic()):
                self._place.retries += 1
                running.add(asyncio.create_task(self._attempt(other)))
            best: Attempt | None = None
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    attempt = task.result()
                    if best is not None and (best.poor and not attempt.poor):
                        self._end(best)
                        best = attempt
                    elif best is None:
                        best = attempt
                    else:
                        self._end(attempt)
                if best is not None and not best.poor:
                    break
            assert best is not None, "at least one was made"
            return best
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._end_all_but_best()

    def _end_all_but_best(self) -> None:
        """Let go of the slower ones: each is one that nobody took out."""
        for attempt in [one for one in self._under_way if not one.answer.begun.done()]:
            attempt.abandon()
            attempt.live.outstanding -= 1
            self._under_way.remove(attempt)
        self._place.look_again()

    def _end(self, attempt: Attempt) -> None:
        if attempt not in self._under_way:
            return
        self._under_way.remove(attempt)
        attempt.abandon()
        attempt.live.outstanding -= 1
        good = attempt.answer.complete and attempt.answer.status < 500
        self._board.done(self._place, attempt.live, time.monotonic() - attempt.began_at, good=good)
        self._place.look_again()


class _Named(msgspec.Struct):
    model: str | None = None


_named = msgspec.json.Decoder(_Named)


def model_of(body: bytes) -> str | None:
    """Return the model that a body names, at whatever place; raise ``Refused`` when it is not such JSON."""
    try:
        return _named.decode(body).model
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refused(Problem(400, "INVALID_BODY", f"the body is not JSON with a model: {error}")) from error
