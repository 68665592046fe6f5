"""Lengths of time, moments and sizes as people write them."""

from datetime import UTC, datetime, timedelta

import pytest

from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.quantities import duration, moment, seconds, size


def test_times_and_durations_are_read_as_people_write_them() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert moment("2026-01-31T12:00") == moment("2026-01-31T13:00+01:00") == noon
    assert moment(str(int(noon.timestamp() * 1000))) == noon
    assert duration("1h30m") == duration("PT1H30M") == duration("90m") == timedelta(hours=1.5)
    assert duration("2d") == duration("P2D") == timedelta(days=2)
    assert duration("250ms") == timedelta(milliseconds=250)
    for wrong in ("", "P", "PT", "1", "1e3", "h", "-1h", "1h-", "9" * 400 + "d"):
        with pytest.raises(ConfigError, match="is no length of time"):
            duration(wrong)


def test_a_number_alone_is_seconds() -> None:
    assert seconds("1.5") == seconds("1500ms") == 1.5
    assert seconds("1w") == seconds("7d") == seconds("604800") == 604_800.0
    for wrong in ("", "soon", "7 days", "7D1"):
        with pytest.raises(ConfigError, match="is no length of time: use a number of seconds"):
            seconds(wrong)


def test_sizes_have_powers_of_1000_or_of_1024() -> None:
    assert size("7") == size("7B") == 7
    assert (size("1.5kB"), size("1KiB"), size("2 MB")) == (1_500, 1_024, 2_000_000)
    assert (size("1GiB"), size("3tib")) == (2**30, 3 * 2**40)
    for wrong in ("", "much", "1.5", "1G", "-1KiB", "1PiB", "9" * 400 + "kB"):
        with pytest.raises(ConfigError, match="is no size"):
            size(wrong)
