"""A missing need skips on a desk and fails in CI."""

from __future__ import annotations

import pytest

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
