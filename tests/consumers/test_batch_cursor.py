"""What is lent to the application: one record at a time, and cut from anywhere, with nothing lost."""

import gc
import random
import threading
import time
from array import array
from typing import Any

import pytest

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.offsets.progress import Positions, Progress
from folkmoot.consumers.records.batch_cursor import BatchCursor
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.columns import BinaryColumn, Columns
from folkmoot.protocol.records import Record, TopicPartition
from tests.consumers.parts import PARTITIONS, Bench, until

WHERE = TopicPartition("t", 3)


def a_view(count: int, offsets: list[int] | None = None) -> RecordBatchView:
    cells = [b"%d" % number for number in range(count)]
    columns = Columns(
        count, None, BinaryColumn.of(cells), array("q", range(count)), offsets=offsets
    )
    return RecordBatchView(WHERE, columns, offsets or range(100, 100 + count), False)


def taken(cursor: BatchCursor, count: int) -> list[int]:
    return [next(cursor.records).offset for _ in range(count)]


# -- by itself ----------------------------------------------------------------------------------------


def test_what_is_lent_are_the_records_of_the_view() -> None:
    view = a_view(10)
    cursor = BatchCursor(view)
    records = list(cursor.records)
    assert records == view.records()
    assert records[9] == Record("t", 3, 109, 9, None, b"9")
    assert (cursor.row, cursor.next_offset) == (10, None)


@pytest.mark.parametrize("offsets", [None, [7, 9, 10, 30, 31]])
def test_how_far_it_came_is_known_at_every_record(offsets: list[int] | None) -> None:
    view = a_view(5, offsets)
    positions = Positions()
    cursor = positions.cursor = BatchCursor(view)
    positions.settle()
    progress = positions.of(WHERE)
    assert progress == Progress()
    for row, record in enumerate(cursor.records):
        assert record.offset == view.offsets[row]
        assert cursor.row == row + 1
        positions.settle()
        assert progress.handed_out == record.offset + 1
        assert progress.processed == (view.offsets[row - 1] + 1 if row else None)


def test_nothing_follows_a_cut_and_nothing_is_counted_that_was_not_handed_out() -> None:
    cursor = BatchCursor(a_view(5))
    assert taken(cursor, 2) == [100, 101]
    cursor.cut()
    assert list(cursor.records) == []
    assert (cursor.row, cursor.next_offset) == (2, 102)
    cursor.cut()
    assert cursor.row == 2


def test_a_cut_from_another_thread_loses_no_record() -> None:
    view = a_view(50_000)
    for _ in range(20):
        cursor, seen = BatchCursor(view), 0
        thread = threading.Timer(random.uniform(0.0, 0.003), cursor.cut)
        thread.start()
        for record in cursor.records:
            assert record.offset == 100 + seen
            seen += 1
        thread.join()
        assert cursor.row == seen


def test_a_record_is_made_when_it_is_asked_for() -> None:
    cursor = BatchCursor(a_view(1_000))
    before = sum(type(thing) is Record for thing in gc.get_objects())
    assert taken(cursor, 1) == [100]
    assert sum(type(thing) is Record for thing in gc.get_objects()) <= before + 1


def test_what_a_commit_said_is_not_taken_back() -> None:
    positions = Positions()
    cursor = positions.cursor = BatchCursor(a_view(5))
    taken(cursor, 3)
    positions.settle()
    progress = positions.of(WHERE)
    progress.processed = 103  # of the record in hand, too
    positions.settle()
    assert progress.processed == 103
    taken(cursor, 2)
    positions.settle()
    assert (progress.processed, progress.handed_out) == (104, 105)


# -- a consumer's -------------------------------------------------------------------------------------


def test_a_commit_that_falls_due_while_a_batch_is_iterated_over_is_made(bench: Bench) -> None:
    bench.send(range(3_000))
    started = time.monotonic()
    with bench.member(commit_interval=0.05) as consumer:
        for seen, record in enumerate(consumer):
            assert record.offset == seen
            if bench.committed():
                break
        assert seen < 2_999
        assert 0 < (bench.committed() or 0) <= seen
    assert time.monotonic() - started < 20.0


def test_without_auto_commit_nobody_reminds(bench: Bench) -> None:
    bench.send(range(10))
    with bench.member(commit_interval=0.01, auto_commit=False) as consumer:
        until(consumer, lambda: len(consumer.assignment()) == PARTITIONS)
        own: Any = consumer
        assert own._core.group.member.polls.remind_at == float("inf")


def test_stop_ends_the_iteration_behind_the_record_under_way(bench: Bench) -> None:
    bench.send(range(100))
    with bench.reader() as consumer:
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 41:
                threading.Thread(target=consumer.stop).run()
        assert seen == list(range(42))
        assert consumer.position(bench.partition(0)) == 42


def test_an_error_leaves_the_record_in_hand_unprocessed(bench: Bench) -> None:
    bench.send(range(100))

    def fail_at(offset: int) -> None:
        with bench.member(commit_interval=60.0) as consumer:
            for record in consumer:
                if record.offset == offset:
                    raise RuntimeError("now")

    for offset in (30, 31, 60):
        with pytest.raises(RuntimeError, match="now"):
            fail_at(offset)
        assert bench.committed() == offset


def test_the_position_is_known_in_the_loop_and_the_loop_goes_on(bench: Bench) -> None:
    bench.send(range(50))
    with bench.reader() as consumer:
        for record in consumer:
            assert consumer.position(bench.partition(0)) == record.offset + 1
            if record.offset == 49:
                break


def test_an_iterator_left_behind_goes_on_where_the_consumer_is(bench: Bench) -> None:
    bench.send(range(50))
    with bench.reader() as consumer:
        first = iter(consumer)
        assert [next(first).offset for _ in range(3)] == [0, 1, 2]
        assert [record.offset for record in consumer.poll(20.0, 4)] == [3, 4, 5, 6]
        assert next(first).offset == 7
        second = iter(consumer)
        assert [next(second).offset, next(first).offset, next(second).offset] == [8, 9, 10]
        consumer.seek(bench.partition(0), 40)
        assert [next(first).offset, next(second).offset] == [40, 41]


def test_a_batch_that_ends_in_the_loop_is_not_handed_out_again(bench: Bench) -> None:
    consumer: Any = Consumer(zookeeper="localhost:1")
    consumer._core.hand_out._taken = a_view(3)
    consumer._core.positions.cursor = BatchCursor(consumer._core.hand_out._taken)
    assert [record.offset for record in consumer._core.positions.cursor.records] == [100, 101, 102]
    consumer._core.hand_out.take_back()
    assert consumer._core.positions.cursor is None
    assert consumer._core.positions.of(WHERE).handed_out == 103
