"""What an agent asks the replicas on its virtual machine, and when they answer.

A replica answers well once its program has run for a while, and not at all while it makes no progress.
"""

from __future__ import annotations

from collections.abc import Callable

from corral.agent.inputs import Probed, Question
from corral.agent.outputs import Ask, Hush
from corral.model.ids import TaskKey
from corral.sim.storm.course import Course
from corral.sim.storm.gate import Gate
from corral.sim.storm.run import Run

STARTS_UP_S = (0.2, 4.0)


class Questions:
    """The questions of one life of an agent: they end with it."""

    def __init__(
        self, course: Course, gate: Gate, run_of: Callable[[TaskKey, int], Run | None], tell: Callable[[Probed], None]
    ) -> None:
        self._course = course
        self._gate = gate
        self._run_of = run_of
        self._tell = tell
        self._asked: dict[tuple[TaskKey, int, Question], Ask] = {}

    def take(self, order: Ask | Hush) -> None:
        """Begin to ask a question, or stop asking it."""
        if isinstance(order, Hush):
            self._hush(order)
            return
        self._asked[order.task, order.incarnation, order.question] = order
        first_s = self._course.chance.uniform(*STARTS_UP_S) if order.question is Question.STARTUP else 0.0
        self._again(order, first_s)

    def _hush(self, order: Hush) -> None:
        for question in Question if order.question is None else (order.question,):
            self._asked.pop((order.task, order.incarnation, question), None)

    def _again(self, order: Ask, wait_s: float) -> None:
        self._course.after(wait_s, lambda: self._gate.let(lambda: self._answer(order)))

    def _answer(self, order: Ask) -> None:
        if self._asked.get((order.task, order.incarnation, order.question)) is not order:
            return
        run = self._run_of(order.task, order.incarnation)
        self._tell(
            Probed(order.task, order.incarnation, order.question, None if run and run.going else "it does not answer")
        )
        self._again(order, order.probe.period_s)
