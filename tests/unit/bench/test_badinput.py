from __future__ import annotations

import json

import pytest

from bench.badinput import judge_call, judge_command
from bench.badinput_cases import CALLS, FILES, FLAGS, CallCase
from corral.model.errors import by_code

CASE = CallCase("x", "GET", "/v1/x", 422, "INVALID_FIELD")


def document(**changes: object) -> bytes:
    return json.dumps({"code": "INVALID_FIELD", "message": "no", "status": 422, **changes}).encode()


def test_a_clear_answer_of_a_command_is_one_line_with_the_code_and_exit_code_2() -> None:
    assert judge_command("INVALID_FIELD", 2, "", "error[INVALID_FIELD]: a.yaml:1:2: grace: no\n") is None


@pytest.mark.parametrize(
    "exit_code,stdout,stderr",
    [
        (2, "", ""),
        (2, "", "Traceback (most recent call last):\n  ...\nValueError\n"),
        (2, "", "error[INVALID_FIELD]: no\nand more\n"),
        (2, "", "error[INVALID_FIELD]: \n"),
        (2, "", "error[UNKNOWN_FIELD]: no\n"),
        (1, "", "error[INVALID_FIELD]: no\n"),
        (0, "", "error[INVALID_FIELD]: no\n"),
        (2, "12\n", "error[INVALID_FIELD]: no\n"),
    ],
)
def test_any_other_answer_of_a_command_is_unclear(exit_code: int, stdout: str, stderr: str) -> None:
    assert judge_command("INVALID_FIELD", exit_code, stdout, stderr) is not None


def test_a_clear_answer_of_a_call_is_a_problem_document() -> None:
    assert judge_call(CASE, 422, "application/problem+json", document()) is None


@pytest.mark.parametrize(
    "status,kind,body",
    [
        (500, "application/problem+json", document(status=500)),
        (422, "application/json", document()),
        (422, "application/problem+json", document(status=400)),
        (422, "application/problem+json", document(code="USAGE")),
        (422, "application/problem+json", document(message="two\nlines")),
        (422, "application/problem+json", document(message="")),
        (422, "text/plain", b"Internal Server Error"),
        (422, "application/problem+json", b"[]"),
        (422, "application/problem+json", b""),
    ],
)
def test_any_other_answer_of_a_call_is_unclear(status: int, kind: str, body: bytes) -> None:
    assert judge_call(CASE, status, kind, body) is not None


def test_there_are_many_cases_each_with_a_name_of_its_own_and_a_known_code() -> None:
    assert len(FILES) + len(FLAGS) + len(CALLS) >= 90
    for cases in (FILES, FLAGS, CALLS):
        assert len({case.name for case in cases}) == len(cases)
        assert {case.code for case in cases} <= set(by_code())
    assert all(400 <= case.status < 500 for case in CALLS)
