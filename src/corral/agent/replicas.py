"""What the answers to probes say of the replicas on a node: started up, ready, alive.

A replica is first asked whether it has started up; readiness and liveness are asked after that, so that minutes of
loading trip neither. Without a probe of its own for it, the first good answer to readiness says so.
"""

from __future__ import annotations

import msgspec

from corral.agent.inputs import KnownTask, Probed, Question
from corral.agent.outputs import Ask, Hush, MarkStartedUp, Output
from corral.model.ids import TaskKey
from corral.model.messages import Readiness, TaskPhase
from corral.model.service import Probe, Probes

NOT_ASKED = "it has not answered yet"


class Reaction(msgspec.Struct):
    """What follows from an answer: ``turned`` when readiness changed, ``unhealthy`` why the replica has to end."""

    outputs: list[Output] = []
    turned: bool = False
    unhealthy: str | None = None


class _Replica(msgspec.Struct):
    """One replica. ``until_s``: when it must have started up (CLOCK_BOOTTIME), ``heard_s``: when it was heard last.

    ``ready`` is ``None`` while nobody knows: the agent was started anew. ``row`` counts equal answers in a row, good
    ones above 0, bad ones below.
    """

    probes: Probes
    until_s: float
    since: float
    heard_s: float
    started_up: bool
    ready: bool | None
    message: str = NOT_ASKED
    unhealthy: bool = False
    row: dict[Question, int] = {}

    @property
    def startup(self) -> Probe:
        """Return the probe that says whether it has started up."""
        return self.probes.startup or self.probes.readiness


class Replicas:
    """The replicas whose programs run. Times: seconds since the epoch (``now``) and of CLOCK_BOOTTIME."""

    def __init__(self) -> None:
        self._replicas: dict[tuple[TaskKey, int], _Replica] = {}

    def begin(
        self, key: tuple[TaskKey, int], probes: Probes, now: float, began_s: float, *, started_up: bool = False
    ) -> list[Output]:
        """Begin to ask a replica whose program runs since ``began_s`` (CLOCK_BOOTTIME)."""
        ready = None if started_up else False
        until_s = began_s + probes.startup_within_s
        replica = self._replicas[key] = _Replica(probes, until_s, now, began_s, started_up, ready, row={})
        if started_up:
            return self._ask(key, replica)
        return [Ask(*key, Question.STARTUP, replica.startup, hasty=True)]

    def adopt(self, task: KnownTask) -> list[Output]:
        """Begin to ask a task that an earlier run of the agent left, if it is a replica whose program runs."""
        if task.serving is None or task.phase is not TaskPhase.RUNNING or task.began_boottime_s is None:
            return []
        return self.begin(
            (task.task, task.incarnation),
            task.serving.probes,
            task.started_at or 0.0,
            task.began_boottime_s,
            started_up=task.started_up,
        )

    @staticmethod
    def _ask(key: tuple[TaskKey, int], replica: _Replica) -> list[Output]:
        asks: list[Output] = [Ask(*key, Question.READINESS, replica.probes.readiness)]
        if replica.probes.liveness is not None:
            asks.append(Ask(*key, Question.LIVENESS, replica.probes.liveness))
        return asks

    def end(self, key: tuple[TaskKey, int]) -> list[Output]:
        """Stop asking a replica that ends or has ended."""
        return [Hush(*key)] if self._replicas.pop(key, None) is not None else []

    def readiness(self) -> tuple[Readiness, ...]:
        """Return what is known of all of them."""
        return tuple(
            Readiness(task, incarnation, replica.ready, replica.since, "" if replica.ready else replica.message)
            for (task, incarnation), replica in self._replicas.items()
            if replica.ready is not None
        )

    def answered(self, given: Probed, now: float, boottime_s: float, *, frozen: bool) -> Reaction:
        """Take an answer in. Those of a ``frozen`` replica count for nothing, and its time to start up stands still."""
        key = (given.task, given.incarnation)
        replica = self._replicas.get(key)
        if replica is None or replica.unhealthy:
            return Reaction([])
        passed_s, replica.heard_s = boottime_s - replica.heard_s, boottime_s
        if frozen:
            replica.until_s += passed_s
            replica.row.clear()
            return Reaction([])
        before = replica.row.get(given.question, 0)
        row = replica.row[given.question] = max(before, 0) + 1 if given.fault is None else min(before, 0) - 1
        match given.question:
            case Question.STARTUP:
                return self._on_startup(key, replica, row, given.fault, now, boottime_s)
            case Question.READINESS:
                return self._on_readiness(replica, row, given.fault, now)
            case Question.LIVENESS:
                probe = replica.probes.liveness
                if probe is None or given.fault is None or -row < probe.failures:
                    return Reaction([])
                times = f" ({-row} times in a row)" if row < -1 else ""
                return self._condemn(key, replica, now, f"not alive: {given.fault}{times}")

    def _on_startup(
        self,
        key: tuple[TaskKey, int],
        replica: _Replica,
        row: int,
        fault: str | None,
        now: float,
        boottime_s: float,
    ) -> Reaction:
        if fault is not None:
            replica.message = f"not started up: {fault}"
            if boottime_s >= replica.until_s:
                within_s = replica.probes.startup_within_s
                return self._condemn(key, replica, now, f"it did not start up within {within_s:g} s: {fault}")
        if replica.started_up or row < replica.startup.successes:
            return Reaction([])
        replica.started_up = True
        own = replica.probes.startup is not None
        outputs = [Hush(*key, Question.STARTUP), MarkStartedUp(*key), *self._ask(key, replica)]
        if own:
            replica.message = NOT_ASKED
            return Reaction(outputs)
        replica.ready, replica.since = True, now
        return Reaction(outputs, turned=True)

    @staticmethod
    def _on_readiness(replica: _Replica, row: int, fault: str | None, now: float) -> Reaction:
        probe = replica.probes.readiness
        if fault is not None:
            replica.message = fault
        if row >= probe.successes:
            ready = True
        elif -row >= probe.failures:
            ready = False
        else:
            return Reaction([])
        if ready == replica.ready:
            return Reaction([])
        replica.ready, replica.since = ready, now
        return Reaction([], turned=True)

    @staticmethod
    def _condemn(key: tuple[TaskKey, int], replica: _Replica, now: float, why: str) -> Reaction:
        """Let a replica end for its health: until it has, it is known not to be ready."""
        turned = replica.ready is not False
        if turned:
            replica.ready, replica.since = False, now
        replica.unhealthy, replica.message = True, why
        return Reaction([Hush(*key)], turned=turned, unhealthy=why)
