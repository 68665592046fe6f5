"""What a producer does, in both spellings: the same lines against `Producer` and `AsyncProducer`."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from folkmoot.coordination import brokers
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.producers.appender import AsyncDelivery, Delivery
from folkmoot.producers.async_producer import AsyncBatchDelivery, AsyncProducer
from folkmoot.producers.futures import BatchDelivery
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    BufferFull,
    ClosedError,
    ConfigError,
    CorruptBatch,
    FlushTimeout,
    InvalidName,
    NoCluster,
    NotLeader,
    RecordsPurged,
    RecordTooLarge,
    RequestTimeout,
    SerializationError,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import Api
from folkmoot.protocol.murmur2 import partition_for
from folkmoot.protocol.records import TopicPartition
from tests.producers.fakes import FakeCluster
from tests.surfaces import both, differences, eventually, run

Client = Callable[..., Any]

each = both(Producer, AsyncProducer)


def test_the_words_are_the_same() -> None:
    assert differences(Producer, AsyncProducer) == []
    for plain, awaited in ((Delivery, AsyncDelivery), (BatchDelivery, AsyncBatchDelivery)):
        for name in ("done", "result", "exception"):
            assert hasattr(plain, name)
            assert hasattr(awaited, name)


@each
def test_a_record_is_delivered_and_says_where(client: Client, cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with client(zookeeper=cluster.connect) as producer:
            delivery = await producer.send("t", b"value", b"key")
            place = await delivery
            assert place[:3] == ("t", partition_for(b"key", 3), 0)
            assert abs(place.timestamp - time.time() * 1000) < 60_000
            assert delivery.done()
            assert await delivery.exception() is None
            assert await delivery.result(timeout=1.0) == place
            assert await producer.partitions_of("t") == [0, 1, 2]
            assert producer.metrics()["records_delivered"] == 1
            assert producer.unacknowledged() == 0

    run(scenario)
    assert cluster.values() == [b"value"]


@each
def test_leaving_the_block_flushes_everything_a_record_can_have(
    client: Client, cluster: FakeCluster
) -> None:
    async def scenario() -> None:
        async with client(zookeeper=cluster.connect, linger=60.0) as producer:
            await producer.send("t", None, b"gone", partition=1, timestamp=1_234_567_890_123)
            await producer.send("t", b"tagged", partition=1, headers={"a": b"1", "b": None})
            assert not (await producer.send("t", b"x" * 100_000, partition=1)).done()

    run(scenario)
    (log,) = cluster.logs.values()
    assert [(record.value, record.key) for record in log] == [
        *((None, b"gone"), (b"tagged", None), (b"x" * 100_000, None))
    ]
    assert log[0].timestamp == 1_234_567_890_123
    assert log[1].headers == (("a", b"1"), ("b", None))


@each
def test_columns_are_delivered_and_say_where(client: Client, cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with client(zookeeper=cluster.connect, batch_bytes=20_000) as producer:
            values = [b"%d" % number for number in range(5_000)]
            delivery = await producer.send_batch("t", values, partition=2, timestamps=5)
            assert len(delivery) == 5_000
            assert await delivery == {2: [range(5_000)]}
            assert delivery.done()
            again = await producer.send_batch("t", pa.array([b"a", None]), pa.array([b"k", b"k"]))
            ((number, ranges),) = (await again.result(timeout=10.0)).items()
            assert [len(some) for some in ranges] == [2], number
            assert await again.exception() is None
            assert await (await producer.send_batch("t", [])) == {}
            with pytest.raises(ValueError, match="2 keys do not belong to 1 values"):
                await producer.send_batch("t", [b"v"], [b"k", b"k"])
            with pytest.raises(UnknownTopicOrPartition, match="only 0 to 2"):
                await producer.send_batch("t", [b"v"], partition=3)

    run(scenario)
    log = cluster.logs[TopicPartition("t", 2)]
    assert [record.value for record in log[:5_000]] == [b"%d" % number for number in range(5_000)]
    assert {record.timestamp for record in log[:5_000]} == {5}


@each
def test_a_partition_and_a_timestamp_may_be_whole_numbers_of_numpys(
    client: Client, cluster: FakeCluster
) -> None:
    numbers: Any = {"partition": np.int32(1), "timestamp": np.int64(5)}

    async def scenario() -> None:
        async with client(zookeeper=cluster.connect) as producer:
            await (await producer.send("t", b"v", **numbers)).result(timeout=10.0)

    run(scenario)
    assert [record.timestamp for record in cluster.logs[TopicPartition("t", 1)]] == [5]


@each
def test_what_is_no_record_is_refused_at_once(client: Client, cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with client(zookeeper=cluster.connect, max_record_bytes=10_000) as producer:
            for expected, arguments, options in (
                (TypeError, ("t", "text"), {}),
                (TypeError, ("t", b"v", 5), {}),
                (InvalidName, ("no topic", b"v"), {}),
                (RecordTooLarge, ("t", b"v" * 10_001), {}),
                (ValueError, ("t", b"v"), {"timestamp": 2**60}),
                (TypeError, ("t", b"v"), {"headers": {"a": "text"}}),
                (TypeError, ("t", b"v"), {"timestamp": 1.5}),
                (TypeError, ("t", b"v"), {"partition": True}),
                (TypeError, ("t", b"v"), {"partition": "0"}),
                (TypeError, (3, b"v"), {}),
                (UnknownTopicOrPartition, ("t", b"v"), {"partition": 3}),
            ):
                with pytest.raises(expected):
                    await producer.send(*arguments, **options)
            assert producer.unacknowledged() == 0

    run(scenario)
    assert cluster.values() == []


@each
def test_a_missing_topic_is_an_error_of_the_first_send(
    client: Client, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.producers.sender.TOPIC_PATIENCE", 0.3)

    async def scenario() -> None:
        async with client(zookeeper=cluster.connect) as producer:
            words: list[tuple[Client, tuple[Any, ...]]] = [
                (producer.send, ("missing", b"v")),
                (producer.send_batch, ("missing", [b"v"])),
                (producer.partitions_of, ("missing",)),
            ]
            for word, arguments in words:
                with pytest.raises(UnknownTopicOrPartition, match="folkmoot topic create"):
                    await word(*arguments)

    run(scenario)


@each
def test_without_brokers_the_first_send_says_so(client: Client, cluster: FakeCluster) -> None:
    async def scenario() -> None:
        options = {"zookeeper": FakeCluster().connect, "max_block": 0.3}
        async with client(**options) as producer:
            with pytest.raises(BrokerUnreachable):
                await know(producer, "t")
            with pytest.raises(BrokerUnreachable, match="no broker is registered"):
                await producer.send("t", b"v")

    run(scenario)


@each
def test_a_producer_that_is_not_open_takes_nothing(client: Client, cluster: FakeCluster) -> None:
    async def scenario() -> None:
        producer = client(zookeeper=cluster.connect)
        words: list[tuple[Client, tuple[Any, ...]]] = [
            (producer.send, ("t", b"v")),
            (producer.send_batch, ("t", [b"v"])),
            (producer.partitions_of, ("t",)),
        ]
        for word, arguments in words:
            with pytest.raises(ClosedError, match="with block"):
                await word(*arguments)
        await producer.start()
        await producer.start()
        await producer.close()
        await producer.close()
        with pytest.raises(ClosedError):
            await producer.send("t", b"v")
        with pytest.raises(ClosedError):
            await producer.start()
        never = client(zookeeper=cluster.connect)
        await never.close()
        with pytest.raises(ClosedError):
            await never.start()
        with pytest.raises(ConfigError, match="did you mean 'linger'"):
            client(zookeeper=cluster.connect, lingr=1)

    run(scenario)


@each
def test_an_unreachable_zookeeper_is_an_error_of_start(
    client: Client, cluster: FakeCluster
) -> None:
    def connect(session_timeout: float) -> Any:
        raise ZooKeeperUnreachable("nobody there")

    async def scenario() -> None:
        with pytest.raises(ZooKeeperUnreachable):
            await client(zookeeper=connect).start()

    run(scenario)


def topics_asked_for(cluster: FakeCluster) -> list[str]:
    """By the last request for metadata."""
    asked = [body.topics for api, body, _ in cluster.brokers[1].seen if api == Api.METADATA]
    return sorted(asked[-1])


@each
@pytest.mark.parametrize("restored", [False, True])
def test_records_of_a_deleted_topic_fail_soon_and_leave_their_room_to_others(
    client: Client, monkeypatch: pytest.MonkeyPatch, restored: bool
) -> None:
    """If its topic comes back with its log, nothing new is taken for what was sent before."""
    monkeypatch.setattr("folkmoot.producers.sender.TOPIC_PATIENCE", 0.3)

    async def scenario() -> None:
        options = {"buffer_bytes": 1000, "linger": 0.0, "retry_backoff": 0.01}
        async with client(zookeeper=cluster.connect, **options) as producer:
            await (await producer.send("dead", b"before", partition=0))
            cluster.topics = ("t", "another")
            dead = [await producer.send("dead", b"x" * 100, b"%d" % key) for key in range(8)]
            alive = await producer.send("t", b"waits for room")  # the buffer is full
            assert (await alive).topic == "t"
            for delivery in dead:
                error = await delivery.exception(timeout=30)
                assert isinstance(error, UnknownTopicOrPartition)
                assert "topic dead does not exist" in str(error)
            with pytest.raises(UnknownTopicOrPartition, match="dead"):
                await producer.send("dead", b"x")
            await (await producer.send("another", b"y"))
            assert topics_asked_for(cluster) == ["another", "t"]
            cluster.topics = ("t", "dead")
            if not restored:
                cluster.replace()
            after = await producer.send("dead", b"after", partition=0)
            assert (await after).offset == int(restored)

    with FakeCluster(topics=("t", "dead")) as cluster:
        run(scenario)


@each
def test_a_topic_that_is_not_used_is_not_asked_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.producers.sender.TOPIC_IDLE", 0.2)

    async def scenario() -> None:
        async with client(zookeeper=cluster.connect, linger=0.0) as producer:
            await (await producer.send("t", b"one", partition=0))
            counts = getattr(producer, "client", producer)._accumulator.counts

            async def is_forgotten() -> bool:
                await (await producer.send("u", b"x", partition=0))
                return "t" not in counts

            await eventually(is_forgotten)
            await (await producer.send("v", b"x", partition=0))
            assert "t" not in topics_asked_for(cluster)
            assert (await (await producer.send("t", b"two", partition=0))).offset == 1

    with FakeCluster(topics=("t", "u", "v")) as cluster:
        run(scenario)
    assert cluster.values() == [b"one", b"two"]


@each
def test_records_for_a_partition_that_is_gone_fail_at_once(client: Client) -> None:
    async def scenario() -> None:
        async with client(zookeeper=cluster.connect, linger=0.0) as producer:
            for number in range(6):
                await (await producer.send("t", b"before", partition=number))
            cluster.replace()
            cluster.partitions = 1
            deliveries = [await producer.send("t", b"after", partition=each) for each in range(6)]
            assert (await deliveries[0]).offset == 0
            for number, delivery in enumerate(deliveries[1:], 1):
                error = await delivery.exception(timeout=30)
                assert isinstance(error, UnknownTopicOrPartition)
                assert f"t-{number} does not exist any more" in str(error)

    with FakeCluster(partitions=6) as cluster:
        run(scenario)


@each
@pytest.mark.parametrize("waits", ["lingers", "is refused"])
def test_records_go_by_their_keys_where_the_topic_that_was_made_anew_has_partitions(
    client: Client, waits: str
) -> None:
    keys = [b"key-%d" % number for number in range(10)]
    told = list[Any]()

    async def scenario() -> None:
        linger = 60.0 if waits == "lingers" else 0.0
        async with client(zookeeper=cluster.connect, linger=linger) as producer:
            await know(producer, "t")
            if waits == "is refused":
                cluster.failing = NotLeader.code
            keyed = [
                await producer.send("t", b"%d" % number, keys[number % 10], on_delivery=told.append)
                for number in range(60)
            ]
            rows = await producer.send_batch("t", [b"row"] * 10, keys)
            named = [await producer.send("t", b"named", partition=each) for each in range(6)]
            if waits == "is refused":
                await eventually(lambda: cluster.requests > 1)
            cluster.replace()
            cluster.partitions, cluster.failing = 1, 0
            keyed += [
                await producer.send("t", b"6%d" % number, keys[number]) for number in range(10)
            ]
            with pytest.raises(UnknownTopicOrPartition):
                await producer.flush(timeout=30.0)
            for number, delivery in enumerate(keyed):
                place = await delivery
                assert place.partition == 0
                record = cluster.logs[TopicPartition("t", 0)][place.offset]
                assert (record.key, record.value) == (keys[number % 10], b"%d" % number)
            ((partition, ranges),) = (await rows.result(timeout=20.0)).items()
            assert (partition, sum(map(len, ranges))) == (0, 10)
            assert (await named[0]).partition == 0
            for delivery in named[1:]:
                assert isinstance(await delivery.exception(timeout=20.0), UnknownTopicOrPartition)

    with FakeCluster(partitions=6) as cluster:
        run(scenario)
    log = cluster.logs[TopicPartition("t", 0)]
    for number, key in enumerate(keys):
        values = [record.value for record in log if record.key == key]
        assert values == [
            *(b"%d" % (turn * 10 + number) for turn in range(6)),
            b"row",
            b"6%d" % number,
        ]
    assert len(told) == 60


@each
@pytest.mark.parametrize("call", ["send", "send_batch", "partitions_of"])
def test_a_partition_that_was_added_a_moment_ago_is_looked_up_once(
    client: Client, cluster: FakeCluster, call: str
) -> None:
    """The brokers that are asked first do not know of it yet, but for `partitions_of`."""
    handle, late = cluster.brokers[1].handler, 0 if call == "partitions_of" else 3
    is_added = False

    def handler(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        nonlocal late
        if envelope.api == Api.METADATA and is_added:
            cluster.partitions = 3 if late > 0 else 6
            late -= 1
        return handle(envelope, body, payloads)

    async def scenario() -> None:
        nonlocal is_added
        async with client(zookeeper=cluster.connect, linger=0.0) as producer:
            await (await producer.send("t", b"before", partition=2))
            is_added = True
            if call == "send":
                assert (await (await producer.send("t", b"x", partition=5))).partition == 5
            elif call == "send_batch":
                delivery = await producer.send_batch("t", [b"x", b"y"], partition=5)
                assert await delivery.result(20.0) == {5: [range(2)]}
            else:
                assert await producer.partitions_of("t") == [*range(6)]

    cluster.brokers[1].handler = handler
    run(scenario)


@each
def test_a_partition_that_a_topic_lacks_is_refused_when_brokers_have_been_asked(
    client: Client, cluster: FakeCluster
) -> None:
    async def scenario() -> None:
        async with client(zookeeper=cluster.connect, max_block=30.0) as producer:
            for _ in range(2):
                with pytest.raises(UnknownTopicOrPartition, match="partition 3"):
                    await producer.send("t", b"x", partition=3)
            with pytest.raises(UnknownTopicOrPartition, match="partition 9"):
                await producer.send_batch("t", [b"x"], partition=9)
            with pytest.raises(UnknownTopicOrPartition, match="partition -1"):
                await producer.send("t", b"x", partition=-1)
            assert await producer.partitions_of("t") == [0, 1, 2]
            assert producer.unacknowledged() == 0

    run(scenario)


@each
def test_a_listener_that_no_broker_has_is_an_error_of_start(
    client: Client, cluster: FakeCluster
) -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigError, match="listener 'inside'"):
            await client(zookeeper=cluster.connect, listener="inside").start()

    run(scenario)


@each
@pytest.mark.parametrize("made_anew", [False, True])
def test_brokers_that_come_back_one_after_the_other_are_waited_for(
    client: Client, cluster: FakeCluster, made_anew: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one lacks the listener, or there is no cluster at all for a while."""
    is_away = False
    said = "no cluster was ever made" if made_anew else "no broker has a listener"

    def connect(session_timeout: float) -> Session:
        if is_away:
            raise NoCluster("no cluster was ever made there")
        return cluster.connect(session_timeout)

    async def scenario() -> None:
        nonlocal is_away
        async with client(zookeeper=connect, retry_backoff=0.01) as producer:
            await (await producer.send("t", b"before", partition=0))
            is_away = made_anew
            cluster.brokers[1].stop()
            for session in list(cluster.zookeeper._sessions.values()):
                cluster.zookeeper.expire(session)
            cluster._session = cluster.zookeeper.connect()
            other = Registration({"inside": "127.0.0.1:1"}, "another")
            execute(cluster._session, brokers.register(7, other))
            delivery = await producer.send("t", b"after", partition=0)
            await eventually(lambda: said in caplog.text)
            cluster.start(1)
            is_away = False
            assert (await delivery).offset == 1

    run(scenario)


@each
def test_a_full_buffer_blocks_and_then_refuses(client: Client, cluster: FakeCluster) -> None:
    cluster.silent = True

    async def scenario() -> None:
        options = {"buffer_bytes": 50_000, "max_block": 0.1, "request_timeout": 0.2}
        async with client(zookeeper=cluster.connect, **options) as producer:
            await know(producer, "t")
            sent = [await producer.send("t", bytes(10_000)) for _ in range(5)]
            with pytest.raises(BufferFull, match="raise buffer_bytes"):
                await producer.send("t", b"no room")
            with pytest.raises(BufferFull):
                await producer.send_batch("t", [b"v"])
            with pytest.raises(FlushTimeout, match=r"after 0\.1 s: 5 records"):
                await producer.flush(0.1)
            with pytest.raises(RequestTimeout, match=r"not acknowledged after 0\.1 s"):
                await sent[0].result(timeout=0.1)
            cluster.silent = False
            for delivery in sent:
                await delivery
            await producer.send("t", b"there is room again")

    run(scenario)
    assert b"there is room again" in cluster.values()
    assert b"no room" not in cluster.values()


@each
def test_a_failure_that_nobody_asked_about_is_raised_by_flush_once(
    client: Client, cluster: FakeCluster
) -> None:
    cluster.failing = CorruptBatch.code

    async def scenario() -> None:
        async with client(zookeeper=cluster.connect) as producer:
            asked = await producer.send("t", b"v")
            with pytest.raises(CorruptBatch):
                await asked
            await producer.flush()
            unasked = await producer.send("t", b"v")
            with pytest.raises(CorruptBatch):
                await producer.flush()
            assert isinstance(await unasked.exception(), CorruptBatch)
            batch = await producer.send_batch("t", [b"v"])
            with pytest.raises(CorruptBatch):
                await batch
            await producer.send("t", b"v")
            with pytest.raises(CorruptBatch):
                await producer.close()

    run(scenario)


@each
def test_callbacks_are_told_and_may_fail(
    client: Client, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []

    def fail(delivery: Any) -> None:
        told.append(delivery)
        raise ZeroDivisionError

    async def scenario() -> None:
        async with client(zookeeper=cluster.connect) as producer:
            await producer.send("t", b"1", partition=0, on_delivery=fail)
            await producer.send("t", b"2", partition=0, on_delivery=told.append)
            await producer.flush()
            cluster.failing = CorruptBatch.code
            await producer.send("t", b"3", partition=0, on_delivery=told.append)
            await producer.flush()  # it was told, so there is nothing to raise

    run(scenario)
    assert len(told) == 3
    assert all(delivery.done() for delivery in told)
    assert caplog.text.count("an on_delivery callback has failed") == 1


@each
def test_an_exception_in_the_block_is_not_hidden_by_closing(
    client: Client, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("producer", "async_producer"):
        monkeypatch.setattr(f"folkmoot.producers.{module}.CLOSE_AFTER_ERROR", 0.1)
    cluster.silent = True

    async def scenario() -> None:
        async with client(zookeeper=cluster.connect) as producer:
            await producer.send("t", b"v")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(scenario)


@each
def test_close_ends_within_its_timeout_and_says_what_is_lost(
    client: Client, cluster: FakeCluster
) -> None:
    cluster.silent = True

    async def scenario() -> None:
        producer = client(zookeeper=cluster.connect)
        await producer.start()
        delivery = await producer.send("t", b"v")
        begun = time.monotonic()
        with pytest.raises(FlushTimeout, match=r"not acknowledged after 0\.2 s: 1 record$"):
            await producer.close(0.2)
        assert time.monotonic() - begun < 10.0
        with pytest.raises(ClosedError):
            await delivery

    run(scenario)


@each
def test_callbacks_have_been_called_when_flush_returns(
    client: Client, cluster: FakeCluster
) -> None:
    async def scenario() -> None:
        async with client(zookeeper=cluster.connect, linger=60.0) as producer:
            for number in range(1, 21):
                told: list[Any] = []
                for _ in range(10):
                    await producer.send("t", b"v", b"%d" % number, on_delivery=told.append)
                await producer.flush()
                assert len(told) == 10

    run(scenario)


@each
def test_a_record_that_is_asked_about_silences_no_neighbour_in_its_batch(
    client: Client, cluster: FakeCluster
) -> None:
    cluster.failing = CorruptBatch.code

    async def scenario() -> None:
        async with client(zookeeper=cluster.connect, linger=0.1) as producer:
            sent = [await producer.send("t", b"v", partition=0) for _ in range(3)]
            await producer.send("t", b"told", partition=0, on_delivery=id)
            assert isinstance(await sent[1].exception(), CorruptBatch)
            with pytest.raises(CorruptBatch):
                await producer.flush()
            sent = [await producer.send("t", b"v", partition=0) for _ in range(3)]
            assert [type(await each.exception()) for each in sent] == [CorruptBatch] * 3
            await producer.flush()

    run(scenario)


@each
def test_who_may_not_block_starts_the_look_up_and_sends_later(
    client: Client, cluster: FakeCluster
) -> None:
    async def scenario() -> None:
        async with client(zookeeper=cluster.connect, max_block=0.0) as producer:
            with pytest.raises(UnknownTopicOrPartition, match="was not found within 0 s"):
                await producer.send("t", b"v")

            async def is_taken() -> bool:
                try:
                    await producer.send("t", b"later")
                except UnknownTopicOrPartition:
                    return False
                return True

            await eventually(is_taken)

    run(scenario)
    assert cluster.values() == [b"later"]


@each
def test_what_found_room_of_a_batch_that_did_not_is_told_with_the_error(
    client: Client, cluster: FakeCluster
) -> None:
    cluster.silent = True

    async def scenario() -> None:
        options = {"buffer_bytes": 50_000, "max_block": 0.1, "request_timeout": 0.2}
        async with client(zookeeper=cluster.connect, **options) as producer:
            await know(producer, "t")
            values = [b"%03d" % number + bytes(10_000) for number in range(100)]
            with pytest.raises(BufferFull) as error:
                await producer.send_batch("t", values, partition=0)
            taken = error.value.delivery
            assert 5 <= len(taken) < 100
            cluster.silent = False
            assert sum(map(len, (await _result(taken))[0])) == len(taken)

    run(scenario)
    written = [value[:3] for value in cluster.values() if value]
    assert written == [b"%03d" % number for number in range(len(written))]


async def know(producer: Any, topic: str) -> None:
    """On a busy machine a look-up takes longer than a short `max_block`."""
    for _ in range(100):
        with suppress(UnknownTopicOrPartition):
            await producer.partitions_of(topic)
            return


async def _result(delivery: Any) -> dict[int, list[range]]:
    """Of either client: what hangs on an error is not wrapped."""
    found = delivery.result(10.0)
    return found if isinstance(found, dict) else await found


@each
def test_a_record_is_sent_and_waited_for_in_one_call(client: Client, cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with client(zookeeper=cluster.connect, request_timeout=0.3) as producer:
            place = await producer.send_and_wait("t", b"v", partition=1, timeout=10.0)
            assert place[:3] == ("t", 1, 0)
            cluster.silent = True
            with pytest.raises(RequestTimeout):
                await producer.send_and_wait("t", b"v", partition=1, timeout=0.05)
            cluster.silent = False
            await producer.flush()  # the one that was not waited for is not to fail
            cluster.failing = CorruptBatch.code
            with pytest.raises(CorruptBatch):
                await producer.send_and_wait("t", b"v", partition=2)
            cluster.failing = 0

    run(scenario)


@each
def test_what_is_not_under_way_is_purged_and_told(client: Client, cluster: FakeCluster) -> None:
    told: list[Any] = []

    async def scenario() -> None:
        async with client(zookeeper=cluster.connect, linger=60.0, batch_bytes=1_000) as producer:
            with cluster.holding() as held:
                # A batch that is full leaves at once. (After a flush all others would, too.)
                under_way = await producer.send("t", b"under way" * 200, partition=0)
                await eventually(lambda: held)
                await producer.send("t", b"waits", partition=0, on_delivery=told.append)
                waits = await producer.send("t", b"waits", partition=1)
                await producer.purge(timeout=10.0)
                assert len(told) == 1
                assert isinstance(await waits.exception(timeout=1.0), RecordsPurged)
                assert (producer.unacknowledged(), under_way.done()) == (1, False)
            await producer.purge()
        with pytest.raises(ClosedError):
            await client(zookeeper=cluster.connect).purge()

    run(scenario)
    assert b"waits" not in cluster.values()


class Json:
    """A serialiser that wants to know the topic."""

    def serialize(self, topic: str, value: Any) -> bytes:
        return json.dumps([topic, value]).encode()


@each
def test_keys_and_values_are_made_into_bytes_by_the_producer_s_serialisers(
    client: Client, cluster: FakeCluster
) -> None:
    async def scenario() -> None:
        options = {"key_serializer": str.encode, "value_serializer": Json()}
        async with client(zookeeper=cluster.connect, **options) as producer:
            await producer.send("t", {"a": 1}, "key", partition=0)
            await producer.send("t", None, "gone", partition=0, headers={"h": b"1"})
            await producer.send_batch("t", [1, None], [None, "k"], partition=0)
            with pytest.raises(SerializationError, match="the value of a record of topic t cannot"):
                await producer.send("t", object())
            with pytest.raises(SerializationError, match="the key of a record of topic t cannot"):
                await producer.send("t", 1, b"bytes")
            with pytest.raises(SerializationError, match="the key of a record of topic t cannot"):
                await producer.send_batch("t", [1], [2])

    run(scenario)
    (log,) = cluster.logs.values()
    assert [(record.key, record.value) for record in log] == [
        *((b"key", b'["t", {"a": 1}]'), (b"gone", None), (None, b'["t", 1]'), (b"k", None))
    ]
    assert log[1].headers == (("h", b"1"),)


@each
def test_headers_that_can_be_gone_through_once_arrive_whoever_has_to_wait(
    client: Client, cluster: FakeCluster
) -> None:
    async def scenario() -> None:
        async with client(zookeeper=cluster.connect) as producer:
            headers = zip(("a", "b"), (b"1", b"2"), strict=True)
            await (await producer.send("t", b"v", partition=0, headers=headers))

    run(scenario)
    (record,) = cluster.logs[TopicPartition("t", 0)]
    assert record.headers == (("a", b"1"), ("b", b"2"))
