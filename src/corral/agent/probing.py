"""Asking the replicas of a node what their probes say, each question again and again in a task of its own.

Nothing that a replica does holds the agent up: all is bounded in time, and commands run in threads aside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from corral.agent import replicadir, taskdir
from corral.agent.asking import Door, connect, get, trusting
from corral.agent.inputs import Input, Probed, Question
from corral.agent.outputs import Ask, Hush
from corral.agent.probecommand import Place, ProbeCommand
from corral.agent.shim import record
from corral.agent.threads import in_thread
from corral.model.errors import StateUnusable
from corral.model.service import Guard, Probe, ProbeKind

_log = logging.getLogger(__name__)

FIRST_S = 0.1
HASTE = 0.02
"""A replica that begins is asked again after this part of the time that it has taken, and ``FIRST_S`` at least.

So it is known to have started after hardly more time than it took. Commands cost more, and keep to their period.
"""

PERIOD_MIN_S = 0.05
LATE_S = 0.5
"""An answer that is so much later than it can be was slept through, by this agent: it says nothing of the replica."""

EXEC_PATIENCE_S = 2.0
"""A command has so long beside its time to begin to run."""


class _Target(msgspec.Struct):
    """A replica as it is asked. ``command`` is the last one that was run."""

    directory: str
    door: Door
    place: Place
    command: ProbeCommand | None = None


class Prober:
    """Asks, and tells the answers. Belongs to one event loop."""

    def __init__(self, address: str, tasks_dir: Path, tell: Callable[[Input], None]) -> None:
        """``address`` is that under which front ends reach the replicas of this node."""
        self._address = address
        self._tasks_dir = tasks_dir
        self._tell = tell
        self._asking: dict[tuple[str, Question], asyncio.Task[None]] = {}

    def ask(self, order: Ask) -> None:
        """Begin to ask a question."""
        key = (taskdir.marker(order.task, order.incarnation), order.question)
        self._hush(key)
        self._asking[key] = asyncio.get_running_loop().create_task(self._ask_on(order))

    def hush(self, order: Hush) -> None:
        """Stop asking a question, or all that a replica is asked."""
        marker = taskdir.marker(order.task, order.incarnation)
        for question in Question if order.question is None else (order.question,):
            self._hush((marker, question))

    async def stop(self) -> None:
        """Stop asking."""
        asking = list(self._asking.values())
        for key in list(self._asking):
            self._hush(key)
        await asyncio.gather(*asking, return_exceptions=True)

    def _hush(self, key: tuple[str, Question]) -> None:
        task = self._asking.pop(key, None)
        if task is not None:
            task.cancel()

    async def _ask_on(self, order: Ask) -> None:
        loop = asyncio.get_running_loop()
        directory = str(self._tasks_dir / taskdir.marker(order.task, order.incarnation))
        period_s = max(order.probe.period_s, PERIOD_MIN_S)
        hasty = order.hasty and order.probe.kind is not ProbeKind.COMMAND
        since = loop.time()
        target: _Target | None = None
        while True:
            began = loop.time()
            try:
                target = target or _target(directory, self._address)
                fault = await _answer(target, order.probe)
            except (OSError, StateUnusable, msgspec.MsgspecError) as error:
                fault = f"it cannot be asked: {error}"
            if fault is None or loop.time() - began <= _longest_s(order.probe):
                self._tell(Probed(order.task, order.incarnation, order.question, fault))
            pause_s = min(period_s, max(FIRST_S, HASTE * (began - since))) if hasty else period_s
            await asyncio.sleep(max(0.0, began + pause_s - loop.time()))


def _target(directory: str, address: str) -> _Target:
    """Return how to ask the replica with a directory. Raises ``OSError``, ``StateUnusable``, ``MsgspecError``."""
    file = replicadir.read(directory)
    if file is None:
        raise StateUnusable(f"{directory} is not that of a replica")
    place = msgspec.json.decode(Path(directory, record.SPEC).read_bytes(), type=Place)
    tls = trusting(f"{directory}/{replicadir.TLS}") if file.serving.guard is Guard.MTLS else None
    token = place.env.get(replicadir.TOKEN_NAME, "")
    return _Target(directory, Door(address, file.port, token, tls), place)


async def _answer(target: _Target, probe: Probe) -> str | None:
    """Ask once; return what was not good, ``None`` for nothing."""
    match probe.kind:
        case ProbeKind.TCP:
            return await connect(target.door, probe.timeout_s)
        case ProbeKind.HTTP:
            return await get(target.door, probe.path, probe.timeout_s)
        case ProbeKind.COMMAND:
            return await _run(target, probe)


def _longest_s(probe: Probe) -> float:
    """Return how long it takes at most to learn that an answer is bad, in an agent that runs."""
    begins_s = EXEC_PATIENCE_S if probe.kind is ProbeKind.COMMAND else 0.0
    return probe.timeout_s + begins_s + LATE_S


async def _run(target: _Target, probe: Probe) -> str | None:
    if target.command is not None and not target.command.over:
        return f"{probe.argv[0] if probe.argv else ''}: the command before still hangs"
    command = target.command = ProbeCommand(probe.argv, target.place, target.directory, probe.timeout_s)
    try:
        async with asyncio.timeout(probe.timeout_s + EXEC_PATIENCE_S):
            return await in_thread(command.run)
    except TimeoutError:
        return f"{probe.argv[0]}: it could not even be started within {probe.timeout_s:g} s"
    finally:
        command.kill()
