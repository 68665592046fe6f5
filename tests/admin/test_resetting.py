"""Targets of a reset, as offsets."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from folkmoot.admin.offset_reset import PlannedReset, Shift, Target, check_target, planned
from folkmoot.protocol.errors import ConfigError, NoOffset, OffsetOutOfRange
from folkmoot.protocol.records import TopicPartition

P0 = TopicPartition("t", 0)
NOW = datetime.now(UTC)


def new(to: Target, committed: int | None = 50, by_time: int = 70) -> int:
    plan = planned(to, {P0: committed}, {P0: 10}, {P0: 100}, {P0: by_time})
    offset = plan[0].new
    assert plan == [
        PlannedReset(partition=P0, committed=committed, new=offset, earliest=10, latest=100)
    ]
    return offset


@pytest.mark.parametrize(
    ("to", "offset"),
    [
        ("earliest", 10),
        ("latest", 100),
        (10, 10),
        (100, 100),
        (Shift(7), 57),
        (Shift(-7), 43),
        (Shift(-1000), 10),
        (Shift(1000), 100),
        (NOW, 70),
        (timedelta(hours=1), 70),
    ],
)
def test_each_target_is_an_offset_that_exists(to: Target, offset: int) -> None:
    assert new(to) == offset


def test_a_time_before_the_first_record_is_the_first_record() -> None:
    assert new(NOW, by_time=3) == 10


@pytest.mark.parametrize("offset", [9, 101])
def test_an_offset_that_does_not_exist_is_refused_with_the_range(offset: int) -> None:
    with pytest.raises(OffsetOutOfRange, match="t-0 has offsets 10 to 100"):
        new(offset)
    with pytest.raises(OffsetOutOfRange, match="t-0 has offsets 10 to 100"):
        planned({P0: offset}, {P0: None}, {P0: 10}, {P0: 100}, {})


def test_a_shift_needs_something_to_start_from() -> None:
    with pytest.raises(NoOffset, match="t-0"):
        new(Shift(1), committed=None)
    assert new("latest", committed=None) == 100


def test_what_is_no_target_is_refused() -> None:
    for wrong in ("first", 1.5, None):
        with pytest.raises(ConfigError, match="nowhere"):
            new(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [True, -1, 2**70])
def test_an_offset_that_no_partition_can_have_is_refused(wrong: int) -> None:
    with pytest.raises(ConfigError, match="offset is"):
        check_target(wrong)
    with pytest.raises(ConfigError, match="offset of t-0 is"):
        check_target({P0: wrong})


def test_a_shift_is_a_whole_number_either_way() -> None:
    assert check_target(Shift(-7)) == Shift(-7)
    with pytest.raises(ConfigError, match=r"shift is 1\.5"):
        check_target(Shift(1.5))  # type: ignore[arg-type]


def test_numbers_of_numpy_become_ints_and_other_targets_stay() -> None:
    number = check_target(np.int64(7))  # type: ignore[arg-type]
    assert (number, type(number)) == (7, int)
    offsets = check_target({("t", 0): np.int64(7)})  # type: ignore[dict-item]
    assert isinstance(offsets, dict)
    assert offsets == {P0: 7}
    assert type(offsets[P0]) is int
    for same in ("latest", NOW, timedelta(hours=1)):
        assert check_target(same) == same
