"""What a consumer does, in both spellings: the same lines against `Consumer` and `AsyncConsumer`."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import (
    ClosedError,
    CommitBehind,
    ConfigError,
    NotAssigned,
    NotOwner,
    OffsetOutOfRange,
    RequestTimeout,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.records import TopicPartition
from tests.consumers.parts import PARTITIONS, Bench, until, values
from tests.consumers.tasks import take
from tests.surfaces import both, differences, eventually, run

Client = Callable[..., Any]
NEVER = 3600.0

each = both(Consumer, AsyncConsumer)


def member(client: Client, bench: Bench, **options: Any) -> Any:
    return client(zookeeper=bench.zookeeper, **bench.settings(**options))


def test_the_words_are_the_same() -> None:
    assert differences(Consumer, AsyncConsumer) == []


@each
def test_records_come_one_by_one_until_stopped_and_what_was_handed_out_is_committed(
    client: Client, bench: Bench
) -> None:
    bench.send(range(2_000))

    async def scenario() -> list[int]:
        got = []
        async with member(client, bench, commit_interval=NEVER) as consumer:
            async for record in consumer:
                got.append(int(record.value))
                if record.offset == 1_299:
                    consumer.stop()
        return got

    assert run(scenario) == list(range(1_300))
    assert bench.committed() == 1_300


@each
def test_records_batches_and_tables_are_read_in_turns_without_a_gap(
    client: Client, bench: Bench
) -> None:
    bench.send(range(1_000))

    async def scenario() -> None:
        got: list[int] = []
        async with client(zookeeper=bench.zookeeper) as consumer:
            await consumer.assign([bench.partition(0)])
            assert consumer.assignment() == {bench.partition(0)}
            while len(got) < 1_000:
                async for record in consumer:
                    got.append(int(record.value))
                    if len(got) % 7 == 0 or len(got) == 1_000:
                        break
                got += values(await consumer.poll(0.2 if len(got) < 1_000 else 0.0, 5))
                view = await consumer.poll_batch(0.0, 11)
                if view is not None:
                    assert isinstance(view, RecordBatchView)
                    got += values(view)
                table = await consumer.poll_arrow(0.0, 3)
                got += [int(value) for value in table.column("value").to_pylist()]
            assert await consumer.position(bench.partition(0)) == 1_000
            assert await consumer.end_offset(bench.partition(0)) == 1_000
            assert await consumer.poll(0.0) == []
            assert consumer.metrics()["records_fetched"] >= 1_000
        assert got == list(range(1_000))

    run(scenario)


@each
def test_batches_and_arrow_are_iterated_over_until_stopped(client: Client, bench: Bench) -> None:
    bench.send(range(100))

    async def scenario() -> None:
        for word in ("batches", "arrow"):
            rows = 0
            async with client(zookeeper=bench.zookeeper) as consumer:
                await consumer.assign([bench.partition(0)])
                async for some in getattr(consumer, word)(max_records=30):
                    rows += len(some)
                    assert len(some) <= 30
                    if rows == 100:
                        consumer.stop()
            assert rows == 100

    run(scenario)


@each
def test_a_stopped_consumer_hands_out_nothing_more_and_leaves_it_uncommitted(
    client: Client, bench: Bench
) -> None:
    bench.send(range(2_000))

    async def scenario() -> None:
        async with member(client, bench, commit_interval=NEVER) as consumer:
            while not await consumer.poll(0.1, 10):
                pass
            consumer.stop()  # what follows lies in the buffer already
            assert await consumer.poll(NEVER, 10) == []
            assert await consumer.poll_batch(NEVER) is None
            assert (await consumer.poll_arrow(NEVER)).num_rows == 0

    run(scenario)
    assert bench.committed() == 10


@each
def test_seeking_pausing_and_asking_for_offsets(client: Client, bench: Bench) -> None:
    bench.send(range(10))
    first, other = bench.partition(0), bench.partition(1)

    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper, auto_offset_reset="error") as consumer:
            assert await consumer.partitions_of(bench.topic) == [
                bench.partition(number) for number in range(PARTITIONS)
            ]
            await consumer.assign([first, other])
            await consumer.seek(other, "earliest")
            await consumer.seek(first, 4)
            assert await take(consumer, 2) == [4, 5]
            await consumer.pause(first)
            assert await consumer.poll(0.1) == []
            await consumer.resume(first)
            assert await take(consumer, 4) == [6, 7, 8, 9]
            await consumer.seek(first, datetime(2001, 1, 1, tzinfo=UTC))
            assert await take(consumer, 1) == [0]
            times = {first: datetime(2001, 1, 1, tzinfo=UTC)}
            assert await consumer.offsets_for_times(times) == {first: 0}
            await consumer.seek(first, 99)
            with pytest.raises(OffsetOutOfRange):
                await take(consumer, 1)
            for place in (-1, "somewhere"):
                with pytest.raises(ConfigError):
                    await consumer.seek(first, place)
            with pytest.raises(NotAssigned):
                await consumer.seek(bench.partition(2), 0)
            with pytest.raises(UnknownTopicOrPartition):
                await consumer.assign([bench.partition(9)])
            with pytest.raises(ConfigError, match="group"):
                await consumer.commit()
            assert consumer.health().member is None

    run(scenario)


@each
def test_commits_positions_and_epochs_in_a_group(client: Client, bench: Bench) -> None:
    bench.send(range(10))
    first = bench.partition(0)

    async def scenario() -> None:
        async with member(client, bench, auto_commit=False) as consumer:
            assert await take(consumer, 4) == [0, 1, 2, 3]
            await consumer.commit({first: 2})
            assert await consumer.committed(first) == 2
            await consumer.commit()
            assert await consumer.committed(first) == 4
            with pytest.raises(NotOwner, match="another-0"):
                await consumer.commit({TopicPartition("another", 0): 1})
            with pytest.raises(ConfigError):
                await consumer.commit({first: -1})
            assert consumer.fencing_token(first) > 0
            assert consumer.health().member is not None
            async for record in consumer:
                if record.offset == 6:
                    await consumer.commit()
                    assert await consumer.committed(first) == 7
                if record.offset == 8:
                    break

    run(scenario)
    assert bench.committed() == 7


@each
def test_a_group_does_not_go_back_by_a_seek(client: Client, bench: Bench) -> None:
    bench.send(range(20))
    first = bench.partition(0)

    async def scenario() -> None:
        async with member(client, bench, auto_commit=False) as consumer:
            assert await take(consumer, 10) == list(range(10))
            await consumer.commit()
            with pytest.raises(CommitBehind, match=r"5 in .*-0 lies before 10"):
                await consumer.commit({first: 5})
            await consumer.seek(first, 4)
            with pytest.raises(CommitBehind, match=r"4 in .*-0 lies before 10"):
                await consumer.commit()
            assert await take(consumer, 3) == [4, 5, 6]
            with pytest.raises(CommitBehind, match=r"7 in .*-0 lies before 10"):
                await consumer.commit()
            assert await consumer.committed(first) == 10
            assert await take(consumer, 5) == [7, 8, 9, 10, 11]
            await consumer.commit()
            assert await consumer.committed(first) == 12
            await consumer.seek(first, 15)
            await consumer.commit()
            assert await consumer.committed(first) == 15

    run(scenario)


@each
def test_with_auto_commit_a_seek_back_neither_sets_the_group_back_nor_fails(
    client: Client, bench: Bench
) -> None:
    bench.send(range(20))
    first = bench.partition(0)

    async def scenario() -> None:
        async with member(client, bench, commit_interval=0.05) as consumer:
            assert await take(consumer, 10) == list(range(10))
            await consumer.commit()
            await consumer.seek(first, 4)
            assert await take(consumer, 2) == [4, 5]
            for _ in range(5):
                await consumer.pause(first)
                await consumer.poll(0.05)
            assert await consumer.committed(first) == 10

    run(scenario)
    assert bench.committed() == 10


@each
def test_a_second_sigterm_does_not_disturb_the_leaving(client: Client, bench: Bench) -> None:
    """`timeout` tells a process and then its group, of which it is one."""
    bench.send(range(10))
    heard: list[int] = []

    def tell(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def scenario() -> None:
        async with member(client, bench, on_revoke=tell, commit_interval=NEVER) as consumer:
            with consumer.leave_on_signals():
                async for record in consumer:
                    if record.offset == 5:
                        tell()
        assert (heard, bench.committed()) == ([], 6)
        tell()
        assert heard == [signal.SIGTERM]

    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        run(scenario)
    finally:
        signal.signal(signal.SIGTERM, before)


@each
def test_a_callback_that_hangs_does_not_keep_close_from_ending(
    client: Client, bench: Bench
) -> None:
    release = threading.Event()

    def on_revoke(consumer: Any, partitions: list[TopicPartition]) -> Any:
        if client is AsyncConsumer:  # where a plain function would block the loop
            return asyncio.Event().wait()
        return release.wait(60.0)

    async def scenario() -> None:
        consumer = member(client, bench, on_revoke=on_revoke, session_timeout=30.0)
        await consumer.start()

        async def owns() -> bool:
            await consumer.poll(0.05)
            return len(consumer.assignment()) == PARTITIONS

        await eventually(owns, 20.0)
        begun = time.monotonic()
        with pytest.raises(RequestTimeout, match="callback"):
            await consumer.close(1.0)
        assert time.monotonic() - begun < 20.0

    run(scenario)
    with bench.member() as successor:  # long before the session would have ended
        until(successor, lambda: len(successor.assignment()) == PARTITIONS)
    release.set()


@each
def test_what_a_group_has_committed_of_a_topic_means_nothing_for_one_made_anew(
    client: Client, bench: Bench
) -> None:
    bench.send(range(10))
    first = bench.partition(0)

    async def scenario() -> None:
        async with member(client, bench) as consumer:
            assert await take(consumer, 4) == [0, 1, 2, 3]
            await consumer.commit()
            assert await consumer.committed(first) == 4
        bench.delete_topic()
        async with client(zookeeper=bench.zookeeper, group=bench.group) as reader:
            assert await reader.committed(first) is None
            bench.create_topic()
            assert await reader.committed(first) is None

    run(scenario)


@each
def test_callbacks_are_told_and_may_seek_and_commit(client: Client, bench: Bench) -> None:
    bench.send(range(10))
    told: list[str] = []

    async def scenario() -> None:
        # What seek and commit return is awaited where there is something to await.
        def on_assign(consumer: Any, partitions: list[TopicPartition]) -> Any:
            told.append(f"assign {len(partitions)}")
            first = bench.partition(0)
            return consumer.seek(first, 6) if first in partitions else None

        def on_revoke(consumer: Any, partitions: list[TopicPartition]) -> Any:
            told.append("revoke")
            first = bench.partition(0)
            return consumer.commit({first: 3}) if first in partitions else None

        def on_rebalance(consumer: Any, notice: Any) -> None:
            told.append(f"rebalance {notice.members}")

        callbacks = {
            "on_assign": on_assign,
            "on_revoke": on_revoke,
            "on_rebalance": on_rebalance,
            "auto_commit": False,
        }

        async def has_all() -> bool:
            await consumer.poll(0.05)
            return sum(int(each[-1]) for each in told if "assign" in each) == PARTITIONS

        async with member(client, bench, **callbacks) as consumer:
            assert await take(consumer, 4) == [6, 7, 8, 9]
            await eventually(has_all)

    run(scenario)
    assert "rebalance 1" in told
    assert told[-1] == "revoke"
    assert bench.committed() == 3


@each
def test_what_a_callback_raises_comes_out_of_poll(client: Client, bench: Bench) -> None:
    told: list[TopicPartition] = []

    def on_assign(consumer: Any, partitions: list[TopicPartition]) -> None:
        told.extend(partitions)
        if len(told) == len(partitions):
            raise ZeroDivisionError

    async def scenario() -> None:
        async with member(client, bench, on_assign=on_assign) as consumer:
            with pytest.raises(ZeroDivisionError):
                await take(consumer, 1)

    run(scenario)


@each
def test_an_exception_in_the_block_commits_all_but_the_record_in_hand(
    client: Client, bench: Bench
) -> None:
    bench.send(range(100))

    async def scenario() -> None:
        async with member(client, bench) as consumer:
            async for record in consumer:
                if record.offset == 6:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(scenario)
    assert bench.committed() == 6


@each
def test_a_consumer_that_is_not_open_refuses(client: Client, bench: Bench) -> None:
    async def scenario() -> None:
        consumer = client(zookeeper=bench.zookeeper)
        with pytest.raises(ClosedError):
            await consumer.poll(0.0)
        await consumer.start()
        await consumer.start()
        await consumer.close()
        await consumer.close()
        with pytest.raises(ClosedError):
            await consumer.poll(0.0)
        with pytest.raises(ClosedError):
            await consumer.start()
        never = client(zookeeper=bench.zookeeper)
        await never.close()
        with pytest.raises(ClosedError):
            await never.start()
        with pytest.raises(ConfigError, match="did you mean"):
            client(zookeeper=bench.zookeeper, gruop="g")

    run(scenario)


@each
def test_an_unreachable_zookeeper_is_an_error_of_start_which_may_be_tried_again(
    client: Client, bench: Bench
) -> None:
    from folkmoot.coordination.connector import connector

    tries = 0

    def connect(session_timeout: float) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ZooKeeperUnreachable("nobody there")
        return connector(bench.zookeeper)(session_timeout)

    async def scenario() -> None:
        consumer = client(zookeeper=connect)
        with pytest.raises(ZooKeeperUnreachable):
            await consumer.start()
        await consumer.start()
        assert len(await consumer.partitions_of(bench.topic)) == PARTITIONS
        await consumer.close()

    run(scenario)


MEBIBYTE = 1024 * 1024
BATCH = 2 * MEBIBYTE
"""What a producer puts into one batch at most, decompressed."""


@each
@pytest.mark.parametrize("kind", ["records", "made records", "arrow", "batches"])
def test_one_answer_has_no_more_bytes_than_the_buffer_but_for_its_last_batch(
    client: Client, bench: Bench, kind: str
) -> None:
    """They compress to nothing: all of them are fetched at once."""
    count, size = 40, 256 * 1024
    for _ in range(count):
        bench.producer.send(bench.topic, bytes(size), partition=0)
    bench.producer.flush(20.0)
    options: dict[str, Any] = {"buffer_bytes": MEBIBYTE}
    if kind == "made records":
        options["value_deserializer"] = lambda data: bytes(data)

    async def scenario() -> list[int]:
        answers: list[int] = []
        async with client(zookeeper=bench.zookeeper, **options) as consumer:
            await consumer.assign([bench.partition(0)])

            async def all_came() -> bool:
                if kind == "arrow":
                    answers.append((await consumer.poll_arrow(0.5)).num_rows * size)
                elif kind == "batches":
                    answers.append(len(await consumer.poll_batch(0.5) or ()) * size)
                else:
                    answers.append(sum(len(each.value) for each in await consumer.poll(0.5)))
                return sum(answers) >= count * size

            await eventually(all_came, 20.0)
        return answers

    answers = run(scenario)
    assert sum(answers) == count * size
    assert max(answers) < MEBIBYTE + BATCH
