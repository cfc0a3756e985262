"""Files of tasks on a node: fetched once, copied for each task, restored from the newest checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from corral.agent.config import AgentConfig
from corral.agent.shim.setup_result import take_over
from corral.agent.travelling import read_luggage
from corral.agent.workview import ViewFailed
from corral.model.errors import FilesDamaged
from corral.model.files import JobFiles
from tests.unit.agent.travels import MIB, Node, Pool


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
