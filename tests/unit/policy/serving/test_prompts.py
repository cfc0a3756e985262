from __future__ import annotations

import json

import pytest

from corral.policy.serving.prompts import prompt_of


@pytest.mark.parametrize(
    "said, text",
    [
        ({"model": "m", "prompt": "once"}, "once"),
        ({"input": "word", "model": "m"}, "word"),
        (
            {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]},
            "system\0be brief\0user\0hi\0",
        ),
        ({"prompt": ["a", "b"]}, "['a', 'b']"),
        ({"other": 1}, '{"other": 1}'),
    ],
)
def test_the_text_of_a_request(said: dict[str, object], text: str) -> None:
    assert prompt_of(json.dumps(said).encode()) == text


def test_what_is_no_json_is_taken_as_it_is() -> None:
    assert prompt_of(b'{"prompt": "cut o') == '{"prompt": "cut o'
    assert prompt_of(b"\xff") == "�"
