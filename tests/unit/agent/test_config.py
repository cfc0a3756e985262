from __future__ import annotations

from pathlib import Path

import pytest

from corral.agent.config import AgentConfig, load, save
from corral.model.errors import StateUnusable
from tests.unit.agent.words import NODE, identity


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    config = AgentConfig(
        node=NODE,
        state_dir="/s",
        engine_socket="/e",
        fork_socket="/f",
        notify_socket="/n",
        cpus_milli=1,
        memory_mib=2,
        simulated=True,
        simulated_devices=identity().spec.devices,
    )
    save(config, tmp_path / "node.json")
    assert load(tmp_path / "node.json") == config
    assert [path.name for path in tmp_path.iterdir()] == ["node.json"]
    assert config.tasks_dir == Path("/s/nodes/node-1/tasks")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"node": 1}', '{"node": "n", "colour": "red"}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "node.json").write_text(content)
    with pytest.raises(StateUnusable, match=r"node\.json is not the configuration of an agent"):
        load(tmp_path / "node.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateUnusable, match=r"cannot read .*node\.json: No such file"):
        load(tmp_path / "node.json")
