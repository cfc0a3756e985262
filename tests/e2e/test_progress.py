"""Progress of real tasks: by the call, by a line of a shell, and what `ps` makes of it."""

from __future__ import annotations

import sys

import pytest

from corral.cli.render.jobs import state_words
from tests.e2e.livepool import END_S, LivePool
from tests.waiting import wait_until

CALL = "import corral, time; corral.report_progress(3, 10, checkpoint=True); time.sleep(600)"
LINE = 'echo "3 10 3" > "$CORRAL_TASK_DIR/progress"; sleep 600'


@pytest.mark.parametrize("run", [[sys.executable, "-c", CALL], LINE], ids=["call", "line"])
def test_what_a_task_reports_is_seen_outside(shared: LivePool, run: str | list[str]) -> None:
    job = shared.submit(run)
    row = wait_until(
        lambda: found if (found := shared.client.summary(job.id)).progress is not None else None, END_S, 0.05, what="it"
    )
    assert row is not None
    assert row.progress == 0.3
    assert state_words(row, "") == "running 30 %"
    (listed,) = [one for one in shared.client.jobs().jobs if one.id == job.id]
    assert listed.progress == 0.3
    job.cancel()
    assert shared.result(job).progress is None


def test_steps_without_an_end_are_a_share_of_the_declared_work(shared: LivePool) -> None:
    job = shared.submit('echo 25 > "$CORRAL_TASK_DIR/progress"; sleep 600', work={"total": 50})
    wait_until(lambda: shared.client.summary(job.id).progress == 0.5, END_S, 0.05, what="its progress to be known")
    job.cancel()
    shared.result(job)


def test_a_program_knows_whether_it_is_being_stopped(shared: LivePool) -> None:
    code = (
        "import corral, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('stopping', corral.stopping(), flush=True) or exit(0))\n"
        "print('stopping', corral.stopping(), flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    job = shared.submit([sys.executable, "-c", code])
    shared.said(job, b"stopping False")
    job.cancel()
    shared.result(job)
    assert shared.log(job).splitlines()[:2] == [b"stopping False", b"stopping True"]
