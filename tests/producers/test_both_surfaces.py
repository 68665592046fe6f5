"""What a producer does, in both spellings: the same lines against `Producer` and `AsyncProducer`."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from folkmoot.producers.asynchronous import AsyncProducer
from folkmoot.producers.awaiting import AsyncBatchDelivery, AsyncDelivery
from folkmoot.producers.chunks import Delivery
from folkmoot.producers.column_chunks import BatchDelivery
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    BufferFull,
    ClosedError,
    ConfigError,
    CorruptBatch,
    FlushTimeout,
    InvalidName,
    RecordTooLarge,
    RequestTimeout,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.murmur2 import partition_for
from folkmoot.protocol.records import TopicPartition
from tests.producers.fakes import FakeCluster
from tests.surfaces import both, differences, run

Client = Callable[..., Any]

each = both(Producer, AsyncProducer)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster


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
    monkeypatch.setattr("folkmoot.producers.loop.TOPIC_PATIENCE", 0.3)

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


@each
def test_a_full_buffer_blocks_and_then_refuses(client: Client, cluster: FakeCluster) -> None:
    cluster.silent = True

    async def scenario() -> None:
        options = {"buffer_bytes": 50_000, "max_block": 0.1, "request_timeout": 0.2}
        async with client(zookeeper=cluster.connect, **options) as producer:
            sent = [await producer.send("t", bytes(10_000)) for _ in range(5)]
            with pytest.raises(BufferFull, match="raise buffer_bytes"):
                await producer.send("t", b"no room")
            with pytest.raises(BufferFull):
                await producer.send_batch("t", [b"v"])
            with pytest.raises(FlushTimeout, match=r"5 records .* after 0\.1 s"):
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
    for module in ("producer", "asynchronous"):
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
        with pytest.raises(FlushTimeout, match=r"1 records are not acknowledged after 0\.2 s"):
            await producer.close(0.2)
        assert time.monotonic() - begun < 10.0
        with pytest.raises(ClosedError):
            await delivery

    run(scenario)
