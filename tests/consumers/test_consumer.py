"""A consumer by itself: reading, seeking, pausing, its options and its end."""

import gc
import os
import threading
from typing import Any

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.errors import (
    ClosedError,
    ConcurrentUse,
    ConfigError,
    InvalidName,
    NoOffset,
    NotAssigned,
    NotOwner,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.records import TopicPartition
from tests.consumers.parts import Bench, in_thread, take, until, values

# -- polling and iterating ------------------------------------------------------------------------


def test_poll_hands_out_records_in_the_order_of_their_partition(bench: Bench) -> None:
    bench.send(range(1_000))
    with bench.reader() as consumer:
        assert take(consumer, 1_000) == list(range(1_000))
        assert consumer.position(bench.partition(0)) == 1_000
        assert consumer.end_offset(bench.partition(0)) == 1_000
        assert consumer.poll(0.0) == []


def test_poll_hands_out_no_more_than_it_was_asked_for(bench: Bench) -> None:
    bench.send(range(10))
    with bench.reader() as consumer:
        until(consumer, lambda: consumer.position(bench.partition(0)) is not None)
        consumer.seek(bench.partition(0), 0)
        got: list[int] = []
        while len(got) < 10:
            some = consumer.poll(1.0, max_records=3)
            assert len(some) <= 3
            got += values(some)
        assert got == list(range(10))


def test_records_of_all_partitions_are_read(bench: Bench) -> None:
    bench.send(range(300), partition=None)
    with bench.reader(0, 1, 2) as consumer:
        assert sorted(take(consumer, 300)) == list(range(300))


def test_iteration_hands_out_one_by_one_until_stopped(bench: Bench) -> None:
    bench.send(range(50))
    got = []
    with bench.reader() as consumer:
        for record in consumer:
            got.append(int(record.value or b""))
            if record.offset == 29:
                consumer.stop()
    assert got == list(range(30))


def test_iteration_may_be_left_and_begun_again_without_a_gap(bench: Bench) -> None:
    bench.send(range(100))
    got: list[int] = []
    with bench.reader() as consumer:
        while len(got) < 100:
            for record in consumer:
                got.append(int(record.value or b""))
                if len(got) % 7 == 0 or len(got) == 100:
                    break
            if len(got) < 95:
                got += values(consumer.poll(1.0, max_records=2))
    assert got == list(range(100))


def test_an_iterator_that_is_kept_goes_on_after_a_poll(bench: Bench) -> None:
    bench.send(range(10))
    with bench.reader() as consumer:
        iterator = iter(consumer)
        got = [next(iterator)]
        got += consumer.poll(20.0, max_records=1)
        got += [next(iterator)]
        assert values(got) == [0, 1, 2]


def test_the_position_follows_the_record_in_hand(bench: Bench) -> None:
    bench.send(range(10))
    with bench.reader() as consumer:
        for record in consumer:
            assert consumer.position(bench.partition(0)) == record.offset + 1
            if record.offset == 9:
                break


def test_stop_from_another_thread_ends_a_waiting_iteration_and_a_waiting_poll(
    bench: Bench,
) -> None:
    with bench.reader() as consumer:
        threading.Timer(0.2, consumer.stop).start()
        assert list(consumer) == []
        assert consumer.poll(60.0) == []


# -- seeking --------------------------------------------------------------------------------------


def test_seek_goes_to_an_offset_to_the_beginning_and_to_the_end(bench: Bench) -> None:
    bench.send(range(10))
    here = bench.partition(0)
    with bench.reader() as consumer:
        consumer.seek(here, 7)
        assert take(consumer, 3) == [7, 8, 9]
        consumer.seek(here, "earliest")
        assert take(consumer, 2) == [0, 1]
        consumer.seek(here, "latest")
        until(consumer, lambda: consumer.position(here) == 10)
        bench.send([10])
        assert take(consumer, 1) == [10]


def test_a_seek_within_an_iteration_counts_for_the_next_record(bench: Bench) -> None:
    bench.send(range(100))
    got = []
    with bench.reader() as consumer:
        for record in consumer:
            got.append(record.offset)
            if record.offset == 2:
                consumer.seek(record.topic_partition, 98)
            if record.offset == 99:
                break
    assert got == [0, 1, 2, 98, 99]


def test_a_pause_within_an_iteration_counts_for_the_next_record(bench: Bench) -> None:
    bench.send(range(10), partition=0)
    bench.send(range(10, 20), partition=1)
    got = []
    with bench.reader(0) as consumer:
        for record in consumer:
            got.append(int(record.value or b""))
            if record.offset == 4 and record.partition == 0:
                consumer.pause(record.topic_partition)
                consumer.assign([bench.partition(0), bench.partition(1)])
            if record.partition == 1 and record.offset == 9:
                break
        assert got == [*range(5), *range(10, 20)]
        consumer.resume(bench.partition(0))
        assert take(consumer, 5) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("place", [-1, "middle"])
def test_a_place_that_is_none_is_refused(bench: Bench, place: object) -> None:
    with bench.reader() as consumer, pytest.raises(ConfigError):
        consumer.seek(bench.partition(0), place)  # type: ignore[arg-type]


def test_what_is_not_assigned_can_neither_be_sought_nor_paused(bench: Bench) -> None:
    other = bench.partition(2)
    with bench.reader() as consumer:
        for use in (consumer.position, consumer.end_offset, consumer.pause, consumer.resume):
            with pytest.raises(NotAssigned, match=str(other)):
                use(other)
        with pytest.raises(NotAssigned):
            consumer.seek(other, 0)


# -- where to start -------------------------------------------------------------------------------


def test_latest_starts_behind_what_is_there(bench: Bench) -> None:
    bench.send(range(5))
    with bench.reader(auto_offset_reset="latest") as consumer:
        until(consumer, lambda: consumer.position(bench.partition(0)) == 5)
        bench.send([5])
        assert take(consumer, 1) == [5]


def test_without_a_policy_the_application_must_seek(bench: Bench) -> None:
    bench.send(range(5))
    with bench.reader(auto_offset_reset="error") as consumer:
        with pytest.raises(NoOffset, match="seek"):
            consumer.poll(20.0)
        assert consumer.poll(0.2) == []
        consumer.seek(bench.partition(0), "earliest")
        assert take(consumer, 5) == list(range(5))


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_whoever_has_fallen_behind_the_start_of_a_log_reads_all_that_is_left(
    policy: str, bench: Bench
) -> None:
    bench.send(range(5))
    here = bench.partition(0)
    with Admin(zookeeper=bench.zookeeper) as admin:
        admin.delete_records({here: 3})
    with bench.reader(auto_offset_reset=policy) as consumer:
        consumer.seek(here, 1)
        assert take(consumer, 2) == [3, 4]
        assert consumer.metrics()["offset_resets"] == 1


def test_an_offset_out_of_range_is_an_error_without_a_policy(bench: Bench) -> None:
    with bench.reader(auto_offset_reset="error") as consumer:
        consumer.seek(bench.partition(0), 1_000)
        with pytest.raises(OffsetOutOfRange, match=str(bench.partition(0))):
            until(consumer, lambda: False)


# -- assigning ------------------------------------------------------------------------------------


def test_assign_replaces_what_was_assigned_and_keeps_what_stays(bench: Bench) -> None:
    bench.send(range(10), partition=0)
    bench.send(range(10, 20), partition=1)
    with bench.reader(0) as consumer:
        assert take(consumer, 5) == list(range(5))
        consumer.assign([bench.partition(0), bench.partition(1)])
        assert sorted(take(consumer, 15)) == list(range(5, 20))
        consumer.assign([])
        assert consumer.assignment() == frozenset()


@pytest.mark.parametrize("given", ["a", [("a",)], [("a", "0")], [("a", True)], [(0, "a")], [7]])
def test_what_is_no_list_of_partitions_is_not_assigned(bench: Bench, given: Any) -> None:
    with (
        Consumer(zookeeper=bench.zookeeper) as consumer,
        pytest.raises(TypeError, match=r"\[\('flights', 0\)\]"),
    ):
        consumer.assign(given)


def test_a_timeout_that_is_no_number_of_seconds_is_refused(bench: Bench) -> None:
    with bench.reader(0) as consumer, pytest.raises(ValueError, match="timeout=nan"):
        consumer.poll(float("nan"))


def test_an_unknown_topic_and_an_unknown_partition_are_refused_at_once(bench: Bench) -> None:
    with Consumer(zookeeper=bench.zookeeper) as consumer:
        with pytest.raises(UnknownTopicOrPartition, match="no-such-topic does not exist"):
            consumer.assign([("no-such-topic", 0)])
        for number in (3, -1):
            with pytest.raises(UnknownTopicOrPartition, match="has 3, numbered from 0"):
                consumer.assign([(bench.topic, number)])
        with pytest.raises(InvalidName):
            consumer.partitions_of("no such name")
        assert consumer.partitions_of(bench.topic) == [bench.partition(n) for n in range(3)]


def test_a_topic_created_a_moment_ago_is_found(bench: Bench) -> None:
    for _ in range(5):
        another = Bench(bench.zookeeper, bench.producer)
        with another.reader(0, 1, 2) as consumer:
            assert len(consumer.assignment()) == 3


def test_partitions_that_were_added_a_moment_ago_are_assigned(bench: Bench) -> None:
    with bench.reader() as consumer, Admin(zookeeper=bench.zookeeper) as admin:
        admin.add_partitions(bench.topic, 4)
        consumer.assign([bench.partition(0), bench.partition(3)])
        until(consumer, lambda: consumer.end_offset(bench.partition(3)) == 0)
        with pytest.raises(UnknownTopicOrPartition, match="has 4, numbered from 0"):
            consumer.assign([bench.partition(4)])


def test_what_belongs_to_a_group_is_refused_without_one(bench: Bench) -> None:
    with bench.reader() as consumer:
        with pytest.raises(ConfigError, match="group"):
            consumer.commit()
        with pytest.raises(ConfigError, match="group"):
            consumer.committed(bench.partition(0))
        with pytest.raises(NotOwner):
            consumer.fencing_token(bench.partition(0))
        assert consumer.health().member is None


# -- options, threads, the end --------------------------------------------------------------------


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'auto_offset_reset'"):
        Consumer(zookeeper="nowhere:1", auto_ofset_reset="latest")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "options",
    [
        {"topics": ["t"]},
        {"group": "g", "topics": "t"},
        {"group": "no such name"},
        {"auto_offset_reset": "oldest"},
        {"session_timeout": 0},
        {"fetch_max_wait": -1},
        {"max_poll_records": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, InvalidName)):
        Consumer(zookeeper="nowhere:1", **options)
    with pytest.raises(ConfigError, match="zookeeper"):
        Consumer()


def test_a_consumer_belongs_to_the_thread_that_started_it(bench: Bench) -> None:
    with bench.reader() as consumer:
        here = bench.partition(0)
        uses = [
            lambda: consumer.poll(0.0),
            lambda: next(iter(consumer)),
            lambda: consumer.seek(here, 0),
            lambda: consumer.position(here),
            lambda: consumer.pause(here),
            lambda: consumer.assign([]),
            consumer.close,
        ]
        for use in uses:
            assert isinstance(in_thread(use), ConcurrentUse)
        assert in_thread(consumer.stop) is None


def test_a_consumer_that_is_not_open_says_so(bench: Bench) -> None:
    consumer = Consumer(zookeeper=bench.zookeeper)
    with pytest.raises(ClosedError, match="start"):
        consumer.poll(0.0)
    with consumer:
        consumer.assign([bench.partition(0)])
    for use in (consumer.poll, consumer.start, lambda: next(iter(consumer))):
        with pytest.raises(ClosedError):
            use()
    consumer.close()
    consumer.stop()


def test_starting_twice_is_starting_once(bench: Bench) -> None:
    with bench.reader() as consumer:
        assert consumer.start() is consumer
        assert consumer.assignment() == {TopicPartition(bench.topic, 0)}


def refused(session_timeout: float) -> Session:
    raise ZooKeeperUnreachable("nobody is there")


MEMBER_OR_NOT: list[dict[str, Any]] = [{}, {"group": "g", "topics": ["t"]}]


@pytest.mark.parametrize("options", MEMBER_OR_NOT)
def test_an_unreachable_zookeeper_is_raised_at_the_start(options: dict[str, Any]) -> None:
    with pytest.raises(ZooKeeperUnreachable, match="nobody"):
        Consumer(zookeeper=refused, **options).start()


@pytest.mark.parametrize("options", MEMBER_OR_NOT)
def test_a_consumer_that_could_not_start_leaves_nothing_open(options: dict[str, Any]) -> None:
    def attempt() -> int:
        with pytest.raises(ZooKeeperUnreachable):
            Consumer(zookeeper=refused, **options).start()
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    # Threads of other fixtures may open a few meanwhile, and keep them; a leak grows with each attempt.
    before, *counts = [attempt() for _ in range(10)]
    assert min(counts[4:]) < before + 5
