"""What a person reads while a job waits or an array is on its way."""

from __future__ import annotations

from io import StringIO

from corral.cli.statusline import StatusLine, bar
from corral.cli.waiting import Progress, waiting_line
from corral.model import events
from corral.model.ids import JobId
from corral.model.job import Cause, JobState, TaskExit, TaskState
from corral.model.report import StartEstimate, WhyReport
from corral.model.resources import Demand, GangShape

NOW = 1_764_504_000.0
JOB = JobId("7")
SHAPE = GangShape(1, Demand())


def test_the_line_of_a_waiting_job() -> None:
    report = WhyReport(JOB, 0, JobState.PENDING, "2 GPUs short", SHAPE, position=3, ahead=2)
    assert waiting_line(report, NOW) == "place 3, 2 gangs ahead · 2 GPUs short"
    first = WhyReport(
        JOB, 0, JobState.PENDING, "job 6 ends soon", SHAPE, position=1, estimate=StartEstimate(NOW - 1, NOW - 1, "")
    )
    assert waiting_line(first, NOW) == "place 1 · starts now · job 6 ends soon"
    assert waiting_line(WhyReport(JOB, 0, JobState.PENDING, "waits for job 6", SHAPE), NOW) == "waits for job 6"


def test_an_array_is_counted_from_its_facts() -> None:
    progress = Progress()
    exit_ = TaskExit(Cause.EXITED, exit_code=1)
    for gang in range(3):
        progress.apply(events.TaskStarted(at=1.0, job=JOB, gang=gang, incarnation=1, rank=0))
    assert progress.counts(5) == "0 of 5 done, 3 running, 2 pending"
    progress.apply(events.TaskEnded(at=2.0, job=JOB, gang=0, incarnation=1, rank=0, state=TaskState.FAILED, exit=exit_))
    assert progress.counts(5) == "0 of 5 done, 2 running, 3 pending"
    progress.apply(events.GangEnded(at=2.0, job=JOB, gang=0, incarnation=1, state=JobState.FAILED))
    assert progress.counts(5) == "1 of 5 done (1 not well), 2 running, 2 pending"
    assert not progress.ended
    progress.apply(events.JobEnded(at=3.0, job=JOB, state=JobState.FAILED))
    assert progress.ended


def test_a_bar_is_full_when_all_is_done_and_not_before() -> None:
    assert bar(0, 4, 8) == "░░░░░░░░"
    assert bar(1, 4, 8) == "██░░░░░░"
    assert bar(99, 100, 8) == "███████░"
    assert bar(4, 4, 8) == "████████"


def test_without_a_terminal_only_news_are_printed_and_seldom() -> None:
    out = StringIO()
    line = StatusLine(out)
    line.show("job 7 waits: a\x1b[2J")
    line.show("job 7 waits: a\x1b[2J")
    line.show("job 7 waits: b")
    line.clear()
    assert out.getvalue() == "job 7 waits: a\\x1b[2J\n"


class Screen(StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_removed_again() -> None:
    out = Screen()
    line = StatusLine(out)
    line.show("job 7 waits: " + "x" * 500)
    shown = out.getvalue()
    assert shown.startswith("\r\x1b[K")
    assert "\n" not in shown
    assert len(shown) < 250
    line.clear()
    assert out.getvalue().endswith("\r\x1b[K")
