"""`nodes drain` returns when a node is empty, and says who is still there when that takes too long."""

from __future__ import annotations

import pytest

from corral.cli.commands import nodes as module
from corral.cli.commands.nodes import emptied
from corral.cli.render.nodes import node_state
from corral.model.errors import Unavailable
from corral.model.ids import GangKey, JobId, NodeId
from corral.model.report import NodeReport
from corral.model.resources import Amount, NodeSpec


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)


def report(*gangs: int, reason: str = "") -> NodeReport:
    spec = NodeSpec(NodeId("n1"), "host", "10.0.0.1", 1000, 1024)
    keys = tuple(GangKey(JobId("12"), gang) for gang in gangs)
    return NodeReport(spec, "up", True, reason, 0.4, Amount(), (), keys, draining=True)


def test_it_waits_until_nothing_is_left() -> None:
    looks = iter([(report(0, 1),), (report(1),), (report(),)])
    emptied("n1", lambda: next(looks), 30.0)
    assert next(looks, None) is None


def test_a_node_that_is_forgotten_is_empty() -> None:
    emptied("n1", lambda: (), 0.0)


def test_who_is_left_in_the_end_is_named() -> None:
    with pytest.raises(Unavailable, match=r"n1 is not empty yet: 12, 12\.3 "):
        emptied("n1", lambda: (report(0, 3),), 0.0)
    with pytest.raises(Unavailable, match=r"12\.7, \.\.\. "):
        emptied("n1", lambda: (report(*range(9)),), 0.0)


def test_its_state_says_how_far_it_is() -> None:
    assert node_state(report(0, reason="new disk")).plain == "up, draining: new disk"
    assert node_state(report()).plain == "up, drained"
