"""An agent's core with a clock that the test moves, and what it says on being told something."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from corral.agent.core import AgentCore
from corral.agent.inputs import Commanded, Connected, Input, KnownTask
from corral.agent.outputs import Output, Say
from corral.appmaster.core import AppMasterCore
from corral.model.messages import ControllerSays, TaskReport, TaskReported
from tests.unit.agent.words import identity

T = TypeVar("T")


class Agent:
    """A core with a clock that the test moves."""

    def __init__(self, known: Iterable[KnownTask] = (), epoch: int = 0) -> None:
        self.core = AgentCore(identity(), AppMasterCore, known, epoch)
        self.now = 100.0
        self.boottime_s = 50.0

    def tell(self, given: Input) -> list[Output]:
        return self.core.handle(self.now, self.boottime_s, given)

    def command(self, command: ControllerSays) -> list[Output]:
        return self.tell(Commanded(command))


def of_type(outputs: list[Output], kind: type[T]) -> list[T]:
    return [output for output in outputs if isinstance(output, kind)]


def reports(outputs: list[Output]) -> list[TaskReport]:
    return [said.message.report for said in of_type(outputs, Say) if isinstance(said.message, TaskReported)]


def connected(**changes: Any) -> Agent:
    agent = Agent(**changes)
    agent.tell(Connected())
    return agent
