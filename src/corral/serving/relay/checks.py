"""Asks replicas again and again whether they answer, as the proxy does for its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from corral.model.ids import ServiceName
from corral.serving.relay.board import DOWN_AFTER, Board, Live, Place
from corral.serving.relay.http import Request
from corral.serving.relay.upstream import Answer, Pool

CHECK_S = 0.2


class Checks:
    """One task for each replica; a replica that fails ``DOWN_AFTER`` times in a row is down until it answers once."""

    def __init__(self, board: Board, pool_of: Callable[[Place, Live], Pool]) -> None:
        self._board = board
        self._pool_of = pool_of
        self._tasks: dict[tuple[ServiceName, str], asyncio.Task[None]] = {}

    def follow(self) -> None:
        """Check the replicas that the board has now, and no others."""
        wanted = {(name, replica) for name, place in self._board.places.items() for replica in place.replicas}
        for key in [key for key in self._tasks if key not in wanted]:
            self._tasks.pop(key).cancel()
        for key in wanted - self._tasks.keys():
            self._tasks[key] = asyncio.get_running_loop().create_task(self._check(*key))

    async def close(self) -> None:
        """Stop."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def _check(self, service: ServiceName, replica: str) -> None:
        while True:
            place = self._board.places.get(service)
            live = place.replicas.get(replica) if place is not None else None
            if place is None or live is None:
                return
            good = await self._answers(place, live)
            if good:
                was_up, live.bad = live.up, 0
                if not was_up:
                    place.look_again()
            else:
                live.bad = min(live.bad + 1, DOWN_AFTER)
            await asyncio.sleep(CHECK_S)

    async def _answers(self, place: Place, live: Live) -> bool:
        route = place.route
        pool = self._pool_of(place, live)
        with contextlib.suppress(OSError):
            async with asyncio.timeout(route.health_timeout_s):
                if route.health_path is None:
                    # A connection of its own: one that is kept says nothing about a machine that is gone.
                    (await pool.tunnel(asyncio.Protocol(), route.health_timeout_s)).abort()
                    return True
                connection = await pool.get(route.health_timeout_s)
                answer = Answer(head_only=False)
                host = f"{live.backend.address}:{live.backend.port}".encode()
                request = Request(b"GET", route.health_path.encode(), [(b"host", host)])
                token = route.secrets.token if route.traffic.guard == "token" else None
                try:
                    connection.send(request, answer, token)
                    await asyncio.shield(answer.begun)
                finally:
                    if not answer.complete:
                        connection.drop()
                return answer.failure is None and 200 <= answer.status < 400
        return False
