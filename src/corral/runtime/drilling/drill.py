"""A drill from its beginning to its figures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from corral.client import Client
from corral.model.errors import Conflict, Unavailable
from corral.model.service_report import ServiceReport
from corral.model.tenant import Role
from corral.runtime.drilling.faults import Fault, find_fault
from corral.runtime.drilling.load import Answer, Load, Target
from corral.runtime.drilling.watching import Watch
from corral.runtime.fronting.frontfile import FrontFile, load_front
from corral.runtime.paths import StatePaths

LIVE_S = 2.5
"""Front ends report each second: by then their counters have moved where there is traffic."""

LOOK_S = 0.05
KEY_KNOWN_S = 10.0


class DrillOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: ``kind`` of :data:`faults.KINDS`, ``rate`` in requests a second, the whole in ``seconds``."""

    state_dir: Path
    service: str
    kind: str
    rate: float
    seconds: float
    path: str = "/"
    sure: bool = False


class DrillFound(msgspec.Struct, frozen=True, kw_only=True):
    """The figures; times in seconds. ``None``: did not happen, or cannot be seen from here.

    ``recovered_s`` is from the fault until all was as before: the replicas ready, the front end or the controller back.
    """

    service: str
    broken: str
    requests: int
    failed: int
    retried: int | None
    slowest_s: float
    ejected_s: float | None
    recovered_s: float | None
    failed_s: float | None


def drill(
    options: DrillOptions, client: Client, connect: Callable[[], Client], say: Callable[[str], None]
) -> DrillFound:
    """Load a service, break something a third of the way, and tell what callers would have seen.

    ``connect`` makes clients that do not wait for a controller that is away. Raises ``NotFound``, ``Forbidden``,
    ``FaultElsewhere``, ``Conflict`` (nothing is ready, or it has live traffic and nobody is sure), ``Unavailable`` (no
    front end serves it).
    """
    paths = StatePaths(options.state_dir.absolute())
    before = client.service(options.service)
    if not before.ready or before.load is None:
        raise Conflict(f"service {before.name} has no replica that is ready: there is nothing to drill")
    fault = find_fault(options.kind, client, paths, before)
    if not options.sure:
        _refuse_live(client, before, fault)
    front = load_front(paths.front)
    with _key(client, before) as key:
        target = _target(client, before, front, options.path, key)
        _until_known(target)
        say(f"{options.rate:g} requests a second to {target.url}; in {options.seconds / 3:g} s {fault.what} is killed")
        watch = Watch(connect, before, fault, front)
        answers, at = asyncio.run(_loaded(target, options, fault, watch, say))
    return _figures(before, fault, answers, at, watch)


def _refuse_live(client: Client, before: ServiceReport, fault: Fault) -> None:
    if fault.others:
        jobs = ", ".join(fault.others[:8])
        raise Conflict(f"{fault.what} runs other jobs, too: {jobs}", hint="--yes kills them with it")
    time.sleep(LIVE_S)
    after = client.service(before.name)
    was, now = before.load, after.load
    if was is not None and now is not None and (now.outstanding or now.requests > was.requests):
        raise Conflict(f"service {before.name} is being called by others", hint="--yes breaks it all the same")


@contextmanager
def _key(client: Client, report: ServiceReport) -> Iterator[str]:
    """Give an API key for the time of the drill, if the service asks for one."""
    if not report.revisions[-1].spec.traffic.keys:
        yield ""
        return
    token, secret = client.issue_token(report.tenant, Role.CALLER, f"drill of {report.name}")
    try:
        yield secret
    finally:
        client.revoke_token(token.id)


def _target(client: Client, report: ServiceReport, front: FrontFile | None, path: str, key: str) -> Target:
    """Return where the load goes: the front end of this machine, else the first that reports."""
    if front is not None:
        return Target(front.url, report.name, path, key, front.tls_cert or "")
    known = [one.address for one in client.front_ends() if not one.problem]
    if not known:
        raise Unavailable("no front end reports to the pool", hint="corral frontend lists them")
    return Target(known[0], report.name, path, key)


def _until_known(target: Target) -> None:
    """Wait until the front end answers this load well: a new key takes a moment."""
    deadline = time.monotonic() + KEY_KNOWN_S
    while True:
        answer = asyncio.run(_once(target))
        if answer.good and answer.status not in (401, 403):
            return
        if time.monotonic() > deadline:
            raise Unavailable(
                f"{target.url} answers {target.path} of {target.service} with {answer.status or 'nothing'}",
                hint="a drill begins with a service that answers; --path names what it answers to",
            )
        time.sleep(LOOK_S)


async def _once(target: Target) -> Answer:
    load = Load(target, 1.0)
    async with load:
        await asyncio.sleep(0)
    return load.answers[0]


async def _loaded(
    target: Target, options: DrillOptions, fault: Fault, watch: Watch, say: Callable[[str], None]
) -> tuple[Sequence[Answer], float]:
    load = Load(target, options.rate)
    async with load:
        await asyncio.sleep(options.seconds / 3)
        at = time.monotonic()
        await asyncio.to_thread(fault.make)
        say(f"killed {fault.what}")
        watch.start()
        await asyncio.sleep(max(0.0, at + options.seconds * 2 / 3 - time.monotonic()))
    await asyncio.to_thread(watch.end)
    return load.answers, at


def _figures(before: ServiceReport, fault: Fault, answers: Sequence[Answer], at: float, watch: Watch) -> DrillFound:
    bad = [one for one in answers if not one.good]
    return DrillFound(
        service=before.name,
        broken=fault.what,
        requests=len(answers),
        failed=len(bad),
        retried=watch.retries,
        slowest_s=max((one.seconds for one in answers), default=0.0),
        ejected_s=None if watch.ejected_at is None else watch.ejected_at - at,
        recovered_s=None if watch.recovered_at is None else watch.recovered_at - at,
        failed_s=max((one.at + one.seconds - at for one in bad), default=None),
    )
