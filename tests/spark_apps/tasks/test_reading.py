"""The executor's side against brokers that the test plays."""

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StructType

from folkmoot.consumers.fetch import range_reader
from folkmoot.consumers.fetch.range_reader import OffsetRange
from folkmoot.consumers.records.arrow import SCHEMA, SCHEMA_WITH_HEADERS
from folkmoot.consumers.records.batch_view import RecordBatchView, view_of_batch
from folkmoot.protocol import batch_header, record_batch, wire
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.errors import (
    CorruptBatch,
    NotLeader,
    OffsetOutOfRange,
    RequestTimeout,
    StaleTopicId,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import (
    Api,
    BrokerInfo,
    FetchRequest,
    FetchResponse,
    FetchResult,
    MetadataResponse,
    PartitionMetadata,
    ReportDamageRequest,
    ReportDamageResponse,
    ReportDamageResult,
    TopicMetadata,
)
from folkmoot.protocol.records import Headers
from folkmoot.spark_apps.options.columns import COLUMNS, columns, select_columns
from folkmoot.spark_apps.tasks import arrow, worker_process
from folkmoot.spark_apps.tasks.planning import Task
from folkmoot.spark_apps.tasks.reading import FIRST_FETCH_BYTES, ReadOptions, read
from tests.network.stub import StubBroker
from tests.tree import ROOT
from tests.waiting import eventually

QUICK = ReadOptions(patience=0.0)
"""The first refusal ends the read, however long it was under way."""
WAIT = 20.0
LENIENT = QUICK._replace(fail_on_data_loss=False)


def made(base: int, count: int, *, append_time: int | None = None, **columns: Any) -> bytes:
    """A batch as it stands in a log: record n has value "n" and timestamp n."""
    columns.setdefault("keys", None)
    columns.setdefault("timestamps", list(range(base, base + count)))
    values = [str(base + number).encode() for number in range(count)]
    packed = record_batch.encode(Columns(count=count, values=values, **columns))
    stamp = -1 if append_time is None else append_time
    leader = batch_header.leader_part(base, len(packed), 0, stamp, stamps=append_time is not None)
    return leader + packed[batch_header.LEADER_BYTES :]


class Log:
    """One partition, `flights-0`; answers what a broker would, `per_fetch` batches at a time."""

    def __init__(self, *batches: bytes, per_fetch: int = 1, start: int = 0) -> None:
        self.batches = batches
        self.per_fetch = per_fetch
        self.start = start
        self.fetches: list[int] = []
        self.rooms: list[int] = []
        self.reported: list[int] = []
        self.refusals: list[Any] = []
        self.leader_address = ""

    def answer(self, envelope: wire.RequestEnvelope, body: Any, _: Any) -> Any:
        if envelope.api == Api.METADATA:
            info = [BrokerInfo(1, {"client": self.leader_address})]
            known = TopicMetadata("flights", 0, "id", [PartitionMetadata(0, 1, 0, [1])])
            return MetadataResponse(info, [known] if body.topics else [])
        if isinstance(body, ReportDamageRequest):
            self.reported += [entry.offset for entry in body.entries]
            return ReportDamageResponse([ReportDamageResult("flights", 0, 0, "")])
        assert isinstance(body, FetchRequest)
        (entry,) = body.entries
        assert (entry.topic, entry.topic_id, entry.partition) == ("flights", "id", 0)
        self.fetches.append(entry.offset)
        self.rooms.append(max(entry.max_bytes, body.max_bytes))
        if self.refusals:
            return self._result(envelope, self.refusals.pop(0), b"")
        headers = [batch_header.read_header(each) for each in self.batches]
        end = headers[-1].next_offset if headers else self.start
        if not self.start <= entry.offset <= end:
            return self._result(envelope, OffsetOutOfRange("out of range"), b"", end)
        found = [
            each
            for each, header in zip(self.batches, headers, strict=True)
            if header.next_offset > entry.offset
        ]
        return self._result(envelope, None, b"".join(found[: self.per_fetch]), end)

    def _result(
        self, envelope: wire.RequestEnvelope, error: Any, data: bytes, end: int = -1
    ) -> list[bytes]:
        code, text = (0, "") if error is None else (error.code, str(error))
        result = FetchResult("flights", 0, code, text, self.start, end)
        return [wire.encode_response(envelope.correlation_id, FetchResponse([result])), data]


@pytest.fixture(autouse=True)
def fresh_connections() -> Iterator[None]:
    yield
    while worker_process._idle:
        worker_process._idle.popitem()[1].close()


def serve(log: Log) -> StubBroker:
    return StubBroker(log.answer)


def a_task(broker: StubBroker, log: Log, first: int, end: int) -> Task:
    log.leader_address = broker.address
    return (OffsetRange("flights", 0, "id", first, end, broker.address, (broker.address,)),)


def rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for each in batches for row in each.to_pylist()]


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [row["offset"] for row in rows(batches)]


def test_the_schema_is_exactly_what_spark_makes_of_the_columns() -> None:
    expected = to_arrow_schema(COLUMNS, timezone="UTC")
    assert expected.equals(SCHEMA)


def test_records_become_rows_as_sparks_kafka_source_has_them() -> None:
    log = Log(made(0, 2, keys=[b"k", None]), made(2, 1, append_time=9), per_fetch=2)
    with serve(log) as broker:
        first, second, third = rows(read(a_task(broker, log, 0, 3)))
    assert (first["key"], first["value"], first["topic"]) == (b"k", b"0", "flights")
    assert (second["key"], second["partition"], second["offset"]) == (None, 0, 1)
    assert second["timestamp"].timestamp() == 0.001
    assert (second["timestampType"], third["timestampType"]) == (0, 1)
    assert third["timestamp"].timestamp() == 0.009


def test_reading_does_not_import_pandas() -> None:
    """It would take every new worker process the longer part of its first task."""
    program = (
        "import sys; from tests.spark_apps.tasks.test_reading import Log, made, serve, a_task, read\n"
        "log = Log(made(0, 2, keys=[b'k', None]))\n"
        "with serve(log) as broker:\n"
        "    assert [found.num_rows for found in read(a_task(broker, log, 0, 2))] == [2]\n"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_slice_is_cut_out_of_whole_batches() -> None:
    log = Log(made(0, 10), made(10, 10), made(20, 10))
    with serve(log) as broker:
        assert offsets(read(a_task(broker, log, 7, 22))) == list(range(7, 22))
        assert log.fetches == [7, 10, 20]
        assert offsets(read(a_task(broker, log, 12, 13))) == [12]


def test_small_batches_are_gathered_into_one(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(*(made(10 * number, 10) for number in range(7)), per_fetch=7)
    with serve(log) as broker:
        assert [each.num_rows for each in read(a_task(broker, log, 0, 70))] == [70]
        monkeypatch.setattr(arrow, "ROWS", 25)
        assert [each.num_rows for each in read(a_task(broker, log, 0, 70))] == [30, 30, 10]


def test_what_unfolds_into_more_than_it_weighs_comes_in_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow, "BYTES", 10_000)
    log = Log(made(0, 50, keys=[b"k" * 1_000] * 50), made(50, 1, keys=[b"k" * 20_000]), per_fetch=2)
    with serve(log) as broker:
        found = list(read(a_task(broker, log, 0, 51)))
    assert [each.num_rows for each in found] == [9, 9, 9, 9, 9, 5, 1]
    assert offsets(iter(found)) == list(range(51))


def test_rows_with_large_headers_are_not_gathered_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow, "BYTES", 10_000)
    large: list[Headers] = [(("trace", b"t" * 1_000),)] * 5
    log = Log(*(made(5 * number, 5, headers=large) for number in range(7)), per_fetch=7)
    with serve(log) as broker:
        assert [each.num_rows for each in read(a_task(broker, log, 0, 35))] == [5] * 7


def test_the_slices_of_a_task_make_one_batch_of_rows() -> None:
    log = Log(*(made(10 * number, 10) for number in range(7)), per_fetch=7)
    with serve(log) as broker:
        task = a_task(broker, log, 3, 5) + a_task(broker, log, 40, 42)
        (found,) = read(task)
    assert found.column("offset").to_pylist() == [3, 4, 40, 41]


def test_the_slices_of_a_task_are_asked_for_together() -> None:
    """Else a task of many small ones would take a round trip for each."""
    near, far, is_asked = Log(made(0, 5)), Log(made(5, 5)), threading.Event()

    def late(envelope: wire.RequestEnvelope, body: Any, payloads: Any) -> Any:
        assert is_asked.wait(WAIT), "the second slice was not asked for before the first one came"
        return near.answer(envelope, body, payloads)

    def heard(envelope: wire.RequestEnvelope, body: Any, payloads: Any) -> Any:
        is_asked.set()
        return far.answer(envelope, body, payloads)

    with StubBroker(late) as first, StubBroker(heard) as second:
        task = a_task(first, near, 0, 5) + a_task(second, far, 5, 10)
        assert offsets(read(task)) == list(range(10))


@pytest.mark.timeout(30)
def test_what_comes_for_one_slice_while_another_pauses_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near, far, pauses = Log(made(0, 5)), Log(made(5, 5)), threading.Event()
    near.refusals = [UnknownTopicOrPartition("not yet")]
    monkeypatch.setattr(range_reader.log, "info", lambda *_: pauses.set())
    monkeypatch.setattr(range_reader, "PAUSE", 1.0)

    def late(envelope: wire.RequestEnvelope, body: Any, payloads: Any) -> Any:
        assert pauses.wait(WAIT), "the refusal did not come"
        return far.answer(envelope, body, payloads)

    with serve(near) as first, StubBroker(late) as second:
        task = a_task(first, near, 0, 5) + a_task(second, far, 5, 10)
        assert offsets(read(task)) == list(range(10))


def test_many_slices_and_large_ones_are_asked_for_as_far_as_there_is_room() -> None:
    log = Log(made(0, 100), per_fetch=1)
    with serve(log) as broker:
        many = sum((a_task(broker, log, number, number + 1) for number in range(100)), ())
        assert offsets(read(many)) == list(range(100))
        large = [each._replace(record_bytes=FIRST_FETCH_BYTES) for each in many[:6]]
        assert offsets(read(tuple(large))) == [0, 1, 2, 3, 4, 5]


def test_rows_of_small_batches_are_the_same_gathered_or_each_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers = [[(("to", b"JFK"),)], [()], None]
    kinds: list[dict[str, Any]] = [
        {"keys": keys, "append_time": stamp, "headers": some}
        for keys in ([b"k"], [None], None)
        for stamp in (None, 9)
        for some in headers
    ]
    batches = [made(2 * number, 1, **kind) for number, kind in enumerate(kinds)]
    log = Log(*batches, made(40, arrow.FEW), *(made(110 + n, 1) for n in range(3)), per_fetch=50)
    options = QUICK._replace(columns=tuple(columns(True).names))
    with serve(log) as broker:
        task = a_task(broker, log, 0, 113)
        (gathered,) = read(task, options)
        monkeypatch.setattr(arrow, "FEW", 0)
        (alone,) = read(task, options)
    assert gathered.to_pylist() == alone.to_pylist()
    assert gathered.num_rows == len(kinds) + 67


def test_only_the_batches_of_the_slice_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def spied(partition: Any, header: Any, data: Any) -> RecordBatchView:
        opened.append(header.base_offset)
        return whole(partition, header, data)

    whole = view_of_batch
    monkeypatch.setattr("folkmoot.spark_apps.tasks.arrow.view_of_batch", spied)
    log = Log(*(made(10 * number, 10) for number in range(7)), per_fetch=7)
    with serve(log) as broker:
        assert offsets(read(a_task(broker, log, 15, 25))) == list(range(15, 25))
    assert opened == [10, 20]


def test_a_fetch_asks_for_no_more_than_the_slice() -> None:
    log = Log(*(made(1000 * number, 1000) for number in range(2)))
    with serve(log) as broker:
        (part,) = a_task(broker, log, 0, 2000)
        assert len(offsets(read((part._replace(record_bytes=100.0),)))) == 2000
        first, second = log.rooms
        assert 200_000 <= first <= 250_000
        # By now it is known how small they are.
        assert second == range_reader.LEAST_FETCH


def test_the_collector_is_spared_once_for_what_a_process_has_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    froze = []
    log = Log(made(0, 5))
    with serve(log) as broker:
        rows(read(a_task(broker, log, 0, 5)))  # imports what reading needs
        monkeypatch.setattr(worker_process, "_frozen_modules", {})
        monkeypatch.setattr(gc, "freeze", lambda: froze.append(1))
        for _ in range(3):
            rows(read(a_task(broker, log, 0, 5)))
        assert len(froze) == 1
        monkeypatch.setitem(sys.modules, "what_a_sink_needs", ModuleType("what_a_sink_needs"))
        for _ in range(3):
            rows(read(a_task(broker, log, 0, 5)))
    assert len(froze) == 2


def test_rows_have_the_columns_that_are_asked_for_and_no_others() -> None:
    schema = StructType().add("offset", LongType()).add("value", BinaryType())
    log = Log(made(0, 2), made(2, 2), per_fetch=2)
    with serve(log) as broker:
        options = QUICK._replace(columns=select_columns(schema, columns(False)))
        (alone,) = read(a_task(broker, log, 0, 1), options)
        (joined,) = read(a_task(broker, log, 0, 4), options)
    for found in (alone, joined):
        assert found.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    assert joined.to_pylist()[3] == {"offset": 3, "value": b"3"}


def test_headers_come_as_sparks_kafka_source_has_them() -> None:
    log = Log(made(0, 2, headers=[(("to", b"JFK"), ("via", None)), ()]))
    with serve(log) as broker:
        options = QUICK._replace(columns=tuple(columns(True).names))
        (found,) = read(a_task(broker, log, 0, 2), options)
    assert found.schema.equals(to_arrow_schema(columns(True), timezone="UTC"))
    assert found.schema.equals(SCHEMA_WITH_HEADERS)
    first, second = found.column("headers").to_pylist()
    assert first == [{"key": "to", "value": b"JFK"}, {"key": "via", "value": None}]
    assert second is None


def test_what_headers_say_of_the_schemas_of_values_comes_beside_these() -> None:
    mark = b"\1" + bytes(15) + b"\7"
    said: list[Headers] = [(("__value_schema_id", mark),), (), (("__key_schema_id", mark),)]
    log = Log(made(0, 3, headers=said), made(3, 1), made(4, 1, headers=[()]), per_fetch=3)
    with serve(log) as broker:
        options = QUICK._replace(columns=("value", arrow.FRAME))
        found = rows(read(a_task(broker, log, 0, 5), options))
    assert [row[arrow.FRAME] or b"" for row in found] == [mark, b"", b"", b"", b""]
    assert [row["value"] for row in found] == [b"%d" % number for number in range(5)]


def test_offsets_that_compaction_has_left_out_are_left_out_here() -> None:
    log = Log(made(0, 3, offsets=[0, 4, 9], timestamps=5), made(10, 1))
    with serve(log) as broker:
        assert offsets(read(a_task(broker, log, 0, 11))) == [0, 4, 9, 10]
        assert offsets(read(a_task(broker, log, 1, 9))) == [4]
        assert offsets(read(a_task(broker, log, 5, 8))) == []


def test_a_read_can_be_repeated_over_the_same_connection() -> None:
    log = Log(made(0, 5))
    with serve(log) as broker:
        part = a_task(broker, log, 0, 5)
        assert rows(read(part)) == rows(read(part))
        assert len(worker_process._idle) == 1


def test_a_read_that_is_given_up_midway_does_no_harm_to_the_next() -> None:
    log = Log(*(made(10 * number, 10) for number in range(5)))
    with serve(log) as broker:
        part = a_task(broker, log, 0, 50)
        unfinished = read(part)
        next(unfinished)
        assert offsets(read(part)) == list(range(50))
        del unfinished
        assert offsets(read(part)) == list(range(50))


def test_a_wrong_leader_is_found_by_asking_the_addresses_given() -> None:
    log, wrong = Log(made(0, 5)), Log()
    wrong.refusals = [NotLeader("led by broker 1")]
    with serve(log) as broker, serve(wrong) as other:
        (part,) = a_task(broker, log, 0, 5)
        assert offsets(read((part._replace(leader=other.address),))) == list(range(5))


def test_a_leader_that_is_gone_is_looked_for() -> None:
    log = Log(made(0, 5))
    with serve(log) as gone:
        address = gone.address
    with serve(log) as broker:
        (part,) = a_task(broker, log, 0, 5)
        assert offsets(read((part._replace(leader=address),))) == list(range(5))
        assert offsets(read((part._replace(leader=None),))) == list(range(5))


def test_a_broker_that_is_not_ready_is_asked_again() -> None:
    log = Log(made(0, 5))
    log.refusals = [UnknownTopicOrPartition("not yet"), StaleTopicId("the old one still")]
    with serve(log) as broker:
        assert offsets(read(a_task(broker, log, 0, 5))) == list(range(5))


def test_records_gone_by_retention_end_the_read_with_their_offsets() -> None:
    log = Log(made(10, 5), start=10)
    with serve(log) as broker:
        part = a_task(broker, log, 3, 15)
        with pytest.raises(OffsetOutOfRange, match="flights-0: records 3 to 9 are gone"):
            rows(read(part, QUICK))


def test_records_gone_by_retention_are_skipped_if_that_is_wanted() -> None:
    log = Log(made(10, 5), start=10)
    with serve(log) as broker:
        assert offsets(read(a_task(broker, log, 3, 12), LENIENT)) == [10, 11]
        assert offsets(read(a_task(broker, log, 3, 9), LENIENT)) == []


def test_a_topic_that_is_gone_is_an_error_or_an_empty_read() -> None:
    log = Log(made(0, 5))
    with serve(log) as broker:
        part = a_task(broker, log, 0, 5)
        log.refusals = [StaleTopicId("created anew")] * 1000
        with pytest.raises(StaleTopicId, match="records 0 to 4 could not be read"):
            rows(read(part, QUICK))
        assert rows(read(part, LENIENT)) == []


@pytest.mark.parametrize("options", [QUICK, LENIENT])
def test_a_log_that_ends_too_early_is_never_passed_over_in_silence(options: ReadOptions) -> None:
    log = Log(made(0, 5))
    said = "records 5 to 7 could not be read: the log ends at 5"
    with serve(log) as broker, pytest.raises(RequestTimeout, match=said):
        rows(read(a_task(broker, log, 0, 8), options))


def test_a_rotten_batch_is_not_handed_to_spark_and_the_broker_hears_of_it() -> None:
    rotten = bytearray(made(0, 5))
    rotten[-1] ^= 1
    log = Log(bytes(rotten))
    with serve(log) as broker:
        with pytest.raises(CorruptBatch, match="flights-0: the batch at offset 0"):
            rows(read(a_task(broker, log, 0, 5), QUICK))
        eventually(lambda: log.reported == [0])


def test_a_time_that_spark_cannot_count_in_microseconds_stays_at_its_limit() -> None:
    log = Log(made(0, 2, timestamps=[-(2**61), 2**61]))
    with serve(log) as broker:
        (found,) = read(a_task(broker, log, 0, 2))
    low, high = found.column("timestamp").cast(pa.int64()).to_pylist()
    assert (low, high) == (-(10**3) * (2**63 // 1000), 10**3 * (2**63 // 1000))
