"""The package itself: version, lazy client, what the wheel carries."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import corral

ROOT = Path(__file__).resolve().parents[2]


def test_the_version_is_the_one_of_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert corral.__version__ == project["version"]


def test_importing_corral_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import corral; print(*sorted(set(sys.modules) - before))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in ended.stdout.split()}
    assert loaded - sys.stdlib_module_names == {"corral"}
    assert [name for name in ended.stdout.split() if name.startswith("corral.")] == []


def test_the_client_is_there_when_asked_for() -> None:
    from corral.client import Client

    assert corral.Client is Client
    assert "Client" in dir(corral)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Server'"):
        _ = corral.Server  # type: ignore[attr-defined]


def test_python_m_corral_is_the_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "corral", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "corral" in ended.stdout
