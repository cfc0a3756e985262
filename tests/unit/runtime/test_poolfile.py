"""``pool.json`` between versions, and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corral.model.errors import StateUnusable
from corral.runtime.poolfile import PoolFile, load_pool, save_pool

POOL = PoolFile(host="127.0.0.1", fork_socket="/run/fork.sock", agents={"n": "/n/node.json"}, port=0, insecure=True)


def test_what_is_written_is_read_and_the_supervisor_finds_its_part(tmp_path: Path) -> None:
    place = tmp_path / "pool.json"
    save_pool(place, POOL)
    assert load_pool(place) == POOL
    plain = json.loads(place.read_text())
    assert (plain["fork_socket"], plain["agents"]) == ("/run/fork.sock", {"n": "/n/node.json"})
    assert [path.name for path in tmp_path.iterdir()] == ["pool.json"]


def test_files_of_older_and_newer_versions_are_read(tmp_path: Path) -> None:
    place = tmp_path / "pool.json"
    place.write_text('{"host": "h", "fork_socket": "s", "agents": {}}')
    assert load_pool(place) == PoolFile(host="h", fork_socket="s", agents={})
    place.write_text('{"host": "h", "fork_socket": "s", "agents": {}, "colour": "blue"}')
    assert load_pool(place).bound_port is None


@pytest.mark.parametrize("text", ["", "{", '{"host": 1}', "[]", '{"host": "h", "agents": {}}'])
def test_a_damaged_file_says_what_to_do(tmp_path: Path, text: str) -> None:
    place = tmp_path / "pool.json"
    place.write_text(text)
    with pytest.raises(StateUnusable, match="corral up"):
        load_pool(place)
    place.unlink()
    with pytest.raises(StateUnusable, match="corral up"):
        load_pool(place)
