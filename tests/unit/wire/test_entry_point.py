"""A job's own proposer is looked for before it is submitted: nothing of it runs, and what is not certain passes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from corral.wire.entry_point import entry_point_problem

FILES = {
    "mine.py": "import sys\nsys.exit('it ran')\ndef propose(offer, job): pass\n",
    "bound.py": "from elsewhere import a, b.c as d\n",
    "names.py": "from os import first as other\nasync def third(): pass\nfor second in (): pass\nif 0: fourth = 1\n",
    "star.py": "from elsewhere import *\n",
    "lazy.py": "def __getattr__(name): return print\n",
    "dynamic.py": "globals()['propose'] = print\n",
    "escape.py": "PATTERN = '\\d'\ndef propose(offer, job): pass\n",
    "klass.py": "class Mine:\n    pass\n",
    "nul.py": "a = 1\0\n",
    "deep.py": "x = " + "-" * 300_000 + "1\n",
    "latin.py": "# -*- coding: nothing -*-\n",
    "big.py": "#" * (1 << 20) + "\n",
    "native.abi3.so": "",
    "team/__init__.py": "",
    "team/bidding.py": "def propose(offer, job): pass\n",
    "folder/inner.py": "def propose(offer, job): pass\n",
}


@pytest.fixture
def workdir(tmp_path: Path) -> str:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return str(tmp_path)


@pytest.mark.parametrize(
    "entry_point",
    [
        "mine:propose", "names:other", "names:second", "names:third", "names:fourth", "star:propose", "lazy:propose",
        "dynamic:propose", "klass:Mine.whatever", "escape:propose", "big:propose", "native:propose",
        "team.bidding:propose", "folder.inner:propose", "json:loads", "json.nothing_of_this_name:loads", "sys:path",
    ],
)  # fmt: skip
def test_what_may_be_there_passes_and_nothing_is_run(workdir: str, entry_point: str) -> None:
    before = set(sys.modules)
    assert entry_point_problem(entry_point, workdir) is None
    assert not {"mine", "team", "folder", "names"} & (set(sys.modules) - before)


@pytest.mark.parametrize(
    "entry_point,words",
    [
        ("mine:propse", "/mine.py has no propse"),
        ("names:first", "/names.py has no first"),
        ("nothing_of_this_name:propose", "there is no module nothing_of_this_name in /"),
        ("bound:d", "/bound.py is not Python: invalid syntax (line 1)"),
        ("nul:a", "/nul.py "),
        ("deep:x", "/deep.py "),
        ("latin:x", "/latin.py is not Python: unknown encoding"),
        ("team.biding:propose", "there is no module biding in /"),
        ("mine.bidding:propose", "mine is a module, not a package: it has no bidding"),
        ("folder:propose", "folder is a folder without __init__.py, which has no functions"),
        ("team:propose", "/team/__init__.py has no propose"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_said_in_one_line(workdir: str, entry_point: str, words: str) -> None:
    problem = entry_point_problem(entry_point, workdir)
    assert problem is not None
    assert words in problem
    assert problem.isprintable()


def test_a_module_that_was_just_written_is_seen(tmp_path: Path) -> None:
    assert entry_point_problem("late:propose", str(tmp_path)) is not None
    (tmp_path / "late.py").write_text("def propose(offer, job): pass\n")
    assert entry_point_problem("late:propose", str(tmp_path)) is None


def test_without_a_workdir_only_this_python_counts_and_one_of_another_machine_is_not_judged(tmp_path: Path) -> None:
    assert entry_point_problem("json:loads", None) is None
    problem = entry_point_problem("nothing_of_this_name:propose", None)
    assert problem == "there is no module nothing_of_this_name (the job has no workdir) in this Python"
    assert entry_point_problem("nothing_of_this_name:propose", str(tmp_path / "gone")) is None
