from __future__ import annotations

from pathlib import Path

import pytest

from corral.agent import retention
from corral.agent.retention import Kept, Retention, remove


def opened(path: Path, count: int = 3, age_s: float = 100.0) -> Retention:
    kept = Retention(path, count, age_s)
    kept.open(list(kept.load().values()))
    return kept


def test_the_newest_are_kept(tmp_path: Path) -> None:
    kept = opened(tmp_path / "a")
    for number in range(5):
        kept.add(Kept(f"{number}.0.0.1", float(number)))
    assert [task.marker for task in kept.due(10.0, 100)] == ["0.0.0.1", "1.0.0.1"]
    assert kept.due(10.0, 100) == []


def test_the_old_go_even_when_they_are_few_and_only_some_at_a_time(tmp_path: Path) -> None:
    kept = opened(tmp_path / "a")
    for number in range(3):
        kept.add(Kept(f"{number}.0.0.1", float(number)))
    assert [task.marker for task in kept.due(101.5, 1)] == ["0.0.0.1"]
    assert [task.marker for task in kept.due(101.5, 10)] == ["1.0.0.1"]


def test_acknowledgements_survive_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "a"
    first = opened(path)
    first.add(Kept("2.0.0.1", 20.0))
    first.add(Kept("1.0.0.1", 10.25))
    first.close()
    with path.open("a") as file:
        file.write("damaged line\n7")
    loaded = Retention(path, 3, 100.0).load()
    assert loaded == {"2.0.0.1": Kept("2.0.0.1", 20.0), "1.0.0.1": Kept("1.0.0.1", 10.25)}
    again = Retention(path, 1, 100.0)
    again.open([loaded["1.0.0.1"], loaded["2.0.0.1"]])
    assert path.read_text() == "10.250 1.0.0.1\n20.000 2.0.0.1\n"
    assert [task.marker for task in again.due(20.0, 10)] == ["1.0.0.1"]


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STALE_LINES_MAX", 10)
    path = tmp_path / "a"
    kept = opened(path, count=2)
    for number in range(100):
        kept.add(Kept(f"{number}.0.0.1", float(number)))
        kept.due(float(number), 100)
    assert len(path.read_text().splitlines()) <= 2 + 11
    # Written anew many times: whatever else this process holds, of these files only the last is open.
    held = [number.resolve() for number in Path("/proc/self/fd").iterdir()]
    assert [file for file in held if file.parent == path.parent] == [path]


def test_removing_says_what_stays(tmp_path: Path) -> None:
    (tmp_path / "1.0.0.1" / "work").mkdir(parents=True)
    (tmp_path / "1.0.0.1" / "work" / "link").symlink_to("/etc")
    (tmp_path / "2.0.0.1").write_text("no directory")
    problems = remove(tmp_path, [Kept("1.0.0.1", 1.0), Kept("2.0.0.1", 1.0), Kept("3.0.0.1", 1.0)])
    assert not (tmp_path / "1.0.0.1").exists()
    assert [problem.split(":")[0] for problem in problems] == [f"cannot remove {tmp_path / '2.0.0.1'}"]
