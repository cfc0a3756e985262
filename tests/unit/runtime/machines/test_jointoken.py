"""The word that lets machines in."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.model.errors import InvalidField, MissingField
from corral.runtime.machines.jointoken import VARIABLE, JoinToken, find_join_token, parse_join_token

SECRET = "corral_join_abcdefghijklmnopqrstuvwxyz0123456789-_A"
PRINTS = ("0" * 63 + "a", "f" * 64)


@pytest.mark.parametrize("prints", [(), PRINTS[:1], PRINTS])
def test_a_token_is_read_as_it_was_written(prints: tuple[str, ...]) -> None:
    token = JoinToken(SECRET, prints)
    assert token.text() == ".".join((SECRET, *prints))
    assert parse_join_token(f"  {token.text()}\n", insecure=not prints) == token


def test_a_token_without_a_certificate_is_taken_only_where_that_is_asked_for() -> None:
    with pytest.raises(InvalidField, match="names no certificate") as caught:
        parse_join_token(SECRET)
    assert SECRET not in str(caught.value)
    assert "--insecure" in (caught.value.refusal.hint or "")


@pytest.mark.parametrize(
    "text", ["", "x", SECRET[:20], f"{SECRET}.", f"{SECRET}.{'0' * 63}", f"{SECRET}.{'G' * 64}", f"a b {SECRET}"]
)
def test_a_damaged_token_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidField, match="the join token is damaged") as caught:
        parse_join_token(text)
    assert len(text) < 3 or text not in str(caught.value)


def test_a_file_goes_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert find_join_token(file, {VARIABLE: "from-environment"}) == "from-file"
    assert find_join_token(None, {VARIABLE: "from-environment"}) == "from-environment"


def test_a_token_that_is_nowhere_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(MissingField, match=VARIABLE):
        find_join_token(None, {})
    with pytest.raises(InvalidField, match=r"--token-file: cannot read .*nowhere: no such file"):
        find_join_token(tmp_path / "nowhere", {VARIABLE: "x"})
