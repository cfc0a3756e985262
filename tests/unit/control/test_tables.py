"""Waiting for a routing table."""

from __future__ import annotations

import asyncio

from corral.control.tables import Tables
from corral.model.routes import RoutingTable


def test_the_newest_table_is_had_at_once_by_whoever_has_another_one() -> None:
    async def course() -> None:
        tables = Tables()
        tables.publish(RoutingTable(1, "a"))
        assert await tables.after(None, 60.0) == RoutingTable(1, "a")
        assert await tables.after("before", 60.0) == RoutingTable(1, "a")

    asyncio.run(course())


def test_who_has_the_newest_one_waits_for_the_next() -> None:
    async def course() -> None:
        tables = Tables()
        tables.publish(RoutingTable(1, "a"))
        waiting = [asyncio.create_task(tables.after("a", 60.0)) for _ in range(2)]
        await asyncio.sleep(0)
        tables.publish(None)
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        tables.publish(RoutingTable(1, "b"))
        assert await asyncio.gather(*waiting) == [RoutingTable(1, "b")] * 2

    asyncio.run(course())


def test_time_runs_out_with_the_table_as_it_is() -> None:
    async def course() -> None:
        tables = Tables()
        assert await tables.after(None, 0.0) is None
        assert await tables.after(None, 0.01) is None
        tables.publish(RoutingTable(1, "a"))
        assert await tables.after("a", 0.01) == RoutingTable(1, "a")

    asyncio.run(course())
