from __future__ import annotations

from corral.policy.serving.outliers import Count, OutlierConfig, Outliers

CONFIG = OutlierConfig(window_s=2.0, errors_min=5, share=0.3, above=0.2, eject_s=5.0, eject_max_s=20.0)


def watch(*names: str) -> Outliers:
    outliers = Outliers(CONFIG)
    outliers.look(0.0, [Count(name, 0, 0) for name in names])
    return outliers


def test_who_fails_while_others_do_not_goes() -> None:
    outliers = watch("a", "b", "c")
    assert outliers.look(0.1, [Count("a", 40, 0), Count("b", 5, 5), Count("c", 40, 1)]) == {"b"}
    assert outliers.ejections == 1


def test_a_few_errors_are_none() -> None:
    outliers = watch("a", "b")
    assert outliers.look(0.1, [Count("a", 40, 0), Count("b", 4, 4)]) == frozenset()
    assert outliers.look(0.2, [Count("a", 400, 0), Count("b", 40, 5)]) == frozenset()


def test_a_fault_that_all_share_takes_nobody_out() -> None:
    outliers = watch("a", "b", "c")
    assert outliers.look(0.1, [Count(name, 20, 18) for name in "abc"]) == frozenset()


def test_at_most_half_of_those_that_answer_go_and_the_worst_first() -> None:
    outliers = watch("a", "b", "c", "d")
    counts = [Count("a", 100, 100), Count("b", 100, 90), Count("c", 100, 80), Count("d", 100, 0)]
    assert outliers.look(0.1, counts) == {"a", "b"}


def test_the_last_one_that_answers_stays() -> None:
    outliers = watch("a", "b")
    # b is down: one of one may not be taken out, whatever it answers.
    assert outliers.look(0.1, [Count("a", 100, 100), Count("b", 0, 0, up=False)]) == frozenset()


def test_who_is_down_makes_no_room_for_others() -> None:
    outliers = watch("a", "b", "c", "d")
    counts = [Count("a", 50, 50), Count("b", 50, 45), Count("c", 50, 0), Count("d", 9, 9, up=False)]
    # Half of three is one.
    assert outliers.look(0.1, counts) == {"a"}


def test_who_was_out_comes_back_and_stays_away_longer_each_time() -> None:
    outliers = watch("a", "b")
    assert outliers.look(1.0, [Count("a", 20, 0), Count("b", 10, 10)]) == {"b"}
    assert outliers.look(5.9, [Count("a", 90, 0), Count("b", 10, 10)]) == {"b"}
    assert outliers.look(6.0, [Count("a", 90, 0), Count("b", 10, 10)]) == frozenset()
    assert outliers.look(6.5, [Count("a", 99, 0), Count("b", 20, 20)]) == {"b"}
    assert outliers.look(16.4, [Count("a", 99, 0), Count("b", 20, 20)]) == {"b"}
    assert outliers.look(16.5, [Count("a", 99, 0), Count("b", 20, 20)]) == frozenset()


def test_errors_of_long_ago_do_not_count() -> None:
    outliers = watch("a", "b")
    outliers.look(0.5, [Count("a", 20, 0), Count("b", 4, 4)])
    assert outliers.look(3.0, [Count("a", 99, 0), Count("b", 30, 5)]) == frozenset()


def test_a_counter_that_begins_anew_is_no_fault() -> None:
    outliers = watch("a", "b")
    outliers.look(0.1, [Count("a", 1000, 0), Count("b", 1000, 0)])
    assert outliers.look(0.2, [Count("a", 3, 0), Count("b", 2, 0)]) == frozenset()
    assert outliers.look(0.3, [Count("a", 30, 0), Count("b", 22, 20)]) == {"b"}


def test_who_is_gone_is_forgotten() -> None:
    outliers = watch("a", "b")
    outliers.look(0.1, [Count("a", 20, 0), Count("b", 10, 10)])
    assert outliers.look(0.2, [Count("a", 20, 0)]) == frozenset()
