"""The producer whole, over real sockets, against stub brokers and a ZooKeeper in memory."""

import logging
import os
import random
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest

from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.zookeeper.session import Session, SessionState
from folkmoot.producers import columns, producer, sender
from folkmoot.producers.accumulator import Accumulator
from folkmoot.producers.appender import Delivery
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    BufferFull,
    ClosedError,
    ConcurrentUse,
    CorruptBatch,
    DeliveryTimeout,
    FlushTimeout,
    InvalidName,
    RecordTooLarge,
    StorageError,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import Api
from folkmoot.protocol.murmur2 import partition_for
from folkmoot.protocol.records import TopicPartition
from tests.consumers.test_forks import in_child
from tests.producers.fakes import FakeCluster
from tests.seeds import new_seed
from tests.waiting import eventually


def make(cluster: FakeCluster, **options: Any) -> Producer:
    return Producer(zookeeper=cluster.connect, **options)


def know(producer: Producer) -> None:
    """On a busy machine a look-up takes longer than a short `max_block`."""

    def is_known() -> bool:
        with suppress(UnknownTopicOrPartition):
            return bool(producer.partitions_of("t"))
        return False

    eventually(is_known)


def test_a_record_is_delivered_and_says_where(cluster: FakeCluster) -> None:
    with make(cluster) as producer:
        delivery = producer.send("t", b"value", b"key")
        place = delivery.result(timeout=10)
        assert place[:3] == ("t", partition_for(b"key", 3), 0)
        assert abs(place.timestamp - time.time() * 1000) < 60_000
        assert delivery.done()
        assert delivery.exception() is None
    assert cluster.values() == [b"value"]


def test_leaving_the_block_flushes(cluster: FakeCluster) -> None:
    with make(cluster, linger=60.0) as producer:
        deliveries = [producer.send("t", b"%d" % number) for number in range(1000)]
    assert all(delivery.done() for delivery in deliveries)
    assert sorted(cluster.values(), key=lambda value: int(value or b"")) == [
        b"%d" % number for number in range(1000)
    ]


class Text(str):
    """Such as the members of an enum are."""


class Octets(bytes):
    """Such as numpy's are."""


def test_what_cannot_be_written_is_refused_by_send_and_subclasses_can(cluster: FakeCluster) -> None:
    with make(cluster, max_record_bytes=100) as producer:
        with pytest.raises(InvalidName, match="Unicode"):
            producer.send("t", b"v", headers={"\ud800": b""})
        with pytest.raises(InvalidName, match="Unicode"):
            producer.send_batch("t", [b"v"], headers=[{"\ud800": b""}])
        with pytest.raises(RecordTooLarge, match="a record of 127 bytes"):
            producer.send("t", b"v", headers={"€" * 40: b""})
        headers = [(Text("é"), Octets(b"h"))]
        producer.send("t", Octets(b"v"), Octets(b"k"), partition=0, headers=headers)
    (record,) = cluster.logs[TopicPartition("t", 0)]
    assert (record.value, record.key, record.headers) == (b"v", b"k", (("é", b"h"),))


def test_everything_a_record_can_have_arrives(cluster: FakeCluster) -> None:
    with make(cluster) as producer:
        producer.send("t", b"plain", partition=1)
        producer.send("t", None, b"gone", partition=1)
        producer.send("t", b"old", partition=1, timestamp=1_234_567_890_123)
        producer.send("t", b"tagged", partition=1, headers={"a": b"1", "b": None})
        producer.send("t", b"twice", partition=1, headers=[("a", b"1"), ("a", b"2")])
        producer.send("t", bytearray(b"array"), partition=1)  # type: ignore[arg-type]
        last = producer.send("t", b"x" * 100_000, b"big", partition=1, timestamp=-5)
        assert last.result(10).timestamp == -5
    (log,) = cluster.logs.values()
    assert [record.value for record in log] == [
        *(b"plain", None, b"old", b"tagged", b"twice", b"array", b"x" * 100_000)
    ]
    assert [record.key for record in log] == [None, b"gone", *[None] * 4, b"big"]
    assert log[2].timestamp == 1_234_567_890_123
    assert log[3].headers == (("a", b"1"), ("b", None))
    assert log[4].headers == (("a", b"1"), ("a", b"2"))
    assert log[0].headers == ()


def test_many_threads_may_send_and_each_one_s_order_holds(cluster: FakeCluster) -> None:
    def work(producer: Producer, number: int) -> None:
        deliveries = [
            producer.send("t", b"%d %d" % (number, count), b"key %d" % number)
            for count in range(2000)
        ]
        places = [delivery.result(20) for delivery in deliveries]
        assert [place.offset for place in places] == sorted(place.offset for place in places)
        for count, place in enumerate(places):
            record = cluster.logs[place[:2]][place.offset]  # type: ignore[index]
            assert record.value == b"%d %d" % (number, count)

    with make(cluster, batch_bytes=20_000) as producer:
        failures: list[BaseException] = []

        def guarded(number: int) -> None:
            try:
                work(producer, number)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert failures == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("t", "text"), TypeError),
        (("t", b"v", "key"), TypeError),
        (("t", b"x" * 2_000_000), RecordTooLarge),
        (("t", b"x", b"k" * 2_000_000), RecordTooLarge),
        (("no/such name", b"x"), InvalidName),
    ],
    ids=["value", "key", "large value", "large key", "topic"],
)
def test_what_is_no_record_is_refused_at_once(
    cluster: FakeCluster, arguments: Any, expected: type[Exception]
) -> None:
    with make(cluster) as producer:
        with pytest.raises(expected):
            producer.send(*arguments)
        producer.send("t", b"fine").result(10)
    assert cluster.values() == [b"fine"]


def test_a_partition_that_the_topic_lacks_is_refused_at_once(cluster: FakeCluster) -> None:
    with make(cluster) as producer:
        assert producer.partitions_of("t") == [0, 1, 2]
        with pytest.raises(UnknownTopicOrPartition, match="only 0 to 2"):
            producer.send("t", b"x", partition=3)


def test_a_header_that_is_none_is_refused(cluster: FakeCluster) -> None:
    with make(cluster) as producer, pytest.raises(TypeError, match="header"):
        producer.send("t", b"x", headers=[("a", "text")])  # type: ignore[list-item]


@pytest.mark.parametrize("timestamp", [2**60, -(2**60), float("nan"), 1.5])
def test_a_timestamp_that_is_none_is_refused(cluster: FakeCluster, timestamp: Any) -> None:
    expected = TypeError if isinstance(timestamp, float) else ValueError
    with make(cluster) as producer, pytest.raises(expected, match="timestamp"):
        producer.send("t", b"x", timestamp=timestamp)


def test_a_missing_topic_is_an_error_of_the_first_send(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "TOPIC_PATIENCE", 0.2)
    with make(cluster) as producer:
        with pytest.raises(UnknownTopicOrPartition, match="folkmoot topic create"):
            producer.send("missing", b"x")
        cluster.topics = ("t", "missing")
        producer.send("missing", b"x").result(10)


def test_without_brokers_the_first_send_says_so(cluster: FakeCluster) -> None:
    cluster.zookeeper = FakeCluster().zookeeper
    with make(cluster, max_block=0.3) as producer:
        with pytest.raises(BrokerUnreachable):
            know(producer)
        with pytest.raises(BrokerUnreachable, match="no broker is registered"):
            producer.send("t", b"x")


def test_an_unreachable_zookeeper_is_an_error_of_start() -> None:
    def connect(session_timeout: float) -> Session:
        raise ZooKeeperUnreachable("nobody answers at nowhere:1")

    with pytest.raises(ZooKeeperUnreachable), Producer(zookeeper=connect):
        pass


def test_a_producer_that_is_not_open_takes_nothing(cluster: FakeCluster) -> None:
    producer = make(cluster)
    with pytest.raises(ClosedError, match="with block"):
        producer.send("t", b"x")
    with producer:
        producer.send("t", b"x").result(10)
    with pytest.raises(ClosedError):
        producer.send("t", b"x")
    with pytest.raises(ClosedError):
        producer.start()
    producer.close()


def test_a_full_buffer_blocks_and_then_refuses(cluster: FakeCluster) -> None:
    with make(cluster, buffer_bytes=100_000, max_block=0.1) as producer:
        know(producer)
        cluster.silent = True

        def send_for_ever() -> None:
            while True:
                producer.send("t", bytes(100))

        begun = time.monotonic()
        with pytest.raises(BufferFull):
            send_for_ever()
        assert time.monotonic() - begun >= 0.1
        assert producer.unacknowledged() < 5000
        with pytest.raises(FlushTimeout):
            producer.close(timeout=0.2)


def test_callbacks_are_told_and_may_fail(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Delivery] = []

    def tell(delivery: Delivery) -> None:
        told.append(delivery)
        raise RuntimeError("from the callback")

    with make(cluster) as producer:
        good = producer.send("t", b"good", on_delivery=tell)
        producer.flush(10)
        eventually(lambda: len(told) == 1)
        cluster.failing = CorruptBatch.code
        bad = producer.send("t", b"bad", on_delivery=tell)
        producer.flush(10)
        eventually(lambda: len(told) == 2)
    assert (told[0], told[1]) == (good, bad)
    assert told[0].result(0).offset == 0
    assert isinstance(told[1].exception(0), CorruptBatch)
    assert "from the callback" in caplog.text


def test_a_callback_that_sends_into_a_full_buffer_is_refused_at_once(cluster: FakeCluster) -> None:
    refused: list[float] = []

    def send_more(delivery: Delivery) -> None:
        cluster.silent = True
        begun = time.monotonic()
        try:
            while True:
                sending.send("t", bytes(10_000))
        except BufferFull:
            refused.append(time.monotonic() - begun)
            cluster.silent = False

    options: dict[str, Any] = {"buffer_bytes": 50_000, "max_block": 30.0, "request_timeout": 0.2}
    with make(cluster, **options) as sending:
        sending.send("t", b"first", on_delivery=send_more)
        eventually(lambda: refused)
    assert refused[0] < 15.0
    assert len(cluster.values()) > 5


def test_a_callback_can_send_what_has_failed_to_a_topic_that_was_never_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "TOPIC_PATIENCE", 0.2)
    letters: list[Delivery] = []
    seen: list[object] = []

    def send_on(failed: Delivery) -> None:
        error = failed.exception()
        seen.append(type(error))
        try:
            sending.send("missing", b"x")
        except UnknownTopicOrPartition as unknown:
            seen.append(str(unknown))
        seen.append(sending.partitions_of("t"))
        cluster.failing = 0
        letters.append(sending.send("dead-letters", b"why", headers={"error": b"corrupt"}))
        cluster.partitions = 5
        letters.append(sending.send("dead-letters", b"added", partition=4))

    with FakeCluster(topics=("t", "dead-letters")) as cluster, make(cluster) as sending:
        know(sending)
        cluster.failing = CorruptBatch.code
        sending.send("t", b"first", partition=0, on_delivery=send_on)
        eventually(lambda: len(letters) == 2)
        assert letters[0].result(20).topic == "dead-letters"
        assert letters[1].result(20).partition == 4
        sending.send("t", b"after", partition=0).result(20)
    assert seen[0] is CorruptBatch
    assert "folkmoot topic create missing" in str(seen[1])
    assert seen[2] == [0, 1, 2]


def test_a_callback_that_waits_for_another_record_is_refused(cluster: FakeCluster) -> None:
    heard: list[Any] = []

    def wait(delivery: Delivery) -> None:
        heard.append(delivery.result())
        another = opened.send("t", b"another")
        for use in (
            another.result,
            another.exception,
            opened.send_batch("t", [b"more"]).result,
            lambda: opened.send_and_wait("t", b"and another"),
        ):
            try:
                use()
            except ConcurrentUse:
                heard.append("refused")
        heard.append(another.done())

    with make(cluster) as opened:
        opened.send("t", b"x", on_delivery=wait).result(10)
        opened.flush(10)
    assert heard[1:] == [*["refused"] * 4, False]
    assert len(cluster.values()) == 4


def test_a_failure_that_nobody_asked_about_is_raised_by_flush(cluster: FakeCluster) -> None:
    with make(cluster) as producer:
        cluster.failing = CorruptBatch.code
        producer.send("t", b"bad")
        with pytest.raises(CorruptBatch):
            producer.flush(10)
        asked = producer.send("t", b"bad")
        assert isinstance(asked.exception(10), CorruptBatch)
        producer.flush(10)


def test_errors_that_pass_are_not_seen(cluster: FakeCluster) -> None:
    with make(cluster, retry_backoff=0.01) as producer:
        cluster.failing = StorageError.code
        delivery = producer.send("t", b"x")
        eventually(lambda: cluster.requests >= 3)
        assert not delivery.done()
        cluster.failing = 0
        assert delivery.result(10).offset == 0


@pytest.mark.parametrize("linger", [0.0, 0.001, 0.005])
def test_no_record_waits_for_a_wake_up_that_does_not_come(
    cluster: FakeCluster, linger: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that nobody has woken sleeps for up to LONGEST_WAIT."""
    monkeypatch.setattr(sender, "LONGEST_WAIT", 60.0)
    seed = new_seed()
    waited: list[float] = []

    def work(producer: Producer, chance: random.Random) -> None:
        for _ in range(150):
            begun = time.monotonic()
            count, end = chance.choice((1, 1, 2, 5, 50)), chance.random()
            sent = [producer.send("t", b"v", b"%d" % chance.randrange(50)) for _ in range(count)]
            if end < 0.5:
                sent[-1].result(20)
            elif end < 0.8:
                producer.flush(20)
            elif end < 0.9:
                producer.send_batch("t", [b"v"] * 100, [b"%d" % n for n in range(100)]).result(20)
            waited.append(time.monotonic() - begun)

    with make(cluster, linger=linger, buffer_bytes=20_000, batch_bytes=2_000) as producer:
        threads = [
            threading.Thread(target=work, args=(producer, random.Random(seed + number)))
            for number in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(waited) == 450
    assert max(waited) < sender.LONGEST_WAIT / 3


def test_the_leader_moves_and_the_records_follow() -> None:
    with FakeCluster(count=2) as cluster, make(cluster, retry_backoff=0.01) as producer:
        producer.send("t", b"one", partition=0).result(10)
        cluster.leader = 2
        producer.send("t", b"two", partition=0).result(10)
        assert cluster.values() == [b"one", b"two"]


def test_a_broker_that_comes_back_elsewhere_is_found(cluster: FakeCluster) -> None:
    with make(cluster, retry_backoff=0.01) as producer:
        producer.send("t", b"one", partition=0).result(10)
        cluster.brokers[1].stop()
        delivery = producer.send("t", b"two", partition=0)
        producer.send("t", b"three", partition=0)
        cluster._session.close()
        cluster._session = cluster.zookeeper.connect()
        cluster.start(1)
        assert delivery.result(20).offset == 1
    assert cluster.values() == [b"one", b"two", b"three"]


def test_a_producer_that_outlives_its_cluster_writes_to_the_next_one_under_an_id_of_that(
    cluster: FakeCluster,
) -> None:
    """By its old id and sequence its record would be taken for one of another producer's."""
    with make(cluster) as survivor:
        survivor.send("t", b"before", partition=0).result(30)
        cluster.replace()
        with make(cluster) as other:
            for sender_, value in (other, b"1"), (other, b"2"), (survivor, b"3"), (other, b"4"):
                sender_.send("t", value, partition=0).result(30)
    assert cluster.values() == [b"1", b"2", b"3", b"4"]


def test_a_record_that_has_waited_for_a_leader_leaves_at_once_also_in_a_topic_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "LONGEST_WAIT", 1000.0)
    with FakeCluster(count=2) as cluster, make(cluster, retry_backoff=0.0) as producer:
        producer.send("t", b"before", partition=0).result(30)
        cluster.leader = 9
        waiting = producer.send("t", b"x", partition=0)
        seen = cluster.brokers[1].seen
        eventually(lambda: cluster.requests > 1)
        eventually(lambda: {api for api, _, _ in seen[-3:]} == {Api.METADATA})
        cluster.replace()
        cluster.leader = 2
        assert waiting.result(30).offset == 0


def test_records_that_nobody_takes_fail_after_the_delivery_timeout(cluster: FakeCluster) -> None:
    cluster.silent = True
    with make(cluster, delivery_timeout=0.3) as producer:
        error = producer.send("t", b"x").exception(10)
        assert isinstance(error, DeliveryTimeout)


def test_without_acknowledgement_close_still_sends_everything(cluster: FakeCluster) -> None:
    with make(cluster, acks=0, linger=0.0, batch_bytes=1000) as producer:
        sent = [producer.send("t", b"%03d" % number, partition=0) for number in range(500)]
        assert sent[-1].result(10).offset == -1
    eventually(lambda: len(cluster.values()) == 500)


@pytest.mark.parametrize("dead", ["silent broker", "no broker", "no zookeeper"])
def test_close_ends_within_its_timeout_whatever_is_dead(
    cluster: FakeCluster, dead: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = make(cluster)
    producer.start()
    producer.send("t", b"x").result(10)
    if dead == "silent broker":
        cluster.silent = True
    else:
        cluster.brokers[1].stop()
    if dead == "no zookeeper":
        assert isinstance(producer._discovery, ZooKeeperDiscovery)
        session = producer._discovery._session
        assert session is not None
        cluster.zookeeper.suspend(session)  # type: ignore[arg-type]
    delivery = producer.send("t", b"lost")
    begun = time.monotonic()
    with pytest.raises(FlushTimeout, match="1 record"):
        producer.close(timeout=0.5)
    assert time.monotonic() - begun < 10.0
    assert "they are lost" in caplog.text
    assert isinstance(delivery.exception(5), ClosedError)


def test_an_exception_in_the_block_is_not_hidden_by_closing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "CLOSE_AFTER_ERROR", 60.0)

    def work() -> None:
        with make(cluster) as producer:
            producer.send("t", b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert cluster.values() == [b"x"]


def test_leaving_the_process_with_unsent_records_is_said_loudly(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with make(cluster, linger=60.0) as open_producer:
        open_producer.send("t", b"x")
        producer._warn_at_exit()
        assert "1 records of producer producer" in caplog.text
    caplog.clear()
    producer._warn_at_exit()
    assert caplog.text == ""


def test_after_a_fork_the_child_s_producer_is_closed(cluster: FakeCluster) -> None:
    with make(cluster, request_timeout=0.5) as producer:
        producer.send("t", b"parent").result(10)
        cluster.silent = True
        pending, batch = producer.send("t", b"pending"), producer.send_batch("t", [b"pending"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads, on purpose
            child = os.fork()
        if child == 0:
            refused = 0
            try:
                for use in (
                    *(lambda: producer.send("t", b"child"), producer.flush, producer.purge),
                    *(pending.result, pending.exception, batch.result),
                ):
                    try:
                        use()
                    except ClosedError:
                        refused += 1
            finally:
                os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
        cluster.silent = False
        producer.send("t", b"parent").result(10)
    assert cluster.values().count(b"parent") == 2


def test_a_producer_that_is_made_before_a_fork_works_when_the_child_starts_it(
    cluster: FakeCluster,
) -> None:
    """As in a web server that forks its workers."""
    made = make(cluster)

    def use() -> None:
        with made:
            for number in range(3):
                made.send("t", b"%d" % number).result(10)

    assert in_child(use) == 0


def test_a_thread_that_dies_takes_the_producer_down_with_the_cause(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "folkmoot.producers.sender")
    opened = make(cluster)
    opened.start()
    opened.send("t", b"x").result(10)

    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("folkmoot.producers.sender_state.SenderState.add", fail)
    delivery = opened.send("t", b"x")
    error = delivery.exception(10)
    assert isinstance(error, ClosedError)
    assert isinstance(error.__cause__, ZeroDivisionError)
    with pytest.raises(ClosedError, match="a defect"):
        opened.send("t", b"x")
    opened.close(1.0)


def test_whoever_was_told_of_the_last_record_has_nothing_to_flush(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that sends stands still right behind the moment at which deliveries are told."""
    told, seen = threading.Event(), threading.Event()
    complete = Accumulator.complete

    def stands_still(self: Any, batches: Any) -> None:
        complete(self, batches)
        told.set()
        seen.wait(0.2)

    with make(cluster) as sending:
        know(sending)
        monkeypatch.setattr(Accumulator, "complete", stands_still)
        sending.send_and_wait("t", b"value", timeout=30)
        try:
            sending.flush(0)
        finally:
            seen.set()
    assert told.is_set()


def test_a_start_that_is_interrupted_leaves_neither_thread_nor_session(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[Session] = []

    def connect(timeout: float) -> Session:
        sessions.append(cluster.connect(timeout))
        return sessions[-1]

    def interrupted() -> float:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    starting = Producer(zookeeper=connect, switch_interval=0.001)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "getswitchinterval", interrupted)
        with pytest.raises(KeyboardInterrupt):
            starting.start()
    eventually(
        lambda: (
            not any(
                each.name.startswith("folkmoot-") for each in set(threading.enumerate()) - before
            )
        )
    )
    assert [session.state for session in sessions] == [SessionState.LOST]
    with pytest.raises(ClosedError, match="interrupted"):
        starting.start()


class HeldHandler(logging.Handler):
    """An application's handler: who emits holds its lock, and may be waiting for the producer."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_a_producers_thread_does_not_wait_for_the_lock_of_a_log_handler(
    cluster: FakeCluster,
) -> None:
    """A handler that sends its lines to a topic holds its lock while `send` waits for that thread."""
    handler = HeldHandler()
    logger = logging.getLogger("folkmoot")
    logger.addHandler(handler)
    try:
        with make(cluster) as producer:
            know(producer)
            handler.acquire()
            try:
                producer.send("t", b"1", on_delivery=lambda _: 1 / 0)  # its thread logs that
                for _ in range(3):
                    producer.send("t", b"2").result(10.0)
            finally:
                handler.release()
        assert "an on_delivery callback has failed" in handler.lines
    finally:
        logger.removeHandler(handler)


def test_a_mock_of_send_on_the_class_is_seen_by_producers_made_later(cluster: FakeCluster) -> None:
    with mock.patch.object(Producer, "send") as patched, make(cluster) as producer:
        producer.send("t", b"1")
    assert patched.call_count == 1


def test_a_producer_that_nobody_holds_any_more_delivers_warns_and_ends_its_thread(
    cluster: FakeCluster,
) -> None:
    producer = make(cluster, client_id="forgotten")
    producer.start()
    know(producer)
    delivery = producer.send("t", b"1")
    thread = producer._thread
    assert thread is not None
    with pytest.warns(ResourceWarning, match="unclosed producer forgotten"):
        del producer
    thread.join(10.0)
    assert not thread.is_alive()
    assert delivery.result(0.0) is not None


def test_a_timestamp_in_seconds_is_warned_of_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with make(cluster) as producer:
        know(producer)
        for send in (
            lambda stamp: producer.send("t", b"1", timestamp=stamp),
            lambda stamp: producer.send_batch("t", [b"1"], timestamps=stamp),
        ):
            for stamp in (1_770_000_000, -5):
                monkeypatch.setattr(columns, "_is_warned", False)
                caplog.clear()
                for _ in range(3):
                    send(stamp).result(10.0)
                assert caplog.text.count("milliseconds since 1970") == 1
        caplog.clear()
        monkeypatch.setattr(columns, "_is_warned", False)
        producer.send("t", b"1", timestamp=1_770_000_000_000).result(10.0)
        assert caplog.text == ""


def test_every_record_that_was_taken_has_an_outcome_when_the_thread_fails_meanwhile(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are placed by the applications' threads while the producer's own gives all of them up."""
    chance = random.Random(new_seed())
    rounds = sender.Sender._run_once
    for _ in range(15):
        fail_at = time.monotonic() + chance.uniform(0.0, 0.02)

        def fail_then(self: Any, *rest: Any, fail_at: float = fail_at) -> None:
            if time.monotonic() >= fail_at:
                raise MemoryError("by the test")
            rounds(self, *rest)

        producer = make(cluster, linger=0.001)
        producer.start()
        know(producer)
        monkeypatch.setattr(sender.Sender, "_run_once", fail_then)
        taken: list[Delivery] = []

        def send(producer: Producer = producer, taken: list[Delivery] = taken) -> None:
            with suppress(ClosedError):
                while True:
                    for partition in range(3):
                        taken.append(producer.send("t", b"v", partition=partition))

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10.0)
        for delivery in taken:
            assert eventually(delivery.done, timeout=10.0)
        with suppress(ClosedError):
            producer.close(1.0)
        monkeypatch.setattr(sender.Sender, "_run_once", rounds)
