"""Consumers as members of a group: what is committed, when, and how partitions change hands."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.protocol.errors import (
    ClosedError,
    CommitBehind,
    ConcurrentUse,
    ConfigError,
    NoOffset,
    NotOwner,
    OffsetOutOfRange,
)
from folkmoot.protocol.records import TopicPartition
from tests.consumers.parts import PARTITIONS, Bench, in_thread, take, until, values
from tests.waiting import eventually

NEVER = 3600.0


class Failure(Exception):
    """What an application raises."""


def fail_at(offset: int, member: Consumer) -> None:
    with member as consumer:
        for record in consumer:
            if record.offset == offset:
                raise Failure


# -- commits --------------------------------------------------------------------------------------


def test_closing_commits_what_was_handed_out_and_the_next_member_goes_on_there(
    bench: Bench,
) -> None:
    bench.send(range(10))
    with bench.member(commit_interval=NEVER) as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]
    assert bench.committed() == 4
    with bench.member() as consumer:
        assert take(consumer, 6) == [4, 5, 6, 7, 8, 9]


def test_a_start_that_was_looked_up_is_committed_though_no_record_came(bench: Bench) -> None:
    bench.send(range(10))
    with bench.member(auto_offset_reset="latest") as consumer:
        until(consumer, lambda: len(consumer.assignment()) == PARTITIONS)
        until(consumer, lambda: consumer.position(bench.partition(0)) == 10)
    assert bench.committed() == 10
    bench.send(range(10, 15))
    with bench.member(auto_offset_reset="latest") as consumer:
        assert take(consumer, 5) == [10, 11, 12, 13, 14]


def test_leaving_an_iteration_commits_no_more_than_was_handed_out(bench: Bench) -> None:
    bench.send(range(100))
    with bench.member() as consumer:
        for record in consumer:
            if record.offset == 6:
                break
    assert bench.committed() == 7


def test_an_exception_in_an_iteration_commits_all_but_the_record_in_hand(bench: Bench) -> None:
    bench.send(range(100))
    with pytest.raises(Failure):
        fail_at(6, bench.member())
    assert bench.committed() == 6


def test_an_exception_after_a_poll_commits_nothing_of_it(bench: Bench) -> None:
    bench.send(range(100))

    def fail_after_two_polls() -> None:
        with bench.member() as consumer:
            assert take(consumer, 3) == [0, 1, 2]
            assert take(consumer, 2) == [3, 4]
            raise Failure

    with pytest.raises(Failure):
        fail_after_two_polls()
    assert bench.committed() == 3


def test_what_is_processed_is_committed_at_intervals(bench: Bench) -> None:
    bench.send(range(10))
    with bench.member(commit_interval=0.1) as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]
        until_committed(bench, consumer, 4)


def test_a_slow_iteration_commits_at_intervals_between_the_records_of_a_batch(
    bench: Bench,
) -> None:
    bench.send(range(1_000))
    seen = []
    with bench.member(commit_interval=0.05) as consumer:
        for record in consumer:
            seen.append(bench.committed())
            if seen[-1]:
                assert 0 < seen[-1] <= record.offset
                break


def test_without_auto_commit_only_commit_commits(bench: Bench) -> None:
    bench.send(range(10))
    with bench.member(auto_commit=False, commit_interval=0.01) as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]
        consumer.poll(0.1, max_records=1)
        assert bench.committed() is None
        consumer.commit({bench.partition(0): 2})
        assert (bench.committed(), consumer.committed(bench.partition(0))) == (2, 2)
        consumer.commit()
        assert bench.committed() == 5
    assert bench.committed() == 5


def test_another_thread_commits_what_it_has_processed_and_says_what_that_is(bench: Bench) -> None:
    bench.send(range(10))
    with bench.member(auto_commit=False) as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]
        assert in_thread(lambda: consumer.commit({bench.partition(0): 3})) is None
        assert bench.committed() == 3
        behind = in_thread(lambda: consumer.commit({bench.partition(0): 2}))
        assert isinstance(behind, CommitBehind)
        beyond = in_thread(lambda: consumer.commit({bench.partition(0): 11}))
        assert isinstance(beyond, OffsetOutOfRange)
        # What is in the other thread's hands this one cannot know.
        assert isinstance(in_thread(consumer.commit), ConcurrentUse)
    closed = in_thread(lambda: consumer.commit({bench.partition(0): 4}))
    assert isinstance(closed, ClosedError)
    assert bench.committed() == 3


def test_commits_of_many_threads_end_with_the_highest_offset(bench: Bench) -> None:
    bench.send(range(100))
    partition = bench.partition(0)
    with bench.member(auto_commit=False) as consumer:
        take(consumer, 100)

        def commit(first: int) -> None:
            for offset in range(first, 101, 4):
                with suppress(CommitBehind):
                    consumer.commit({partition: offset}, wait=offset % 3 == 0)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(commit, range(1, 5)))
        assert bench.committed() == 100


def test_a_commit_that_is_not_waited_for_comes_to_pass(bench: Bench) -> None:
    bench.send(range(10))
    with bench.member(auto_commit=False) as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]
        consumer.commit(wait=False)
        eventually(lambda: bench.committed() == 4)
        with pytest.raises(NotOwner, match="another-0"):  # what is known at once is raised
            consumer.commit({TopicPartition("another", 0): 1}, wait=False)


def test_commit_counts_the_record_in_hand_as_processed(bench: Bench) -> None:
    bench.send(range(10))
    with bench.member(auto_commit=False) as consumer:
        for record in consumer:
            if record.offset == 3:
                consumer.commit()
                assert bench.committed() == 4
            if record.offset == 5:
                break
    assert bench.committed() == 4


def test_after_a_seek_what_was_handed_out_before_is_not_committed(bench: Bench) -> None:
    bench.send(range(10))
    with bench.member(commit_interval=NEVER) as consumer:
        assert take(consumer, 8) == list(range(8))
        consumer.seek(bench.partition(0), 2)
        assert take(consumer, 1) == [2]
    assert bench.committed() == 3


def test_a_commit_of_what_others_own_is_refused_by_name_and_the_rest_is_committed(
    bench: Bench,
) -> None:
    bench.send(range(10))
    with bench.member() as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]
        stranger = TopicPartition("another", 0)
        with pytest.raises(NotOwner, match="another-0"):
            consumer.commit({bench.partition(0): 4, stranger: 1})
        assert bench.committed() == 4
        with pytest.raises(ConfigError, match="-1"):
            consumer.commit({bench.partition(0): -1})


def test_a_partition_has_an_epoch_that_grows_with_every_owner(bench: Bench) -> None:
    epochs = []
    for _ in range(2):
        with bench.member() as consumer:
            until(consumer, lambda: len(consumer.assignment()) == PARTITIONS)
            epochs.append(consumer.fencing_token(bench.partition(0)))
            with pytest.raises(NotOwner):
                consumer.fencing_token(TopicPartition("another", 0))
    assert epochs[0] < epochs[1]


def test_a_member_does_not_assign(bench: Bench) -> None:
    with bench.member() as consumer, pytest.raises(ConfigError, match="group"):
        consumer.assign([bench.partition(0)])


def test_a_member_without_an_offset_and_a_policy_must_seek(bench: Bench) -> None:
    bench.send(range(3))

    def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            if partition.partition == 0:
                consumer.seek(partition, 1)

    with bench.member(auto_offset_reset="error", on_assign=on_assign) as consumer:
        got: list[int] = []
        untold = PARTITIONS - 1
        while untold or len(got) < 2:
            try:
                got += values(consumer.poll(0.2))
            except NoOffset:
                untold -= 1
        assert got == [1, 2]


# -- callbacks ------------------------------------------------------------------------------------


def test_on_assign_runs_before_the_first_record_and_may_seek(bench: Bench) -> None:
    bench.send(range(10))
    assigned = []

    def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assigned.extend(partitions)
        for partition in partitions:
            consumer.seek(partition, 7 if partition.partition == 0 else 0)

    with bench.member(on_assign=on_assign) as consumer:
        assert take(consumer, 3) == [7, 8, 9]
        until(consumer, lambda: len(assigned) == PARTITIONS)
    assert sorted(assigned) == [bench.partition(number) for number in range(PARTITIONS)]


def test_on_revoke_may_look_and_commit_also_on_close(bench: Bench) -> None:
    bench.send(range(10))
    seen = []

    def on_revoke(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if bench.partition(0) in partitions:  # the others may be told of by another call
            seen.append(consumer.position(bench.partition(0)))
        consumer.commit()

    with bench.member(auto_commit=False, on_revoke=on_revoke) as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]
    assert seen == [4]
    assert bench.committed() == 4


def test_on_revoke_after_an_exception_commits_nothing_unprocessed(bench: Bench) -> None:
    bench.send(range(10))

    def on_revoke(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.commit()

    with pytest.raises(Failure):
        fail_at(3, bench.member(auto_commit=False, on_revoke=on_revoke))
    assert bench.committed() == 3


def test_a_callback_that_raises_is_heard_and_the_partitions_are_given_up_all_the_same(
    bench: Bench,
) -> None:
    bench.send(range(10))

    def on_revoke(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        raise Failure

    consumer = bench.member(on_revoke=on_revoke, commit_interval=NEVER).start()
    assert take(consumer, 4) == [0, 1, 2, 3]
    with pytest.raises(Failure):
        consumer.close()
    assert bench.committed() is None  # who knows what the application has not finished
    with bench.member() as successor:
        assert take(successor, 10) == list(range(10))


def test_a_callback_may_neither_poll_nor_close(bench: Bench) -> None:
    refused = []

    def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        uses: list[Callable[[], object]] = [consumer.poll, consumer.close]
        uses.append(lambda: next(iter(consumer)))
        for use in uses:
            with pytest.raises(ConcurrentUse, match="callback"):
                use()
            refused.append(use)

    with bench.member(on_assign=on_assign) as consumer:
        until(consumer, lambda: len(refused) >= 3)


def test_on_rebalance_tells_the_plan(bench: Bench) -> None:
    plans = []
    with bench.member(on_rebalance=lambda consumer, plan: plans.append(plan)) as consumer:
        until(consumer, lambda: bool(plans) and len(plans[-1].partitions) == PARTITIONS)
        assert plans[-1].generation >= 1
        assert plans[-1].members == 1
        assert consumer.health().generation == plans[-1].generation


# -- several members ------------------------------------------------------------------------------


class Running:
    """A member in a thread of its own; `values` in the order in which it was handed them."""

    def __init__(self, bench: Bench, **options: object) -> None:
        self.values: list[int] = []
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.revoked: list[TopicPartition] = []
        self._bench = bench
        self._options = {"on_revoke": self._on_revoke, **options}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Running":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20.0)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with self._bench.member(**self._options) as consumer:
            while not self._stop.is_set():
                self.values += [int(record.value or b"") for record in consumer.poll(0.1)]
                self.assigned = consumer.assignment()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked += partitions


def test_two_members_share_and_hand_over_without_a_record_twice(bench: Bench) -> None:
    bench.send(range(30), partition=None)
    with Running(bench) as first:
        eventually(lambda: len(first.assigned) == PARTITIONS, 20.0)
        eventually(lambda: len(first.values) == 30, 20.0)
        with Running(bench) as second:
            # What each notes is as of its last poll, so the new owner may be known before the old one.
            eventually(lambda: second.assigned and not first.assigned & second.assigned, 20.0)
            assert len(first.assigned | second.assigned) == PARTITIONS
            assert set(first.revoked) == second.assigned
            bench.send(range(30, 60), partition=None)
            eventually(lambda: len(first.values) + len(second.values) == 60, 20.0)
            assert sorted(first.values + second.values) == list(range(60))
        eventually(lambda: len(first.assigned) == PARTITIONS, 20.0)
        bench.send(range(60, 90), partition=None)
        eventually(lambda: len(first.values) + len(second.values) == 90, 20.0)
        assert sorted(first.values + second.values) == list(range(90))


def test_a_slow_iteration_gives_partitions_up_between_two_records_of_a_batch(
    bench: Bench,
) -> None:
    bench.send(range(30_000), partition=None)
    work = threading.Event()
    with bench.member() as consumer:
        until(consumer, lambda: len(consumer.assignment()) == PARTITIONS)
        with Running(bench) as other:
            for _ in consumer:
                work.wait(0.001)
                if other.assigned:
                    break
            assert len(consumer.assignment()) + len(other.assigned) == PARTITIONS


def until_committed(bench: Bench, consumer: Consumer, offset: int) -> None:
    """Poll without taking more than what is there until the offset is committed."""
    consumer.pause(*consumer.assignment())

    def is_committed() -> bool:
        consumer.poll(0.05)
        return bench.committed() == offset

    eventually(is_committed, 20.0)
