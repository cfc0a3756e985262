"""Where AppMasters live and what remote ones owe."""

from __future__ import annotations

import pytest

from corral.control.masters import Masters
from corral.model.ids import JobId, NodeId


def test_what_remote_masters_owe_comes_due_in_order_and_once() -> None:
    masters = Masters(lambda job: pytest.fail(f"no master is needed for {job}"), epoch=3)
    job = JobId("1")
    for at, gang in ((1.0, 0), (2.0, 1), (3.0, None), (4.0, 0)):
        masters.owe(job, gang, at)
    assert masters.overdue(2.0) == []
    assert masters.overdue(3.5) == [(job, 1), (job, None)]
    assert masters.overdue(9.0) == [(job, 0)]
    assert masters.overdue(9.0) == []
    first, second = masters.move(job, NodeId("n")), masters.move(job, NodeId("n"))
    assert 3_000_000_000 < first < second < 4_000_000_000
    assert masters.on_node(NodeId("n")) == [job]
    forgotten = masters.forget(job)
    assert forgotten is not None
    assert (forgotten.node, masters.host(job)) == ("n", None)
