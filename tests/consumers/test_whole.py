"""Whole numbers that applications give."""

import numpy as np
import pytest

from folkmoot.consumers.offsets.validation import HIGHEST, check_int
from folkmoot.protocol.errors import ConfigError


@pytest.mark.parametrize("value", [0, 7, HIGHEST, np.int64(7), np.uint8(7), np.uint64(HIGHEST)])
def test_whole_numbers_are_taken_as_ints(value: int) -> None:
    found = check_int("offset", value)
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize(
    "value",
    [
        *(1.5, 7.0, True, False, None, "7", [7], -1, HIGHEST + 1, 2**70),
        *(np.float64(7), np.bool_(True), np.int64(-1), np.uint64(2**63)),
    ],
)
def test_what_is_no_whole_number_in_range_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^offset of t-0 is .*: give a whole number from 0"):
        check_int("offset of t-0", value)


def test_a_range_of_ones_own_is_kept_and_said() -> None:
    assert check_int("shift", -5, least=-10) == -5
    with pytest.raises(ConfigError, match=r"shift is -11: give .* from -10 to 10"):
        check_int("shift", -11, least=-10, most=10)


@pytest.mark.parametrize("value", [10**5_000, "7" * 5_000], ids=["int", "str"])
def test_a_refusal_stays_one_short_line(value: object) -> None:
    with pytest.raises(ConfigError) as refused:
        check_int("offset", value)
    assert len(str(refused.value)) < 150
