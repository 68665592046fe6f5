"""Groups looked at, reset and deleted while their members are at work, on a real cluster."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from folkmoot.admin.admin import Admin
from folkmoot.admin.offset_reset import Shift
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.coordination import paths
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Set
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import (
    ConfigError,
    GroupNotEmpty,
    NotOwner,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.records import TopicPartition
from tests.consumers.parts import PARTITIONS, Bench, take, until, values
from tests.waiting import eventually


def admin_of(bench: Bench) -> Admin:
    return Admin(zookeeper=bench.zookeeper)


def test_a_running_member_goes_on_at_the_new_offset_within_a_second(bench: Bench) -> None:
    """What was under way is not committed, and nothing before the new offset is handed out."""
    bench.send(range(100))
    told: list[str] = []
    member = bench.member(
        commit_interval=0.1,
        on_assign=lambda _, some: told.append(f"assign {[each.partition for each in some]}"),
        on_lost=lambda _, some: told.append(f"lost {[each.partition for each in some]}"),
    )
    with admin_of(bench) as admin, member as consumer:
        assert take(consumer, 100) == list(range(100))
        until(consumer, lambda: bench.committed() == 100)
        told.clear()
        plan = admin.plan_reset(bench.group, 40, partitions=[bench.partition(0)])
        assert [(each.committed, each.new, each.latest) for each in plan] == [(100, 40, 100)]
        assert bench.committed() == 100
        admin.reset_offsets(bench.group, {each.partition: each.new for each in plan})
        began = time.monotonic()
        again: list[int] = []
        while not again:
            again += values(consumer.poll(0.1, 10))
        assert time.monotonic() - began < 20.0  # what is not watched is looked after later
        assert again[0] == 40
        assert told == ["lost [0]", "assign [0]"]
        again += take(consumer, 60 - len(again))
        assert again == list(range(40, 100))
        until(consumer, lambda: bench.committed() == 100)


def test_a_reset_reaches_an_iteration_in_the_middle_of_what_it_was_handed(bench: Bench) -> None:
    bench.send(range(500))
    seen: list[int] = []
    with admin_of(bench) as admin, bench.member() as consumer:
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 100:
                admin.reset_offsets(bench.group, {bench.partition(0): 20})
            if len(seen) > 100:
                time.sleep(0.05)  # a handler that takes its time: the batch would last for 20 s
            if record.offset == 20 and len(seen) > 100:
                break
            assert len(seen) < 400
    assert seen[:100] == list(range(100))
    assert bench.committed() == 21


def test_what_was_done_before_a_reset_cannot_be_committed_after_it(bench: Bench) -> None:
    bench.send(range(10))
    with admin_of(bench) as admin, bench.member(auto_commit=False) as consumer:
        take(consumer, 10)
        admin.reset_offsets(bench.group, {bench.partition(0): 3})
        with pytest.raises(NotOwner):
            consumer.commit({bench.partition(0): 10})
        assert bench.committed() == 3
        assert take(consumer, 7) == list(range(3, 10))
        consumer.commit()
        assert bench.committed() == 10


def test_the_scope_and_the_target_of_a_reset(bench: Bench) -> None:
    """A group that has not begun yet is given offsets, too."""
    bench.send(range(10))
    before = datetime.now(UTC)
    time.sleep(0.01)  # so that the next records have a later time
    bench.send(range(10, 15))
    p0 = bench.partition(0)
    with admin_of(bench) as admin:
        with pytest.raises(UnknownGroup):
            admin.plan_reset(bench.group, "earliest")
        plan = admin.plan_reset(bench.group, before, topics=[bench.topic])
        assert [(each.partition, each.new) for each in plan] == [
            (p0, 10),
            (bench.partition(1), 0),
            (bench.partition(2), 0),
        ]
        (one,) = admin.plan_reset(bench.group, timedelta(hours=1), partitions=[p0])
        assert (one.committed, one.new, one.earliest, one.latest) == (None, 0, 0, 15)
        assert admin.plan_reset(bench.group, timedelta.max, partitions=[p0]) == [one]
        admin.reset_offsets(bench.group, {p0: 12})
        assert admin.group_offsets(bench.group) == {p0: 12}
        plan = admin.plan_reset(bench.group, Shift(-5), partitions=[p0])
        assert [(each.committed, each.new) for each in plan] == [(12, 7)]
        assert len(admin.plan_reset(bench.group, "latest")) == PARTITIONS
        with pytest.raises(OffsetOutOfRange, match="offsets 0 to 15"):
            admin.reset_offsets(bench.group, {bench.partition(1): 0, p0: 16})
        with pytest.raises(UnknownTopicOrPartition, match="only 0 to 2"):
            admin.plan_reset(bench.group, "latest", partitions=[bench.partition(3)])
        assert admin.group_offsets(bench.group) == {p0: 12}
    with bench.member() as consumer:
        assert take(consumer, 3) == [12, 13, 14]


@pytest.mark.parametrize("wrong", [1.5, 7.0, True, 2**70, -1, "latest"])
def test_what_is_no_whole_number_is_committed_for_no_group(bench: Bench, wrong: int) -> None:
    bench.send(range(10))
    with admin_of(bench) as admin:
        for reset in (admin.reset_offsets, admin.plan_reset):
            with pytest.raises(ConfigError, match="give a whole number"):
                reset(bench.group, {bench.partition(0): wrong})
        assert bench.committed() is None


def test_an_offset_of_numpy_is_committed_as_a_number(bench: Bench) -> None:
    bench.send(range(10))
    with admin_of(bench) as admin:
        admin.reset_offsets(bench.group, {bench.partition(0): np.int64(7)})  # type: ignore[dict-item]
        assert admin.group_offsets(bench.group) == {bench.partition(0): 7}


def test_a_group_is_described_with_its_lag_in_records_and_in_time(bench: Bench) -> None:
    bench.send(range(20))
    with admin_of(bench) as admin, bench.member(auto_commit=False, instance_id="w1") as consumer:
        until(consumer, lambda: len(consumer.assignment()) == PARTITIONS)
        consumer.commit({bench.partition(0): 5, bench.partition(1): 0})
        view = admin.describe_group(bench.group, timeout=30.0)
        assert (view.state, view.assignor, len(view.members)) == ("stable", "sticky", 1)
        first, second, third = view.partitions
        assert (first.committed, first.latest, first.lag, first.state) == (5, 20, 15, "stable")
        assert first.behind is not None
        assert 0 < first.behind < 60
        assert (second.lag, second.behind) == (0, 0.0)
        assert (third.committed, third.latest, third.lag, third.behind) == (None, 0, 0, 0.0)
        (member,) = view.members
        assert (member.instance_id, member.info.topics) == ("w1", (bench.topic,))
        assert member.partitions == tuple(bench.partition(number) for number in range(PARTITIONS))
        assert 0 <= member.age < 60
        listed = {each.name: each for each in admin.groups()}[bench.group]
        assert (listed.state, listed.members, listed.partitions) == ("stable", 1, PARTITIONS)
    with admin_of(bench) as admin:
        view = admin.describe_group(bench.group)
        assert (view.state, {each.state for each in view.partitions}) == ("empty", {"unowned"})
        with pytest.raises(UnknownGroup):
            admin.describe_group("nobody")


def test_brokers_are_asked_once_for_all_groups_and_within_one_deadline(
    bench: Bench, start_cluster: Callable[..., EmbeddedCluster]
) -> None:
    """One of two brokers is registered and does not answer."""
    cluster = start_cluster(brokers=2)
    groups = [f"g{number}" for number in range(6)]
    with (
        Admin(zookeeper=cluster.zookeeper) as admin,
        Producer(zookeeper=cluster.zookeeper) as producer,
    ):
        admin.create_topic("t", partitions=2)
        both = admin.partitions_of("t")
        for each in both:
            producer.send_batch("t", [b"v"] * 10, partition=each.partition).result(10.0)
        for at, group in enumerate(groups):
            admin.reset_offsets(group, dict.fromkeys(both, at))
        views = admin.describe_groups(groups, timeout=30.0)
        assert [[row.lag for row in view.partitions] for view in views] == [
            [10 - at, 10 - at] for at in range(6)
        ]
        assert all(row.behind for view in views for row in view.partitions)
        silent = cluster.brokers[0]
        first = min(admin.describe_brokers())
        led = {each.partition for each in admin.describe_topics()["t"] if each.leader == first}
        assert len(led) == 1
        silent.pause()
        try:
            began = time.monotonic()
            views = admin.describe_groups(groups)
            # Group by group this takes 5 s for each of the six.
            assert time.monotonic() - began < 10.0
        finally:
            silent.resume()
    for at, view in enumerate(views):
        for row in view.partitions:
            is_known = row.partition.partition not in led
            assert row.lag == (10 - at if is_known else None)
            assert (row.behind is not None) == is_known


def test_the_ages_of_many_partitions_are_looked_up_side_by_side(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with admin_of(bench) as admin:
        topic = f"{bench.topic}-wide"
        admin.create_topic(topic, partitions=60)
        every = admin.partitions_of(topic)
        for each in every:
            bench.producer.send_batch(topic, [b"v"] * 10, partition=each.partition)
        bench.producer.flush()
        for at in range(3):
            admin.reset_offsets(f"{bench.group}-{at}", dict.fromkeys(every, at))
        polls = 0
        poll = Fetcher.poll

        def counted(fetcher: Fetcher, timeout: float) -> None:
            nonlocal polls
            polls += 1
            poll(fetcher, timeout)

        monkeypatch.setattr(Fetcher, "poll", counted)
        views = admin.describe_groups([f"{bench.group}-{at}" for at in range(3)], timeout=30.0)
        assert all(row.behind for view in views for row in view.partitions)
        assert polls < 60


def test_a_group_is_deleted_when_nobody_is_there_or_by_force(bench: Bench) -> None:
    bench.send(range(10))
    with admin_of(bench) as admin:
        with bench.member(commit_interval=0.05) as consumer:
            take(consumer, 10)
            until(consumer, lambda: bench.committed() == 10)
            with pytest.raises(GroupNotEmpty, match="live members"):
                admin.delete_group(bench.group)
            admin.delete_group(bench.group, force=True)
            assert take(consumer, 10) == list(range(10))
        admin.delete_group(bench.group)
        assert bench.group not in [each.name for each in admin.groups()]
    with bench.member() as consumer:
        assert take(consumer, 10) == list(range(10))


def test_a_group_notes_who_came_and_went_and_what_moved(bench: Bench) -> None:
    with admin_of(bench) as admin, bench.member(client_id="one") as one:
        until(one, lambda: len(one.assignment()) == PARTITIONS)
        with bench.member(client_id="two") as two:
            until(one, lambda: len(two.poll(0.0)) + len(two.assignment()) == 1)
        until(one, lambda: len(one.assignment()) == PARTITIONS)
        admin.reset_offsets(bench.group, {bench.partition(0): 0})
        first, second, third, reset = admin.group_events(bench.group)
    (a,), (b,) = first.joined, second.joined
    assert (a[:4], b[:4], third.left) == ("one-", "two-", {b: "left"})
    assert (first.moved, second.moved, third.moved) == (PARTITIONS, 1, 1)
    assert [(each.old, each.new) for each in third.moves] == [(b, a)]
    assert [first.generation, second.generation, third.generation] == [1, 2, 3]
    assert reset.reset == {str(bench.partition(0)): 0}
    assert first.at_ms < second.at_ms < third.at_ms <= reset.at_ms
    with pytest.raises(UnknownGroup), admin_of(bench) as admin:
        admin.group_events("nobody")


def test_an_offset_that_somebody_has_written_over_is_told_and_mended_by_a_reset(
    bench: Bench,
) -> None:
    bench.send(range(10))
    with bench.member() as consumer:
        take(consumer, 10)
    session = connect(bench.zookeeper, 5.0)
    execute(session, Set(paths.offset(bench.group, *bench.partition(0)), b'{"offset": 1.5}'))
    session.close()
    with admin_of(bench) as admin:
        assert admin.describe_group(bench.group).partitions[0].state == "malformed"
        assert bench.group in {each.name for each in admin.groups()}
        (plan,) = admin.plan_reset(bench.group, 4, partitions=[bench.partition(0)])
        assert (plan.committed, plan.new) == (None, 4)
        admin.reset_offsets(bench.group, {bench.partition(0): 4})
        assert admin.group_offsets(bench.group)[bench.partition(0)] == 4
    with bench.member() as consumer:
        assert take(consumer, 6) == [4, 5, 6, 7, 8, 9]


def test_offsets_of_a_topic_made_anew_are_not_those_of_the_old_one(bench: Bench) -> None:
    bench.send(range(10))
    with bench.member() as consumer:
        take(consumer, 10)
    assert bench.committed() == 10
    bench.delete_topic()
    bench.create_topic()
    with admin_of(bench) as admin:
        assert admin.group_offsets(bench.group) == {}
        row = admin.describe_group(bench.group, timeout=30.0).partitions[0]
        assert (row.committed, row.lag) == (None, 0)
        (plan,) = admin.plan_reset(bench.group, "latest", partitions=[bench.partition(0)])
        assert (plan.committed, plan.new) == (None, 0)


def test_a_partition_stolen_from_an_absent_application_is_told_as_lost(bench: Bench) -> None:
    """It was to be revoked, and is not its any more: nothing could be committed in on_revoke."""
    told: list[str] = []

    def tell(what: str, some: list[TopicPartition]) -> None:
        told.extend(f"{what} {each.partition}" for each in some)

    first = bench.member(
        max_processing_time=None,  # else it would be waited for
        revoke_timeout=0.3,
        on_revoke=lambda _, some: tell("revoke", some),
        on_lost=lambda _, some: tell("lost", some),
    )
    with first as away:
        until(away, lambda: len(away.assignment()) == PARTITIONS)
        with bench.member() as second:
            until(second, lambda: len(second.assignment()) >= 1)
            taken = {each.partition for each in second.assignment()}
            assert not told
            eventually(lambda: away.health().lost_partitions)  # else on_revoke would be right
            until(away, lambda: bool(told))
            assert told == [f"lost {number}" for number in sorted(taken)]


def test_what_no_live_member_subscribes_to_any_more_is_said_and_can_be_forgotten(
    bench: Bench,
) -> None:
    """Its lag grows, and nobody will ever read it."""
    other = Bench(bench.zookeeper, bench.producer)
    other.send(range(3))
    with admin_of(bench) as admin:
        with bench.member(topics=[bench.topic, other.topic]) as consumer:
            take(consumer, 3)
        other.send([3])
        first = other.partition(0)
        view = admin.describe_group(bench.group)
        assert {each.state for each in view.partitions} == {
            "unowned"
        }  # nobody is there: it may come back
        with bench.member() as consumer:
            until(consumer, lambda: len(consumer.assignment()) == PARTITIONS)
            view = admin.describe_group(bench.group)
            (row,) = [each for each in view.partitions if each.partition == first]
            assert (row.state, row.lag) == ("unsubscribed", 1)
            (note,) = [each for each in view.notes if other.topic in each]
            assert "subscribes" in note
            with pytest.raises(GroupNotEmpty, match=bench.topic):
                admin.delete_group_offsets(bench.group, bench.topic)
            admin.delete_group_offsets(bench.group, other.topic)
            view = admin.describe_group(bench.group)
            assert {each.partition.topic for each in view.partitions} == {bench.topic}
            assert not any(other.topic in each for each in view.notes)
        with bench.member(topics=[other.topic]) as consumer:
            assert take(consumer, 4) == [0, 1, 2, 3]
