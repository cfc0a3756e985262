"""Files of tasks on a node: fetched once, copied for each task, restored from the newest checkpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.agent.config import AgentConfig
from corral.agent.depot import Depot
from corral.agent.shim.setup_result import take_over
from corral.agent.travelling import Packed, Travelling, last_returned, note_returned, read_luggage
from corral.agent.workview import ViewFailed
from corral.model.errors import FilesDamaged
from corral.model.files import JobFiles
from corral.model.job import CheckpointSpec
from corral.wire.treefiles import gather, scan
from corral.wire.trees import Entry, Kind, name_of
from tests.unit.agent.words import NODE, key, launch

MIB = 1 << 20


class Pool:
    """The blobs of a pool; counts what is fetched of it."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.fetched: list[str] = []

    def fetch(self, names: Sequence[str]) -> list[bytes | None]:
        """Give two at a time."""
        self.fetched += names[:2]
        return [self.blobs.get(name) for name in names[:2]]

    def send(self, directory: Path, *, timed: bool = False) -> str:
        gathered = gather(scan(str(directory), bytes_max=1 << 30), timed=timed)
        self.blobs |= {name: gathered.read(name) for name in gathered.sizes}
        return gathered.tree.name


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    made = AgentConfig(
        node=NODE,
        state_dir=str(tmp_path / "state"),
        engine_socket="/e",
        fork_socket="/f",
        notify_socket="/n",
        cpus_milli=8000,
        memory_mib=65536,
        cluster_path=str(tmp_path / "cluster.json"),
    )
    made.tasks_dir.mkdir(parents=True)
    return made


class Node:
    def __init__(self, config: AgentConfig, pool: Pool, *, bytes_max: int = 64 * MIB) -> None:
        self.config = config
        self.cache = config.node_dir / "cache"
        self.depot = Depot(self.cache, bytes_max, pool.fetch)
        self.travelling = Travelling(config, self.depot)

    def lay_out(self, job: int = 1, incarnation: int = 1, **changes: Any) -> tuple[Path, Packed]:
        directory = self.config.tasks_dir / f"{job}.0.0.{incarnation}"
        directory.mkdir()
        return directory, self.travelling.lay_out(launch(key(job), incarnation, **changes), str(directory))

    def blobs(self) -> set[str]:
        return {path.name for path in (self.cache / "blobs").rglob("*") if path.is_file()}


@pytest.fixture
def node(config: AgentConfig, pool: Pool) -> Node:
    return Node(config, pool)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print(1)")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("src/main.py")
    return root


def test_a_task_gets_a_copy_of_its_own_that_it_may_change(node: Node, pool: Pool, project: Path) -> None:
    files = JobFiles(pool.send(project))
    _, first = node.lay_out(1, files=files)
    main = Path(first.cwd, "src", "main.py")
    assert main.read_text() == "print(1)"
    assert os.access(Path(first.cwd, "run.sh"), os.X_OK)
    assert str(Path(first.cwd, "link").readlink()) == "src/main.py"
    with main.open("r+") as file:
        file.write("BROKEN")
    Path(first.cwd, "run.sh").chmod(0o000)
    fetched = len(pool.fetched)
    _, second = node.lay_out(2, files=files)
    assert Path(second.cwd, "src", "main.py").read_text() == "print(1)"
    assert len(pool.fetched) == fetched


def test_only_what_is_not_here_is_fetched(node: Node, pool: Pool, project: Path) -> None:
    node.lay_out(1, files=JobFiles(pool.send(project)))
    (project / "src" / "new.py").write_text("print(2)")
    tree = pool.send(project)
    pool.fetched.clear()
    _, packed = node.lay_out(2, files=JobFiles(tree))
    assert Path(packed.cwd, "src", "new.py").read_text() == "print(2)"
    # The root, its list of entries, and the one file that is new.
    assert len(pool.fetched) == 3


def test_what_the_pool_lost_or_damaged_is_told(node: Node, pool: Pool, project: Path) -> None:
    tree = pool.send(project)
    lost = next(name for name, blob in pool.blobs.items() if blob == b"print(1)")
    pool.blobs[lost] = b"print(2)"
    with pytest.raises(FilesDamaged, match="is not what its name says"):
        node.lay_out(1, files=JobFiles(tree))
    del pool.blobs[lost]
    with pytest.raises(FilesDamaged, match="submit the job again"):
        node.lay_out(2, files=JobFiles(tree))
    assert lost not in node.blobs()


def test_what_was_used_least_recently_goes_and_what_is_in_use_stays(
    config: AgentConfig, pool: Pool, tmp_path: Path
) -> None:
    trees = []
    for number in range(3):
        folder = tmp_path / f"data-{number}"
        folder.mkdir()
        (folder / "f").write_bytes(bytes([number]) * (3 * MIB))
        trees.append(pool.send(folder))
    node = Node(config, pool, bytes_max=7 * MIB)
    for number, tree in enumerate(trees):
        node.lay_out(number + 1, files=JobFiles(tree))
        for path in (node.cache / "blobs").rglob("*"):
            os.utime(path, (1_000 + number, 1_000 + number)) if path.stat().st_mtime > 10_000 else None
    chunk = {number: next(n for n, b in pool.blobs.items() if b == bytes([number]) * (3 * MIB)) for number in range(3)}
    assert chunk[0] not in node.blobs()
    assert {chunk[1], chunk[2]} <= node.blobs()
    with node.depot.holding(trees[1]), node.depot.holding(trees[0]):
        assert {chunk[0], chunk[1]} <= node.blobs()


def test_mounts_of_this_node_are_linked_and_those_that_came_along_are_there(
    node: Node, pool: Pool, project: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "big").write_text("big")
    _, packed = node.lay_out(1, files=JobFiles(pool.send(project)), file_mounts={"data/all": str(shared)})
    assert Path(packed.cwd, "data", "all", "big").read_text() == "big"
    mounts = tmp_path / "mounts"
    (mounts / "conf").mkdir(parents=True)
    (mounts / "conf" / "a.ini").write_text("x")
    _, packed = node.lay_out(
        2,
        files=JobFiles(pool.send(mounts), workdir=False, targets=("conf",)),
        workdir=str(shared),
        file_mounts={"conf": "/of/the/client", "more": str(project)},
    )
    assert Path(packed.cwd, "conf", "a.ini").read_text() == "x"
    assert Path(packed.cwd, "big").read_text() == "big"
    assert Path(packed.cwd, "more", "run.sh").exists()
    with pytest.raises(ViewFailed):
        node.lay_out(3, files=JobFiles(pool.send(project)), file_mounts={"data": "/no/such/place"})


def test_without_files_a_task_works_where_its_output_goes(node: Node) -> None:
    directory, packed = node.lay_out(1)
    assert packed.cwd == f"{directory}/output"
    assert packed.setup is None


# ---- setups --------------------------------------------------------------------------------------------------------


def test_a_setup_is_named_by_its_content_and_shared_by_jobs(node: Node, pool: Pool, project: Path) -> None:
    files = JobFiles(pool.send(project))
    _, first = node.lay_out(1, files=files, setup="make")
    _, second = node.lay_out(2, files=files, setup="make")
    _, other = node.lay_out(3, files=files, setup="make all")
    (project / "src" / "main.py").write_text("print(2)")
    _, changed = node.lay_out(4, files=JobFiles(pool.send(project)), setup="make")
    assert first.setup is not None
    assert first.setup == second.setup
    assert first.cwd != second.cwd
    assert len({msgspec.json.encode(one.setup) for one in (first, other, changed)}) == 3
    assert Path(first.setup["cwd"], "src", "main.py").read_text() == "print(1)"


def test_tasks_see_what_a_setup_made_and_changed_but_do_not_share_their_own_files(
    node: Node, pool: Pool, project: Path
) -> None:
    files = JobFiles(pool.send(project))
    tasks = [node.lay_out(number, files=files, setup="./run.sh")[1] for number in (1, 2)]
    setup = tasks[0].setup
    assert setup is not None
    base = Path(setup["cwd"])
    (base / "venv" / "bin").mkdir(parents=True)
    (base / "venv" / "bin" / "python").write_text("big")
    (base / "src" / "built.so").write_text("machine code")
    (base / "run.sh").write_text("#!/bin/sh\necho changed\n")
    for packed in tasks:
        take_over(setup["cwd"], packed.cwd)
        take_over(setup["cwd"], packed.cwd)
        work = Path(packed.cwd)
        assert (work / "venv").is_symlink()
        assert (work / "venv" / "bin" / "python").read_text() == "big"
        assert (work / "src" / "built.so").read_text() == "machine code"
        assert (work / "run.sh").read_text() == "#!/bin/sh\necho changed\n"
        assert os.access(work / "run.sh", os.X_OK)
        assert not (work / "src" / "main.py").is_symlink()
    Path(tasks[0].cwd, "run.sh").write_text("mine")
    assert Path(tasks[1].cwd, "run.sh").read_text() == (base / "run.sh").read_text() != "mine"


def test_the_directory_of_a_setup_stays_while_a_task_uses_it(
    config: AgentConfig, pool: Pool, project: Path, tmp_path: Path
) -> None:
    node = Node(config, pool, bytes_max=MIB)
    directory, packed = node.lay_out(1, files=JobFiles(pool.send(project)), setup="make")
    assert packed.setup is not None
    base = Path(packed.setup["cwd"])
    (base / "large").write_bytes(bytes(2 * MIB))
    os.utime(base.parent, (1, 1))
    other = tmp_path / "other"
    other.mkdir()
    (other / "f").write_text("x")
    node.lay_out(2, files=JobFiles(pool.send(other)))
    assert base.exists()
    # After a restart of the agent, too.
    again = Node(config, pool, bytes_max=MIB)
    again.travelling.adopt(str(directory))
    again.lay_out(3, files=JobFiles(pool.send(other)))
    assert base.exists()
    again.travelling.leave(str(directory))
    again.travelling.clear(str(directory))
    assert not Path(packed.cwd).exists()
    again.lay_out(4, files=JobFiles(pool.send(other)))
    assert not base.exists()


# ---- checkpoints ---------------------------------------------------------------------------------------------------


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


def test_what_an_earlier_boot_left_is_fetched_anew(node: Node, pool: Pool, config: AgentConfig, project: Path) -> None:
    files = JobFiles(pool.send(project))
    node.lay_out(1, files=files, setup="true")
    # As a power cut leaves it: the names are on the disk, what was in them is not.
    for path in (node.cache / "blobs").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    (node.cache / "boot").write_text("another")
    again = Node(config, pool)
    directory, packed = again.lay_out(2, files=files, setup="true")
    assert Path(packed.cwd, "src", "main.py").read_text() == "print(1)"
    luggage = read_luggage(str(directory))
    assert luggage is not None
    assert luggage.base is not None
    assert (again.cache / "bases" / luggage.base / "work" / "src" / "main.py").read_text() == "print(1)"
    # Within one boot it stays.
    assert Node(config, pool).blobs() == again.blobs() != set()


def test_a_launch_that_fails_keeps_nothing_in_use(node: Node, pool: Pool, project: Path) -> None:
    files = JobFiles(pool.send(project))
    lost = next(name for name, blob in pool.blobs.items() if blob == b"print(1)")
    blob = pool.blobs.pop(lost)
    with pytest.raises(FilesDamaged):
        node.lay_out(1, files=files, setup="true")
    pool.blobs[lost] = blob
    directory, _ = node.lay_out(2, files=files, setup="true")
    node.travelling.leave(str(directory))
    node.depot.bytes_max = 0
    with node.depot.holding(files.tree):
        pass
    assert list((node.cache / "bases").iterdir()) == []
    assert node.blobs() == set()


def test_a_mount_behind_a_link_that_came_along_is_refused(
    node: Node, pool: Pool, project: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / "out").symlink_to(outside)
    with pytest.raises(ViewFailed, match="symbolic link"):
        node.lay_out(1, files=JobFiles(pool.send(project)), file_mounts={"out/data": str(tmp_path)})
    assert list(outside.iterdir()) == []


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
