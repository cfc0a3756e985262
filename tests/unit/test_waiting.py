"""The waiting that every other test relies on."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from tests.waiting import wait_until, wait_until_async


def test_the_first_truthy_answer_is_returned() -> None:
    answers = count(-3)
    assert wait_until(lambda: max(0, next(answers)), interval_s=0) == 1


def test_a_condition_that_never_holds_fails_and_names_it() -> None:
    with pytest.raises(AssertionError, match="for the end of the world; the last answer was 0"):
        wait_until(lambda: 0, timeout_s=0.01, interval_s=0, what="the end of the world")


def test_the_predicate_is_asked_even_when_no_time_is_left() -> None:
    assert wait_until(lambda: "here", timeout_s=0) == "here"


def test_the_twin_takes_functions_and_coroutine_functions() -> None:
    async def there() -> str:
        await asyncio.sleep(0)
        return "there"

    async def both() -> tuple[str, str]:
        return await wait_until_async(lambda: "here"), await wait_until_async(there)

    assert asyncio.run(both()) == ("here", "there")


def test_the_twin_fails_as_well() -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.01 s for the condition"):
        asyncio.run(wait_until_async(lambda: None, timeout_s=0.01, interval_s=0))
