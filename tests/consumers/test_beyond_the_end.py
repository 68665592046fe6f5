"""Offsets behind the end of a log: refused where somebody gives one, mended where a log has lost its end."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.client.health import health_of
from folkmoot.consumers.lag import lag
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.coordination import topics
from folkmoot.coordination.groups import offset_admin
from folkmoot.metrics.groups import GroupMetrics
from folkmoot.protocol.errors import CommitBehind, NoOffset, OffsetOutOfRange
from folkmoot.protocol.records import TopicPartition
from tests.consumers.fetching import ZERO
from tests.consumers.fetching import Bench as Workbench
from tests.consumers.parts import Bench, values
from tests.surfaces import both, eventually, run

Client = Callable[..., Any]

each = both(Consumer, AsyncConsumer)
policies = pytest.mark.parametrize("policy", ["earliest", "latest", "error"])
SENT = range(10)
BEYOND = 500


@pytest.fixture
def sent(bench: Bench) -> Bench:
    """Ten records in the first partition."""
    bench.send(SENT)
    return bench


def write_beyond(bench: Bench, number: int = 0) -> None:
    """The group has committed more than the log has, as when a disk was replaced since."""
    topic = bench.ask(lambda: topics.read(bench.topic))
    assert topic is not None
    given = bench.group, bench.partition(number), topic.topic_id, BEYOND, uuid4().hex
    bench.ask(lambda: offset_admin.reset(*given))


async def read(consumer: Any, count: int = len(SENT)) -> list[int]:
    got: list[int] = []

    async def has_all() -> bool:
        with suppress(NoOffset):
            got.extend(values(await consumer.poll(0.1)))
        return len(got) >= count

    await eventually(has_all)
    return got


async def raised(consumer: Any) -> None:
    """OffsetOutOfRange by a poll, and nothing is handed out before."""

    async def is_raised() -> bool:
        try:
            with suppress(NoOffset):  # of the other partitions
                assert await consumer.poll(0.1) == []
        except OffsetOutOfRange:
            return True
        return False

    await eventually(is_raised)


async def joined(consumer: Any) -> None:
    async def owns() -> bool:
        await consumer.poll(0.05)
        return len(consumer.assignment()) == 3

    await eventually(owns)


# -- what is refused ----------------------------------------------------------------------------------


@each
def test_a_commit_behind_the_end_is_refused_with_all_that_came_with_it(
    client: Client, sent: Bench
) -> None:
    first, second = sent.partition(0), sent.partition(1)
    sent.send(range(3), partition=1)

    async def scenario() -> None:
        async with client(zookeeper=sent.zookeeper, **sent.settings(auto_commit=False)) as consumer:
            await read(consumer, len(SENT) + 3)
            for beyond in (len(SENT) + 1, 2**63 - 1):
                with pytest.raises(OffsetOutOfRange, match=f"{first}.*{len(SENT)}"):
                    await consumer.commit({first: beyond, second: 2})
            assert sent.committed(1) is None
            await consumer.commit({first: len(SENT), second: 2})
        assert (sent.committed(), sent.committed(1)) == (len(SENT), 2)

    run(scenario)


@each
def test_what_was_not_fetched_here_can_be_committed_as_far_as_the_log_goes(
    client: Client, sent: Bench
) -> None:
    """As in on_assign, by who keeps offsets elsewhere."""
    refused: list[Any] = []

    async def scenario() -> None:
        async def commit(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
            for offset in (BEYOND, 7) if sent.partition(0) in partitions else ():
                try:
                    await consumer.commit({sent.partition(0): offset})
                except OffsetOutOfRange as error:
                    refused.append(error)

        def commit_plainly(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            for offset in (BEYOND, 7) if sent.partition(0) in partitions else ():
                try:
                    consumer.commit({sent.partition(0): offset})
                except OffsetOutOfRange as error:
                    refused.append(error)

        on_assign: Any = commit if client is AsyncConsumer else commit_plainly
        options = sent.settings(auto_commit=False, on_assign=on_assign)
        async with client(zookeeper=sent.zookeeper, **options) as consumer:
            await joined(consumer)
        assert len(refused) == 1
        assert sent.committed() == 7

    run(scenario)


@each
@policies
@pytest.mark.parametrize("way", ["assign", "seek", "on_assign"])
def test_reading_from_behind_the_end_is_an_error_and_not_a_reset(
    client: Client, policy: str, way: str, sent: Bench
) -> None:
    first = sent.partition(0)

    async def scenario() -> None:
        options: dict[str, Any] = {"auto_offset_reset": policy}
        if way == "on_assign":
            options = sent.settings(on_assign=lambda *_: {first: 10**9}, **options)
        async with client(zookeeper=sent.zookeeper, **options) as consumer:
            if way == "assign":
                await consumer.assign({first: 10**9})
            elif way == "seek":
                await consumer.assign({first: 0})
                await consumer.seek(first, 10**9)
            await raised(consumer)
            assert consumer.metrics()["offset_resets"] == 0
            if way == "on_assign":
                with pytest.raises(OffsetOutOfRange):  # where it was sought
                    await consumer.commit()
            await consumer.seek(first, 4)
            assert await read(consumer, 6) == [*range(4, 10)]

    run(scenario)


# -- what a consumer knows of it ----------------------------------------------------------------------


@pytest.mark.parametrize("parts_at", [None, 20])
def test_what_was_read_behind_the_place_where_logs_part_is_not_committed(
    parts_at: int | None,
) -> None:
    """As after an unclean election; what was in hand meanwhile is no more either."""
    positions = Positions()
    positions.claim(ZERO, 10)
    positions.of(ZERO).handed_out = 30
    positions.end_poll()
    assert positions.due({ZERO}) == {ZERO: 30}
    in_hand = positions.of(ZERO)
    in_hand.handed_out = 35
    positions.cut(ZERO, 20, parts_at)
    assert positions.group.beyond() == {ZERO: (30, 20)}
    in_hand.handed_out = 40
    positions.end_poll()
    assert positions.due({ZERO}) == ({} if parts_at is None else {ZERO: parts_at})
    positions.of(ZERO).handed_out = 23
    positions.end_poll()
    assert positions.due({ZERO}) == {ZERO: 23}
    positions.group.mark_committed({ZERO: 30})  # was under way
    assert positions.group.beyond()
    positions.group.mark_committed({ZERO: 20})
    assert not positions.group.beyond()
    assert positions.group.request({ZERO: 22}) == ({}, {ZERO: 23})


@pytest.mark.parametrize("policy", ["earliest", "error"])
def test_a_log_that_ends_below_what_was_read_is_told_to_who_commits(policy: str) -> None:
    bench = Workbench(auto_offset_reset=policy)
    bench.reading(offset=50)
    bench.cluster.answer(bench.cluster.next(), error=OffsetOutOfRange.code, end=20)
    bench.poll()
    assert bench.cut == [(ZERO, 20, None)]
    assert bench.fetcher.lag(ZERO) is None
    assert bool(bench.fetcher.rotation.errors) is (policy == "error")


# -- what is mended -----------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("auto_commit", [True, False], ids=["auto", "by hand"])
@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_a_group_that_has_committed_more_than_the_log_has_reads_what_is_there_once(
    client: Client, policy: str, auto_commit: bool, sent: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    write_beyond(sent)
    options = sent.settings(auto_offset_reset=policy, auto_commit=auto_commit, commit_interval=60.0)

    async def scenario() -> None:
        with caplog.at_level(logging.WARNING, "folkmoot"):
            async with client(zookeeper=sent.zookeeper, **options) as consumer:
                assert await read(consumer) == [*SENT]
                (alarm,) = [
                    each for each in consumer.health().alarms if str(sent.partition(0)) in each
                ]
                assert str(BEYOND) in alarm
                assert str(len(SENT)) in alarm
                assert consumer.metrics()["offset_resets"] == 1
                if not auto_commit:
                    await consumer.commit()
                    assert consumer.health().alarms == ()
        assert "lost records" in caplog.text
        assert sent.committed() == len(SENT)
        sent.send([10])
        async with client(zookeeper=sent.zookeeper, **options) as consumer:
            assert await read(consumer, 1) == [10]

    run(scenario)


@each
@pytest.mark.parametrize("way", ["commit", "seek"])
def test_under_error_it_is_raised_and_a_right_commit_or_a_seek_mends_it(
    client: Client, way: str, sent: Bench
) -> None:
    write_beyond(sent)
    first = sent.partition(0)
    options = sent.settings(auto_offset_reset="error")

    async def scenario() -> None:
        async with client(zookeeper=sent.zookeeper, **options) as consumer:
            await raised(consumer)
            assert consumer.health().lag[first] is None
            assert any(str(first) in each for each in consumer.health().alarms)
            if way == "commit":
                await consumer.commit({first: 6})
            else:
                await consumer.seek(first, 6)
                assert await read(consumer, 4) == [6, 7, 8, 9]
                await consumer.commit()
            assert consumer.health().alarms == ()
            with pytest.raises(CommitBehind):
                await consumer.commit({first: 5})
        assert sent.committed() == (6 if way == "commit" else 10)

    run(scenario)


# -- what is shown of it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "start", "end", "expected"),
    [
        (10, 0, 100, 90),
        (10, 60, 100, 40),
        (10, 100, 100, 0),
        (100, 60, 100, 0),
        (500, 60, 100, None),
        (None, 0, 100, None),
        (None, 100, 100, 0),
        (None, 0, 0, 0),
        (10, 0, None, None),
        (10, 60, 50, 0),  # of two answers
    ],
)
def test_lag_counts_what_is_on_the_log(
    offset: int | None, start: int, end: int | None, expected: int | None
) -> None:
    assert lag(offset, start, end) == expected


def test_a_description_counts_what_is_on_the_log_and_says_where_one_ends_too_early(
    bench: Bench,
) -> None:
    kept, emptied, cut = (bench.partition(number) for number in range(3))
    bench.send(range(10), partition=0)
    bench.send(range(10), partition=1)
    bench.send(range(3), partition=2)
    with Admin(zookeeper=bench.zookeeper) as admin, bench.member() as consumer:
        admin.reset_offsets(bench.group, {kept: 1, emptied: 1, cut: 3})
        consumer.close()
        admin.delete_records({kept: 6, emptied: "latest"})
        write_beyond(bench, 2)
        view = admin.describe_group(bench.group)
        rows = {each.partition: each for each in view.partitions}
        assert [rows[each].lag for each in (kept, emptied, cut)] == [4, 0, None]
        assert (rows[kept].behind or 0) > 0
        assert (rows[emptied].behind, rows[cut].behind) == (0, None)
        assert [rows[each].state for each in (kept, cut)] == ["unowned", "truncated"]
        (note,) = view.notes
        assert f"{cut} ends at 3, below {BEYOND}" in note
        shown = {(each.name, *each.labels.values()): each.value for each in samples(admin, bench)}
        group, topic = bench.group, bench.topic
        assert shown["kafka_consumergroup_lag", group, topic, "0"] == 4
        assert ("kafka_consumergroup_lag", group, topic, "2") not in shown
        assert shown["folkmoot_consumergroup_partitions", group, "truncated"] == 1
        plan = admin.plan_reset(bench.group, "earliest", partitions=[cut])
        assert [(each.committed, each.new) for each in plan] == [(BEYOND, 0)]
        admin.reset_offsets(bench.group, {cut: 2})
        view = admin.describe_group(bench.group)
        assert [each.lag for each in view.partitions] == [4, 0, 1]
        assert view.notes == ()


def samples(admin: Admin, bench: Bench) -> Iterator[Any]:
    for metric in GroupMetrics(admin, [bench.group]).collect():
        yield from metric.samples


def test_a_reader_counts_what_is_on_the_log_though_it_is_far_behind() -> None:
    """It has stopped in front of the log's start."""
    bench = Workbench(auto_offset_reset="error")
    bench.reading(offset=10)
    bench.cluster.answer(bench.cluster.next(), error=OffsetOutOfRange.code, end=100, log_start=60)
    bench.poll()
    assert bench.fetcher.lag(ZERO) == bench.fetcher.metrics()["lag"] == 40
    assert health_of(None, bench.fetcher, Positions(), False).lag == {ZERO: 40}
