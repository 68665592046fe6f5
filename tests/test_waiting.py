"""Waiting in tests: as short as it can be, and never for ever."""

import pytest

from tests.waiting import eventually


def test_eventually_returns_what_the_condition_returned() -> None:
    answers = iter([0, None, "done"])
    assert eventually(lambda: next(answers)) == "done"


def test_eventually_says_what_it_saw_last_when_time_is_up() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.02 s: .* \(last seen: 0\)"):
        eventually(lambda: 0, timeout=0.02)


def test_eventually_looks_once_even_without_any_time() -> None:
    assert eventually(lambda: True, timeout=0.0)
