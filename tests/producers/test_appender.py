"""What an appender does with records, in C and in plain Python: each test tries both."""

import _thread
import gc
import shutil
import signal
import sys
import sysconfig
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent import futures
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from folkmoot.producers import appender
from folkmoot.producers.columns import RecordColumns
from folkmoot.producers.futures import BatchDelivery
from folkmoot.protocol import record_batch, speedups
from folkmoot.protocol.batch_header import MAX_BODY_BYTES, MAX_RECORDS
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.errors import (
    BufferFull,
    ClosedError,
    CorruptBatch,
    InvalidName,
    PartitionerFailed,
    RecordTooLarge,
    RequestTimeout,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.murmur2 import partition_for
from folkmoot.protocol.records import Headers, TopicPartition
from tests.producers.appenders import COMPILED, PLAIN, Owner, each_appender, rank_of, sealed

T = 1_700_000_000_000
RowTuple = tuple[bytes | None, bytes | None, int, Headers]

pytestmark = each_appender


def only_body(owner: Owner) -> bytes:
    ((batch,),) = owner.bodies().values()
    body: bytes = batch[2]
    return body


# -- bytes --------------------------------------------------------------------------------------------

GOLDEN: dict[str, tuple[list[RowTuple], str]] = {
    "one record": (
        [(b"k", b"value", T, ())],
        "95 9200c4016b 9200c40576616c7565 920000 9200c0 9200c0",
    ),
    "few records": (
        [(b"k", b"a", T, ()), (None, None, T + 300, (("h", b"1"), ("n", None)))],
        "95 9202 c404 81 01ff 6b 9202 c404 81 01ff 61 9202 c405 02 0000 2c01 "
        "9201 92 90 92 92a168c40131 92a16ec0 9200c0",
    ),
    "cells of one length": (
        [(None, b"%02d" % number, T, ()) for number in range(64)],
        "95 9200c0 9202 c485 00 02000000"
        + b"".join(b"%02d" % n for n in range(64)).hex()
        + "920000 "
        "9200c0 9200c0",
    ),
    "cells of several lengths, nils and deltas": (
        [
            (b"k" * (number % 2), None if number == 3 else b"v", T + number, ())
            for number in range(64)
        ],
        "95 9202 c461 01"
        + "0001" * 32
        + "6b" * 32
        + "9202 c480 81"
        + "01" * 3
        + "ff"
        + "01" * 60
        + "76" * 63
        + "9202 c441 01"
        + bytes(range(64)).hex()
        + "9200c0 9200c0",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_bytes_of_a_batch_are_these(implementation: Any, name: str) -> None:
    rows, expected = GOLDEN[name]
    owner = Owner(implementation, 1)
    for key, value, stamp, headers in rows:
        owner.appender.send("t", value, key, headers=headers, timestamp=stamp)
    assert only_body(owner) == bytes.fromhex(expected)


def as_packed(rows: list[RowTuple]) -> bytes:
    """The body as `record_batch.pack` writes it."""
    keys = [row[0] for row in rows]
    values = [row[1] for row in rows]
    stamps = [row[2] for row in rows]
    headers = [row[3] for row in rows]
    columns = Columns(len(rows), keys, values, stamps, headers if any(headers) else None)
    return b"".join(record_batch.pack(columns).body)


@pytest.mark.parametrize("count", [1, 15, 16, 63, 64, 65, 300])
@pytest.mark.parametrize("longest", [0, 1, 31, 254, 255, 256, 65534, 65535, 65536])
def test_bodies_are_those_that_protocol_packs(
    implementation: Any, count: int, longest: int
) -> None:
    random = Random(f"{count} {longest}")
    count = min(count, 65) if longest > 1000 else count  # a body has an end
    kinds: list[list[bytes | None]] = [
        [b"c" * longest],
        [b"x" * longest, b"y" * longest],
        [b"", b"z" * longest],
        [None, b"z" * longest],
        [None],
    ]
    for spread in (0, 1, 255, 256, 65536, 2**33):
        keys, values = random.choice(kinds), random.choice(kinds)
        name = "n" * min(longest, 300)
        headers: list[Headers] = [(), ((name, b"v" * longest), ("", None))]
        rows = [
            (
                random.choice(keys),
                random.choice(values),
                T + random.choice((0, spread)),
                random.choice(headers) if spread == 255 else (),
            )
            for _ in range(count)
        ]
        owner = Owner(implementation, 1, batch_bytes=1 << 25)
        for key, value, stamp, some in rows:
            owner.appender.send("t", value, key, headers=some, timestamp=stamp)
        assert only_body(owner) == as_packed(rows)


# -- where batches end --------------------------------------------------------------------------------


def test_a_batch_ends_at_its_size_and_a_large_record_has_its_own(implementation: Any) -> None:
    owner = Owner(implementation, 1, batch_bytes=1000)
    for size in (400, 400, 400, 100, 5000, 100):
        owner.appender.send("t", bytes(size))
    ((_, builders),) = owner.batches().items()
    assert [builder.count for builder in builders] == [3, 1, 1, 1]
    assert [builder.closed for builder in builders] == [True, True, True, False]
    assert len(owner.full) == 3
    assert owner.appender.used == sum(builder.size for builder in builders) == 6400 + 6 * 32


def test_no_batch_is_larger_than_a_reader_takes(implementation: Any) -> None:
    owner = Owner(implementation, 1, batch_bytes=1 << 40, max_record_bytes=1 << 40)
    half = bytes(MAX_BODY_BYTES // 2)
    for _ in range(3):
        owner.appender.send("t", half)
    with pytest.raises(RecordTooLarge):
        owner.appender.send("t", bytes(MAX_BODY_BYTES))
    ((_, builders),) = owner.batches().items()
    assert [builder.count for builder in builders] == [1, 1, 1]
    assert all(len(sealed(builder)[0]) <= MAX_BODY_BYTES for builder in builders)


def test_headers_without_bytes_count_what_they_take(implementation: Any) -> None:
    owner = Owner(implementation, 1, max_record_bytes=1000)
    with pytest.raises(RecordTooLarge):
        owner.appender.send("t", b"", headers=[("", b"")] * 1000)


def test_no_batch_has_more_records_than_a_reader_takes(implementation: Any) -> None:
    owner = Owner(implementation, 1, batch_bytes=1 << 40)
    columns = RecordColumns([None] * (MAX_RECORDS // 2 + 10), timestamps=T)
    for _ in range(2):
        row = 0
        while row < len(columns):
            row, _ = owner.appender.send_columns("t", columns, row)
    ((_, builders),) = owner.batches().items()
    assert all(builder.count <= MAX_RECORDS for builder in builders)
    assert all(len(sealed(builder)[0]) <= MAX_BODY_BYTES for builder in builders)
    assert sum(builder.count for builder in builders) == owner.appender.records


def test_a_batch_that_was_closed_gets_nothing_more(implementation: Any) -> None:
    owner = Owner(implementation, 1)
    first = owner.appender.send("t", b"first")
    first.builder.close()
    second = owner.appender.send("t", b"second")
    assert second.builder is not first.builder
    assert [builder.count for builder in owner.batches()[TopicPartition("t", 0)]] == [1, 1]


# -- partitions ---------------------------------------------------------------------------------------


def partitions(owner: Owner, *keys: bytes | None, **options: Any) -> list[int]:
    handles = [owner.appender.send("t", bytes(68), key, **options) for key in keys]
    return [handle.builder.topic_partition.partition for handle in handles]


def test_a_topic_that_is_forgotten_is_asked_for_again_and_its_batches_get_nothing_more(
    implementation: Any,
) -> None:
    owner = Owner(implementation)
    owner.appender.send("t", b"one", None, 0)
    owner.appender.forget("t")
    owner.appender.forget("unknown")
    owner.topics["t"] = 1
    owner.appender.send("t", b"two", None, 0)
    owner.appender.send("t", b"three", b"key")
    first, second = owner.batches()[TopicPartition("t", 0)]
    assert (first.count, second.count, owner.appender.records) == (1, 2, 3)


def test_the_owner_is_asked_for_a_partition_that_is_not_known(implementation: Any) -> None:
    owner = Owner(implementation)
    owner.appender.send("t", b"one", None, 2)
    owner.topics["t"] = 6
    assert owner.appender.try_send("t", b"two", None, 5) is None
    assert partitions(owner, b"", partition=5) == [5]
    owner.topics["t"] = 8
    owner.appender.send_columns("t", RecordColumns([b"x"], partition=7), 0)
    assert len(owner.batches()[TopicPartition("t", 7)]) == 1
    for number in (8, -1, 1 << 70):
        with pytest.raises(UnknownTopicOrPartition):
            owner.appender.send("t", b"", None, number)


def test_a_key_decides(implementation: Any) -> None:
    keys = [b"%d" % number * (number % 5) for number in range(200)]
    assert partitions(Owner(implementation, 7), *keys) == [partition_for(key, 7) for key in keys]


def test_an_explicit_partition_wins(implementation: Any) -> None:
    assert partitions(Owner(implementation), b"a", b"b", None, partition=np.int8(2)) == [2, 2, 2]


def test_records_without_key_change_partition_about_every_batch(implementation: Any) -> None:
    owner = Owner(implementation, 7, batch_bytes=1000)
    chosen = partitions(owner, *[None] * 100)
    runs = [chosen[start : start + 10] for start in range(0, 100, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(one[0] != other[0] for one, other in pairwise(runs))
    owner.know("t", 7, 2, 5)
    assert set(partitions(owner, *[None] * 100)) == {2, 5}, "only those have leaders now"
    assert set(partitions(owner, b"a", b"b", b"c")) == {
        partition_for(key, 7) for key in (b"a", b"b", b"c")
    }


def test_records_without_key_are_spread_evenly_in_the_long_run(implementation: Any) -> None:
    chosen = partitions(Owner(implementation, 7, batch_bytes=1000), *[None] * 20_000)
    assert all(2_000 < chosen.count(number) < 4_000 for number in range(7))


def test_sticky_and_round_robin_take_no_notice_of_keys(implementation: Any) -> None:
    sticky = Owner(implementation, strategy="sticky")
    assert len(set(partitions(sticky, *[b"%d" % number for number in range(50)]))) == 1
    robin = Owner(implementation, strategy="round-robin")
    assert partitions(robin, *[b"same"] * 6) == [0, 1, 2, 0, 1, 2]


def test_a_function_of_the_application_is_asked_and_checked(implementation: Any) -> None:
    answers: list[Any] = [[1], [3], [-1], ["0"], [0, 0], None, [2]]
    asked = []

    def choose(topic: str, keys: Any, count: int) -> Any:
        asked.append((topic, keys, count))
        return answers.pop(0)

    owner = Owner(implementation, strategy=choose)
    assert partitions(owner, b"k") == [1]
    for _ in range(5):
        with pytest.raises(PartitionerFailed):
            owner.appender.send("t", b"v", b"k")
    assert partitions(owner, None) == [2]
    assert asked[0] == ("t", [b"k"], 3)
    assert owner.appender.records == 2


def test_a_function_of_the_application_need_not_have_a_hash(implementation: Any) -> None:
    class Chosen(list[int]):
        def __call__(self, topic: str, keys: Any, count: int) -> list[int]:
            return self

    owner = Owner(implementation, strategy=Chosen([2]))
    assert partitions(owner, b"k") == [2]


# -- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("text",), TypeError, "value must be bytes or None"),
        ((b"v", 7), TypeError, "key must be bytes or None"),
        ((b"v", None, 3), UnknownTopicOrPartition, "no partition 3, only 0 to 2"),
        ((b"v", None, -1), UnknownTopicOrPartition, "no partition -1"),
        ((b"v", None, True), TypeError, "partition must be an int"),
        ((b"v", None, None, {"a": "b"}), TypeError, "is no header"),
        ((b"v", None, None, {"\udcff": b"b"}), InvalidName, "Unicode"),
        ((b"v", None, None, None, 2**50 + 1), ValueError, "milliseconds"),
        ((b"v", None, None, None, 1.0), TypeError, "timestamp must be an int"),
        ((b"v", None, None, None, None, 7), TypeError, "on_delivery must be callable"),
        ((bytes(1 << 20), b"k"), RecordTooLarge, "1048577 bytes .* max_record_bytes=1048576"),
    ],
)
def test_a_record_that_is_refused_was_not_taken(
    implementation: Any, arguments: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    owner = Owner(implementation)
    with pytest.raises(error, match=words):
        owner.appender.send("t", *arguments)
    assert (owner.appender.used, owner.appender.records, owner.batches()) == (0, 0, {})


def test_numpy_integers_bytearrays_and_views_are_as_good_as_others(implementation: Any) -> None:
    class Bytes(bytes):
        pass

    owner = Owner(implementation)
    for stamp in (np.int64(T), np.uint64(T)):
        owner.appender.send("t", bytearray(b"a"), memoryview(b"k"), np.int32(1), timestamp=stamp)
    owner.appender.send("t", Bytes(b"a"), memoryview(b"-k-")[1:2], 1, timestamp=T)
    records = owner.records()[TopicPartition("t", 1)]
    assert [(r.key, r.value, r.timestamp) for r in records] == [(b"k", b"a", T)] * 3


def test_headers_that_can_be_read_once_are_kept_while_the_topic_is_looked_up(
    implementation: Any,
) -> None:
    owner = Owner(implementation, 1)
    owner.appender.send("t", b"v", headers=iter([("h", b"1")]))
    assert owner.records()[TopicPartition("t", 0)][0].headers == (("h", b"1"),)


def test_the_time_of_sending_is_the_default(implementation: Any) -> None:
    owner = Owner(implementation, 1)
    before = time.time_ns() // 1_000_000
    handle = owner.appender.send("t", b"v")
    assert before <= handle.timestamp <= time.time_ns() // 1_000_000


def test_a_full_buffer_asks_the_owner_and_what_was_released_makes_room(implementation: Any) -> None:
    owner = Owner(implementation, 1, buffer_bytes=1000)
    for _ in range(8):
        owner.appender.send("t", bytes(100))
    with pytest.raises(BufferFull):
        owner.appender.send("t", b"no room")
    assert owner.appender.try_send("t", b"no room") is None
    columns = RecordColumns([b"a", b"b"])
    with pytest.raises(BufferFull):
        owner.appender.send_columns("t", columns, 0)
    owner.appender.released(132)
    assert owner.appender.try_send("t", b"room") is not None
    assert owner.appender.records == 9


def test_a_closed_appender_asks_the_owner(implementation: Any) -> None:
    owner = Owner(implementation, 1)
    owner.appender.send("t", b"taken")
    owner.appender.close()
    owner.closed = True
    with pytest.raises(ClosedError):
        owner.appender.send("t", b"late")
    assert [len(records) for records in owner.records().values()] == [1]


# -- handles ------------------------------------------------------------------------------------------


def test_a_handle_tells_where_its_record_is(implementation: Any) -> None:
    owner = Owner(implementation, 3, batch_bytes=500)
    sent = {}
    for number in range(1000):
        value = b"%d" % number
        sent[value] = owner.appender.send(
            "t", value, b"key %d" % (number % 7), timestamp=T + number
        )
    assert not any(handle.done() for handle in sent.values())
    logs = owner.records()
    owner.deliver()
    for number, (value, handle) in enumerate(sent.items()):
        topic, partition, offset = rank_of(handle)
        assert logs[TopicPartition(topic, partition)][offset].value == value
        assert (handle.done(), handle.exception(), handle.timestamp) == (True, None, T + number)


def test_a_handle_waits_and_says_when_it_took_too_long(implementation: Any) -> None:
    owner = Owner(implementation, 1)
    handle = owner.appender.send("t", b"v")
    staged = owner.appender.send("t", b"w")
    for each in (handle, staged):
        with pytest.raises(RequestTimeout, match=r"record for t is not acknowledged after 0\.01 s"):
            each.result(0.01)
        with pytest.raises(RequestTimeout):
            each.exception(0)
    waiter = futures.ThreadPoolExecutor(1)
    result = waiter.submit(staged.result)
    owner.deliver()
    assert result.result(10).offset == 1
    waiter.shutdown()


def test_without_acknowledgement_there_is_no_offset(implementation: Any) -> None:
    owner = Owner(implementation, 1)
    handle = owner.appender.send("t", b"v")
    owner.batches()
    handle.builder.finish(-1, None)
    assert handle.result().offset == -1


def test_asking_about_one_record_of_a_failed_batch_says_nothing_of_its_neighbours(
    implementation: Any,
) -> None:
    owner = Owner(implementation, 1)
    told: list[Any] = []
    handles = [owner.appender.send("t", b"%d" % number) for number in range(20)]
    handles.append(owner.appender.send("t", b"with a callback", on_delivery=told.append))
    columns = RecordColumns([b"column"] * 5)
    _, runs = owner.appender.send_columns("t", columns, 0)
    owner.appender.register_interrupted()
    builder = handles[0].builder
    assert builder.unobserved == 0, "nothing has failed yet"
    for call, handle in builder.finish(-1, CorruptBatch("no")):
        call(handle)
    assert told == [handles[20]]
    assert builder.unobserved == 25
    assert isinstance(handles[3].exception(), CorruptBatch)
    with pytest.raises(CorruptBatch):
        handles[3].result()
    handles[4].done()
    assert builder.unobserved == 24
    with pytest.raises(CorruptBatch):
        BatchDelivery(runs, owner).result(0)
    assert builder.unobserved == 19
    for handle in handles:
        handle.exception()
    assert builder.unobserved == 0


def test_a_callback_given_later_is_called_in_time_or_at_once(implementation: Any) -> None:
    owner = Owner(implementation, 1)
    told: list[Any] = []
    first = owner.appender.send("t", b"v", on_delivery=lambda handle: told.append((1, handle)))
    staged = owner.appender.send("t", b"w")
    for number in (2, 3):
        staged.add_done_callback(lambda handle, number=number: told.append((number, handle)))
    assert told == []
    owner.deliver()
    assert told == [(1, first), (2, staged), (3, staged)]
    staged.add_done_callback(lambda handle: told.append((4, handle)))
    assert told[3] == (4, staged)


def test_handles_give_futures_that_the_standard_library_waits_for(implementation: Any) -> None:
    owner = Owner(implementation, 1)
    good = owner.appender.send("t", b"v").future()
    (bad_handle,) = [owner.appender.send("t", b"w", on_delivery=lambda _: None)]
    assert not good.cancel()
    done, left = futures.wait([good], timeout=0)
    assert (len(done), len(left)) == (0, 1)
    bad_handle.builder.close()
    later = owner.appender.send("t", b"x").future()
    for builder in owner.batches()[TopicPartition("t", 0)]:
        failed = builder is not bad_handle.builder
        for call, handle in builder.finish(0, CorruptBatch("no") if failed else None):
            call(handle)
    done, left = futures.wait([good, later], timeout=10)
    assert (good.result().offset, type(later.exception()), left) == (0, CorruptBatch, set())


def test_rows_of_columns_are_told_of_by_batch_and_rank(implementation: Any) -> None:
    owner = Owner(implementation, 3, batch_bytes=2000)
    values = [b"%d" % number for number in range(1000)]
    columns = RecordColumns(values, [b"key %d" % (number % 7) for number in range(1000)])
    runs: list[Any] = []
    row = 0
    while row < len(columns):
        row, some = owner.appender.send_columns("t", columns, row)
        runs += some
        owner.appender.send("t", b"between", partition=1)
    delivery = BatchDelivery(runs, owner)
    assert (len(delivery), delivery.done()) == (1000, False)
    with pytest.raises(RequestTimeout, match="1000 records"):
        delivery.result(0)
    logs = owner.records()
    owner.deliver()
    found = []
    for partition, ranges in delivery.result(0).items():
        of_partition = [logs[TopicPartition("t", partition)][n] for part in ranges for n in part]
        assert [record.value for record in of_partition] == [
            value
            for number, value in enumerate(values)
            if partition_for(b"key %d" % (number % 7), 3) == partition
        ]
        found += of_partition
    assert len(found) == 1000


def test_columns_with_one_bad_row_are_refused_as_a_whole(implementation: Any) -> None:
    owner = Owner(implementation, 1, max_record_bytes=100)
    for bad, error in ((bytes(101), RecordTooLarge), ("text", TypeError), (7, TypeError)):
        with pytest.raises(error):
            owner.appender.send_columns("t", RecordColumns([b"good"] * 9 + [bad]), 0)
    with pytest.raises(UnknownTopicOrPartition):
        owner.appender.send_columns("t", RecordColumns([b"good"], partition=1), 0)
    assert (owner.appender.used, owner.appender.records, owner.batches()) == (0, 0, {})


def test_a_handle_that_is_kept_pins_no_records(implementation: Any) -> None:
    owner = Owner(implementation, 1, batch_bytes=1 << 20)
    for _ in range(5000):
        owner.appender.send("t", bytes(150), b"key")
    owner.batches()
    owner.deliver()
    owner.opened.clear()
    tracemalloc.start()
    try:
        handles = []
        for _ in range(10):
            sent = [owner.appender.send("t", bytes(150), b"key") for _ in range(500)]
            handles.append(sent[-1])
            sent[-1].builder.close()
            del sent
            owner.deliver()
            owner.opened.clear()
        owner.full.clear()
        gc.collect()
        pinned, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(handles) == 10
    assert pinned < 10 * 1000 + 20_000


# -- threads and interruptions ------------------------------------------------------------------------


@pytest.fixture
def hasty_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_switches")
def test_nothing_is_lost_doubled_or_reordered_when_threads_switch_all_the_time(
    implementation: Any,
) -> None:
    owner = Owner(implementation, 3, batch_bytes=3000)
    ended = threading.Event()
    sent: dict[int, list[tuple[bytes, Any]]] = {number: [] for number in range(4)}

    def send(number: int) -> None:
        for count in range(5000):
            value = b"%d %d" % (number, count)
            headers = {"h": b"1"} if count % 3 else None
            handle = owner.appender.send("t", value, b"key %d" % (count % 7), headers=headers)
            sent[number].append((value, handle))

    def close_batches() -> None:
        while not ended.is_set():
            owner.appender.register_interrupted()
            with owner.lock:
                for builder in owner.opened[-3:]:
                    builder.close()

    threads = [threading.Thread(target=send, args=(number,)) for number in sent]
    closer = threading.Thread(target=close_batches)
    for thread in (closer, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    closer.join()
    logs = owner.records()
    owner.deliver()
    assert sum(map(len, logs.values())) == owner.appender.records == 20_000
    assert owner.appender.used == 0
    for mine in sent.values():
        last: dict[int, int] = {}
        for value, handle in mine:
            topic, partition, offset = rank_of(handle)
            assert logs[TopicPartition(topic, partition)][offset].value == value
            assert offset > last.get(partition, -1)
            last[partition] = offset


class Interrupted(BaseException):
    """As KeyboardInterrupt, which may come between any two lines."""


@pytest.mark.parametrize("method", ["register_batch", "register_full_batch"])
def test_a_batch_whose_owner_was_interrupted_is_told_again_and_has_each_record_once(
    implementation: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if implementation is PLAIN:
        pytest.skip("an exception of a signal handler may interrupt the plain one anywhere")
    owner = Owner(implementation, 3, batch_bytes=300)
    tell = getattr(owner, method)
    told = 0

    def interrupted(builder: Any) -> None:
        nonlocal told
        told += 1
        if told % 2:
            raise Interrupted
        tell(builder)

    monkeypatch.setattr(owner, method, interrupted)
    for number in range(500):
        with suppress(Interrupted):
            owner.appender.send("t", b"%d" % number, b"key %d" % (number % 7))
    for _ in range(1000):
        with suppress(Interrupted):
            owner.appender.register_interrupted()
    monkeypatch.undo()
    values = [record.value for log in owner.records().values() for record in log]
    assert sorted(values, key=lambda v: int(v or b"")) == [b"%d" % number for number in range(500)]
    assert owner.appender.records == 500


@pytest.fixture
def no_callbacks_of_the_collector() -> Iterator[None]:
    """What a signal's handler raises within one, such as Hypothesis's, is told as unraisable."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


@pytest.mark.usefixtures("hasty_switches", "no_callbacks_of_the_collector")
@pytest.mark.parametrize("handler", ["raises", "sends"])
def test_signals_between_any_two_steps_lose_double_and_reorder_nothing(
    implementation: Any, handler: str
) -> None:
    if implementation is PLAIN:
        pytest.skip("an exception of a signal handler may interrupt the plain one anywhere")
    owner = Owner(implementation, 3, batch_bytes=3000)
    ended = threading.Event()
    kept: list[tuple[bytes, Any]] = []
    caught = depth = 0
    is_sending = False

    def handle(*_: object) -> None:
        nonlocal caught, depth, is_sending
        if not is_sending or depth > 2:
            return
        caught += 1
        if handler == "raises":
            is_sending = False
            raise Interrupted
        depth += 1
        value = b"%d" % (1_000_000 + caught)
        kept.append((value, owner.appender.send("t", value, b"key %d" % (caught % 7))))
        depth -= 1

    def interrupt() -> None:
        while not ended.is_set():
            _thread.interrupt_main(signal.SIGUSR1)
            time.sleep(0)

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=interrupt)
    thread.start()
    number = 0
    while caught < 3000 and number < 300_000:
        number += 1
        value = b"%d" % number
        try:
            is_sending = True
            sent = owner.appender.send("t", value, b"key %d" % (number % 7))
            is_sending = False
            kept.append((value, sent))
        except Interrupted:
            pass
    ended.set()
    thread.join()
    signal.signal(signal.SIGUSR1, before)
    logs = owner.records()
    builders = [each for batches in owner.batches().values() for each in batches]
    assert sum(each.size for each in builders) == owner.appender.used
    assert sum(map(len, logs.values())) == owner.appender.records
    values = [record.value for log in logs.values() for record in log]
    assert len(values) == len(set(values)), "each once at most"
    owner.deliver()
    for value, sent in kept:
        topic, partition, offset = rank_of(sent)
        assert logs[TopicPartition(topic, partition)][offset].value == value
    for log in logs.values():
        mine = [int(record.value or b"") for record in log]
        assert [n for n in mine if n < 1_000_000] == sorted(n for n in mine if n < 1_000_000)


def test_the_compiled_one_is_in_use_wherever_it_can_be_built(implementation: Any) -> None:
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which("cc") and headers.exists() and speedups.IS_WANTED:
        assert COMPILED is not None, "there is a compiler, and the module is not built: make env"
    chosen = COMPILED or PLAIN
    assert (appender.Appender is implementation.Appender) == (implementation is chosen)
    assert ("plain Python" if chosen is PLAIN else "compiled") == appender.IMPLEMENTATION
