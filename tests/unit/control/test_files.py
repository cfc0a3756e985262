"""The files of a pool: what jobs bring is checked, what nodes give back is theirs and new, what nobody needs goes."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.control.access import Access
from corral.control.core import ControlCore
from corral.control.files import ControllerFiles
from corral.control.pool import ControllerPool, Identity
from corral.control.returns import take_back
from corral.control.serving import ControllerServices
from corral.model.ask import JobAsk
from corral.model.errors import CorralError, FilesMissing, FilesNeeded, FilesTooLarge, Forbidden, InvalidField, Stale
from corral.model.events import FilesReturned, TokenIssued
from corral.model.files import JobFiles, LogPiece, Returned, ReturnKind
from corral.model.ids import DEFAULT_TENANT, JobId, NodeId, TaskKey
from corral.model.job import Cause
from corral.model.messages import LaunchTask
from corral.model.service import Scaling
from corral.model.tenant import Role, Token
from corral.ports.files import Return, Terms
from corral.ports.pool import Principal
from corral.storage.blobs import DirectoryBlobs, DirectoryLogs
from corral.wire.treefiles import gather, scan
from corral.wire.trees import load_tree
from tests.unit.control.house import ADMIN, START, HerePlanner, House, live
from tests.unit.control.serving import spec
from tests.unit.control.world import World

N1, N2 = NodeId("n1"), NodeId("n2")
TASK = TaskKey(JobId("1"), 0, 0)
ONE = JobAsk(argv=("x",), gpu_milli=1000)
TERMS = Terms(travel=True, upload_max_mib=1, shared_paths=("/nfs",))
NODE = Principal(DEFAULT_TENANT, Role.NODE, "of-n1")


def with_files(house: House, terms: Terms = TERMS) -> ControllerFiles:
    """Give a pool that is up the keeping of files, and node n1 a token."""
    token = Token("of-n1", "digest", DEFAULT_TENANT, Role.NODE, START, "n1")
    house.shell.core.book.record(TokenIssued(at=START, token=token, by="t"))
    files = ControllerFiles(
        house.shell,
        Access(house.shell, house.store),
        DirectoryBlobs(house.state_dir / "blobs"),
        DirectoryLogs(house.state_dir / "logs", 1 << 20),
        terms,
        kept_s=1_000.0,
        node_of=lambda token: NodeId(token.label) if token.role is Role.NODE else None,
    )
    identity = Identity("0", 1, "http://pool", START)
    house.pool = ControllerPool(house.shell, house.store, identity, HerePlanner(house.shell), files)
    return files


async def sent(files: ControllerFiles, directory: Path) -> str:
    gathered = gather(scan(str(directory), bytes_max=1 << 30))
    await files.put(ADMIN, [gathered.read(name) for name in gathered.sizes])
    return gathered.tree.name


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a").write_text("a")
    return root


# ---- what jobs bring -----------------------------------------------------------------------------------------------


def test_paths_that_nodes_do_not_see_must_be_sent_along(state_dir: Path, project: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        files = with_files(house)
        here = replace(ONE, workdir=str(project), file_mounts={"data": "/nfs/data", "conf": "/etc/conf"})
        with pytest.raises(FilesNeeded) as caught:
            await house.submit(here)
        assert caught.value.refusal.field == "workdir"
        tree = await sent(files, project)
        with pytest.raises(FilesNeeded) as caught:
            await house.submit(replace(here, files=JobFiles(tree)))
        assert caught.value.refusal.field == "file_mounts.conf"
        await house.submit(replace(here, files=JobFiles(tree, targets=("conf",))))
        # What all nodes see, and what names no path, needs nothing.
        await house.submit(replace(ONE, workdir="/nfs/me"), ONE)
        with pytest.raises(FilesNeeded):
            await house.submit(replace(ONE, workdir="/nfs2"))
        await house.running_task("1")
        launched = [one for one in house.engine.commands if isinstance(one, LaunchTask)]
        assert [one.files for one in launched][:1] == [JobFiles(tree, targets=("conf",))]
        await house.stop()

    live(scenario, state_dir)


def test_files_that_are_not_here_or_too_large_are_refused(state_dir: Path, project: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        files = with_files(house)
        job = replace(ONE, workdir=str(project))
        with pytest.raises(FilesMissing):
            await house.submit(replace(job, files=JobFiles("ab" * 32)))
        gathered = gather(scan(str(project), bytes_max=1 << 30))
        await files.put(ADMIN, list(gathered.tree.blobs.values()))
        with pytest.raises(FilesMissing, match="1 pieces"):
            await house.submit(replace(job, files=JobFiles(gathered.tree.name)))
        assert await files.missing(ADMIN, list(gathered.sizes)) == list(gathered.tree.chunks)
        (project / "large").write_bytes(bytes((1 << 20) + 1))
        with pytest.raises(FilesTooLarge):
            await house.submit(replace(job, files=JobFiles(await sent(files, project))))
        assert not house.shell.core.book.state.jobs
        await house.stop()

    live(scenario, state_dir)


def test_where_nothing_travels_nothing_is_taken(state_dir: Path, project: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        with_files(house, Terms())
        await house.submit(replace(ONE, workdir=str(project)))
        with pytest.raises(InvalidField):
            await house.submit(replace(ONE, workdir=str(project), files=JobFiles("ab" * 32)))
        await house.stop()

    live(scenario, state_dir)


# ---- what comes back -----------------------------------------------------------------------------------------------


def test_a_checkpoint_that_came_back_is_where_the_next_start_goes_on(state_dir: Path, project: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        files = with_files(house)
        await house.submit(replace(ONE, max_restarts=1))
        await house.running_task("1")
        tree = await sent(files, project)
        # The tree says its size itself: a number that no journal can hold harms nobody.
        given = Return(N1, TASK, 1, ReturnKind.CHECKPOINT, tree, 1 << 70)
        await files.give_back(NODE, given)
        await files.give_back(NODE, given)
        assert house.job("1").gangs[0].saved == (Returned(0, 1, tree, house.hands.at, 1),)
        with pytest.raises(FilesMissing):
            await files.give_back(NODE, replace(given, tree="ab" * 32))
        for other in (replace(given, node=N2), replace(given, task=TaskKey(JobId("9"), 0, 0))):
            with pytest.raises((Stale, Forbidden)):
                await files.give_back(ADMIN, other)
        house.engine.end("1", code=1)
        await house.until(lambda: house.engine.runs("1") == 2)
        await house.running_task("1")
        launched = [one for one in house.engine.commands if isinstance(one, LaunchTask)]
        assert [one.restore for one in launched] == [(), (tree,)]
        # The first start is over: what it still sends is refused, whatever it is.
        (project / "a").write_text("ghost")
        ghost = await sent(files, project)
        for what in ReturnKind:
            with pytest.raises(Stale):
                await files.give_back(NODE, replace(given, tree=ghost, what=what))
        assert await files.add_logs(NODE, N1, [LogPiece(TASK, 1, 0, b"ghost")]) == [-1]
        facts = [entry.fact for entry in house.store.entries_of_job(JobId("1"))]
        assert sum(isinstance(fact, FilesReturned) for fact in facts) == 1
        await house.stop()

    live(scenario, state_dir)


def test_outputs_are_told_of_a_job_that_has_ended_and_survive_a_restart(state_dir: Path, project: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        files = with_files(house)
        await house.submit(ONE)
        await house.running_task("1")
        tree = await sent(files, project)
        await files.give_back(NODE, Return(N1, TASK, 1, ReturnKind.OUTPUTS, tree, 1))
        house.engine.end("1")
        await house.pool.wait(ADMIN, "1", 10.0)
        with pytest.raises(Stale):
            await files.give_back(NODE, Return(N1, TASK, 1, ReturnKind.OUTPUTS, tree, 1))
        await house.stop()
        house.engine.machines.clear()
        await house.start()
        job = await house.pool.job(ADMIN, "1")
        assert [one.tree for one in job.gangs[0].outputs] == [tree]
        await house.stop()

    live(scenario, state_dir)


def test_only_the_node_itself_gives_back(state_dir: Path, project: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        files = with_files(house)
        await house.submit(ONE)
        await house.running_task("1")
        given = Return(N1, TASK, 1, ReturnKind.OUTPUTS, await sent(files, project))
        for who in (Principal(DEFAULT_TENANT, Role.USER, "u"), Principal(DEFAULT_TENANT, Role.NODE, "unknown")):
            with pytest.raises(Forbidden):
                await files.give_back(who, given)
            with pytest.raises(Forbidden):
                await files.add_logs(who, N1, [])
        with pytest.raises(Forbidden):
            await files.give_back(NODE, replace(given, node=N2))
        await house.stop()

    live(scenario, state_dir)


def test_a_task_that_was_stopped_for_good_gives_nothing_back() -> None:
    """On the core alone: its node is lost, and a message of it comes late."""
    world = World(n1=1)
    (job,) = world.submit(replace(ONE, max_restarts=0))
    world.start(job)
    given = Return(N1, TaskKey(job, 0, 0), 1, ReturnKind.CHECKPOINT, "ab" * 32)
    assert take_back(world.core.book, world.now, given) is None
    world.end(job, cause=Cause.EXITED, code=3)
    refused = take_back(world.core.book, world.now, given)
    assert refused is not None
    assert isinstance(CorralError.of(refused), Stale)
    world.check()
    assert isinstance(world.replayed(), ControlCore)


# ---- logs ----------------------------------------------------------------------------------------------------------


async def read(house: House, *, follow: bool = False) -> bytes:
    chunks = house.pool.follow_log(ADMIN, "1", rank=None, offset=0, follow=follow)
    return b"".join([chunk.data async for chunk in chunks])


def test_the_log_of_a_node_that_is_gone_is_read_from_what_came_back(state_dir: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1", "n2")
        files = with_files(house)
        await house.submit(replace(ONE, max_restarts=1))
        await house.running_task("1")
        node = house.job("1").gangs[0].tasks[0].placement
        assert node is not None
        house.engine.write(node.node, TASK, 1, b"on the node", complete=False)
        assert await files.add_logs(ADMIN, node.node, [LogPiece(TASK, 1, 0, b"came back")]) == [9]
        assert await read(house) == b"on the node"
        house.engine.cut(node.node)
        assert await read(house) == b"came back"
        following = asyncio.create_task(read(house, follow=True))
        await house.until(lambda: house.shell.feed._subscribers)
        assert await files.add_logs(ADMIN, node.node, [LogPiece(TASK, 1, 9, b" late", complete=True)]) == [14]
        assert await read(house) == b"came back late"
        following.cancel()
        await house.stop()

    live(scenario, state_dir)


# ---- housekeeping --------------------------------------------------------------------------------------------------


def test_files_that_unfinished_jobs_need_stay_and_the_others_go(state_dir: Path, project: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        files = with_files(house)
        brought = await sent(files, project)
        await house.submit(replace(ONE, workdir=str(project), files=JobFiles(brought)))
        await house.running_task("1")
        (project / "a").write_text("checkpoint")
        saved = await sent(files, project)
        await files.give_back(NODE, Return(N1, TASK, 1, ReturnKind.CHECKPOINT, saved))
        (project / "a").write_text("nobody's")
        await sent(files, project)
        for path in (house.state_dir / "blobs").rglob("?" * 64):
            os.utime(path, (1_000, 1_000))
        # The root, its list of entries and the file of the tree that nobody needs.
        assert await files.keep_house(time.time()) == 3
        assert await files.keep_house(time.time()) == 0
        for tree in (saved, brought):
            load_tree(tree, files._blobs.get)
        await house.stop()

    live(scenario, state_dir)


def test_files_of_a_service_stay_as_long_as_one_may_go_back_to_them(state_dir: Path, project: Path) -> None:
    async def scenario(house: House) -> None:
        await house.start("n1")
        files = with_files(house)
        services = ControllerServices(house.shell, files)
        with pytest.raises(FilesMissing):
            await services.set_service(ADMIN, spec(replica=replace(ONE, files=JobFiles("ab" * 32))))
        trees = []
        for content in ("first", "second"):
            (project / "a").write_text(content)
            trees.append(await sent(files, project))
            ask = replace(ONE, workdir=str(project), files=JobFiles(trees[-1]))
            await services.set_service(ADMIN, spec(replica=ask, scaling=Scaling(0, 1)))
        for path in (house.state_dir / "blobs").rglob("?" * 64):
            os.utime(path, (1_000, 1_000))
        assert await files.keep_house(time.time()) == 0
        for tree in trees:
            load_tree(tree, files._blobs.get)
        await house.stop()

    live(scenario, state_dir)
