"""The policies by name."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from corral.model.errors import InvalidField
from corral.policy.config import SchedulingConfig
from corral.ports.solver import Solver
from corral.sim.information import Information
from corral.sim.policies.gavel import Rounds
from corral.sim.policies.orders import Preemptive, attained_service, remaining_time
from corral.sim.policies.queues import Drf, Easy, Fifo
from corral.sim.policies.shares import Arrivals, FinishTimeFairness, MaxMin
from corral.sim.runs import Truth


class Rhythm(StrEnum):
    """When a policy decides: as production does, at every change, or only at multiples of the time between rounds."""

    PRODUCTION = "production"
    EVENTS = "events"
    ROUNDS = "rounds"


class Setting(msgspec.Struct, frozen=True):
    """What the solver of a policy is made from. Only oracles look at ``truth``."""

    truth: Truth
    config: SchedulingConfig
    information: Information


class Policy(msgspec.Struct, frozen=True):
    """A policy. ``make`` builds its solver, ``None`` for one without global rounds.

    An ``oracle`` knows the true durations whatever the jobs tell. ``durations`` says that it needs them, declared or
    true.
    """

    name: str
    words: str
    rhythm: Rhythm
    make: Callable[[Setting], Solver | None]
    oracle: bool = False
    durations: bool = False

    def lacks(self, asked: Information) -> InvalidField | None:
        """Return why it cannot run at a level of information, ``None`` when it can."""
        if self.oracle or not self.durations or asked in (Information.DECLARED, Information.ORACLE):
            return None
        return InvalidField(f"{self.name} needs durations", field="--information", hint="use declared or oracle")

    def level(self, asked: Information) -> Information:
        """Return the level of information under which it runs. Raises ``InvalidField`` where it cannot."""
        lacking = self.lacks(asked)
        if lacking is not None:
            raise lacking
        return Information.ORACLE if self.oracle else asked


def _production(setting: Setting) -> Solver:
    from corral.policy.market.solve import RoundSolver

    return RoundSolver(setting.config)


def _easy(setting: Setting) -> Solver:
    return Easy(setting.config, setting.truth if setting.information is Information.ORACLE else None)


_ALL = (
    Policy("corral", "the production scheduler: fill and global rounds", Rhythm.PRODUCTION, _production),
    Policy(
        "fill", "the production fill alone: fairness, order of arrival, backfill", Rhythm.PRODUCTION, lambda _: None
    ),
    Policy("fifo", "strictly first in, first out", Rhythm.EVENTS, lambda setting: Fifo(setting.config)),
    Policy("easy", "FIFO with EASY backfilling", Rhythm.EVENTS, _easy, durations=True),
    Policy("drf", "dominant resource fairness between tenants", Rhythm.EVENTS, lambda setting: Drf(setting.config)),
    Policy(
        "las",
        "least attained service first, preemptive",
        Rhythm.ROUNDS,
        lambda setting: Preemptive(setting.config, attained_service),
    ),
    Policy(
        "srtf-oracle",
        "shortest true remaining time first, preemptive",
        Rhythm.ROUNDS,
        lambda setting: Preemptive(setting.config, remaining_time(setting.truth)),
        oracle=True,
    ),
    Policy(
        "fifo-gavel",
        "first in first out as Gavel's simulator does it",
        Rhythm.ROUNDS,
        lambda setting: Rounds(setting.config, Arrivals()),
    ),
    Policy(
        "max-min",
        "Gavel's max-min fairness of time",
        Rhythm.ROUNDS,
        lambda setting: Rounds(setting.config, MaxMin(heterogeneous=False)),
    ),
    Policy(
        "max-min-perf",
        "Gavel's max-min fairness of throughput, aware of device models",
        Rhythm.ROUNDS,
        lambda setting: Rounds(setting.config, MaxMin(heterogeneous=True)),
    ),
    Policy(
        "finish-time-fairness",
        "Gavel's finish-time fairness (the objective of Themis), aware of device models",
        Rhythm.ROUNDS,
        lambda setting: Rounds(setting.config, FinishTimeFairness()),
        durations=True,
    ),
)

POLICIES: dict[str, Policy] = {policy.name: policy for policy in _ALL}


def policy_named(name: str) -> Policy:
    """Return a policy. Raises ``InvalidField`` for an unknown name."""
    policy = POLICIES.get(name)
    if policy is None:
        raise InvalidField(f"there is no policy {name!r}", field="--policy", hint=f"known: {', '.join(POLICIES)}")
    return policy
