"""What the broker answers, without sockets and with a clock that stands still."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from folkmoot.brokers.jobs.jobs import Job, Lane, Now
from folkmoot.brokers.replication.partition import Partition, Session
from folkmoot.brokers.server import request_handlers
from folkmoot.brokers.server.fetch_sessions import ConsumerSession
from folkmoot.brokers.server.metadata_cache import ClusterView
from folkmoot.brokers.server.purgatory import Request, Response
from folkmoot.brokers.server.replica_fetches import FollowerSession
from folkmoot.brokers.server.request_handlers import RequestHandlers
from folkmoot.brokers.server.request_table import handle
from folkmoot.brokers.storage import producer_state
from folkmoot.brokers.storage.files.atomic_file import read_checked
from folkmoot.brokers.storage.log import Log
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    OutOfOrderSequence,
    Overloaded,
    ProducerFenced,
    StaleTopicId,
    StorageError,
    UnknownProducer,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import (
    EARLIEST,
    LATEST,
    Api,
    DeleteRecordsEntry,
    DeleteRecordsRequest,
    DescribeProducersEntry,
    DescribeProducersRequest,
    FetchResponse,
    HelloRequest,
    ListOffsetsEntry,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceResponse,
    ReplicaFetchEntry,
)
from tests.brokers.batches import append as append_to_log
from tests.brokers.batches import evict, flush, timed_batch
from tests.brokers.hands import Hands, create
from tests.brokers.parts import (
    BROKERS,
    DELETED,
    ME,
    OTHER,
    TOPIC,
    carried_out,
    fetch,
    into,
    make_batch,
    make_cold,
    make_handlers,
    make_logs,
    out_of,
    produce,
    show,
    the_log,
)

NOW = Now(100.0, 1_700_000_000_000)


@pytest.fixture
def handlers(tmp_path: Path) -> Iterator[RequestHandlers]:
    with make_logs(tmp_path / "data", LogConfig(max_batch_bytes=1_000)) as logs:
        yield make_handlers(logs, max_batch_bytes=1_000)


def answer(request: Any, handlers: RequestHandlers, *payloads: bytes) -> Any:
    outcome = carried_out(request, payloads, NOW, handlers)
    assert isinstance(outcome, Response)
    return outcome.body


def append(handlers: RequestHandlers, partition: int, *batches: bytes) -> ProduceResponse:
    entries = [into(partition) for _ in batches]
    response: ProduceResponse = answer(produce(*entries), handlers, *batches)
    return response


def test_what_producers_bring_is_counted_in_records_and_bytes(handlers: RequestHandlers) -> None:
    batches = make_batch(b"a", b"b"), make_batch(b"c"), make_batch(b"d")
    append(handlers, 0, *batches[:2])
    append(handlers, 0, batches[2])
    assert handlers.counters.records_in == 4
    assert handlers.counters.bytes_in == sum(map(len, batches))


def read(
    handlers: RequestHandlers, *entries: Any, **options: Any
) -> tuple[FetchResponse, list[bytes]]:
    outcome = carried_out(fetch(*entries, **options), (), NOW, handlers)
    assert isinstance(outcome, Response)
    return outcome.body, [bytes(chunk) for chunk in outcome.payloads]


def offsets_in(chunk: bytes) -> list[int]:
    return [header.base_offset for header, _ in batch_header.split(chunk)]


def test_hello_names_the_broker_its_limit_and_every_api(handlers: RequestHandlers) -> None:
    response = answer(HelloRequest("test"), handlers)
    assert (response.broker_id, response.max_batch_bytes) == (ME, 1_000)
    assert {each.api for each in response.apis} == set(Api)


def metadata(handlers: RequestHandlers, names: list[str] | None) -> MetadataResponse:
    return msgspec.msgpack.decode(answer(MetadataRequest(names), handlers), type=MetadataResponse)


def test_metadata_names_live_leaders_only(handlers: RequestHandlers) -> None:
    response = metadata(handlers, None)
    assert [broker.broker_id for broker in response.brokers] == [ME, OTHER]
    (topic,) = response.topics
    assert topic.topic_id == "id-1"
    assert [each.leader for each in topic.partitions] == [ME, ME, OTHER, -1, -1]
    assert [each.replicas for each in topic.partitions] == TOPIC.partitions


def test_metadata_answers_every_name_asked_for_once(handlers: RequestHandlers) -> None:
    response = metadata(handlers, ["t", "nothing", "t"])
    assert [topic.topic for topic in response.topics] == ["t", "nothing"]
    assert [topic.error for topic in response.topics] == [0, UnknownTopicOrPartition.code]


def test_batches_are_appended_in_the_order_given_and_read_back_as_stored(
    handlers: RequestHandlers,
) -> None:
    one, two, three = make_batch(b"a", b"b"), make_batch(b"c"), make_batch(b"d")
    response = answer(produce(into(0), into(1), into(0)), handlers, one, two, three)
    assert [result.base_offset for result in response.results] == [0, 0, 2]
    assert {result.append_time for result in response.results} == {NOW.wall}
    fetched, chunks = read(handlers, out_of(0), out_of(1), out_of(0, 2))
    assert [offsets_in(chunk) for chunk in chunks] == [[0, 2], [0], [2]]
    assert [(each.log_start, each.high_watermark) for each in fetched.results] == [
        (0, 3),
        (0, 1),
        (0, 3),
    ]
    header = batch_header.check(chunks[1])
    assert (header.leader_epoch, header.append_time) == (1, NOW.wall)


class Watching(Session):
    """A session that notes how many bytes are committed at a time."""

    def __init__(self) -> None:
        self.committed_bytes: list[float] = []

    def committed(self, partition: Partition, size: float) -> None:
        self.committed_bytes.append(size)


def test_a_producer_s_batches_are_judged_one_by_one(handlers: RequestHandlers) -> None:
    def sent(first: int, epoch: int = 1, producer: int = 7) -> bytes:
        return batch_header.reseal(make_batch(b"x"), producer, epoch, first)

    watching = Watching()
    next(iter(handlers.partitions)).sessions[watching] = None
    response = append(handlers, 0, sent(0), sent(2), sent(1), sent(5, producer=8), sent(2))
    assert [(result.error, result.base_offset) for result in response.results] == [
        (0, 0),
        (OutOfOrderSequence.code, -1),
        (0, 1),
        (UnknownProducer.code, -1),
        (0, 2),
    ]
    assert "sequence 2 came, 1 is next" in response.results[1].message
    response = append(handlers, 0, sent(1), sent(3, epoch=0), sent(2), make_batch(b"no producer"))
    assert [(result.error, result.base_offset) for result in response.results] == [
        (0, 1),
        (ProducerFenced.code, -1),
        (0, 2),
        (0, 3),
    ]
    assert watching.committed_bytes == [3 * len(sent(0)), len(make_batch(b"no producer"))]
    assert append(handlers, 1, sent(0)).results[0].base_offset == 0


def test_acks_0_appends_and_wants_no_answer(handlers: RequestHandlers) -> None:
    request = produce(into(0), acks=0)
    assert carried_out(request, [make_batch(b"a")], NOW, handlers) is None
    assert offsets_in(read(handlers, out_of(0))[1][0]) == [0]


def test_acks_of_all_replicas_is_that_of_the_one_there_is(handlers: RequestHandlers) -> None:
    response = answer(produce(into(0), acks=-1), handlers, make_batch(b"a"))
    assert response.results[0].error == 0


def test_a_bad_batch_is_refused_and_its_neighbours_are_appended(handlers: RequestHandlers) -> None:
    good, large = make_batch(b"a"), make_batch(b"x" * 2_000)
    flipped = bytearray(good)
    flipped[-1] ^= 1
    response = append(handlers, 0, good, bytes(flipped), good, large, good + b"more", b"", good)
    assert [result.error for result in response.results] == [
        0,
        CorruptBatch.code,
        0,
        BatchTooLarge.code,
        CorruptBatch.code,
        CorruptBatch.code,
        0,
    ]
    assert [r.base_offset for r in response.results if not r.error] == [0, 1, 2]
    assert offsets_in(read(handlers, out_of(0))[1][0]) == [0, 1, 2]


def test_payload_frames_must_match_the_entries(handlers: RequestHandlers) -> None:
    for request, count in (
        (produce(into(0)), 0),
        (produce(into(0)), 2),
        (fetch(out_of(0)), 1),
        (HelloRequest("x"), 1),
    ):
        with pytest.raises(InvalidRequest, match="payload frames"):
            carried_out(request, [b"x"] * count, NOW, handlers)


def test_the_wrong_broker_names_the_right_one(handlers: RequestHandlers) -> None:
    response = answer(produce(into(2), into(0)), handlers, make_batch(b"a"), make_batch(b"b"))
    assert [result.error for result in response.results] == [NotLeader.code, 0]
    assert response.results[0].leader.listeners == BROKERS[OTHER].listeners
    fetched, _ = read(handlers, out_of(2))
    assert fetched.results[0].leader is not None
    assert fetched.results[0].leader.broker_id == OTHER
    offsets = answer(ListOffsetsRequest([ListOffsetsEntry("t", "id-1", 2, LATEST)]), handlers)
    assert offsets.results[0].leader.broker_id == OTHER


def test_a_leader_that_is_gone_or_was_never_there_is_not_named(handlers: RequestHandlers) -> None:
    fetched, _ = read(handlers, out_of(3), out_of(4))
    assert [each.error for each in fetched.results] == [NotLeader.code] * 2
    assert [each.leader for each in fetched.results] == [None, None]


def test_another_leader_epoch_than_the_brokers_is_refused(handlers: RequestHandlers) -> None:
    append(handlers, 0, make_batch(b"a"))
    fetched, _ = read(handlers, out_of(0, epoch=-1), out_of(0, epoch=7))
    assert [each.error for each in fetched.results] == [0, NotLeader.code]


def test_unknown_topics_partitions_and_ids_fail_alone(handlers: RequestHandlers) -> None:
    fetched, _ = read(
        handlers,
        out_of(0, topic="no"),
        out_of(99),
        out_of(0, topic_id="old"),
        out_of(0, offset=5),
        out_of(0),
    )
    assert [each.error for each in fetched.results] == [
        UnknownTopicOrPartition.code,
        UnknownTopicOrPartition.code,
        StaleTopicId.code,
        OffsetOutOfRange.code,
    ]
    beyond = fetched.results[3]
    assert (beyond.log_start, beyond.high_watermark) == (0, 0)


def test_of_what_was_asked_for_at_its_end_a_fetch_tells_nothing(handlers: RequestHandlers) -> None:
    append(handlers, 0, make_batch(b"a", b"b"))
    append(handlers, 1, make_batch(b"c"))
    fetched, chunks = read(handlers, out_of(0, offset=2), out_of(1), out_of(2, epoch=-1))
    assert [each.partition for each in fetched.results] == [1, 2]
    assert [offsets_in(chunk) for chunk in chunks] == [[0], []]


def test_a_partition_whose_index_is_read_first_is_not_told_as_one_at_its_end(
    handlers: RequestHandlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = create(handlers.logs, "t", "id-1", 1)
    append(handlers, 0, make_batch(b"a"))
    append(handlers, 1, make_batch(b"b", b"c"))
    make_cold(monkeypatch, cold)
    fetched, chunks = read(handlers, out_of(1), out_of(0))
    assert [(each.partition, each.high_watermark) for each in fetched.results] == [(1, 2), (0, 1)]
    assert [offsets_in(chunk) for chunk in chunks] == [[], [0]]


@pytest.mark.parametrize("follower", [False, True], ids=["consumer", "follower"])
def test_who_reads_a_log_at_its_end_does_not_wait_for_the_index_of_an_old_segment(
    tmp_path: Path, *, follower: bool
) -> None:
    config = LogConfig(segment_bytes=512)
    with make_logs(tmp_path / "cold", config) as logs:
        log = create(logs, "t", "id-1", 0)
        for number in range(30):
            append_to_log(log, timed_batch(*[1000 + number] * 9))
    jobs: list[Callable[[], None]] = []

    def submit(_key: Any, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        jobs.append(lambda: done(work()))

    with make_logs(tmp_path / "cold", config) as logs:
        handlers = make_handlers(logs, submit=submit)
        log = logs.find("id-1", 0) or pytest.fail("there is no log")
        partition = handlers.partitions.find(log.topic_id, log.name.partition) or pytest.fail(
            "it is not led"
        )
        last, middle = log.log_end - 1, log.segments[0].end_offset - 1

        def is_delayed(offset: int) -> bool:
            if follower:
                entry = ReplicaFetchEntry("t", "id-1", 0, log.leader_epoch, 0, offset, 0)
                followed = FollowerSession(handlers.purgatory, b"peer", OTHER, 1)
                followed.watch(partition, entry)
                followed.changed[partition] = None
                answers: list[Any] = []
                handlers.replica_fetches._read(followed, 1, answers)
                return not answers
            request = fetch(out_of(0, offset=offset), max_bytes=1)
            session = ConsumerSession(handlers.purgatory, b"peer", 0.0)
            return bool(handlers._read(request, session, request.entries).preparing)

        while is_delayed(last):
            jobs.pop()()
        assert is_delayed(middle)
        assert is_delayed(middle)
        assert len(jobs) == 1, "one job for all who wait for it"
        assert not is_delayed(last)
        jobs.pop()()
        assert not is_delayed(middle)


def test_a_read_from_the_disk_is_a_job_of_its_own_and_delays_no_other_partition(
    tmp_path: Path,
) -> None:
    jobs: list[tuple[Any, Callable[[], None]]] = []
    is_full = False

    def submit(key: Any, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if is_full:
            raise Overloaded("too many wait")
        jobs.append((key, lambda: done(work())))

    with make_logs(tmp_path / "data", LogConfig()) as logs:
        cold, warm = create(logs, "t", "id-1", 0), create(logs, "t", "id-1", 1)
        for log in (cold, warm):
            append_to_log(log, make_batch(bytes(1000)))
            flush(log)
        evict(cold)
        handlers = make_handlers(logs, submit=submit)
        body = fetch(out_of(0), out_of(1))

        def partitions() -> tuple[list[int], list[int]]:
            session = ConsumerSession(handlers.purgatory, b"peer", 0.0)
            read = handlers._read(body, session, body.entries)
            sizes = {
                each.partition: len(chunk)
                for each, chunk in zip(read.results, read.chunks, strict=True)
            }
            assert read.preparing == list(sizes.values()).count(0)
            return [each for each in sizes if sizes[each]], [
                each for each in sizes if not sizes[each]
            ]

        is_full = True
        with pytest.raises(Overloaded):
            partitions()
        is_full = False
        assert partitions() == ([1], [0])
        assert partitions() == ([1], [0])
        [(key, job)] = jobs
        assert key is Lane.READ
        job()
        assert partitions() == ([0, 1], [])


def test_a_full_disk_fails_the_partition_and_no_other(
    handlers: RequestHandlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = create(handlers.logs, "t", "id-1", 0)
    original = type(full)._write

    def no_space(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is full:
            raise StorageError("no space left on device")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(type(full), "_write", no_space)
    response = answer(produce(into(0), into(1)), handlers, make_batch(b"a"), make_batch(b"b"))
    assert [result.error for result in response.results] == [StorageError.code, 0]


def test_the_first_batch_found_comes_whole_and_the_rest_within_max_bytes(
    handlers: RequestHandlers,
) -> None:
    one = make_batch(b"x" * 300)
    append(handlers, 0, one, one)
    append(handlers, 1, one, one)
    _, chunks = read(handlers, out_of(0, offset=2), out_of(0), out_of(1), max_bytes=10)
    assert [offsets_in(chunk) for chunk in chunks] == [[0]]
    _, chunks = read(handlers, out_of(0), out_of(1), max_bytes=3 * len(one))
    assert [offsets_in(chunk) for chunk in chunks] == [[0, 1], [0]]
    _, chunks = read(handlers, out_of(0, max_bytes=1), out_of(1, max_bytes=1))
    assert [offsets_in(chunk) for chunk in chunks] == [[0], []]


def test_a_fetch_stops_when_its_room_is_used_up_and_reads_nothing_that_it_throws_away(
    handlers: RequestHandlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_batch(b"x" * 300)
    partitions = 40
    show(handlers, ClusterView(BROKERS, {"t": TopicInfo("id-1", [[ME]] * partitions)}))
    for number in range(partitions):
        append(handlers, number, one)
    reads: list[int] = []
    original = Log.read

    def counted(log: Log, *args: Any, **kwargs: Any) -> memoryview:
        found = original(log, *args, **kwargs)
        reads.append(len(found))
        return found

    monkeypatch.setattr(Log, "read", counted)
    entries = [out_of(number) for number in range(partitions)]
    room = 3 * len(one) + 10
    fetched, chunks = read(handlers, *entries, max_bytes=room, max_wait=9.0, min_bytes=2**20)
    assert [each.partition for each in fetched.results] == [0, 1, 2]
    assert reads == [*map(len, chunks), 0], "one too many, which finds no room"


def test_offsets_are_listed_from_both_ends_and_by_time(handlers: RequestHandlers) -> None:
    append(handlers, 0, make_batch(b"a", b"b"), make_batch(b"c"))
    wanted = (EARLIEST, LATEST, 0, 1_000, 1_001, -(2**61))
    request = ListOffsetsRequest([ListOffsetsEntry("t", "id-1", 0, when) for when in wanted])
    results = answer(request, handlers).results
    assert [each.error for each in results] == [0] * 6
    assert [each.offset for each in results] == [0, 3, 0, 0, 3, 0]


def test_records_are_deleted_entry_by_entry_by_their_leader(handlers: RequestHandlers) -> None:
    append(handlers, 0, make_batch(b"a", b"b"), make_batch(b"c"))
    append(handlers, 1, make_batch(b"a"))
    entries = [
        DeleteRecordsEntry("t", "id-1", 0, 1, 2),
        DeleteRecordsEntry("t", "id-1", 1, -1, LATEST),
        DeleteRecordsEntry("t", "id-1", 0, 1, 99),
        DeleteRecordsEntry("t", "id-1", 2, 0, 0),
        DeleteRecordsEntry("t", "old", 0, 0, 0),
    ]
    results = answer(DeleteRecordsRequest(entries), handlers).results
    assert [(each.error, each.log_start) for each in results] == [
        (0, 2),
        (0, 1),
        (OffsetOutOfRange.code, -1),
        (NotLeader.code, -1),
        (StaleTopicId.code, -1),
    ]
    assert results[3].leader.broker_id == OTHER
    fetched, chunks = read(handlers, out_of(0, offset=1), out_of(0, offset=2), out_of(1, offset=1))
    assert [each.error for each in fetched.results] == [OffsetOutOfRange.code, 0]
    assert [each.log_start for each in fetched.results] == [2, 2]
    assert offsets_in(chunks[1]) == [2]


def test_a_topic_that_merely_vanished_keeps_its_logs(handlers: RequestHandlers) -> None:
    append(handlers, 0, make_batch(b"a"))
    show(handlers, ClusterView(BROKERS, {}))
    show(handlers, ClusterView(BROKERS, {"t": TOPIC}))
    assert offsets_in(read(handlers, out_of(0))[1][0]) == [0]


def test_a_topic_that_comes_back_older_is_out_of_use_until_it_is_as_new_as_this_disk_knows_it(
    handlers: RequestHandlers, caplog: pytest.LogCaptureFixture
) -> None:
    """An option of before would have retention delete what the present one keeps."""
    kept = replace(TOPIC, config={"retention": "none"}, revision=2)
    old = replace(TOPIC, config={"retention": "1"}, revision=1, partitions=TOPIC.partitions[:1])
    show(handlers, ClusterView(BROKERS, {"t": kept}))
    append(handlers, 0, make_batch(b"a"))
    show(handlers, ClusterView(BROKERS, {"t": old}))
    assert "topic t comes back older from ZooKeeper (revision 1)" in caplog.text
    fetched, _ = read(handlers, out_of(0))
    assert [each.error for each in fetched.results] == [UnknownTopicOrPartition.code]
    assert not the_log(handlers.logs, 0).configured, "retention does not look at it"
    show(handlers, ClusterView(BROKERS, {"t": replace(kept, revision=3)}))
    assert offsets_in(read(handlers, out_of(0))[1][0]) == [0]


def test_a_topic_created_anew_starts_empty(handlers: RequestHandlers) -> None:
    append(handlers, 0, make_batch(b"a"))
    show(handlers, ClusterView(BROKERS, {"t": TopicInfo("id-2", [[ME]])}), DELETED)
    fetched, chunks = read(handlers, out_of(0, topic_id="id-2"), out_of(0))
    assert [each.error for each in fetched.results] == [StaleTopicId.code]
    assert chunks == [b""]


def test_a_topic_created_anew_takes_nothing_meant_for_the_one_before_from_its_first_view_on(
    handlers: RequestHandlers,
) -> None:
    """Whatever has changed with the view is done in steps that may come later."""
    append(handlers, 0, make_batch(b"a"))
    anew = create(handlers.logs, "t", "id-2", 0)
    handlers.metadata.view = ClusterView(BROKERS, {"t": TopicInfo("id-2", [[ME]])})
    read(handlers, out_of(0, topic_id="id-2"))
    append(handlers, 0, make_batch(b"b"))
    assert anew.log_end == 0


# -- many entries -------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["produce", "look up"])
def test_all_cold_partitions_of_a_request_are_opened_by_a_few_jobs(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trip to the background for each of ten thousand would take seconds."""
    monkeypatch.setattr(request_handlers, "PREPARED_AT_ONCE", 15)
    count = 30
    view = ClusterView(BROKERS, {"t": TopicInfo("id-1", [[ME]] * count)})
    jobs: list[Job] = []
    response: Any = None
    for life in range(2):
        with make_logs(tmp_path / "data") as logs:
            handlers = make_handlers(logs, view)
            entries = [into(number) for number in range(count)]
            request: Any = produce(*entries)
            payloads = [memoryview(make_batch(b"x"))] * count
            if life and what == "look up":
                looks = [ListOffsetsEntry("t", "id-1", number, 1000) for number in range(count)]
                request, payloads = ListOffsetsRequest(looks), []
            steps = handle(handlers, Request(b"peer", 1, request), payloads, NOW)
            assert isinstance(steps, Generator)
            jobs.clear()
            try:
                while True:
                    job = next(steps)
                    if job is not None:
                        jobs.append(job)
                        job.finish(job.run())
            except StopIteration as end:
                response = end.value if isinstance(end.value, Response) else end.value.response()
    found = [
        result.offset if what == "look up" else result.base_offset
        for result in response.body.results
    ]
    assert found == [0 if what == "look up" else 1] * count
    assert len(jobs) == (2 if what == "look up" else 4), "for each half, index and producers"


def test_batches_of_a_cold_partition_keep_their_order(tmp_path: Path) -> None:
    """More of them than one write takes, among those of another partition."""
    view = ClusterView(BROKERS, {"t": TopicInfo("id-1", [[ME]] * 2)})
    request = produce(*(into(number % 2) for number in range(50)))
    payloads = [make_batch(b"%d" % number) for number in range(50)]
    for life in range(2):
        with make_logs(tmp_path / "data") as logs:
            outcome = carried_out(request, payloads, NOW, make_handlers(logs, view))
            assert isinstance(outcome, Response)
            offsets = [each.base_offset for each in outcome.body.results]
            assert offsets == [life * 25 + number // 2 for number in range(50)]


@pytest.mark.parametrize(
    "request_of",
    [
        lambda n: ListOffsetsRequest([ListOffsetsEntry("gone", "id-1", each, 1) for each in n]),
        lambda n: DeleteRecordsRequest(
            [DeleteRecordsEntry("gone", "id", each, 0, 1) for each in n]
        ),
        lambda n: DescribeProducersRequest(
            1.0, [DescribeProducersEntry("gone", "id", each, 0, 1) for each in n]
        ),
    ],
)
def test_entries_that_are_refused_are_no_more_in_one_step_than_others(
    handlers: RequestHandlers, request_of: Any
) -> None:
    steps = handle(handlers, Request(b"peer", 1, request_of(range(100))), [], NOW)
    assert isinstance(steps, Generator)
    refused = handlers.counters.errors
    before = most = 0
    for job in steps:
        assert job is None
        most, before = max(most, refused.total() - before), refused.total()
    assert max(most, refused.total() - before) <= request_handlers.ENTRIES_PER_STEP
    assert refused.total() == 100


def test_what_a_log_knows_of_producers_is_read_again_after_a_job_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_logs(tmp_path / "data") as logs:
        append(make_handlers(logs), 0, make_batch(b"x"))
        append(make_handlers(logs), 1, make_batch(b"x"))
    with make_logs(tmp_path / "data") as logs:
        handlers = make_handlers(logs)
        read = read_checked

        def broken(path: Path) -> bytes | None:
            if path.parent.name == "id-1-0":
                raise MemoryError("not this one")
            return read(path)

        with monkeypatch.context() as patch:
            patch.setattr(producer_state, "read_checked", broken)
            request = produce(into(0), into(1))
            with pytest.raises(MemoryError):
                carried_out(request, [make_batch(b"y")] * 2, NOW, handlers)
        response = append(handlers, 0, make_batch(b"y"))
        assert [each.base_offset for each in response.results] == [1], "the next one tries again"


def test_who_waits_to_hear_of_a_producer_brings_a_reader_no_bytes(tmp_path: Path) -> None:
    batch, hands = make_batch(b"a"), Hands()
    with make_logs(tmp_path / "data", LogConfig(durability="fsync")) as logs:
        handlers = make_handlers(logs, submit=hands.submit)
        create(logs, "t", "id-1", 0)
        described = DescribeProducersRequest(1.0, [DescribeProducersEntry("t", "id-1", 0, 1, 1)])
        for request, payloads in (
            (produce(into(0)), [batch]),
            (described, []),
            (fetch(out_of(0), max_wait=2.0, min_bytes=len(batch) + 1), []),
        ):
            assert not isinstance(carried_out(request, payloads, NOW, handlers), Response)
        hands.work_all()
        assert not any(each.waiting_produces for each in handlers.partitions)
        assert not handlers.purgatory.take_completed(NOW.monotonic, 10)
