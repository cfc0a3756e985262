"""What comes back from a node, over the real API: complete checkpoints, outputs, logs; nothing of old starts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from corral.agent import returning
from corral.agent.config import AgentConfig
from corral.agent.courier import Courier
from corral.agent.depot import Depot
from corral.agent.giving import Giver
from corral.agent.returning import Returner
from corral.agent.running import Running
from corral.agent.travelling import Luggage, Travelling, last_returned
from corral.model.errors import FilesTooLarge, Forbidden, NoHead, Stale
from corral.model.files import LogPiece, ReturnKind
from corral.model.ids import TaskKey
from corral.wire.trees import Kind, load_tree
from tests.unit.agent.words import NODE, key, launch
from tests.unit.api.conftest import shared_server
from tests.unit.api.memory_files import MemoryFiles
from tests.unit.api.memory_pool import ALICE, MemoryPool
from tests.unit.api.memory_pool import NODE as NODE_TOKEN
from tests.unit.api.serving import Served

__all__ = ["shared_server"]

MIB = 1 << 20
TASK = key(12)


@pytest.fixture
def files(shared_server: Served, tmp_path: Path) -> Iterator[MemoryFiles]:
    made = MemoryFiles(tmp_path / "pool")
    shared_server.use(MemoryPool())
    shared_server.app.state.files = made
    yield made
    shared_server.app.state.files = None


@pytest.fixture
def config(shared_server: Served, tmp_path: Path) -> AgentConfig:
    made = AgentConfig(
        node=NODE,
        state_dir=str(tmp_path / "state"),
        engine_socket="/e",
        fork_socket="/f",
        notify_socket="/n",
        cpus_milli=8000,
        memory_mib=65536,
        cluster_path=str(tmp_path / "cluster.json"),
        node_token_path=str(tmp_path / "token"),
    )
    made.tasks_dir.mkdir(parents=True)
    heads(made, "http://127.0.0.1:9", shared_server.url)
    (tmp_path / "token").write_text(f"{NODE_TOKEN}\n")
    return made


def heads(config: AgentConfig, *urls: str) -> None:
    Path(config.cluster_path).write_text(json.dumps({"gcs": "", "heads": [{"url": url} for url in urls]}))


@pytest.fixture
def courier(config: AgentConfig) -> Iterator[Courier]:
    made = Courier(config)
    yield made
    made.close()


@pytest.fixture
def giver(config: AgentConfig, courier: Courier) -> Giver:
    return Giver(NODE, courier, config.node_dir / "cache", 2 * MIB)


def contents(files: MemoryFiles, tree: str) -> dict[str, str]:
    """Return what is in a tree that came back: text of files, ``-> target`` of links."""
    found = {}
    for entry in load_tree(tree, files.blobs.get).entries:
        if entry.kind is Kind.FILE:
            data = b"".join(blob or b"" for blob in files.blobs.get([digest.hex() for digest in entry.chunks]))
            found[entry.path.decode()] = data.decode()
        elif entry.kind is Kind.LINK:
            found[entry.path.decode()] = f"-> {entry.target.decode()}"
    return found


# ---- the way to the head -------------------------------------------------------------------------------------------


def test_a_head_that_does_not_answer_is_passed_by(files: MemoryFiles, courier: Courier) -> None:
    assert courier.missing(["ab" * 32]) == ["ab" * 32]
    courier.send([("x", 3)], lambda _: b"abc")
    assert files.sent == 1


def test_without_any_head_it_is_said_after_a_while(config: AgentConfig, courier: Courier) -> None:
    heads(config)
    with pytest.raises(NoHead, match="there is none"):
        courier.call("/files/missing", b"{}", patience_s=0.0)


def test_heads_are_looked_up_again(
    files: MemoryFiles, config: AgentConfig, courier: Courier, shared_server: Served
) -> None:
    heads(config)
    with pytest.raises(NoHead):
        courier.call("/files/missing", b"{}", patience_s=0.0)
    heads(config, shared_server.url)
    assert courier.missing(["ab" * 32]) == ["ab" * 32]


def test_who_is_no_node_gives_nothing_back(
    files: MemoryFiles, config: AgentConfig, giver: Giver, tmp_path: Path
) -> None:
    Path(config.node_token_path).write_text(ALICE)
    (tmp_path / "f").write_text("x")
    with pytest.raises(Forbidden):
        giver.outputs(TASK, 1, Luggage(str(tmp_path), None, ("f",)))
    assert files.returned == []


# ---- outputs -------------------------------------------------------------------------------------------------------


def test_declared_outputs_and_the_output_directory_come_back(files: MemoryFiles, giver: Giver, tmp_path: Path) -> None:
    work, output = tmp_path / "work", tmp_path / "output"
    (work / "results" / "deep").mkdir(parents=True)
    (work / "results" / "a.json").write_text("a")
    (work / "results" / "deep" / "b.json").write_text("b")
    (work / "results" / ".hidden").write_text("h")
    (work / "results" / "latest").symlink_to("a.json")
    (work / "train.py").write_text("not wanted")
    (work / "model").mkdir()
    (work / "model" / "w").write_text("w")
    output.mkdir()
    (output / "c.txt").write_text("c")
    giver.outputs(TASK, 3, Luggage(str(work), str(output), ("results/**", "model", "nothing/*")))
    (returned,) = files.returned
    assert (returned.node, returned.task, returned.incarnation, returned.what) == (NODE, TASK, 3, ReturnKind.OUTPUTS)
    assert contents(files, returned.tree) == {
        "results/a.json": "a",
        "results/deep/b.json": "b",
        "results/.hidden": "h",
        "results/latest": "-> a.json",
        "model/w": "w",
        "c.txt": "c",
    }


def test_links_that_lead_in_circles_are_not_walked(files: MemoryFiles, giver: Giver, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "deep").mkdir(parents=True)
    (work / "deep" / "a.pt").write_text("a")
    for name in ("up", "again"):
        (work / "deep" / name).symlink_to("..")
    giver.outputs(TASK, 1, Luggage(str(work), None, ("**/*.pt", ".", "**x/.pt")))
    assert contents(files, files.returned[0].tree) == {"deep/a.pt": "a"}


def test_who_made_nothing_gives_nothing_back(files: MemoryFiles, giver: Giver, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    giver.outputs(TASK, 1, Luggage(str(tmp_path), str(tmp_path / "empty"), ("*.csv",)))
    assert files.returned == []


def test_what_a_setup_made_stays_where_it_is(
    files: MemoryFiles, giver: Giver, config: AgentConfig, tmp_path: Path
) -> None:
    venv = config.node_dir / "cache" / "bases" / "k" / "work" / "venv"
    venv.mkdir(parents=True)
    output = tmp_path / "output"
    output.mkdir()
    (output / "venv").symlink_to(venv)
    (output / "made").write_text("m")
    giver.outputs(TASK, 1, Luggage(None, str(output)))
    assert contents(files, files.returned[0].tree) == {"made": "m"}


def test_outputs_that_are_too_large_are_refused_before_they_are_read(giver: Giver, tmp_path: Path) -> None:
    for name in ("a", "b"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(3 * MIB // 2)
    with pytest.raises(FilesTooLarge, match="return_max_mib"):
        giver.outputs(TASK, 1, Luggage(str(tmp_path), None, ("*",)))


# ---- checkpoints ---------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "jobs" / "12" / "checkpoint" / "0"
    path.mkdir(parents=True)
    return path


def test_a_checkpoint_comes_back_once_and_without_what_is_being_written(
    files: MemoryFiles, giver: Giver, checkpoint: Path
) -> None:
    (checkpoint / "step-1").mkdir()
    (checkpoint / "step-1" / "w").write_text("1")
    (checkpoint / "step-2.tmp").mkdir()
    (checkpoint / "step-2.tmp" / "w").write_text("2")
    (checkpoint / "x.partial").write_text("?")
    assert giver.checkpoint(TASK, 1, str(checkpoint))
    assert giver.checkpoint(TASK, 1, str(checkpoint))
    (returned,) = files.returned
    assert returned.what is ReturnKind.CHECKPOINT
    assert contents(files, returned.tree) == {"step-1/w": "1"}
    assert last_returned(str(checkpoint)) == returned.tree
    (checkpoint / "step-2.tmp").rename(checkpoint / "step-2")
    assert giver.checkpoint(TASK, 1, str(checkpoint))
    assert contents(files, files.returned[1].tree) == {"step-1/w": "1", "step-2/w": "2"}


def test_a_checkpoint_that_changes_while_it_is_sent_is_not_given_back(
    files: MemoryFiles, config: AgentConfig, checkpoint: Path
) -> None:
    class Busy(Courier):
        def missing(self, names: Any) -> list[str]:
            (checkpoint / "more").write_text("new")
            return super().missing(names)

    (checkpoint / "w").write_text("1")
    busy = Busy(config)
    assert not Giver(NODE, busy, config.node_dir / "cache", MIB).checkpoint(TASK, 1, str(checkpoint))
    busy.close()
    assert files.returned == []


def test_an_old_start_gives_no_checkpoint_back(files: MemoryFiles, giver: Giver, checkpoint: Path) -> None:
    (checkpoint / "w").write_text("1")
    files.stale = True
    with pytest.raises(Stale):
        giver.checkpoint(TASK, 1, str(checkpoint))
    assert last_returned(str(checkpoint)) == ""


# ---- everything together -------------------------------------------------------------------------------------------


class Scene:
    """A returner at work, with one task."""

    def __init__(self, config: AgentConfig, courier: Courier) -> None:
        self.config = config
        self.depot = Depot(config.node_dir / "cache", MIB, courier.fetch)
        self.travelling = Travelling(config, self.depot)
        giver = Giver(NODE, courier, config.node_dir / "cache", MIB)
        self.returner = Returner(NODE, courier, self.travelling, giver)

    def task(self, task: TaskKey = TASK, incarnation: int = 1, **changes: Any) -> Running:
        marker = f"{task}.{incarnation}"
        directory = self.config.tasks_dir / marker
        directory.mkdir()
        self.travelling.lay_out(launch(task, incarnation, **changes), str(directory))
        return Running(task, incarnation, marker, str(directory))


def act(config: AgentConfig, play: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        scene = Scene(config, Courier(config))
        scene.returner.start()
        try:
            async with asyncio.timeout(60):
                await play(scene)
        finally:
            await scene.returner.stop()

    asyncio.run(whole())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what is waited for is on the disk
        await asyncio.sleep(0.02)


def log_of(files: MemoryFiles, incarnation: int = 1) -> tuple[bytes, bool]:
    chunk = files.logs.read(TASK, incarnation, 0, 1 << 20)
    return (b"", False) if chunk is None else (chunk.data, chunk.complete)


def test_the_end_of_a_task_comes_after_its_log_checkpoint_and_outputs(files: MemoryFiles, config: AgentConfig) -> None:
    async def play(scene: Scene) -> None:
        running = scene.task()
        (running.path / "log").write_bytes(b"hello\n" * 100_000)
        (running.path / "output" / "made").write_text("m")
        saved = Path(config.state_dir, "jobs", "12", "checkpoint", "0")
        (saved / "step").write_text("7")
        scene.returner.watch(running)
        assert await scene.returner.finish(running) is None
        assert log_of(files) == (b"hello\n" * 100_000, True)
        assert [one.what for one in files.returned] == [ReturnKind.CHECKPOINT, ReturnKind.OUTPUTS]
        assert not (running.path / "output").exists()

    act(config, play)


def test_logs_and_checkpoints_come_back_while_a_task_runs(files: MemoryFiles, config: AgentConfig) -> None:
    async def play(scene: Scene) -> None:
        running = scene.task()
        (running.path / "log").write_bytes(b"working\n")
        saved = Path(config.state_dir, "jobs", "12", "checkpoint", "0")
        (saved / "step").write_text("7")
        scene.returner.watch(running)
        await until(lambda: log_of(files) == (b"working\n", False))
        await until(lambda: len(files.returned) == 1)
        with (running.path / "log").open("ab") as log:
            log.write(b"more\n")
        await until(lambda: log_of(files) == (b"working\nmore\n", False))

    act(config, play)


def test_a_checkpoint_that_failed_once_comes_back_later(
    files: MemoryFiles, config: AgentConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two that are too large together, one file that goes while it is read: the next one is well."""
    monkeypatch.setattr(returning, "CHECKPOINT_AGAIN_S", 0.1)
    monkeypatch.setattr(returning, "CHECKPOINT_EVERY_S", 0.05)

    async def play(scene: Scene) -> None:
        running = scene.task()
        saved = Path(config.state_dir, "jobs", "12", "checkpoint", "0")
        with (saved / "step-1").open("wb") as file:
            file.truncate(2 * MIB)
        scene.returner.watch(running)
        await until(lambda: "does not come back" in caplog.text)
        (saved / "step-1").unlink()
        (saved / "step-2").write_text("2")
        await until(lambda: len(files.returned) == 1)

    act(config, play)
    assert contents(files, files.returned[0].tree) == {"step-2": "2"}


def test_an_end_waits_for_a_head_only_while_one_answers(
    files: MemoryFiles, config: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FILES_LAST_S", -1.0), ("LOG_LAST_S", 0.1)):
        monkeypatch.setattr(returning, name, value)
    monkeypatch.setattr(Courier, "call", Mock(side_effect=NoHead("nobody is there")))

    async def play(scene: Scene) -> None:
        running = scene.task()
        (running.path / "output" / "made").write_text("m")
        scene.returner.watch(running)
        problem = await scene.returner.finish(running)
        assert problem == "its files did not come back: no head of the pool answered"
        assert (running.path / "output" / "made").exists()

    act(config, play)


def test_an_adopted_task_s_log_goes_on_where_it_was(files: MemoryFiles, config: AgentConfig) -> None:
    async def play(scene: Scene) -> None:
        running = scene.task()
        (running.path / "log").write_bytes(b"working\nmore\n")
        scene.returner.watch(running, adopted=True)
        assert await scene.returner.finish(running) is None

    files.logs.append(LogPiece(TASK, 1, 0, b"working\n"))
    act(config, play)
    assert log_of(files) == (b"working\nmore\n", True)


def test_an_old_start_ends_without_giving_anything_back(files: MemoryFiles, config: AgentConfig) -> None:
    files.stale = True

    async def play(scene: Scene) -> None:
        running = scene.task()
        (running.path / "log").write_bytes(b"ghost\n")
        (running.path / "output" / "made").write_text("m")
        scene.returner.watch(running)
        assert await scene.returner.finish(running) is None

    act(config, play)
    assert files.returned == []
    assert log_of(files) == (b"", False)


def test_what_does_not_come_back_is_told_and_stays(files: MemoryFiles, config: AgentConfig) -> None:
    async def play(scene: Scene) -> None:
        running = scene.task()
        with (running.path / "output" / "large").open("wb") as file:
            file.truncate(2 * MIB)
        scene.returner.watch(running)
        assert "its files did not come back" in (await scene.returner.finish(running) or "")
        assert (running.path / "output" / "large").exists()

    act(config, play)
