"""A missing need skips on a desk and fails in CI."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.slurm import PACKAGES
from tests import needs


def test_a_program_that_is_there_is_found() -> None:
    assert needs.program("sh").endswith("/sh")


def test_a_missing_program_skips_and_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "false")
    with pytest.raises(pytest.skip.Exception, match="needs the program no-such: apt-get install no-such-tools"):
        needs.program("no-such", package="no-such-tools")


def test_a_missing_program_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install no-such"):
        needs.program("no-such")


def test_a_missing_module_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"pip install 'corral\[amd\]'"):
        needs.module("no_such_module", extra="amd")


def test_ci_installs_every_package_that_a_test_names() -> None:
    """The continuous integration fails where a program is missing: `.ci/run` must bring all of them."""
    root = Path(__file__).resolve().parents[2]
    listed = re.search(r"^packages=\((.*)\)$", (root / ".ci" / "run").read_text(), re.MULTILINE)
    assert listed
    asked = {*PACKAGES.values()}
    for path in (root / "tests").rglob("*.py"):
        calls = re.findall(r'\bprogram\("([\w-]+)"(?:, package="([\w-]+)")?\)', path.read_text())
        asked |= {package or name for name, package in calls if path != Path(__file__)}
    assert asked >= {"gcc", "openssl", "util-linux", "slurmctld"}
    assert asked <= set(listed[1].split())
