"""Journals of released versions decode for ever. The recorded files never change; a release adds one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.model.events import Fact, GangPlaced, JobSubmitted, TaskEnded, TenantSet
from corral.model.ids import DeviceId, NodeId
from corral.model.job import Cause, CheckpointSpec, DependencyKind, Fencing, TaskState
from corral.model.resources import DeviceShare, Placement
from corral.model.tenant import Quota
from corral.ports.store import JournalEntry
from corral.storage.rows import journal_entry, journal_row

JOURNALS = sorted(Path(__file__).parent.glob("journal-*.jsonl"))


def recorded(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def decoded(path: Path) -> list[JournalEntry]:
    return [journal_entry(row["seq"], row["epoch"], row["crc"], row["payload"].encode()) for row in recorded(path)]


def lost_in(before: Any, after: Any, at: str = "") -> list[str]:
    """Return the places of a recorded document whose value is not in the decoded one."""
    if isinstance(before, dict):
        return [
            place
            for key, value in before.items()
            for place in ([f"{at}.{key}"] if key not in after else lost_in(value, after[key], f"{at}.{key}"))
        ]
    if isinstance(before, list):
        if len(before) != len(after):
            return [at]
        return [place for i, value in enumerate(before) for place in lost_in(value, after[i], f"{at}[{i}]")]
    return [] if before == after else [at]


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_every_recorded_entry_decodes_and_keeps_every_value(path: Path) -> None:
    for row, entry in zip(recorded(path), decoded(path), strict=True):
        said = json.loads(row["payload"])
        assert lost_in(said, msgspec.to_builtins(entry.fact)) == []
        again = journal_row(entry.seq, entry.epoch, entry.fact)
        assert (again["kind"], again["job"]) == (row["kind"], row["job"])


def test_the_first_journal_has_every_kind_of_fact_of_its_release() -> None:
    kinds = {row["kind"] for row in recorded(JOURNALS[0])}
    assert kinds <= {fact.__struct_config__.tag for fact in Fact.__args__}
    assert len(kinds) == 22


def test_the_first_journal_means_what_it_meant() -> None:
    facts = {entry.seq: entry.fact for entry in decoded(JOURNALS[0])}
    tenant, submitted, placed, ended = facts[1], facts[8], facts[14], facts[11]
    assert isinstance(tenant, TenantSet)
    assert (tenant.tenant.weight, tenant.tenant.guaranteed, tenant.tenant.limit) == (
        2.5,
        Quota(8000, 64000),
        Quota(16000, None),
    )
    assert isinstance(submitted, JobSubmitted)
    spec = submitted.spec
    assert (spec.name, spec.fencing, spec.after[0].kind) == ("train-é", Fencing.NONE, DependencyKind.ENDED)
    assert (spec.checkpoint, spec.point(1), spec.gangs) == (CheckpointSpec("USR2", 45.0, "/ckpt"), {"LR": "0.2"}, 2)
    assert isinstance(placed, GangPlaced)
    assert placed.placements[1] == Placement(
        1, NodeId("n2"), (DeviceShare(DeviceId("GPU-5f0d2c7e-2-0"), 1000),), 4000, 8192, None
    )
    assert isinstance(ended, TaskEnded)
    assert (ended.state, ended.exit.cause, ended.exit.exit_code) == (TaskState.FAILED, Cause.EXITED, 3)
    assert ended.at == 1767225606.0
