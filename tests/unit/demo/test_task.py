from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demo import task
from tests.unit.demo.conftest import ROOT, Finish, Start

NEEDED = {
    "sweep": {"CORRAL_ARRAY_INDEX": "0", "C": "10", "GAMMA": "1", "SCALE": "unit", "CORRAL_OUTPUT_DIR": "."},
    "best": {"POINTS": "1", "CORRAL_OUTPUT_DIR": "."},
    "tiles": {"TILES": "4", "CORRAL_ARRAY_INDEX": "0", "CORRAL_OUTPUT_DIR": "."},
    "merge": {"TILES": "4", "CORRAL_OUTPUT_DIR": "."},
    "gang": {
        "NNODES": "2",
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "CORRAL_JOB": "j",
        "CORRAL_CHECKPOINT_DIR": ".",
        "CORRAL_OUTPUT_DIR": ".",
    },
}


@pytest.mark.parametrize("program, missing", [(name, each) for name, needed in NEEDED.items() for each in needed])
def test_a_missing_variable_is_named_in_one_line(finish: Finish, program: str, missing: str) -> None:
    given = {name: value for name, value in NEEDED[program].items() if name != missing}
    ended = finish(program, **given)
    assert ended.returncode == task.EXIT_USAGE
    assert ended.stderr == f"{program}: the environment variable {missing} is not set\n"


@pytest.mark.parametrize(
    "program, changed, message",
    [
        ("sweep", {"C": "many"}, "sweep: C='many' is not a number\n"),
        ("sweep", {"C": "nan"}, "sweep: C='nan' must be a finite number, at least 1e-06\n"),
        ("sweep", {"SCALE": "log"}, "sweep: SCALE='log' is none of unit, root, standard\n"),
        ("tiles", {"CORRAL_ARRAY_INDEX": "4"}, "tiles: CORRAL_ARRAY_INDEX='4' must be from 0 to 3\n"),
        ("tiles", {"CORRAL_OUTPUT_DIR": "/no"}, "tiles: CORRAL_OUTPUT_DIR='/no' is not a directory\n"),
        ("gang", {"NODE_RANK": "2"}, "gang: NODE_RANK='2' must be from 0 to 1\n"),
    ],
)
def test_a_wrong_value_is_told_in_one_line(finish: Finish, program: str, changed: dict[str, str], message: str) -> None:
    ended = finish(program, **{**NEEDED[program], **changed})
    assert (ended.returncode, ended.stderr) == (task.EXIT_USAGE, message)


@pytest.mark.parametrize("program", ["filler", "sweep", "gang"])
def test_missing_digits_are_told_in_one_line(finish: Finish, tmp_path: Path, program: str) -> None:
    given = {**NEEDED.get(program, {}), "CORRAL_CHECKPOINT_DIR": tmp_path, "CORRAL_OUTPUT_DIR": tmp_path}
    ended = finish(program, **given, DIGITS_CSV=tmp_path / "none.csv.gz")
    assert ended.returncode == task.EXIT_USAGE
    assert ended.stderr.startswith(f"{program}: the digits cannot be read from ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [b"no gzip", b"\x1f\x8b\x08\x00cut"])
def test_damaged_digits_are_told_in_one_line(finish: Finish, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "digits.csv.gz").write_bytes(content)
    ended = finish("filler", DIGITS_CSV=tmp_path / "digits.csv.gz")
    assert ended.returncode == task.EXIT_USAGE
    assert ended.stderr.startswith("filler: the digits cannot be read from ")
    assert ended.stderr.count("\n") == 1


def test_a_missing_image_is_told_in_one_line(finish: Finish, tmp_path: Path) -> None:
    given = {**NEEDED["tiles"], "CORRAL_OUTPUT_DIR": tmp_path, "IMAGE_DIR": tmp_path}
    ended = finish("tiles", **given)
    assert ended.returncode == task.EXIT_USAGE
    assert ended.stderr.startswith("tiles: the image cannot be read: ")
    assert ended.stderr.count("\n") == 1


def test_sigterm_ends_a_task_that_holds_its_device(start: Start) -> None:
    process = start("filler", QUERIES=1, HOLD_SECONDS=600)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("fold 0 of 10")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 143
    assert output == ""
    assert errors == "filler: asked to stop by SIGTERM\n"


def test_a_file_is_written_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    task.write_whole(target, b"old")
    task.write_whole(target, b"new")
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "blocked").mkdir()
    with pytest.raises(OSError, match="blocked"):
        task.write_whole(tmp_path / "blocked", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["blocked"]


@pytest.mark.parametrize(
    "module, heavy", [("filler", "numpy"), ("sweep", "sklearn"), ("gang", "sklearn"), ("tiles", "earthpy")]
)
def test_starting_stays_cheap(module: str, heavy: str) -> None:
    code = f"import sys, demo.{module}; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
