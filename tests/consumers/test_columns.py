"""Reading in batches, as columns and as Arrow, with the offsets and the manners of `poll`."""

import sys
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.records.batch_view import RecordBatchView, view_of_batch
from folkmoot.protocol.batch_header import LEADER_BYTES, check, leader_part
from folkmoot.protocol.columns import BinaryColumn, Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import (
    BatchTooLarge,
    ConcurrentUse,
    ConfigError,
    CorruptBatch,
    MissingExtra,
)
from folkmoot.protocol.record_batch import encode
from folkmoot.protocol.records import TopicPartition
from tests.consumers.parts import Bench, in_thread, values

T = 1_700_000_000_000


def send_columns(bench: Bench, numbers: range, partition: int = 0, **options: Any) -> None:
    cells = [b"%d" % number for number in numbers]
    keys = [b"key %d" % number for number in numbers]
    bench.producer.send_batch(bench.topic, cells, keys, partition=partition, **options).result(20)


def batch_of(consumer: Consumer, max_records: int | None = None) -> RecordBatchView:
    return next(consumer.batches(max_records))


def numbers(view: RecordBatchView) -> list[int]:
    return [int(value or b"-1") for value in view.values]


# -- batches ------------------------------------------------------------------------------------------


def test_a_batch_comes_as_columns_of_one_partition(bench: Bench) -> None:
    send_columns(bench, range(100), timestamps=[T + number for number in range(100)])
    with bench.reader() as consumer:
        view = batch_of(consumer)
        assert (len(view), view.topic, view.partition) == (100, bench.topic, 0)
        assert view.topic_partition == bench.partition(0)
        assert numbers(view) == list(range(100))
        assert list(view.keys) == [b"key %d" % number for number in range(100)]
        assert list(view.offsets) == list(range(100))
        assert list(view.timestamps) == [T + number for number in range(100)]
        assert list(view.headers) == [()] * 100
        assert (view.next_offset, view.append_time) == (100, False)
        assert [record.offset for record in view] == list(range(100))
        assert consumer.position(bench.partition(0)) == 100
        assert consumer.poll_batch(0.0) is None


def test_columns_and_records_say_the_same(bench: Bench) -> None:
    bench.producer.send(bench.topic, None, None, partition=0, headers={"a": b"1"}, timestamp=T)
    bench.producer.send(bench.topic, b"v", b"k", partition=0, timestamp=T + 5)
    bench.producer.flush(20)
    with bench.reader() as by_record, bench.reader() as by_batch:
        records = list(islice(by_record, 2))
        read = [record for view in islice(by_batch.batches(), 1) for record in view.records()]
        read += [record for view in islice(by_batch.batches(), 2 - len(read)) for record in view]
        assert read == records


def test_a_batch_is_cut_where_it_is_longer_than_asked_for(bench: Bench) -> None:
    send_columns(bench, range(10))
    with bench.reader() as consumer:
        parts = [numbers(batch_of(consumer, 4)) for _ in range(3)]
        assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        with pytest.raises(ConfigError):
            consumer.poll_batch(0.0, 0)


def test_records_batches_and_tables_may_be_read_in_turns(bench: Bench) -> None:
    send_columns(bench, range(30))
    send_columns(bench, range(30, 60))
    with bench.reader() as consumer:
        seen = numbers(batch_of(consumer, 5))
        seen += values(consumer.poll(20.0, 5))
        for record in consumer:
            seen.append(int(record.value or b""))
            if len(seen) == 13:
                break
        seen += numbers(batch_of(consumer, 7))
        seen += [int(cell) for cell in consumer.poll_arrow(20.0, 4).column("value").to_pylist()]
        seen += values(consumer.poll(20.0, 3))
        while len(seen) < 60:
            seen += numbers(batch_of(consumer))
        assert seen == list(range(60))


def test_a_batch_begins_where_the_seek_went(bench: Bench) -> None:
    send_columns(bench, range(20))
    with bench.reader() as consumer:
        consumer.seek(bench.partition(0), 15)
        assert numbers(batch_of(consumer)) == [15, 16, 17, 18, 19]
        consumer.seek(bench.partition(0), 3)
        view = batch_of(consumer, 2)
        assert (numbers(view), list(view.offsets)) == ([3, 4], [3, 4])


def test_batches_end_when_the_consumer_is_stopped(bench: Bench) -> None:
    send_columns(bench, range(10))
    with bench.reader() as consumer:
        seen = []
        for view in consumer.batches(2):
            seen += numbers(view)
            if len(seen) == 6:
                consumer.stop()
        assert seen == [0, 1, 2, 3, 4, 5]


def test_what_was_handed_out_is_processed_when_the_next_is_asked_for(bench: Bench) -> None:
    send_columns(bench, range(12))

    def fail_in_the_third_batch() -> None:
        with bench.member(commit_interval=60.0) as consumer:
            for view in consumer.batches(4):
                if view.offsets[0] == 8:
                    raise RuntimeError("now")

    with pytest.raises(RuntimeError, match="now"):
        fail_in_the_third_batch()
    assert bench.committed() == 8
    with bench.member() as consumer:
        assert numbers(batch_of(consumer)) == [8, 9, 10, 11]
    assert bench.committed() == 12


def test_commit_in_a_batch_says_that_it_is_processed(bench: Bench) -> None:
    send_columns(bench, range(12))
    with bench.member(auto_commit=False) as consumer:
        batch_of(consumer, 5)
        consumer.commit()
        assert bench.committed() == 5


def test_another_thread_is_refused_a_batch(bench: Bench) -> None:
    with bench.reader() as consumer:
        assert isinstance(in_thread(lambda: consumer.poll_batch(0.0)), ConcurrentUse)


def test_a_consumer_counts_what_it_fetches_and_hands_out(bench: Bench) -> None:
    send_columns(bench, range(100))
    send_columns(bench, range(100))
    with bench.reader() as consumer:
        seen = len(batch_of(consumer, 10))
        while seen < 150:
            seen += len(consumer.poll(20.0, 150 - seen))
        counted = consumer.metrics()
        assert (counted["records_fetched"], counted["records_taken"]) == (200, 150)
        assert (counted["batches_fetched"], counted["partitions"]) == (2, 1)
        assert counted["bytes_fetched"] > counted["buffered_bytes"] == 0
        assert (counted["lag"], counted["fetches_refused"]) == (50, 0)
        assert counted["fetches_sent"] >= 1


# -- Arrow --------------------------------------------------------------------------------------------


def test_a_table_has_the_columns_of_sparks_kafka_source(bench: Bench) -> None:
    send_columns(bench, range(3), timestamps=T, headers=[{"a": b"1"}, None, [("b", None)]])
    with bench.reader() as consumer:
        table = consumer.poll_arrow(20.0, headers=True)
        assert table.schema.names == [
            *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
            "headers",
        ]
        last = table.to_pylist()[-1]
        assert round(last.pop("timestamp").timestamp() * 1000) == T
        assert last == {
            "key": b"key 2",
            "value": b"2",
            "topic": bench.topic,
            "partition": 0,
            "offset": 2,
            "timestampType": 0,
            "headers": [{"key": "b", "value": None}],
        }
        empty = consumer.poll_arrow(0.0)
        assert (empty.num_rows, len(empty.schema)) == (0, 7)


def test_a_table_holds_batches_of_all_partitions_up_to_its_limit(bench: Bench) -> None:
    for partition in range(3):
        send_columns(bench, range(10), partition)
    rows: list[tuple[int, int]] = []
    with bench.member() as consumer:
        while len(rows) < 30:
            table = consumer.poll_arrow(20.0, 7)
            assert table.num_rows <= 7
            rows += [(row["partition"], row["offset"]) for row in table.to_pylist()]
    assert sorted(rows) == [(partition, offset) for partition in range(3) for offset in range(10)]
    assert [bench.committed(partition) for partition in range(3)] == [10, 10, 10]


def test_arrow_batches_follow_each_other_until_stopped(bench: Bench) -> None:
    send_columns(bench, range(9))
    seen: list[bytes] = []
    with bench.reader() as consumer:
        for record_batch in consumer.arrow(4):
            seen += record_batch.column("value").to_pylist()
            if len(seen) == 9:
                consumer.stop()
    assert seen == [b"%d" % number for number in range(9)]


def test_without_pyarrow_a_table_names_the_pip_command(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "folkmoot.consumers.records.arrow", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with bench.reader() as consumer, pytest.raises(MissingExtra, match=r"pip install .*\[arrow\]'"):
        consumer.poll_arrow(0.0)


# -- views by themselves ------------------------------------------------------------------------------

WHERE = TopicPartition("t", 4)


def view_of(columns: Columns, base: int = 50, *, stamps: bool = False) -> RecordBatchView:
    batch = encode(columns, Codec.NONE)
    batch = leader_part(base, len(batch), 0, T, stamps=stamps) + batch[LEADER_BYTES:]
    return view_of_batch(WHERE, check(batch), memoryview(batch))


def test_arrow_and_records_agree_on_nulls_gaps_and_append_times() -> None:
    columns = Columns(
        count=4,
        keys=[None, b"k", None, b""],
        values=[b"a", None, b"", b"dd"],
        timestamps=7,
        offsets=[0, 3, 4, 9],
    )
    view = view_of(columns, stamps=True)
    assert (list(view.offsets), view.next_offset) == ([50, 53, 54, 59], 60)
    for part in (view, view.part(1, 3), view.part(2, 4)):
        rows = part.arrow().to_pylist()
        records = part.records()
        assert [(row["key"], row["value"], row["offset"]) for row in rows] == [
            (record.key, record.value, record.offset) for record in records
        ]
        assert {row["timestampType"] for row in rows} == {1}
        assert {record.timestamp for record in records} == {T} == set(part.timestamps)


def test_packed_columns_reach_arrow_without_being_copied() -> None:
    values = [bytes([number]) * 1000 for number in range(100)]
    view = view_of(Columns(100, None, BinaryColumn.of(values), T))
    before = pa.total_allocated_bytes()
    batch = view.arrow()
    assert pa.total_allocated_bytes() - before < 20_000
    assert batch.column("value").to_pylist() == values
    assert batch.column("key").null_count == 100


def test_a_part_of_packed_columns_reaches_arrow_without_being_copied() -> None:
    values = [bytes([65 + number]) * (number % 7) for number in range(100)]
    whole = view_of(
        Columns(100, BinaryColumn.of(values), BinaryColumn.of(values), [T + n for n in range(100)])
    )
    part = whole.part(37, 61)
    before = pa.total_allocated_bytes()
    rows = part.arrow()
    assert pa.total_allocated_bytes() - before < 20_000
    assert rows.column("value").to_pylist() == rows.column("key").to_pylist() == values[37:61]
    assert rows.column("offset").to_pylist() == list(range(87, 111))
    rows.validate(full=True)


@pytest.mark.parametrize("count", [1, 16_384, 20_000])
def test_columns_with_one_value_are_as_long_as_the_others(count: int) -> None:
    rows = view_of(Columns(count, None, [b"x"] * count, T)).arrow()
    rows.validate(full=True)
    assert rows.column("topic").to_pylist() == ["t"] * count
    assert rows.column("partition").to_pylist() == [4] * count
    assert rows.column("timestampType").to_pylist() == [0] * count


def test_a_column_that_unfolds_into_too_much_for_arrow_is_refused() -> None:
    view = view_of(Columns(5_000, None, [b"x" * 1_000_000] * 5_000, T))
    with pytest.raises(BatchTooLarge):
        view.arrow()
    assert view.part(0, 2).arrow().num_rows == 2


def test_what_cannot_become_arrow_is_handed_out_the_next_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_columns(bench, range(30))

    def refuse(*_: object, **__: object) -> None:
        raise BatchTooLarge("too much for Arrow")

    with bench.reader() as consumer:
        with monkeypatch.context() as patch:
            patch.setattr("folkmoot.consumers.records.arrow.record_batch", refuse)
            for _ in range(2):
                with pytest.raises(BatchTooLarge):
                    consumer.poll_arrow(20.0)
        assert consumer.poll_arrow(20.0, 3).column("offset").to_pylist() == [0, 1, 2]
        with monkeypatch.context() as patch:
            patch.setattr("folkmoot.consumers.records.arrow.record_batch", refuse)
            with pytest.raises(BatchTooLarge):
                next(consumer.arrow())
        assert next(consumer.batches(5)).offsets[0] == 3


def test_a_view_knows_where_an_offset_and_a_time_are() -> None:
    view = view_of(Columns(3, None, [b"a", b"b", b"c"], [1, 3, 2]))
    assert [view.row_of_offset(offset) for offset in (0, 50, 52, 53)] == [0, 0, 2, 3]
    assert [view.row_of_time(time) for time in (0, 2, 4)] == [0, 1, 3]
    assert view.row_of_time(1, start=2) == 2
    assert view.part(0, 3) is view
    later = view.part(2, 3)
    assert (list(later.values), list(later.timestamps)) == ([b"c"], [2])
    assert repr(view) == "RecordBatchView(t-4, 50 to 52)"


def test_an_illegible_batch_is_corrupt() -> None:
    batch = encode(Columns(1, None, [b"a"], T), Codec.NONE)
    with pytest.raises(CorruptBatch):
        view_of_batch(WHERE, check(batch), memoryview(batch[:-3]))
