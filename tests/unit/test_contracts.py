"""The import contracts catch what they are for: each planted violation must break the right contract."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = "Rooms import lower rows only, and never a room of their own row"
ENGINES = "No engine knows another"
SANS_IO = "Model, policy and cores have no clock, randomness, sockets, files, threads, environment or logging"
LIGHT = "An agent starts in tens of milliseconds: the standard library and msgspec only"

ALONE = "Fork server and shim live on the standard library alone"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return tmp_path


def plant(copy: Path, module: str, text: str) -> None:
    """Append ``text`` to a module of the copy, or make the module (and its packages) when it is not there."""
    path = copy / "src" / Path(*module.split("."))
    if path.is_dir():
        path /= "__init__.py"
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in path.parents:
            if package == copy / "src":
                break
            (package / "__init__.py").touch()
        path = path.with_suffix(".py")
    with path.open("a") as file:
        file.write(f"\n{text}\n")


def check(copy: Path) -> tuple[int, str]:
    """Run import-linter on the copy; return its exit status and its output on one line."""
    ended = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, " ".join((ended.stdout + ended.stderr).split())


def test_the_tree_as_it_is_keeps_every_contract(copy: Path) -> None:
    status, output = check(copy)
    assert status == 0, output


@pytest.mark.parametrize(
    "module,text",
    [
        ("corral.model.planted", "import time"),
        ("corral.model.planted", "from random import Random"),
        ("corral.policy.planted", "import datetime"),
        ("corral.policy.planted", "def late() -> None:\n    import os.path"),
        ("corral.appmaster.planted", "import threading"),
        ("corral.control.core", "import asyncio"),
        ("corral.engines.planted.core.deep", "import logging"),
        ("corral.agent.core", "import subprocess"),
        ("corral.agent.core", "from pathlib import Path"),
        ("corral.model.planted", "import pydantic"),
    ],
)
def test_a_core_that_touches_the_world_is_caught(copy: Path, module: str, text: str) -> None:
    plant(copy, module, text)
    status, output = check(copy)
    assert status == 1
    assert f"{SANS_IO} BROKEN" in output
    assert f"{module} ->" in output


def test_a_core_that_reaches_the_world_through_another_module_is_caught(copy: Path) -> None:
    plant(copy, "corral.control.planted", "import socket")
    plant(copy, "corral.control.core", "import corral.control.planted")
    status, output = check(copy)
    assert status == 1
    assert f"{SANS_IO} BROKEN" in output


@pytest.mark.parametrize(
    "module,text",
    [
        ("corral.model.planted", "import corral.policy"),
        ("corral.policy.planted", "import corral.storage"),
        ("corral.api.planted", "import corral.runtime"),
        ("corral.api.planted", "import corral.client"),
        ("corral.storage.planted", "import corral.agent"),
        ("corral.wire.planted", "import corral.ports"),
        ("corral.control.planted", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import corral.cli"),
        ("corral.planted", "ROOM = 'not declared'"),
    ],
)
def test_an_import_that_climbs_or_goes_sideways_and_an_undeclared_room_are_caught(
    copy: Path, module: str, text: str
) -> None:
    plant(copy, module, text)
    status, output = check(copy)
    assert status == 1
    assert f"{LAYERS} BROKEN" in output
    assert "corral.planted" in output or f"{module} ->" in output


def test_an_engine_that_knows_another_is_caught(copy: Path) -> None:
    plant(copy, "corral.engines.planted.engine", "import corral.engines.local")
    status, output = check(copy)
    assert status == 1
    assert f"{ENGINES} BROKEN" in output


def test_an_agent_that_loads_a_heavy_library_is_caught(copy: Path) -> None:
    plant(copy, "corral.agent.planted", "import pydantic")
    status, output = check(copy)
    assert status == 1
    assert f"{LIGHT} BROKEN" in output


def test_a_shim_that_loads_more_than_the_standard_library_is_caught(copy: Path) -> None:
    plant(copy, "corral.agent.shim.main", "import corral.model.ids")
    status, output = check(copy)
    assert status == 1
    assert f"{ALONE} BROKEN" in output


def test_whoever_imports_the_package_for_its_version_does_not_import_the_client(copy: Path) -> None:
    plant(copy, "corral.agent.planted", "from corral import __version__")
    status, output = check(copy)
    assert status == 0, output
