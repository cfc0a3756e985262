from __future__ import annotations

from pathlib import Path

import pytest

from corral.agent import workview
from corral.agent.workview import ViewFailed, build_view


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """Give a user's directory: main.py, data/train.csv, data/deep/a.txt, .hidden."""
    work = tmp_path / "user"
    (work / "data" / "deep").mkdir(parents=True)
    for name in ("main.py", "data/train.csv", "data/deep/a.txt", ".hidden"):
        (work / name).write_text(name)
    return work


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Give a directory to mount, with weights.bin."""
    path = tmp_path / "source"
    path.mkdir()
    (path / "weights.bin").write_text("weights")
    return path


def entries(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}


def test_a_view_shows_the_user_s_directory_and_the_mounts(tmp_path: Path, workdir: Path, source: Path) -> None:
    view = tmp_path / "view"
    build_view(view, workdir, {"model": str(source), "one.bin": str(source / "weights.bin")})
    assert (view / "main.py").read_text() == "main.py"
    assert (view / ".hidden").read_text() == ".hidden"
    assert (view / "data" / "deep" / "a.txt").read_text() == "data/deep/a.txt"
    assert (view / "model" / "weights.bin").read_text() == "weights"
    assert (view / "one.bin").read_text() == "weights"


def test_a_mount_inside_a_directory_leaves_the_user_s_untouched(tmp_path: Path, workdir: Path, source: Path) -> None:
    before = entries(workdir)
    view = tmp_path / "view"
    build_view(view, workdir, {"data/deep/extra/w": str(source), "data/train.csv": str(source / "weights.bin")})
    assert (view / "data" / "deep" / "extra" / "w" / "weights.bin").read_text() == "weights"
    assert (view / "data" / "deep" / "a.txt").read_text() == "data/deep/a.txt"
    assert (view / "data" / "train.csv").read_text() == "weights"
    (view / "new").write_text("mine")
    (view / "data" / "new").write_text("mine")
    assert entries(workdir) == before
    assert (workdir / "data" / "train.csv").read_text() == "data/train.csv"


def test_mounts_alone_make_a_view_too(tmp_path: Path, source: Path) -> None:
    build_view(tmp_path / "view", None, {"a/b": str(source)})
    assert (tmp_path / "view" / "a" / "b" / "weights.bin").read_text() == "weights"
    assert sorted(path.name for path in (tmp_path / "view").iterdir()) == ["a"]


@pytest.mark.parametrize("target", ["/etc/x", "../x", "a/../../x", "", "."])
def test_a_target_outside_of_the_view_is_refused(tmp_path: Path, source: Path, target: str) -> None:
    with pytest.raises(ViewFailed, match="is not a relative path"):
        build_view(tmp_path / "view", None, {target: str(source)})


@pytest.mark.parametrize("missing", ["/no/such/file", "relative"])
def test_a_missing_source_is_named(tmp_path: Path, missing: str) -> None:
    with pytest.raises(ViewFailed, match=missing):
        build_view(tmp_path / "view", None, {"x": missing})


@pytest.mark.parametrize("targets", [("a", "a/b"), ("a/b", "a/b/c"), ("a-", "a", "a/b")])
def test_mounts_inside_of_mounts_are_refused(tmp_path: Path, source: Path, targets: tuple[str, ...]) -> None:
    with pytest.raises(ViewFailed, match="inside"):
        build_view(tmp_path / "view", None, dict.fromkeys(targets, str(source)))


def test_a_huge_directory_is_refused(
    tmp_path: Path, workdir: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workview, "ENTRIES_MAX", 2)
    with pytest.raises(ViewFailed, match="more than 2 entries"):
        build_view(tmp_path / "view", workdir, {"x": str(source)})
