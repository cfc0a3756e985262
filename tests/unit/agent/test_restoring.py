"""Checkpoints on a node: restored from what all ranks gave back, kept, and cleared away."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from corral.agent.config import AgentConfig
from corral.agent.travelling import last_returned, note_returned, read_luggage
from corral.model.errors import FilesDamaged
from corral.model.job import CheckpointSpec
from corral.wire.trees import Entry, Kind, name_of
from tests.unit.agent.travels import MIB, Node, Pool
from tests.unit.agent.words import key, launch


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved"
    path.mkdir()
    return path


def test_a_checkpoint_is_restored_where_it_is_not(node: Node, pool: Pool, saved: Path) -> None:
    (saved / "step").write_text("3")
    tree = pool.send(saved)
    directory, _ = node.lay_out(1, 2, restore=(tree,))
    luggage = read_luggage(str(directory))
    assert luggage is not None
    assert luggage.checkpoint == f"{node.config.state_dir}/jobs/1/checkpoint/0"
    assert Path(luggage.checkpoint, "step").read_text() == "3"
    assert last_returned(luggage.checkpoint) == tree


def test_what_this_node_saved_since_then_is_kept(node: Node, pool: Pool, saved: Path) -> None:
    (saved / "step").write_text("3")
    tree = pool.send(saved)
    _, _ = node.lay_out(1, 1)
    here = Path(node.config.state_dir, "jobs", "1", "checkpoint", "0")
    (here / "step").write_text("4")
    note_returned(str(here), tree)
    node.lay_out(1, 2, restore=(tree,))
    assert (here / "step").read_text() == "4"


def test_what_an_older_start_left_here_gives_way(node: Node, pool: Pool, saved: Path) -> None:
    node.lay_out(1, 1)
    here = Path(node.config.state_dir, "jobs", "1", "checkpoint", "0")
    (here / "step").write_text("1")
    (here / "stale").write_text("?")
    note_returned(str(here), "ab" * 32)
    (saved / "step").write_text("9")
    node.lay_out(1, 3, restore=(pool.send(saved),))
    assert {path.name: path.read_text() for path in here.iterdir()} == {"step": "9"}


def test_the_parts_of_all_ranks_are_restored_and_the_first_wins(node: Node, pool: Pool, saved: Path) -> None:
    (saved / "shared").write_text("rank 0")
    (saved / "0").write_text("0")
    first = pool.send(saved)
    (saved / "0").unlink()
    (saved / "shared").write_text("rank 1")
    (saved / "1").write_text("1")
    node.lay_out(1, 2, restore=(first, pool.send(saved)))
    here = Path(node.config.state_dir, "jobs", "1", "checkpoint", "0")
    assert {path.name: path.read_text() for path in here.iterdir()} == {"shared": "rank 0", "0": "0", "1": "1"}


def wrote(directory: Path, name: str, text: str, at: int) -> None:
    (directory / name).write_text(text)
    os.utime(directory / name, (at, at))


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_each_rank_goes_on_from_its_own_newest_part(node: Node, pool: Pool, tmp_path: Path) -> None:
    """After a restart every node has the parts of all ranks, and gives all of them back: its own anew, others' old."""
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
        wrote(place, "0.pt", "step 1", 1_000)
        wrote(place, "1.pt", "step 1", 1_000)
    wrote(first, "0.pt", "step 2", 2_000)
    wrote(second, "1.pt", "step 2", 2_001)
    trees = (pool.send(first, timed=True), pool.send(second, timed=True))
    node.lay_out(1, 3, restore=trees)
    here = Path(node.config.state_dir, "jobs", "1", "checkpoint", "0")
    assert contents(here) == {"0.pt": "step 2", "1.pt": "step 2"}
    # The same where one of the parts is still there, and its task wrote on.
    node.travelling.leave(str(node.config.tasks_dir / "1.0.0.3"))
    wrote(here, "0.pt", "step 4", 4_000)
    note_returned(str(here), trees[0])
    wrote(second, "1.pt", "step 3", 3_000)
    node.lay_out(1, 4, restore=(trees[0], pool.send(second, timed=True)))
    assert contents(here) == {"0.pt": "step 4", "1.pt": "step 3"}


def test_links_and_directories_of_parts_are_laid_over_one_another(node: Node, pool: Pool, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for place, step, at in ((first, "1", 1_000), (second, "2", 2_000)):
        (place / step).mkdir(parents=True)
        (place / "latest").symlink_to(step)
        os.utime(place / "latest", (at, at), follow_symlinks=False)
    (first / "odd").mkdir()
    (second / "odd").write_text("a directory in the first")
    (second / "even").mkdir()
    (second / "even" / "x").write_text("x")
    (first / "even").write_text("a file in the first")
    node.lay_out(1, 2, restore=(pool.send(first, timed=True), pool.send(second, timed=True)))
    here = Path(node.config.state_dir, "jobs", "1", "checkpoint", "0")
    assert sorted(path.name for path in here.iterdir()) == ["1", "2", "even", "latest", "odd"]
    assert str((here / "latest").readlink()) == "2"
    assert (here / "odd").is_dir()
    assert (here / "even").read_text() == "a file in the first"


def test_only_the_parts_that_count_are_fetched(node: Node, pool: Pool, tmp_path: Path) -> None:
    for name, at in (("old", 1_000), ("new", 2_000)):
        (tmp_path / name).mkdir()
        wrote(tmp_path / name, "w", name, at)
    trees = tuple(pool.send(tmp_path / name, timed=True) for name in ("old", "new"))
    node.lay_out(1, 2, restore=trees)
    assert name_of(b"new") in node.blobs()
    assert name_of(b"old") not in node.blobs()


def test_a_rank_that_is_prepared_late_takes_nothing_from_one_that_runs(node: Node, pool: Pool, saved: Path) -> None:
    (saved / "step").write_text("1")
    tree = pool.send(saved, timed=True)
    node.lay_out(1, 2, restore=(tree,))
    here = Path(node.config.state_dir, "jobs", "1", "checkpoint", "0")
    (here / "step").unlink()
    (here / "step-2").write_text("2")
    note_returned(str(here), "ab" * 32)
    late = node.config.tasks_dir / "1.0.1.2"
    late.mkdir()
    node.travelling.lay_out(launch(key(1, 0, 1), 2, restore=(tree,)), str(late))
    assert contents(here) == {"step-2": "2"}


def test_a_tree_whose_times_no_file_can_have_is_refused(node: Node, pool: Pool) -> None:
    entry = Entry(b"a", Kind.LINK, target=b"b", modified_ns=1 << 63)
    listing = msgspec.msgpack.encode((entry,))
    root = msgspec.msgpack.encode((1, 0, 0, [bytes.fromhex(name_of(listing))]))
    pool.blobs = {name_of(blob): blob for blob in (listing, root)}
    with pytest.raises(FilesDamaged, match="at no time"):
        node.lay_out(1, 2, restore=(name_of(root),))


def test_a_restore_that_was_broken_off_is_done_again(node: Node, pool: Pool, saved: Path) -> None:
    (saved / "a").write_text("a")
    (saved / "b").write_text("b")
    tree = pool.send(saved)
    lost = next(name for name, blob in pool.blobs.items() if blob == b"b")
    blob = pool.blobs.pop(lost)
    with pytest.raises(FilesDamaged):
        node.lay_out(1, 2, restore=(tree,))
    pool.blobs[lost] = blob
    node.lay_out(1, 3, restore=(tree,))
    here = Path(node.config.state_dir, "jobs", "1", "checkpoint", "0")
    assert {path.name: path.read_text() for path in here.iterdir()} == {"a": "a", "b": "b"}


def test_a_checkpoint_on_the_user_s_own_storage_is_left_alone(node: Node, tmp_path: Path) -> None:
    directory, _ = node.lay_out(1, checkpoint=CheckpointSpec(path=str(tmp_path / "mine")), restore=())
    luggage = read_luggage(str(directory))
    assert luggage is not None
    assert luggage.checkpoint is None


def test_checkpoints_that_are_at_the_pool_go_when_they_are_too_many(
    config: AgentConfig, pool: Pool, saved: Path
) -> None:
    node = Node(config, pool, bytes_max=3 * MIB)
    (saved / "w").write_bytes(bytes(MIB + 1))
    tree = pool.send(saved)
    directories = [node.lay_out(job, 2, restore=(tree,))[0] for job in (1, 2, 3, 4)]
    jobs = Path(config.state_dir, "jobs")
    for job in (1, 2, 3, 4):
        os.utime(jobs / str(job) / "checkpoint" / ".0", (1_000 + job, 1_000 + job))
    # Never given back: it is nowhere else.
    node.lay_out(5, 1)
    (jobs / "5" / "checkpoint" / "0" / "w").write_bytes(bytes(8 * MIB))
    for directory in directories[1:]:
        node.travelling.leave(str(directory))
    node.travelling.sweep()
    left = sorted(path.parent.parent.name for path in jobs.glob("*/checkpoint/0"))
    # The first is in use, the second and third were given back before the fourth.
    assert left == ["1", "4", "5"]
    node.lay_out(2, 3, restore=(tree,))
    assert (jobs / "2" / "checkpoint" / "0" / "w").stat().st_size == MIB + 1
