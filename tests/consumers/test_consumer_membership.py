"""A consumer's place in its group: static members, watchdog, health, signals, starts of its own."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.client.health import State, health_of
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.consumers.offsets.seek_target import SeekTarget
from folkmoot.coordination.guardian import GUARDIAN
from folkmoot.coordination.zookeeper.session import SessionState
from folkmoot.protocol.errors import ConcurrentUse, ConfigError, InstanceReplaced, InvalidName
from folkmoot.protocol.records import TopicPartition
from tests.consumers.fetching import Bench as Workbench
from tests.consumers.parts import PARTITIONS, Bench, in_thread, take, until
from tests.waiting import eventually


def whole(consumer: Consumer) -> Callable[[], bool]:
    return lambda: len(consumer.assignment()) == PARTITIONS


# -- topics by pattern --------------------------------------------------------------------------------


def test_a_pattern_reads_the_topics_that_match(bench: Bench) -> None:
    bench.send(range(3))
    with bench.member(topics=[], pattern=f"{bench.topic[:-1]}.") as consumer:
        assert take(consumer, 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pattern": "("}, "no regular expression"),
        ({"instance_id": "a b"}, "instance id"),
        ({"pattern": re.compile("a")}, "use a text"),
        ({"pattern": None}, "use a text"),
        ({"topics": "t"}, r"must be a list of names: topics=\['t'\]"),
        *(({"topics": each}, "must be a list of names") for each in (None, 1, iter(["t"]))),
        ({"assignors": "range"}, "must be a list"),
        ({"assignors": None}, "must be a list"),
        ({"assignors": ["best"]}, "use one of"),
        ({"rejoin_timeout": -1.0}, "rejoin_timeout"),
        ({"max_processing_time": 1.0}, "max_processing_time"),
        ({"group": None, "topics": [], "pattern": "a.*"}, "group"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    settings: dict[str, Any] = {"zookeeper": "h:1", "group": "g", "topics": ["t"]}
    with pytest.raises((ConfigError, InvalidName), match=said):
        Consumer(**settings | options)


# -- static members -----------------------------------------------------------------------------------


def test_a_restart_of_a_static_member_makes_no_plan_and_goes_on_where_it_was(bench: Bench) -> None:
    bench.send(range(10))
    with bench.member(instance_id="w1") as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]
        generation = consumer.health().generation
    with bench.member(instance_id="w1") as consumer:
        assert take(consumer, 6) == [4, 5, 6, 7, 8, 9]
        assert consumer.health().generation == generation


def test_a_second_process_with_an_instance_id_ends_the_first(bench: Bench) -> None:
    with bench.member(instance_id="w1") as first:
        until(first, whole(first))
        with bench.member(instance_id="w1") as second:
            until(second, whole(second))
            with pytest.raises(InstanceReplaced, match="w1"):
                until(first, lambda: False)
            assert first.health().state is State.FAILED
            assert not first.assignment()
            with pytest.raises(InstanceReplaced):
                first.poll(0.0)
            with pytest.raises(InstanceReplaced):
                first.commit()
            first.close()
            until(second, whole(second))


# -- the guardian --------------------------------------------------------------------------------------


def test_a_member_is_guarded_unless_it_shall_not_be(bench: Bench) -> None:
    before = set(GUARDIAN._guarded)
    with bench.member(guardian=False) as consumer:
        until(consumer, whole(consumer))
        assert not set(GUARDIAN._guarded) - before
        with bench.member() as another:
            until(another, lambda: consumer.poll(0.0) == [] and len(another.assignment()) > 0)
            assert len(set(GUARDIAN._guarded) - before) == 1
    assert not set(GUARDIAN._guarded) - before


# -- the watchdog and health --------------------------------------------------------------------------


def test_an_application_that_does_not_ask_for_records_is_stalled_until_it_does(
    bench: Bench,
) -> None:
    lost: list[TopicPartition] = []
    bench.send(range(5))
    with bench.member(
        max_processing_time=2.0,
        revoke_timeout=0.2,
        on_lost=lambda _, partitions: lost.extend(partitions),
    ) as consumer:
        assert take(consumer, 5) == [0, 1, 2, 3, 4]
        until(consumer, whole(consumer))
        with bench.member() as other:
            eventually(lambda: consumer.health().state is State.STALLED, 10.0)
            until(other, whole(other))
            assert not consumer.health().is_well
        until(consumer, whole(consumer))
        with Admin(zookeeper=bench.zookeeper) as admin:
            reasons = [
                why for each in admin.group_events(bench.group) for why in each.left.values()
            ]
        # It stays away more often where this test stands still.
        assert set(reasons) == {"the application did not ask for records for too long", "left"}
        assert sorted(set(lost)) == [bench.partition(number) for number in range(PARTITIONS)]
        until(consumer, lambda: consumer.health().state is State.MEMBER)
        assert consumer.health().lost_partitions >= PARTITIONS
        assert consumer.metrics()["lost_partitions"] == consumer.health().lost_partitions


def test_iterating_over_one_batch_for_long_is_not_staying_away(bench: Bench) -> None:
    """Asking for the next record shows that it is there, though nothing is fetched meanwhile."""
    bench.send(range(200))
    with bench.member(max_processing_time=2.0, commit_interval=3600.0) as consumer:
        age, worked = 0.0, [0]
        for record in consumer:
            time.sleep(0.1)  # the work
            worked[-1] += 1
            before, age = age, consumer.health().last_poll_age or 0.0
            if age < before:
                worked.append(0)
            if len(worked) == 4:
                break
            assert record.offset < 150  # behind the last one would be another poll
        # When half of the time is over, but for where a thread stood still: of 20 records after ten.
        assert min(worked[:3]) < 15
        until(consumer, lambda: consumer.health().state is State.MEMBER)
        assert consumer.health().lost_partitions == 0


def test_health_tells_from_any_thread_how_a_consumer_stands(bench: Bench) -> None:
    bench.send(range(10))
    consumer = bench.member(max_poll_records=4)
    assert consumer.health().state is State.ALONE
    with consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]
        until(consumer, whole(consumer))
        found = []
        thread = threading.Thread(target=lambda: found.append(consumer.health()))
        thread.start()
        thread.join()
        (health,) = found
        assert (health.state, health.session) == (State.MEMBER, SessionState.CONNECTED)
        assert health.is_well
        assert health.assignment == consumer.assignment()
        assert health.lag[bench.partition(0)] == 10 - (consumer.position(bench.partition(0)) or 0)
        assert health.last_poll_age is not None
        assert 0 <= health.last_poll_age < 60.0
        assert (health.fenced_commits, health.lost_partitions) == (0, 0)
        assert health.member is not None
    assert consumer.health().state is State.CLOSED


def test_health_tells_how_a_consumer_stands_while_its_partitions_change() -> None:
    fetcher = Workbench().fetcher
    for number in range(3):
        fetcher.add(TopicPartition("t", number), 0)
    find_lag = fetcher.lag

    def lag(partition: TopicPartition) -> int | None:
        """The thread that polls goes on in between."""
        fetcher.remove(TopicPartition("t", 2))
        return find_lag(partition)

    fetcher.lag = lag  # type: ignore[method-assign]
    health = health_of(None, fetcher, Positions(), False)
    assert health.is_well
    assert len(health.assignment) == 3
    assert {each.partition for each in health.lag} <= {0, 1}


def test_a_consumer_without_a_group_is_well_alone(bench: Bench) -> None:
    bench.send(range(3))
    consumer = bench.reader()
    try:
        take(consumer, 3)
        health = consumer.health()
        assert (health.state, health.member, health.session) == (State.ALONE, None, None)
        assert health.lag == {bench.partition(0): 0}
    finally:
        consumer.close()


# -- starts of the application's own ------------------------------------------------------------------


def test_what_on_assign_returns_is_where_reading_goes_on(bench: Bench) -> None:
    """Offsets that are kept with the results: nothing is committed, and nothing is lost or doubled."""
    bench.send(range(10))
    stored: dict[TopicPartition, SeekTarget | None] = {
        bench.partition(0): 7,
        bench.partition(1): None,
    }

    def restore(
        consumer: Consumer, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, SeekTarget | None]:
        return {each: stored.get(each) for each in partitions}

    with bench.member(auto_commit=False, on_assign=restore) as consumer:
        assert take(consumer, 3) == [7, 8, 9]
    assert bench.committed() is None


# -- signals ------------------------------------------------------------------------------------------


def test_a_signal_ends_the_iteration_and_the_member_leaves_in_order(bench: Bench) -> None:
    bench.send(range(10))
    before = signal.getsignal(signal.SIGTERM)
    with bench.member() as consumer, consumer.leave_on_signals() as signalled:
        assert signalled() is None
        assert not signalled
        for record in consumer:
            if record.offset == 5:
                os.kill(os.getpid(), signal.SIGTERM)
        assert signalled() is signal.SIGTERM
        assert signalled
    assert signal.getsignal(signal.SIGTERM) is before
    assert bench.committed() == 6


@pytest.mark.parametrize("client", [Consumer, AsyncConsumer])
def test_signals_are_for_the_main_thread_and_elsewhere_an_error_says_so(client: Any) -> None:
    consumer = client(zookeeper="nowhere:1")

    def enter() -> None:
        with consumer.leave_on_signals():
            pass

    before = signal.getsignal(signal.SIGTERM)
    error = in_thread(enter)
    assert isinstance(error, ConcurrentUse)
    assert "main thread" in str(error)
    assert signal.getsignal(signal.SIGTERM) is before


def test_only_the_signals_asked_for_are_taken(bench: Bench) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    with bench.member() as consumer, consumer.leave_on_signals(signal.SIGUSR1) as signalled:
        assert {each: signal.getsignal(each) for each in before} == before
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not list(consumer)
        assert signalled() is signal.SIGUSR1
        assert {each: signal.getsignal(each) for each in before} == before


@pytest.mark.parametrize("where", ["on_revoke", "while it waits"])
def test_an_interrupted_close_leaves_no_member_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    on_revoke = interrupt if where == "on_revoke" else None
    consumer = bench.member(session_timeout=30.0, on_revoke=on_revoke).start()
    until(consumer, whole(consumer))
    own: Any = consumer._core
    if where != "on_revoke":
        monkeypatch.setattr(own.attention.wakeup, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    eventually(lambda: not own.group.member._thread.is_alive(), 10.0)
    with bench.member() as successor:
        until(successor, whole(successor))
