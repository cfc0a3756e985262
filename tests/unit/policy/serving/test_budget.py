from __future__ import annotations

import pytest

from corral.policy.serving.budget import BudgetConfig, RetryBudget


def test_a_fifth_of_the_requests_may_be_repeated() -> None:
    budget = RetryBudget(BudgetConfig(share=0.2, window_s=10.0, free_s=0.0))
    budget.note(0.0, requests=100)
    assert [budget.spend(1.0) for _ in range(21)] == [True] * 20 + [False]


def test_a_few_may_be_repeated_in_any_case() -> None:
    budget = RetryBudget(BudgetConfig(share=0.2, window_s=10.0, free_s=0.5))
    assert [budget.spend(0.0) for _ in range(6)] == [True] * 5 + [False]


def test_what_is_over_does_not_count() -> None:
    budget = RetryBudget(BudgetConfig(share=0.5, window_s=10.0, free_s=0.0))
    budget.note(0.0, requests=10, retries=5)
    assert budget.left(9.9) == pytest.approx(0.0)
    budget.note(10.0, requests=4)
    assert budget.left(10.0) == pytest.approx(2.0)


def test_retries_that_others_made_are_counted() -> None:
    budget = RetryBudget(BudgetConfig(share=0.2, window_s=10.0, free_s=0.0))
    budget.note(0.0, requests=100, retries=30)
    assert budget.left(0.0) == pytest.approx(-10.0)
    assert not budget.spend(0.0)
