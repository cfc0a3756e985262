"""Faults under load, on a whole pool: killed and stopped replicas, drains, updates, no controller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from functools import partial

from bench.serving_load import Load, ask, failed
from bench.serving_pool import ServingPool, signalled, until
from corral.model.service_report import ReplicaReport, ServiceReport

RATE = 150.0
POSTS = 0.2
STREAMS = 20
KILLS = 3
LIMIT_S = 120.0
STREAMING = {"stream": True, "drain": "60s"}


async def killed(pool: ServingPool) -> dict[str, float]:
    """Kill each of three replicas in turn, then stop one: who fails, and when it gets nothing any more."""
    report = await asyncio.to_thread(pool.serve, "shop", 3, traffic={"response": "2s"})
    ejected, replaced = [], []
    async with Load(pool.target("shop"), RATE, posts=POSTS) as load:
        for victim in report.replicas[:KILLS]:
            await _answers(load, len(load.outcomes) + 300)
            name = backend_of(await asyncio.to_thread(pool.report, "shop"), victim)
            at = signalled(pool.process_of(victim), signal.SIGKILL)
            ejected.append(await asyncio.to_thread(until_down, pool, name, at))
            await asyncio.to_thread(_without, pool, victim)
            replaced.append(time.monotonic() - at)
        await _answers(load, len(load.outcomes) + 150)
    report = await asyncio.to_thread(pool.ready, "shop", 3)
    other = report.replicas[0]
    async with Load(pool.target("shop"), RATE) as stopped_load:
        await _answers(stopped_load, 150)
        pid, name = pool.process_of(other), backend_of(report, other)
        at = signalled(pid, signal.SIGSTOP)
        try:
            stopped_s = await asyncio.to_thread(until_down, pool, name, at)
            await _answers(stopped_load, len(stopped_load.outcomes) + 150)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    await asyncio.to_thread(pool.remove, "shop")
    return {
        "kill_failed_idempotent": failed(load.outcomes, "GET"),
        "kill_failed_other": failed(load.outcomes, "POST"),
        "kill_requests": len(load.outcomes),
        "kills": len(ejected),
        "eject_s_max": max(ejected),
        "replaced_s_first": replaced[0],
        "sigstop_failed_idempotent": failed(stopped_load.outcomes),
        "sigstop_eject_s": stopped_s,
    }


def _without(pool: ServingPool, victim: ReplicaReport) -> ServiceReport:
    """Return once three are ready, none of them a replica that was killed."""

    def look() -> ServiceReport | None:
        report = pool.report("shop")
        known = {one.job for one in report.replicas}
        return report if victim.job not in known and report.ready == 3 else None

    found = until(look, f"the replacement of job {victim.job}", every_s=0.05)
    assert found is not None
    return found


def backend_of(report: ServiceReport, replica: ReplicaReport) -> str:
    """Return the name that a replica has in the proxy."""
    found = next(one for one in report.replicas if one.job == replica.job)
    assert found.load is not None
    return found.load.name


def until_down(pool: ServingPool, name: str, since: float) -> float:
    """Return after how long the front end has taken a replica out, by its metrics."""

    def down() -> bool:
        told = pool.gauge("corral_service_replica_up", service="shop", replica=name)
        return told is None or told == 0.0

    until(down, f"{name} to get nothing")
    return time.monotonic() - since


async def _answers(load: Load, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(load.outcomes) < count:  # noqa: ASYNC110 - outcomes tell nobody
            await asyncio.sleep(0.02)


async def renewed(pool: ServingPool) -> dict[str, float]:
    """Scale up and down, and bring a new revision out, under load and with streams open."""
    # A new revision is watched for 2 s instead of 10: what is counted are requests and streams, not patience.
    serve = partial(pool.serve, "feed", traffic=STREAMING, rollout={"watch": "2s"})
    await asyncio.to_thread(serve, 2)
    target, path = pool.target("feed"), "/events?n=200&every=0.1"
    async with Load(target, RATE) as load:
        streams = [asyncio.create_task(ask(target, path=path)) for _ in range(STREAMS)]
        await _answers(load, 150)
        before = {one.replica for one in load.outcomes}
        await asyncio.to_thread(serve, 3)
        await _answers(load, len(load.outcomes) + 300)
        routed_s = max(_routed(load, before))
        streams += [asyncio.create_task(ask(target, path=path)) for _ in range(STREAMS)]
        await _answers(load, len(load.outcomes) + 75)
        await asyncio.to_thread(serve, 2)
        await asyncio.to_thread(partial(serve, envs={"VERSION": "2"}), 2)
        await _answers(load, len(load.outcomes) + 150)
        ended = await asyncio.gather(*streams)
    await asyncio.to_thread(pool.remove, "feed")
    return {
        "drain_cut_streams": sum(not one.good for one in ended),
        "drain_streams": len(ended),
        "update_failed": failed(load.outcomes),
        "update_requests": len(load.outcomes),
        "scale_routed_s": routed_s,
    }


def _routed(load: Load, before: set[str]) -> list[float]:
    """Return how long after each new replica was well it had its first request."""
    wall = time.time() - time.monotonic()
    first: dict[str, float] = {}
    for one in sorted(load.outcomes, key=lambda one: one.at):
        if one.good and one.replica not in before:
            first.setdefault(one.replica, one.at + wall - one.ready_at)
    return list(first.values()) or [float("inf")]


async def leaderless(pool: ServingPool, seconds: float) -> dict[str, float]:
    """Have no controller for a while: whoever calls a service does not notice, and a bad replica still goes."""
    report = await asyncio.to_thread(pool.serve, "shop", 3)
    victim = report.replicas[-1]
    name = backend_of(report, victim)
    supervisor = pool.supervisor()
    async with Load(pool.target("shop"), RATE) as load:
        await _answers(load, 150)
        # Stopped first, or it would start another controller at once.
        os.kill(supervisor, signal.SIGSTOP)
        try:
            os.kill(pool.daemon(), signal.SIGKILL)
            await asyncio.sleep(seconds / 2)
            at = signalled(pool.process_of(victim), signal.SIGKILL)
            ejected_s = await asyncio.to_thread(until_down, pool, name, at)
            await asyncio.sleep(seconds / 2)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        await _answers(load, len(load.outcomes) + 150)
    await asyncio.to_thread(pool.ready, "shop", 3)
    await asyncio.to_thread(pool.remove, "shop")
    return {
        "leaderless_failed": failed(load.outcomes),
        "leaderless_requests": len(load.outcomes),
        "leaderless_s": seconds,
        "leaderless_eject_s": ejected_s,
    }
