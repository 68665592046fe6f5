"""The stages of a consumer's life follow as they are drawn."""

import re

import pytest

from folkmoot.consumers.client.life import NEXT_STAGES, Life, Stage


def test_a_stage_is_followed_by_those_that_are_drawn_and_by_no_others() -> None:
    for before in Stage:
        for after in Stage:
            life = Life()
            life.stage = before
            if after is before or after in NEXT_STAGES[before]:
                life.enter(after)
                assert life.stage is after
            else:
                with pytest.raises(AssertionError, match=re.escape(f"{before} to {after}")):
                    life.enter(after)


def test_what_a_stage_means() -> None:
    life = Life()
    assert (life.is_new, life.is_leaving, life.is_ending, life.is_forked) == (
        True,
        False,
        False,
        False,
    )
    life.enter(Stage.OPEN)
    assert (life.is_new, life.is_leaving, life.is_ending, life.is_forked) == (False,) * 4
    life.enter(Stage.LEAVING)
    assert (life.is_leaving, life.is_ending) == (True, False)
    life.enter(Stage.CLOSING)
    assert (life.is_leaving, life.is_ending, life.is_closed) == (True, True, False)
    life.enter(Stage.CLOSED)
    assert (life.is_leaving, life.is_ending, life.is_closed) == (False, True, True)
