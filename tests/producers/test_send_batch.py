"""Columns in, columns on the wire: whatever they are made of, over real sockets."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import (
    BufferFull,
    ClosedError,
    CorruptBatch,
    PartitionerFailed,
    RecordTooLarge,
    RequestTimeout,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.murmur2 import partition_for
from folkmoot.protocol.records import Record, TopicPartition
from tests.producers.fakes import FakeCluster
from tests.producers.test_producer import know

T = 1_700_000_000_000
KEYS = [b"key %d" % (number % 7) for number in range(1000)]
VALUES = [b"value %d" % number for number in range(1000)]


def make(cluster: FakeCluster, **options: Any) -> Producer:
    return Producer(zookeeper=cluster.connect, **options)


def placed(cluster: FakeCluster, offsets: dict[int, list[range]]) -> dict[int, list[Record]]:
    """The records that a delivery says are there, partition by partition."""
    return {
        partition: [
            cluster.logs[TopicPartition("t", partition)][offset]
            for part in ranges
            for offset in part
        ]
        for partition, ranges in offsets.items()
    }


COLUMNS: dict[str, Any] = {
    "lists": (VALUES, KEYS),
    "tuples": (tuple(VALUES), tuple(KEYS)),
    "binary": (pa.array(VALUES, pa.binary()), pa.array(KEYS, pa.binary())),
    "large": (pa.array(VALUES, pa.large_binary()), pa.array(KEYS, pa.large_binary())),
    "string": (
        pa.array([value.decode() for value in VALUES]),
        pa.array([key.decode() for key in KEYS]),
    ),
    "chunked": (
        pa.chunked_array([VALUES[:300], VALUES[300:900], VALUES[900:]], pa.binary()),
        pa.chunked_array([KEYS[:11], [], KEYS[11:]], pa.binary()),
    ),
    "sliced": (
        pa.array([b"no", *VALUES, b"no"], pa.binary()).slice(1, 1000),
        pa.array([b"no", *KEYS], pa.binary()).slice(1),
    ),
    "dictionary": (VALUES, pa.array(KEYS, pa.binary()).dictionary_encode()),
    "views of bytes": ([memoryview(value) for value in VALUES], [bytearray(key) for key in KEYS]),
    "mixed": (pa.array(VALUES, pa.binary()), KEYS),
    "numpy": (np.array(VALUES, object), np.array(KEYS, object)),
    "fixed": (VALUES, pa.array(KEYS, pa.binary(5))),
    "large and sliced": (
        pa.array([b"no", *VALUES, b"no"], pa.large_binary()).slice(1, 1000),
        pa.array([b"no", *KEYS], pa.large_binary()).slice(1),
    ),
}


@pytest.mark.parametrize("kind", ["lists", "tuples", "views of bytes"])
def test_lists_arrive_with_headers_and_nils(cluster: FakeCluster, kind: str) -> None:
    values, keys = COLUMNS[kind]
    nils = [None, b"", None]
    with make(cluster) as producer:
        for start in range(0, 1000, 100):
            rows = slice(start, start + 100)
            producer.send_batch("t", values[rows], keys[rows], headers=[{"h": b"1"}] * 100)
        producer.send_batch("t", nils, [b"k", None, b"k"])
    rows_read = [(r.key, r.value) for log in cluster.logs.values() for r in log]
    expected = [*zip(KEYS, VALUES, strict=True), (b"k", None), (None, b""), (b"k", None)]
    assert sorted(map(str, rows_read)) == sorted(map(str, expected))
    for partition, log in cluster.logs.items():
        mine = [
            value
            for key, value in zip(KEYS, VALUES, strict=True)
            if partition_for(key, 3) == partition.partition
        ]
        assert [r.value for r in log if r.headers] == mine


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_every_row_goes_where_its_key_says_and_the_delivery_tells_the_offsets(
    cluster: FakeCluster, kind: str, compression: str
) -> None:
    values, keys = COLUMNS[kind]
    with make(cluster, compression=compression) as producer:
        delivery = producer.send_batch("t", values, keys, timestamps=T)
        offsets = delivery.result(timeout=10)
        assert (len(delivery), delivery.done(), delivery.exception()) == (1000, True, None)
    for partition, records in placed(cluster, offsets).items():
        mine = [
            (k, v) for k, v in zip(KEYS, VALUES, strict=True) if partition_for(k, 3) == partition
        ]
        assert [(record.key, record.value) for record in records] == mine
        assert {record.timestamp for record in records} == {T}
    assert sum(len(part) for ranges in offsets.values() for part in ranges) == 1000


@pytest.mark.parametrize("arrow", [False, True])
def test_nulls_are_tombstones_and_missing_keys(cluster: FakeCluster, arrow: bool) -> None:
    values: list[bytes | None] = [b"a", None, b"", b"d"]
    keys: list[bytes | None] = [None, b"k", b"", None]
    columns = [pa.array(column, pa.binary()) if arrow else column for column in (values, keys)]
    with make(cluster) as producer:
        offsets = producer.send_batch("t", *columns).result(10)
    rows = [(r.key, r.value) for records in placed(cluster, offsets).values() for r in records]
    assert sorted(map(str, rows)) == sorted(map(str, zip(keys, values, strict=True)))
    assert cluster.logs[TopicPartition("t", partition_for(b"k", 3))]


@pytest.mark.parametrize("size", [1, 3, 8, 100, 300])
@pytest.mark.parametrize("kind", ["list", "binary", "sliced"])
def test_cells_of_one_length_arrive(cluster: FakeCluster, kind: str, size: int) -> None:
    values = [(b"%03d" % number * 100)[:size] for number in range(500)]
    column: Any = {
        "list": values,
        "binary": pa.array(values, pa.binary()),
        "sliced": pa.array([b"", b"no", *values, b""], pa.large_binary()).slice(2, 500),
    }[kind]
    with make(cluster) as producer:
        offsets = producer.send_batch("t", column, column).result(10)
    for partition, records in placed(cluster, offsets).items():
        mine = [value for value in values if partition_for(value, 3) == partition]
        assert [(record.key, record.value) for record in records] == [(v, v) for v in mine]


@pytest.mark.parametrize("arrow", [False, True])
def test_the_only_key_of_a_column_decides(cluster: FakeCluster, arrow: bool) -> None:
    keys: list[bytes | None] = [None, b"the only one"]
    with make(cluster) as producer:
        producer.send_batch("t", [b"a", b"b"], pa.array(keys, pa.binary()) if arrow else keys)
    home = TopicPartition("t", partition_for(b"the only one", 3))
    assert b"b" in [record.value for record in cluster.logs[home]]


def test_views_of_numbers_are_sent_as_their_bytes(cluster: FakeCluster) -> None:
    wide = memoryview(bytes(range(16))).cast("I")
    with make(cluster) as producer:
        producer.send_batch("t", [wide, wide], partition=0)
    assert cluster.values() == [bytes(wide)] * 2


def test_what_lies_behind_a_null_is_not_sent(cluster: FakeCluster) -> None:
    full = pa.array([b"open", b"secret", b"open"], pa.binary())
    validity = pa.py_buffer(bytes([0b101]))
    _, offsets, data = full.buffers()
    hidden = pa.Array.from_buffers(pa.binary(), 3, [validity, offsets, data])
    with make(cluster, compression="none") as producer:
        producer.send_batch("t", hidden, partition=0).result(10)
    assert cluster.values() == [b"open", None, b"open"]
    assert not any(b"secret" in payload for payload in cluster.payloads)


def test_timestamps_and_headers_belong_to_their_rows(cluster: FakeCluster) -> None:
    stamps = [T + number for number in range(6)]
    kinds: list[Any] = [
        stamps,
        np.array(stamps),
        pa.array(stamps, pa.int64()),
        pa.array(stamps, pa.timestamp("ms")),
        pa.chunked_array([stamps[:2], stamps[2:]], pa.timestamp("ms")),
    ]
    headers: list[Any] = [{"a": b"1"}, (), [("b", None), ("b", b"2")], None, {}, {"c": b"3"}]
    values = [b"%d" % number for number in range(6)]
    with make(cluster) as producer:
        for given in kinds:
            producer.send_batch("t", values, timestamps=given, headers=headers, partition=1)
    log = cluster.logs[TopicPartition("t", 1)]
    assert [record.timestamp for record in log] == stamps * len(kinds)
    assert log[0].headers == (("a", b"1"),)
    assert log[2].headers == (("b", None), ("b", b"2"))
    assert [record.header("c") for record in log[:6]] == [None] * 5 + [b"3"]


def test_one_timestamp_of_any_kind_is_that_of_all_rows(cluster: FakeCluster) -> None:
    moment = np.datetime64(T, "ms")
    kinds: list[Any] = [T, np.int64(T), np.array(T), moment, moment.astype("datetime64[ns]")]
    with make(cluster) as producer:
        for given in kinds:
            producer.send_batch("t", [b"v", b"w"], timestamps=given, partition=1)
    log = cluster.logs[TopicPartition("t", 1)]
    assert [record.timestamp for record in log] == [T] * 2 * len(kinds)


def test_single_records_and_columns_keep_their_order(cluster: FakeCluster) -> None:
    with make(cluster, linger=0.001) as producer:
        for turn in range(0, 300, 3):
            producer.send("t", b"%d" % turn, partition=2)
            producer.send_batch("t", [b"%d" % (turn + 1)], partition=2)
            producer.send_batch("t", pa.array([b"%d" % (turn + 2)], pa.binary()), partition=2)
    assert cluster.values() == [b"%d" % number for number in range(300)]


def test_what_is_larger_than_the_buffer_waits_for_room_and_all_arrives(
    cluster: FakeCluster,
) -> None:
    values = [b"%06d" % number + bytes(900) for number in range(5000)]
    with make(cluster, buffer_bytes=400_000, batch_bytes=50_000) as producer:
        delivery = producer.send_batch("t", values, partition=0)
        assert delivery.result(30) == {0: [range(5000)]}
        assert producer.unacknowledged() == 0
    assert cluster.values() == values


def test_a_full_buffer_refuses_what_does_not_fit(cluster: FakeCluster) -> None:
    cluster.silent = True
    producer = make(cluster, buffer_bytes=100_000, max_block=0.2)
    producer.start()
    know(producer)
    with pytest.raises(BufferFull):
        producer.send_batch("t", [bytes(1000)] * 1000)
    with pytest.raises(Exception, match="not acknowledged"):
        producer.close(0.1)


def test_a_refused_batch_is_an_error_of_its_delivery(cluster: FakeCluster) -> None:
    cluster.failing = CorruptBatch.code
    with make(cluster) as producer:
        delivery = producer.send_batch("t", VALUES, KEYS)
        with pytest.raises(CorruptBatch):
            delivery.result(10)
        assert isinstance(delivery.exception(), CorruptBatch)


def test_a_delivery_that_takes_too_long_says_so(cluster: FakeCluster) -> None:
    cluster.silent = True
    producer = make(cluster)
    producer.start()
    with pytest.raises(RequestTimeout, match="1000 records"):
        producer.send_batch("t", VALUES).result(0.05)
    with pytest.raises(Exception, match="not acknowledged"):
        producer.close(0.1)


def test_without_acknowledgement_there_are_no_offsets(cluster: FakeCluster) -> None:
    with make(cluster, acks=0) as producer:
        assert producer.send_batch("t", VALUES, partition=1).result(10) == {1: []}
        assert producer.send_batch("t", []).result(0) == {}


@pytest.mark.parametrize(
    ("columns", "options", "error", "words"),
    [
        (("text",), {}, TypeError, "values must be a list"),
        ((b"bytes",), {}, TypeError, "values must be a list"),
        ((["text"],), {}, TypeError, "encode them first"),
        (([b"v"], [1]), {}, TypeError, "keys must hold bytes"),
        ((pa.array([1]),), {}, TypeError, "binary or string"),
        (([b"v"], [b"k", b"k"]), {}, ValueError, "2 keys"),
        (([b"v"],), {"headers": []}, ValueError, "0 headers"),
        (([b"v"],), {"headers": [[("a", "b")]]}, TypeError, "header"),
        (([b"v"],), {"timestamps": [1, 2]}, ValueError, "2 timestamps"),
        (([b"v"],), {"timestamps": [0.5]}, ValueError, "integers"),
        (([b"v"],), {"timestamps": 2**60}, ValueError, "milliseconds"),
        (([b"v"],), {"timestamps": 2**70}, ValueError, "milliseconds"),
        (([b"v"],), {"timestamps": -(2**70)}, ValueError, "milliseconds"),
        (
            ([b"v"],),
            {"timestamps": np.array([2**64 - 5], np.uint64)},
            ValueError,
            "milliseconds",
        ),
        (([b"v"],), {"timestamps": True}, ValueError, "integers"),
        ((np.array([1.5]),), {}, TypeError, "values must be .* numpy array of float64"),
        ((np.array([b"v"]),), {}, TypeError, "numpy drops zeros"),
        (([b"v"], np.array([[b"k"]], object)), {}, TypeError, "keys .* one dimension"),
        (([b"v"],), {"partition": 3}, UnknownTopicOrPartition, "no partition 3"),
        (([bytes(2**20), b""], [b"", b"k"]), {}, None, ""),
        (([bytes(2**20)], [b"k"]), {}, RecordTooLarge, "1048577"),
    ],
)
def test_columns_that_are_none_are_refused_at_once(
    cluster: FakeCluster,
    columns: tuple[Any, ...],
    options: dict[str, Any],
    error: type[Exception] | None,
    words: str,
) -> None:
    with make(cluster) as producer:
        if error is None:
            producer.send_batch("t", *columns, **options)
            return
        with pytest.raises(error, match=words):
            producer.send_batch("t", *columns, **options)
        assert producer.unacknowledged() == 0


def test_a_producer_that_is_not_open_takes_no_columns(cluster: FakeCluster) -> None:
    producer = make(cluster)
    with pytest.raises(ClosedError):
        producer.send_batch("t", VALUES)


def test_a_list_may_be_used_again_at_once(cluster: FakeCluster) -> None:
    values = [b"first", b"second"]
    with make(cluster) as producer:
        producer.send_batch("t", values, partition=0)
        values[0] = b"changed"
    assert cluster.values() == [b"first", b"second"]


# -- partitioners -------------------------------------------------------------------------------------


def test_round_robin_deals_records_out_evenly_over_calls(cluster: FakeCluster) -> None:
    with make(cluster, partitioner="round-robin") as producer:
        producer.send_batch("t", VALUES[:4], KEYS[:4])
        producer.send_batch("t", pa.array(VALUES[4:9], pa.binary()))
        producer.flush()
        for value in VALUES[9:12]:
            producer.send("t", value, b"same key")
    assert [len(cluster.logs[TopicPartition("t", number)]) for number in range(3)] == [4, 4, 4]


def test_sticky_sends_records_with_keys_together(cluster: FakeCluster) -> None:
    with make(cluster, partitioner="sticky") as producer:
        offsets = producer.send_batch("t", VALUES, KEYS).result(10)
    assert sum(len(part) for part in offsets.values()) == 1


def by_length(topic: str, keys: Any, partitions: int) -> Any:
    assert topic == "t"
    listed = keys.to_pylist() if hasattr(keys, "to_pylist") else keys
    return [len(key or b"") % partitions for key in listed]


@pytest.mark.parametrize("kind", [None, pa.binary(), pa.string()])
def test_a_partitioner_of_your_own_sees_whole_columns_of_bytes(
    cluster: FakeCluster, kind: Any
) -> None:
    keys = [b"", b"a", b"bb", b"\xc3\xa4c", None]
    column = keys if kind is None else pa.array(keys, pa.binary()).cast(kind)
    with make(cluster, partitioner=by_length) as producer:
        offsets = producer.send_batch("t", VALUES[:5], column).result(10)
        place = producer.send("t", b"one", b"dd").result(10)
        kept = producer.send("t", b"two", b"dd", partition=0).result(10)
    assert {number: len(part[0]) for number, part in offsets.items()} == {0: 3, 1: 1, 2: 1}
    assert (place.partition, kept.partition) == (2, 0)


def failing(topic: str, keys: Any, partitions: int) -> Any:
    raise KeyError("no")


@pytest.mark.parametrize(
    "partitioner",
    [
        failing,
        lambda topic, keys, partitions: [partitions] * len(keys),
        lambda topic, keys, partitions: [-1] * len(keys),
        lambda topic, keys, partitions: [0, 0],
        lambda topic, keys, partitions: ["0"] * len(keys),
        lambda topic, keys, partitions: None,
    ],
)
def test_a_partitioner_that_fails_fails_the_call_and_not_the_producer(
    cluster: FakeCluster, partitioner: Any
) -> None:
    with make(cluster, partitioner=partitioner) as producer:
        with pytest.raises(PartitionerFailed):
            producer.send_batch("t", VALUES, KEYS)
        with pytest.raises(PartitionerFailed):
            producer.send("t", b"v")
        assert producer.send_batch("t", VALUES, partition=1).result(10) == {1: [range(1000)]}
        assert producer.unacknowledged() == 0


class OfTables:
    """Makes values of a column of numbers, and says that they begin with an id."""

    writes_schema_id = True

    def serialize(self, topic: str, rows: Any) -> Any:
        return pa.array([topic.encode() + b"%d" % number for number in rows.to_pylist()])


def test_a_serializer_of_tables_makes_the_values_and_says_whether_they_begin_with_an_id(
    cluster: FakeCluster,
) -> None:
    numbers = pa.array([1, 2])
    with make(cluster) as producer:
        given = ("t", numbers, None, None, None, 0)
        assert producer._columns(*given, OfTables()).framed
        producer.send_batch("t", numbers, partition=0, serializer=OfTables()).result(10)
    log = cluster.logs[TopicPartition("t", 0)]
    assert [record.value for record in log] == [b"t1", b"t2"]
