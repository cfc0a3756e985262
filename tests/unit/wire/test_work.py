"""What a job says of its work, and who bids for it."""

from __future__ import annotations

import pytest

from corral.model.errors import CorralError
from corral.model.experience import WorkSpec
from corral.wire.document import Checked
from corral.wire.jobfile import parse_job_text
from corral.wire.request import ask_of_fields, document_of


def test_all_of_it_in_a_job_file() -> None:
    (ask,) = parse_job_text(
        """
run: python train.py
restart_cost: 45s
work:
  total: 9e4
  family: resnet50
  throughput: {V100: 12.0, "V100:4": 40, NVIDIA H100 80GB HBM3: 1.5}
appmaster: team.bidding:Mine.propose
"""
    )
    assert ask.restart_cost_s == 45.0
    assert ask.work == WorkSpec(90_000.0, "resnet50", {"V100": 12.0, "V100:4": 40.0, "NVIDIA H100 80GB HBM3": 1.5})
    assert ask.appmaster == "team.bidding:Mine.propose"


@pytest.mark.parametrize("said,written", [({}, {}), ({"total": 1}, {"total": 1.0}), ({"family": None}, {})])
def test_each_part_may_be_left_out(said: dict[str, object], written: dict[str, object]) -> None:
    ask = ask_of_fields({"run": "x", "work": said}, Checked())
    assert document_of(ask)["work"] == written


@pytest.mark.parametrize(
    "fields,field,words",
    [
        ({"work": 5}, "work", "must be a mapping"),
        ({"work": {"total": 0}}, "work.total", "above 0"),
        ({"work": {"total": -1}}, "work.total", "above 0"),
        ({"work": {"total": float("inf")}}, "work.total", "above 0"),
        ({"work": {"total": "nan"}}, "work.total", "above 0"),
        ({"work": {"total": "many"}}, "work.total", "above 0"),
        ({"work": {"total": True}}, "work.total", "above 0"),
        ({"work": {"steps": 1}}, "work.steps", "unknown field"),
        ({"work": {"family": "a b"}}, "work.family", "is not a name"),
        ({"work": {"throughput": 3}}, "work.throughput", "must be a mapping"),
        ({"work": {"throughput": {"V100": 0}}}, "work.throughput.V100", "above 0"),
        ({"work": {"throughput": {"V100:0": 1}}}, "work.throughput.V100:0", "MODEL:DEVICES"),
        ({"work": {"throughput": {"V100:x": 1}}}, "work.throughput.V100:x", "MODEL:DEVICES"),
        ({"work": {"throughput": {"": 1}}}, "work.throughput.", "MODEL:DEVICES"),
        ({"work": {"throughput": {f"M{i}": 1 for i in range(300)}}}, "work.throughput", "more than 256"),
        ({"restart_cost": "-1s"}, "restart_cost", "is not a duration"),
        ({"restart_cost": "2d"}, "restart_cost", "between 0 s and 86400 s"),
        ({"appmaster": "mine"}, "appmaster", "does not name a function"),
        ({"appmaster": "mine.py:propose"}, "appmaster", "does not name a function"),
        ({"appmaster": "./mine:propose"}, "appmaster", "does not name a function"),
        ({"appmaster": "mine:"}, "appmaster", "does not name a function"),
        ({"appmaster": "mine:a b"}, "appmaster", "does not name a function"),
        ({"appmaster": "a" * 300 + ":x"}, "appmaster", "longer than 256"),
        ({"appmaster": 3}, "appmaster", "must be text"),
    ],
)
def test_what_is_none_of_it_is_refused_in_one_line(fields: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(CorralError, match=words) as caught:
        ask_of_fields({"run": "x", **fields}, Checked())
    assert caught.value.refusal.field == field
    assert caught.value.also == ()
    assert caught.value.refusal.line().isprintable()
