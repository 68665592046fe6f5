"""Columns and records of any shape come back as they were; the body is plain MessagePack."""

from array import array
from collections.abc import Sequence
from typing import Any

import msgpack
import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from folkmoot.protocol.batch_header import HEADER_BYTES, MAX_TIMESTAMP, check
from folkmoot.protocol.columns import BinaryColumn, Columns, unpack
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.record_batch import columns_of, encode, records_of
from folkmoot.protocol.records import Record, TopicPartition
from tests.protocol.forged import opened, unpacked, unpacked_deltas
from tests.protocol.rows import rows

# How fast a busy machine draws columns says nothing about them.
relaxed = settings(
    deadline=None,
    max_examples=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)

cells = st.none() | st.binary(max_size=40) | st.binary(min_size=250, max_size=300)
stamps = st.integers(-MAX_TIMESTAMP, MAX_TIMESTAMP) | st.integers(0, 1000)
header_names = st.text(max_size=8)
headers = st.lists(st.tuples(header_names, st.none() | st.binary(max_size=8)), max_size=3).map(
    tuple
)


@st.composite
def any_columns(draw: st.DrawFn) -> Columns:
    count = draw(st.integers(1, 30))

    def per_row(row: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        varied = st.lists(row, min_size=count, max_size=count)
        return varied | row.map(lambda cell: [cell] * count)

    def column(row: st.SearchStrategy[Any]) -> st.SearchStrategy[Sequence[Any]]:
        return per_row(row) | per_row(row).map(BinaryColumn.of)

    offsets = st.sets(st.integers(0, 2**32 - 1), min_size=count, max_size=count).map(sorted)
    return Columns(
        count=count,
        keys=draw(st.none() | column(cells)),
        values=draw(column(cells)),
        timestamps=draw(
            stamps | per_row(stamps) | per_row(stamps).map(lambda row: array("q", row))
        ),
        headers=draw(st.none() | per_row(headers)),
        offsets=draw(st.none() | offsets),
    )


@relaxed
@given(columns=any_columns(), codec=st.sampled_from(Codec))
def test_columns_come_back_as_they_were(columns: Columns, codec: Codec) -> None:
    batch = encode(columns, codec)
    header = check(batch)
    back = columns_of(header, batch)
    assert rows(back) == rows(columns)
    # What a reader got can be written again: compaction does.
    again = encode(back, codec)
    assert rows(columns_of(check(again), again)) == rows(back)
    assert (header.record_count, header.last_offset) == (columns.count, rows(columns)[-1][0])
    times = [row[1] for row in rows(columns)]
    assert (header.base_timestamp, header.max_timestamp) == (min(times), max(times))


@relaxed
@given(columns=any_columns(), codec=st.sampled_from(Codec))
def test_records_say_what_the_columns_said(columns: Columns, codec: Codec) -> None:
    batch = encode(columns, codec)
    records = records_of("t", 3, check(batch), batch)
    fields = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]
    assert fields == rows(columns)
    assert {record.topic_partition for record in records} == {TopicPartition("t", 3)}


@relaxed
@given(columns=any_columns())
def test_lists_and_packed_columns_are_written_alike(columns: Columns) -> None:
    stamps = columns.timestamps
    plain = msgspec.structs.replace(
        columns,
        keys=None if columns.keys is None else list(columns.keys),
        values=list(columns.values),
        timestamps=stamps if isinstance(stamps, int) else list(stamps),
    )
    assert encode(plain, Codec.NONE) == encode(columns, Codec.NONE)


@relaxed
@given(columns=any_columns())
def test_any_messagepack_library_reads_the_body_to_the_same(columns: Columns) -> None:
    batch = encode(columns, Codec.NONE)
    fields, (keys, values, deltas, pairs, offsets) = opened(batch)
    count, base = columns.count, fields["base_timestamp"]
    dense = list(range(count)) if offsets[1] is None else offsets[1]
    row_headers = [[]] * count if pairs[1] is None else pairs[1]
    found = zip(
        dense,
        [base + delta for delta in unpacked_deltas(deltas, count)],
        unpacked(keys, count),
        unpacked(values, count),
        [tuple(map(tuple, row)) for row in row_headers],
        strict=True,
    )
    assert list(found) == rows(columns)
    assert msgpack.packb(msgpack.unpackb(batch[HEADER_BYTES:])) == batch[HEADER_BYTES:]


def test_the_last_header_of_a_name_counts() -> None:
    record = Record("t", 0, 5, 9, None, None, (("a", b"1"), ("b", None), ("a", b"2")))
    assert (record.header("a"), record.header("b"), record.header("c")) == (b"2", None, None)
    assert str(record.topic_partition) == "t-0"


def test_one_time_for_all_rows_is_a_delta_too() -> None:
    body = msgpack.packb([[0, None], [0, b"v"], [0, 5], [0, None], [0, None]])
    assert unpack(body, 2, 100).timestamps == 105
