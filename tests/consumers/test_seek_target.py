"""Going on at a time: the broker names a batch, the consumer finds the record."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.offsets.seek_target import milliseconds
from folkmoot.protocol.errors import ConfigError, NotAssigned, UnknownTopicOrPartition
from tests.consumers.parts import Bench
from tests.waiting import eventually

START = datetime(2013, 1, 1, tzinfo=UTC)


def moment(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def fill(bench: Bench, partition: int = 0, records: int = 30) -> None:
    """Ten records a batch, one a minute from 2013 on."""
    for number in range(records):
        at = milliseconds(moment(number))
        bench.producer.send(bench.topic, b"%d" % number, partition=partition, timestamp=at)
        if number % 10 == 9:
            bench.producer.flush(20.0)


def next_value(consumer: Consumer) -> bytes | None:
    found = eventually(lambda: consumer.poll(0.2, max_records=1))
    value: bytes | None = found[0].value
    return value


def test_times_are_milliseconds_rounded_up_and_need_a_zone() -> None:
    assert milliseconds(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert milliseconds(datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)) == 1001
    assert milliseconds(datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)) == -1
    with pytest.raises(ConfigError, match="time zone"):
        milliseconds(datetime(2013, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    "place", [-1, 2**63, 2**70, True, 5.0, None, "begining", "end", [], b"latest"]
)
def test_what_is_no_place_is_refused_at_once_and_changes_nothing(bench: Bench, place: Any) -> None:
    bench.send([7])
    consumer = bench.reader(0)
    with pytest.raises(ConfigError):
        consumer.seek(bench.partition(0), place)
    with pytest.raises(ConfigError):
        consumer.offsets_for_times({bench.partition(0): place})
    assert next_value(consumer) == b"7"
    consumer.close()


def test_a_consumer_goes_on_at_the_first_record_of_a_time_or_later(bench: Bench) -> None:
    fill(bench)
    consumer = bench.reader(0)
    where = bench.partition(0)
    for minutes, value in ((0, b"0"), (13, b"13"), (12.5, b"13"), (-99, b"0"), (29, b"29")):
        consumer.seek(where, moment(minutes))
        assert next_value(consumer) == value
        assert consumer.position(where) == int(value) + 1
    consumer.seek(where, moment(1000))
    assert consumer.poll(0.3) == []
    bench.send([77])
    assert next_value(consumer) == b"77"
    with pytest.raises(NotAssigned):
        consumer.seek(bench.partition(2), moment(0))
    consumer.close()


def test_offsets_are_found_for_times_in_any_partition_without_disturbing_what_is_read(
    bench: Bench,
) -> None:
    fill(bench, partition=0)
    fill(bench, partition=1, records=10)
    consumer = bench.reader(0)
    assert next_value(consumer) == b"0"
    first, second, empty = map(bench.partition, range(3))
    assert consumer.offsets_for_times(
        {first: moment(17.2), second: moment(9), empty: moment(0)}
    ) == {first: 18, second: 9, empty: None}
    assert consumer.offsets_for_times({first: moment(29.1)}) == {first: None}
    assert next_value(consumer) == b"1"
    with pytest.raises(UnknownTopicOrPartition):
        consumer.offsets_for_times({bench.partition(0)._replace(topic="nothing"): moment(0)})
    with pytest.raises(UnknownTopicOrPartition, match="has 3, numbered from 0"):
        consumer.offsets_for_times({bench.partition(3): moment(0)})
    consumer.close()


def test_offsets_are_found_for_times_though_one_answer_has_no_room_for_all_partitions(
    bench: Bench,
) -> None:
    everywhere = dict.fromkeys(map(bench.partition, range(3)), moment(5))
    for where in everywhere:
        fill(bench, partition=where.partition)
    with bench.reader(fetch_max_bytes=1, partition_fetch_bytes=1) as consumer:
        assert consumer.offsets_for_times(everywhere) == dict.fromkeys(everywhere, 5)
