"""What answers to probes mean. Times are worked out by hand: a replica begins at boot time 50 and has 600 s."""

from __future__ import annotations

from corral.agent.inputs import KnownTask, Probed, Question
from corral.agent.outputs import Ask, Hush, MarkStartedUp
from corral.agent.replicas import NOT_ASKED, Reaction, Replicas
from corral.model.ids import ServiceName
from corral.model.messages import Readiness, TaskPhase
from corral.model.service import Guard, Probe, ProbeKind, Probes, ServingTask
from tests.unit.agent.words import key

KEY = (key(), 1)
READY = Probe(ProbeKind.HTTP, "/ready")
STARTED = Probe(ProbeKind.HTTP, "/started", period_s=5.0)
ALIVE = Probe(ProbeKind.HTTP, "/alive", failures=2)


class Told:
    """A replica that began at boot time 50 and answers when the test says so."""

    def __init__(self, **probes: object) -> None:
        self.replicas = Replicas()
        self.probes = Probes(**{"readiness": READY, **probes})  # type: ignore[arg-type]
        self.begun = self.replicas.begin(KEY, self.probes, 1000.0, 50.0)

    def hear(self, question: Question, fault: str | None = None, at: float = 60.0, *, frozen: bool = False) -> Reaction:
        return self.replicas.answered(Probed(*KEY, question, fault), 950.0 + at, at, frozen=frozen)

    def ready(self) -> bool | None:
        known = self.replicas.readiness()
        return known[0].ready if known else None

    def message(self) -> str:
        return self.replicas.readiness()[0].message


def test_the_first_good_answer_to_readiness_is_the_start_where_there_is_no_probe_for_it() -> None:
    told = Told(liveness=ALIVE)
    assert told.begun == [Ask(*KEY, Question.STARTUP, READY, hasty=True)]
    assert told.replicas.readiness() == (Readiness(*KEY, ready=False, since=1000.0, message=NOT_ASKED),)
    assert told.hear(Question.STARTUP, "refused") == Reaction([])
    assert told.message() == "not started up: refused"
    started = told.hear(Question.STARTUP, at=61.0)
    assert started.turned
    assert started.outputs == [
        Hush(*KEY, Question.STARTUP),
        MarkStartedUp(*KEY),
        Ask(*KEY, Question.READINESS, READY),
        Ask(*KEY, Question.LIVENESS, ALIVE),
    ]
    assert told.replicas.readiness() == (Readiness(*KEY, ready=True, since=1011.0),)


def test_a_start_of_its_own_comes_before_readiness() -> None:
    told = Told(startup=STARTED)
    assert told.begun == [Ask(*KEY, Question.STARTUP, STARTED, hasty=True)]
    started = told.hear(Question.STARTUP)
    assert not started.turned
    assert started.outputs[2:] == [Ask(*KEY, Question.READINESS, READY)]
    assert told.ready() is False
    assert told.hear(Question.READINESS, at=60.5).turned
    assert told.ready() is True


def test_minutes_of_loading_trip_nothing() -> None:
    told = Told(startup=STARTED, liveness=ALIVE)
    for at in range(51, 650):
        assert told.hear(Question.STARTUP, "refused", at=float(at)) == Reaction([])
    assert told.ready() is False


def test_a_replica_that_does_not_start_up_in_time_is_unhealthy() -> None:
    told = Told(startup=STARTED)
    assert told.hear(Question.STARTUP, "refused", at=649.9).unhealthy is None
    late = told.hear(Question.STARTUP, "refused", at=650.0)
    assert late.unhealthy == "it did not start up within 600 s: refused"
    assert late.outputs == [Hush(*KEY)]
    assert not late.turned, "it was not ready before"
    assert told.hear(Question.STARTUP, at=651.0) == Reaction([]), "its end is under way"


def test_a_late_start_counts_while_nobody_has_given_up() -> None:
    told = Told(startup=STARTED)
    assert told.hear(Question.STARTUP, at=700.0).unhealthy is None
    assert told.hear(Question.READINESS, at=700.5).turned


def test_readiness_turns_after_as_many_equal_answers_in_a_row_as_were_asked_for() -> None:
    told = Told(readiness=Probe(failures=3, successes=2))
    assert not told.hear(Question.STARTUP).turned
    assert told.hear(Question.STARTUP).turned
    for fault in ("a", "b", None, "c", "d"):
        assert not told.hear(Question.READINESS, fault).turned
        assert told.ready() is True
    assert told.hear(Question.READINESS, "e", at=70.0).turned
    assert told.replicas.readiness() == (Readiness(*KEY, ready=False, since=1020.0, message="e"),)
    assert not told.hear(Question.READINESS).turned
    assert told.hear(Question.READINESS).turned
    assert told.ready() is True


def test_bad_liveness_ends_a_replica_and_takes_its_readiness() -> None:
    told = Told(liveness=ALIVE)
    told.hear(Question.STARTUP)
    assert told.hear(Question.LIVENESS, "HTTP 500").unhealthy is None
    assert told.hear(Question.LIVENESS).unhealthy is None
    assert told.hear(Question.LIVENESS, "HTTP 500").unhealthy is None
    dead = told.hear(Question.LIVENESS, "HTTP 502")
    assert dead.unhealthy == "not alive: HTTP 502 (2 times in a row)"
    assert dead.turned
    assert dead.outputs == [Hush(*KEY)]
    assert (told.ready(), told.message()) == (False, "not alive: HTTP 502 (2 times in a row)")


def test_readiness_that_is_bad_for_hours_ends_nothing() -> None:
    told = Told()
    told.hear(Question.STARTUP)
    assert all(told.hear(Question.READINESS, "busy", at=100.0 + n).unhealthy is None for n in range(10_000))


def test_what_a_frozen_replica_does_not_answer_counts_for_nothing() -> None:
    told = Told(startup=STARTED, liveness=ALIVE)
    told.hear(Question.STARTUP, "refused", at=100.0)
    # From 100 to 400 it is frozen: the 600 s from 50 end at 950 and not at 650.
    told.hear(Question.STARTUP, "no answer", at=400.0, frozen=True)
    assert told.hear(Question.STARTUP, "refused", at=949.0).unhealthy is None
    told.hear(Question.STARTUP, at=949.5)
    told.hear(Question.LIVENESS, "no answer", at=950.0)
    told.hear(Question.LIVENESS, "no answer", at=951.0, frozen=True)
    assert told.hear(Question.LIVENESS, "no answer", at=952.0).unhealthy is None
    assert told.hear(Question.LIVENESS, "no answer", at=953.0).unhealthy is not None


def known(*, started_up: bool, began_s: float | None = 50.0) -> KnownTask:
    serving = ServingTask(ServiceName("chat"), 1, 1, None, Probes(startup=STARTED, readiness=READY), Guard.NONE, 30.0)
    return KnownTask(
        *KEY, TaskPhase.RUNNING, started_at=1000.0, serving=serving, began_boottime_s=began_s, started_up=started_up
    )


def test_a_replica_of_an_earlier_agent_is_unknown_until_it_has_answered() -> None:
    replicas = Replicas()
    assert replicas.adopt(known(started_up=True)) == [Ask(*KEY, Question.READINESS, READY)]
    assert replicas.readiness() == ()
    assert not replicas.answered(Probed(*KEY, Question.READINESS, "slow"), 5000.0, 4000.0, frozen=False).turned
    assert replicas.readiness() == ()
    assert replicas.answered(Probed(*KEY, Question.READINESS, None), 5001.0, 4001.0, frozen=False).turned
    assert replicas.readiness() == (Readiness(*KEY, ready=True, since=5001.0),)


def test_the_time_to_start_up_runs_on_over_a_restart_of_the_agent() -> None:
    replicas = Replicas()
    assert replicas.adopt(known(started_up=False)) == [Ask(*KEY, Question.STARTUP, STARTED, hasty=True)]
    assert replicas.answered(Probed(*KEY, Question.STARTUP, "no"), 0.0, 649.0, frozen=False).unhealthy is None
    assert replicas.answered(Probed(*KEY, Question.STARTUP, "no"), 0.0, 650.0, frozen=False).unhealthy is not None


def test_what_has_no_program_yet_is_asked_nothing() -> None:
    assert Replicas().adopt(known(started_up=False, began_s=None)) == []


def test_the_end_of_a_replica_ends_the_questions() -> None:
    told = Told()
    assert told.replicas.end(KEY) == [Hush(*KEY)]
    assert told.replicas.end(KEY) == []
    assert told.replicas.readiness() == ()
    assert told.hear(Question.STARTUP) == Reaction([]), "an answer that was on its way"
