"""Files of jobs to a pool that does not see them, and what came back: over the real API, only what is missing."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.client import Client, luggage
from corral.client.ignoring import IgnoreFiles
from corral.client.luggage import Luggage
from corral.model.ask import JobAsk
from corral.model.errors import FilesMissing, FilesNeeded, FilesTooLarge, NotFound, PathNotFound, PathUnsafe
from corral.model.files import JobFiles, Returned
from corral.model.ids import ServiceName
from corral.model.job import Job
from corral.ports.files import Terms
from corral.ports.pool import Principal, Submission
from corral.wire.treefiles import gather, scan
from corral.wire.trees import Kind, load_tree
from tests import needs
from tests.unit.api.memory_files import MemoryFiles
from tests.unit.api.memory_pool import ALICE, MemoryPool
from tests.unit.api.memory_services import MemoryServices
from tests.unit.api.serving import Served

MIB = 1 << 20


class Choosy(MemoryPool):
    """A pool of several machines: without its files it takes no job. ``lost`` is how often it says they are gone."""

    lost = 0

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[JobAsk] = []

    async def submit(self, who: Principal, submission: Submission) -> tuple[Job, ...]:
        self.seen += submission.asks
        if any(ask.files is None and (ask.workdir or ask.file_mounts) for ask in submission.asks):
            raise FilesNeeded("the nodes of this pool do not see that")
        if self.lost:
            self.lost -= 1
            raise FilesMissing("gone")
        return await super().submit(who, submission)


@pytest.fixture
def pool(server: Served) -> Choosy:
    made = Choosy()
    server.use(made)
    return made


@pytest.fixture
def files(server: Served, tmp_path: Path) -> Iterator[MemoryFiles]:
    made = MemoryFiles(tmp_path / "pool", Terms(travel=True, upload_max_mib=1, shared_paths=("/nfs",)))
    server.app.state.files = made
    yield made
    server.app.state.files = None


@pytest.fixture
def client(server: Served, pool: Choosy, files: MemoryFiles) -> Iterator[Client]:
    with Client(server.url, ALICE) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print(1)")
    return root


def job(project: Path, **changes: object) -> JobAsk:
    return replace(JobAsk(argv=("true",), workdir=str(project)), **changes)


def paths(files: MemoryFiles, tree: str) -> list[str]:
    return [entry.path.decode() for entry in load_tree(tree, files.blobs.get).entries if entry.kind is Kind.FILE]


def test_files_are_sent_when_they_are_asked_for_and_only_those_that_are_missing(
    client: Client, pool: Choosy, files: MemoryFiles, project: Path
) -> None:
    client.submit(job(project))
    first, second = pool.seen
    assert first.files is None
    assert second.files is not None
    assert second.files.workdir
    assert paths(files, second.files.tree) == ["src/main.py"]
    # The file, the list of entries, the root.
    assert files.sent == 3
    client.submit(job(project))
    assert pool.seen[2].files == second.files
    assert files.sent == 3
    (project / "new").write_text("n")
    client.submit(job(project))
    assert files.sent == 6


def test_files_that_are_gone_meanwhile_are_sent_again(client: Client, pool: Choosy, project: Path) -> None:
    pool.lost = 1
    assert client.submit(job(project)).id == "1"
    pool.lost = 2
    with pytest.raises(FilesMissing):
        client.submit(job(project))


def test_mounts_lie_over_the_working_directory_and_what_all_nodes_see_stays(
    client: Client, pool: Choosy, files: MemoryFiles, project: Path, tmp_path: Path
) -> None:
    (project / "data").mkdir()
    (project / "data" / "old").write_text("old")
    (project / "shared").mkdir()
    (project / "shared" / "hidden").write_text("h")
    data = tmp_path / "data"
    data.mkdir()
    (data / "new").write_text("new")
    # Such a file keeps a directory in git whose content is not: a mount is wanted whole.
    (data / ".gitignore").write_text("*\n")
    mounts = {"data": str(data), "conf/a.ini": str(project / "src" / "main.py"), "shared": "/nfs/x"}
    client.submit(job(project, file_mounts=mounts))
    sent = pool.seen[-1].files
    assert sent is not None
    assert set(sent.targets) == {"data", "conf/a.ini"}
    assert paths(files, sent.tree) == ["conf/a.ini", "data/.gitignore", "data/new", "src/main.py"]


def test_a_workdir_that_all_nodes_see_is_not_sent(
    client: Client, pool: Choosy, files: MemoryFiles, project: Path
) -> None:
    client.submit(job(project))
    with pytest.raises(FilesNeeded):
        client.submit(job(project, workdir="/nfs/me"))
    assert pool.seen[-1].files is None
    # Once it is no longer shared the client learns it, and looks for it here.
    files.allowed = Terms(travel=True, upload_max_mib=1)
    with pytest.raises(PathNotFound):
        client.submit(job(project, workdir="/nfs/me"))


def test_mounts_alone_are_a_tree_of_their_own(client: Client, pool: Choosy, files: MemoryFiles, project: Path) -> None:
    client.submit(job(project, workdir=None, file_mounts={"p": str(project)}))
    sent = pool.seen[-1].files
    assert sent is not None
    assert (sent.workdir, sent.targets) == (False, ("p",))
    assert paths(files, sent.tree) == ["p/src/main.py"]


def test_what_cannot_be_sent_is_told(client: Client, project: Path) -> None:
    with pytest.raises(PathNotFound):
        client.submit(job(project, workdir=str(project / "none")))
    with pytest.raises(PathNotFound):
        client.submit(job(project, file_mounts={"x": str(project / "none")}))
    with pytest.raises(PathUnsafe, match=r"src/main\.py is no directory"):
        client.submit(job(project, file_mounts={"src/main.py/deeper": str(project)}))
    (project / "large").write_bytes(bytes(MIB))
    with pytest.raises(FilesTooLarge, match="holds more than 1 MiB") as caught:
        client.submit(job(project))
    assert "corralignore" in str(caught.value)
    with pytest.raises(FilesTooLarge):
        client.submit(job(project / "src", file_mounts={"x": str(project / "large")}))


def test_a_pool_of_one_machine_is_never_asked(server: Served, project: Path) -> None:
    """Without the keeping of files the question itself would be refused."""
    server.use(MemoryPool())
    with Client(server.url, ALICE) as client:
        assert client.submit(job(project)).id == "1"


# ---- what is ignored -----------------------------------------------------------------------------------------------

IGNORED = {
    ".gitignore": "*.log\n/build/\n!keep.log\n# comment\n\\#odd\ndeep/**/x.bin\n",
    "a.log": "",
    "keep.log": "",
    "#odd": "",
    "build/out": "",
    "src/build/out": "",
    "src/.gitignore": "!b.log\n*.tmp\n",
    "src/b.log": "",
    "src/c.log": "",
    "src/d.tmp": "",
    "deep/er/x.bin": "",
    "deep/x.bin": "",
    "x.bin": "",
}


@pytest.fixture
def tangled(tmp_path: Path) -> Path:
    for name, text in IGNORED.items():
        path = tmp_path / "tangled" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tangled"


def kept(root: Path) -> set[str]:
    found = scan(str(root), bytes_max=MIB, ignored=IgnoreFiles(root))
    return {one.path.decode() for one in found if one.kind is Kind.FILE}


def test_what_git_ignores_is_left_out(tangled: Path) -> None:
    needs.program("git", package="git")
    subprocess.run(["git", "init", "-q", "."], cwd=tangled, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "-z"], cwd=tangled, check=True, capture_output=True
    )
    assert kept(tangled) == set(listed.stdout.decode().rstrip("\0").split("\0"))


def test_corralignore_leaves_out_more_and_brings_back(tangled: Path) -> None:
    before = kept(tangled)
    (tangled / ".corralignore").write_text("!a.log\nx.bin\n.*ignore\n")
    (tangled / ".git").mkdir()
    (tangled / ".git" / "config").write_text("")
    assert kept(tangled) == {
        name for name in before | {"a.log"} if name not in {"x.bin", ".gitignore", "src/.gitignore"}
    }


# ---- what came back ------------------------------------------------------------------------------------------------


def returned(files: MemoryFiles, directory: Path, rank: int, incarnation: int) -> Returned:
    gathered = gather(scan(str(directory), bytes_max=MIB))
    files.blobs.put([gathered.read(name) for name in gathered.sizes])
    return Returned(rank, incarnation, gathered.tree.name, 1.0)


def give(pool: MemoryPool, number: str, gang: int, outputs: tuple[Returned, ...]) -> None:
    job = pool.all[number]
    job.gangs[gang] = replace(job.gangs[gang], outputs=outputs)


def test_outputs_are_written_where_they_belong(
    client: Client, pool: Choosy, files: MemoryFiles, project: Path, tmp_path: Path
) -> None:
    client.submit(JobAsk(argv=("true",)))
    with pytest.raises(NotFound, match="nothing of job 1 came back"):
        client.fetch("1", tmp_path / "out")
    old = returned(files, project, 0, 1)
    (project / "many").mkdir()
    for number in range(9):
        (project / "many" / str(number)).write_text(str(number))
    give(pool, "1", 0, (returned(files, project, 0, 2), replace(old, rank=1)))
    out = tmp_path / "out"
    out.mkdir()
    (out / "src").mkdir()
    (out / "src" / "main.py").write_text("old")
    written = client.fetch("1", out)
    assert (out / "src" / "main.py").read_text() == "print(1)"
    assert [(out / "many" / str(number)).read_text() for number in range(9)] == [str(number) for number in range(9)]
    assert len(written) == 10
    assert {path.name for path in out.iterdir()} == {"src", "many"}


def test_elements_and_ranks_have_directories_of_their_own(
    client: Client, pool: Choosy, files: MemoryFiles, project: Path, tmp_path: Path
) -> None:
    client.submit(JobAsk(argv=("true",), indices=(3, 7), num_nodes=2))
    one = returned(files, project, 0, 1)
    give(pool, "1", 0, (one, replace(one, rank=1)))
    give(pool, "1", 1, (replace(one, rank=1),))
    client.fetch("1", tmp_path / "all")
    found = {str(path.relative_to(tmp_path / "all")) for path in (tmp_path / "all").rglob("*.py")}
    assert found == {"3/rank-0/src/main.py", "3/rank-1/src/main.py", "7/rank-1/src/main.py"}
    client.fetch("1.1", tmp_path / "one")
    assert [path.parent.parent.name for path in (tmp_path / "one").rglob("*.py")] == ["rank-1"]


@pytest.mark.parametrize("slow", [True, False])
def test_what_takes_long_is_said_once(monkeypatch: pytest.MonkeyPatch, *, slow: bool) -> None:
    said: list[str] = []
    over = threading.Event()
    monkeypatch.setattr(luggage, "SLOW_S", 0.0 if slow else 1e6)

    def warning(text: str, what: str) -> None:
        said.append(text % what)
        over.set()

    monkeypatch.setattr(luggage._log, "warning", warning)
    with luggage._told_when_slow("workdir /x"):
        assert over.wait(10.0 if slow else 0.0) is slow
    assert said == (["reading workdir /x and sending what the pool lacks ..."] if slow else [])


@pytest.mark.parametrize("workdir", [False, True])
def test_where_the_files_of_a_pool_of_one_machine_lie_is_told(
    client: Client, server: Served, project: Path, tmp_path: Path, *, workdir: bool
) -> None:
    pool = MemoryPool()
    server.use(pool)
    server.app.state.files = MemoryFiles(tmp_path / "pool", Terms())
    client.submit(JobAsk(argv=("true",)))
    pool.all["1"].spec = replace(pool.all["1"].spec, workdir=str(project) if workdir else None)
    with pytest.raises(NotFound, match="pool of one machine: the files of job 1 lie there") as caught:
        client.fetch("1", tmp_path / "out")
    own = "the state directory of the pool/jobs/1/output"
    hint = f"see {project}, and {own} for what it wrote into CORRAL_OUTPUT_DIR" if workdir else f"see {own}"
    assert caught.value.refusal.hint == hint


def test_what_is_no_longer_whole_is_told(client: Client, files: MemoryFiles, project: Path, tmp_path: Path) -> None:
    tree = returned(files, project, 0, 1).tree
    with pytest.raises(NotFound):
        client.fetch("9", tmp_path)
    for path in (tmp_path / "pool" / "blobs").rglob("?" * 64):
        if path.read_bytes() == b"print(1)":
            path.unlink()
    with pytest.raises(Exception, match="no longer whole"):
        Luggage(client._caller).fetch(tree, tmp_path / "out")
    assert JobFiles(tree).workdir


def test_the_files_of_a_service_are_sent_when_they_are_asked_for(
    client: Client, server: Served, files: MemoryFiles, project: Path
) -> None:
    services = server.app.state.services = MemoryServices()
    services.travel = True
    try:
        client.serve(name="web", run="true", workdir=project)
    finally:
        server.app.state.services = None
    (spec,) = services.specs[ServiceName("web")]
    assert spec.replica.files is not None
    assert paths(files, spec.replica.files.tree) == ["src/main.py"]
