"""What people ask of the pool: jobs, cancellations, cordons. Each asks again until there is an answer."""

from __future__ import annotations

from collections.abc import Callable

from corral.control.core import Answer, Input
from corral.control.inputs import Administer, Cancel, Submit
from corral.model.ask import JobAsk
from corral.model.errors import CorralError, Refusal
from corral.model.events import MaintenanceEnded, MaintenanceStarted, NodeCordoned, NodeUncordoned, TenantSet
from corral.model.ids import JobId, NodeId, TenantId
from corral.model.job import CheckpointSpec, Fencing
from corral.model.tenant import Quota, Tenant
from corral.sim.storm.controller import Head
from corral.sim.storm.course import Course
from corral.sim.storm.network import Network
from corral.sim.storm.run import Work

ANSWER_S = 4.0
AGAIN_S = (0.2, 1.5)
TENANTS = (
    Tenant(TenantId("left"), weight=1.0, limit=Quota(gpu_milli=4_000)),
    Tenant(TenantId("right"), weight=2.0, guaranteed=Quota(gpu_milli=2_000)),
)
SHAPES: tuple[dict[str, object], ...] = (
    {"gpu_milli": 1000},
    {"gpu_milli": 1000},
    {"gpu_milli": 500},
    {"gpu_milli": 0, "cpus_milli": 30_000},
    {"gpu_milli": 1000, "num_nodes": 2},
    {"gpu_milli": 1000, "num_nodes": 3},
    {"gpu_milli": 2000, "num_nodes": 2},
    {"gpu_milli": 300, "indices": (0, 1, 2)},
    {"gpu_milli": 1000, "num_nodes": 2, "indices": (0, 1)},
    {"gpu_milli": 1000, "num_nodes": 3, "node_counts": (3, 2, 1)},
    {"gpu_milli": 2000, "gpu_counts": (2, 1)},
    {"gpu_milli": 1000, "priority": 7},
    {"gpu_milli": 1000, "checkpoint": CheckpointSpec(grace_s=1.0)},
)
"""Sizes of jobs."""


class People:
    """All clients. ``admitted`` are the jobs that were acknowledged, ``cancelled`` those whose end was.

    ``patient`` people submit long jobs in the beginning and leave them alone; ``small`` ones submit what fits anywhere,
    all of it exclusive.
    """

    def __init__(self, course: Course, network: Network, heads: list[Head], nodes: list[str]) -> None:
        self.admitted: dict[JobId, JobAsk] = {}
        self.cancelled: set[JobId] = set()
        self.faults: list[str] = []
        self.open = 0
        self.patient = course.chance.random() < 0.4
        self.small = False
        self._course = course
        self._network = network
        self._heads = heads
        self._nodes = nodes
        self._cordoned: set[str] = set()
        self._asked = 0

    # ---- asking ----------------------------------------------------------------------------------------------------

    def ask(self, make: Callable[[Head], Input], answered: Callable[[Answer], None]) -> None:
        """Ask until there is an answer that is not an error."""
        self.open += 1
        self._try(make, answered, self._course.chance.choice(self._heads))

    def _try(self, make: Callable[[Head], Input], answered: Callable[[Answer], None], head: Head) -> None:
        done = [False]

        def reply(answer: Answer | CorralError) -> None:
            self._course.after(self._network.delay_s(), lambda: arrive(answer))

        def arrive(answer: Answer | CorralError) -> None:
            if done[0]:
                return
            done[0] = True
            if isinstance(answer, CorralError):
                if not answer.retryable:
                    self.faults.append(f"{head.name} answered {answer.code}: {answer}")
                again()
            else:
                self.open -= 1
                answered(answer)

        def give_up() -> None:
            if not done[0]:
                done[0] = True
                again()

        def again() -> None:
            other = self._course.chance.choice(self._heads)
            self._course.after(self._course.chance.uniform(*AGAIN_S), lambda: self._try(make, answered, other))

        self._course.after(self._network.delay_s(), lambda: head.ask(make(head), reply))
        self._course.after(ANSWER_S, give_up)

    # ---- what they want --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the tenants."""
        for tenant in TENANTS:
            act = Administer(TenantSet(at=0.0, tenant=tenant, by="admin"), create=True)
            self.ask(lambda _, act=act: act, lambda _: None)  # type: ignore[misc]

    def submit(self) -> None:
        """Submit a job of some size; the answer to the same key is always the same job."""
        chance = self._course.chance
        self._asked += 1
        key = f"key-{self._asked}"
        loose = chance.random() < 0.25 and not self.small
        longest_s = 150.0 if self.small else 120.0
        seconds = (
            chance.uniform(longest_s / 4, longest_s)
            if self.patient
            else chance.uniform(0.5, chance.choice((5.0, 25.0, 60.0)))
        )
        ask = JobAsk(
            argv=Work.argv(
                seconds,
                chance.choice((0, 0, 0, 1)),
                stubborn=chance.random() < 0.2,
            ),
            tenant=chance.choice(("left", "right", None)),
            fencing=Fencing.NONE if loose else Fencing.EXCLUSIVE,
            lease_s=chance.choice((12.0, 30.0) if self.small else (12.0, 12.0, 20.0, 30.0, 45.0)),
            grace_s=chance.choice((0.5, 3.0)),
            max_restarts=chance.choice((0, 1, 3)),
            **chance.choice(SHAPES[:2] if self.small else SHAPES),  # type: ignore[arg-type]
        )

        def answered(answer: Answer) -> None:
            if isinstance(answer, Refusal):
                self._course.note("people", f"are refused: {answer.line()}")
                if answer.code not in {"NOT_FOUND", "UNAVAILABLE"}:
                    self.faults.append(f"a job was refused: {answer.line()}")
            elif isinstance(answer, tuple):
                self._course.note("people", f"have job {answer[0]} {ask.fencing} of {ask.num_nodes}x{ask.gpu_milli}")
                if answer[0] in self.admitted:
                    self.faults.append(f"job {answer[0]} answers to two keys")
                self.admitted[answer[0]] = ask
                if chance.random() < 0.2:
                    self._course.after(0.1, lambda: self._submitted_again(key, ask, answer))
                if chance.random() < 0.15 and not self.patient:
                    self._course.after(chance.uniform(0.0, 20.0), lambda: self.cancel(answer[0]))

        self.ask(lambda _: Submit((ask,), key, key), answered)

    def _submitted_again(self, key: str, ask: JobAsk, first: tuple[JobId, ...]) -> None:
        def answered(answer: Answer) -> None:
            if answer != first:
                self.faults.append(f"{key} was job {first} and is {answer} now")

        self.ask(lambda _: Submit((ask,), key, key), answered)

    def cancel(self, job: JobId) -> None:
        """Cancel a job; that it is over already is an answer too."""

        def answered(answer: Answer) -> None:
            if not isinstance(answer, Refusal):
                self._course.note("people", f"have job {job} cancelled")
                self.cancelled.add(job)

        self.ask(lambda _: Cancel(job, "people"), answered)

    def cordon(self) -> None:
        """Cordon a node, every other time to empty it, or undo it."""
        name = self._course.chance.choice(self._nodes)
        if name in self._cordoned:
            self._uncordon(name)
            return
        self._cordoned.add(name)
        fact = NodeCordoned(at=0.0, node=NodeId(name), by="admin", drain=len(self._cordoned) % 2 == 0)
        self.ask(lambda _: Administer(fact), lambda _: None)

    def plan_outage(self) -> None:
        """Plan an outage of the controller for a while, on its own clock, or call the one that is planned off."""
        chance = self._course.chance
        lasts_s = chance.uniform(10.0, 60.0) if chance.random() < 0.7 else None

        def make(head: Head) -> Input:
            at = head.shell.clock.now() if head.shell is not None else 0.0
            if lasts_s is None:
                return Administer(MaintenanceEnded(at=at, by="admin"))
            return Administer(MaintenanceStarted(at=at, until=at + lasts_s, by="admin"))

        self.ask(make, lambda _: None)

    def _uncordon(self, name: str) -> None:
        self._cordoned.discard(name)
        fact = NodeUncordoned(at=0.0, node=NodeId(name), by="admin")
        self.ask(lambda _: Administer(fact), lambda _: None)

    def uncordon_all(self) -> None:
        """Undo all cordons; what was asked before may arrive later, so all nodes are named."""
        for name in self._nodes:
            self._uncordon(name)
