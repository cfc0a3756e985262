from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from corral.runtime.drilling.load import Answer, Load, Target
from tests.waiting import wait_until_async

Said = list[bytes]


def answered(said: bytes, *, path: str = "/x", key: str = "") -> tuple[list[Answer], Said]:
    """Return what a load makes of a server that says this and closes, and what it was asked."""
    heads: Said = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(said)
        writer.close()

    async def scene(port: int) -> list[Answer]:
        load = Load(Target(f"http://127.0.0.1:{port}", "shop", path, key), 50.0)
        async with load:
            await wait_until_async(lambda: len(load.answers) >= 3, what="three answers")
        return load.answers

    return asyncio.run(with_server(serve, scene)), heads


async def with_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    scene: Callable[[int], Awaitable[list[Answer]]],
) -> list[Answer]:
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        return await scene(server.sockets[0].getsockname()[1])


@pytest.mark.parametrize(
    "said, status, good",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 200, True),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", 200, True),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 404, True),
        (b"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n", 429, False),
        (b"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n", 503, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", 0, False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", 0, False),
        (b"what?\r\n\r\n", 0, False),
        (b"", 0, False),
    ],
)
def test_an_answer_is_good_when_it_is_whole_and_no_failure(said: bytes, status: int, good: bool) -> None:
    answers, _ = answered(said)
    assert {(one.status, one.good) for one in answers} == {(status, good)}


def test_the_service_is_asked_by_its_name_with_the_key() -> None:
    _, heads = answered(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", path="/health", key="k1")
    assert set(heads) == {
        (
            b"GET /health HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nUser-Agent: corral-drill\r\n"
            b"Authorization: Bearer k1\r\n\r\n"
        )
    }


def test_requests_do_not_wait_for_each_other() -> None:
    there: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there.append(1)
        await wait_until_async(lambda: len(there) >= 5, what="five at a time")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        del reader

    async def scene(port: int) -> list[Answer]:
        load = Load(Target(f"http://127.0.0.1:{port}", "shop"), 200.0)
        async with load:
            await wait_until_async(lambda: len(load.answers) >= 5, what="five answers")
        return load.answers

    assert all(one.good for one in asyncio.run(with_server(serve, scene)))
