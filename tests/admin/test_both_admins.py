"""What an admin does to topics, and tells of them and of brokers, in both spellings."""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.admin.async_admin import AsyncAdmin
from folkmoot.protocol.errors import (
    ClosedError,
    ConfigError,
    GroupNotEmpty,
    TopicExists,
    UnknownGroup,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from tests.consumers.parts import Bench, take, until
from tests.surfaces import both, differences, run

Client = Callable[..., Any]

each = both(Admin, AsyncAdmin)


def test_the_words_are_the_same() -> None:
    assert differences(Admin, AsyncAdmin) == []


@each
def test_a_topic_is_made_with_options_which_are_changed_and_taken_back(
    client: Client, bench: Bench
) -> None:
    name = f"topic-{uuid4().hex[:8]}"

    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper) as admin:
            options = {"retention": None, "cleanup_policy": "compact", "segment_bytes": 4096}
            await admin.create_topic(name, 2, options=options)
            assert await admin.topic_options(name) == options
            with pytest.raises(TopicExists):
                await admin.create_topic(name)
            changes = {"retention": 7200, "segment_bytes": 8192}
            left = {"retention": 7200.0, "segment_bytes": 8192}
            assert await admin.set_topic_options(name, changes, unset=["cleanup_policy"]) == left
            assert await admin.topic_options(name) == left
            await admin.delete_topic(name)
            with pytest.raises(UnknownTopicOrPartition):
                await admin.topic_options(name)

    run(scenario)


@each
def test_new_partitions_have_leaders_when_the_call_returns(client: Client, bench: Bench) -> None:
    name = f"topic-{uuid4().hex[:8]}"

    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper) as admin:
            await admin.create_topic(name, 20)
            for count in (20, 40):
                if count > 20:
                    await admin.add_partitions(name, count)
                described = (await admin.describe_topics([name]))[name]
                assert [each.partition for each in described if each.leader is None] == []
                assert len(described) == count
            assert set((await admin.offsets(name, "latest")).values()) == {0}
            await admin.delete_topic(name)

    run(scenario)


@each
def test_options_that_no_broker_would_follow_change_nothing(client: Client, bench: Bench) -> None:
    name = f"topic-{uuid4().hex[:8]}"

    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper) as admin:
            with pytest.raises(ConfigError, match="did you mean 'retention'"):
                await admin.create_topic(name, options={"retentoin": 5})
            assert name not in await admin.topics()
            await admin.create_topic(name, options={"min_compaction_lag": 50})
            for wrong, said in (
                ({"retention": -1}, "retention=-1 is not allowed"),
                ({"retention": "a week"}, "retention='a week' is not allowed"),
                ({"max_compaction_lag": 10}, "no record could be compacted"),
                ({"min_in_sync": 2}, "above the 1 replica"),
            ):
                with pytest.raises(ConfigError, match=said):
                    await admin.set_topic_options(name, wrong)
            with pytest.raises(ConfigError, match="set and removed at once"):
                await admin.set_topic_options(name, {"retention": 5}, unset=["retention"])
            with pytest.raises(ConfigError, match="did you mean 'retention'"):
                await admin.set_topic_options(name, {}, unset=["retentio"])
            assert await admin.topic_options(name) == {"min_compaction_lag": 50.0}

    run(scenario)


@each
def test_topics_and_brokers_are_described(client: Client, bench: Bench) -> None:
    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper) as admin:
            brokers = await admin.describe_brokers()
            assert all("client" in known.listeners for known in brokers.values())
            found = await admin.describe_topics([bench.topic])
            assert [every.partition for every in found[bench.topic]] == [0, 1, 2]
            assert {every.leader for every in found[bench.topic]} <= set(brokers)
            assert bench.topic in await admin.describe_topics()
            with pytest.raises(UnknownTopicOrPartition):
                await admin.describe_topics(["no-such-topic"])

    run(scenario)


@each
def test_one_name_in_place_of_a_list_is_refused_and_not_taken_letter_by_letter(
    client: Client, bench: Bench
) -> None:
    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper) as admin:
            for call in (
                *(admin.describe_topics, admin.reassignments, admin.log_sizes),
                *(admin.topic_ids, partial(admin.plan_reset, bench.group, "earliest")),
            ):
                with pytest.raises(ConfigError, match=rf"list of names: topics=\['{bench.topic}'"):
                    await call(bench.topic)
            with pytest.raises(ConfigError, match=rf"list of names: names=\['{bench.group}'"):
                await admin.groups(bench.group)

    run(scenario)


@each
def test_numbers_that_are_texts_move_no_replica_and_are_named(client: Client, bench: Bench) -> None:
    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper) as admin:
            with pytest.raises(ConfigError, match="partition is '0': give a whole number"):
                await admin.reassign(bench.topic, {"0": [0]})
            for call in (
                partial(admin.reassign, bench.topic, {0: ["0"]}),
                partial(admin.plan_reassignment, bench.topic, brokers=["0"]),
            ):
                with pytest.raises(ConfigError, match="broker id is '0': give a whole number"):
                    await call()

    run(scenario)


@each
def test_a_reset_of_nothing_makes_no_group(client: Client, bench: Bench) -> None:
    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper) as admin:
            await admin.reset_offsets(bench.group, {})
            assert bench.group not in await admin.group_names()

    run(scenario)


@each
def test_one_topic_s_offsets_of_a_group_are_forgotten_also_when_it_is_gone(
    client: Client, bench: Bench
) -> None:
    other = Bench(bench.zookeeper, bench.producer)
    topics = [bench.topic, other.topic]
    bench.send(range(3))
    other.send(range(3))

    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper) as admin:
            with pytest.raises(UnknownGroup):
                await admin.delete_group_offsets(bench.group, bench.topic)
            with bench.member(topics=topics) as consumer:
                take(consumer, 6)
                with pytest.raises(GroupNotEmpty, match="live members"):
                    await admin.delete_group_offsets(bench.group, bench.topic)
            other.delete_topic()
            with bench.member() as consumer:  # nobody subscribes to the other one any more
                until(consumer, lambda: len(consumer.assignment()) == 3)
                await admin.delete_group_offsets(bench.group, other.topic)
            left = await admin.describe_group(bench.group)
            assert {every.partition.topic for every in left.partitions} == {bench.topic}
            assert (await admin.group_offsets(bench.group))[bench.partition(0)] == 3
            with pytest.raises(UnknownTopicOrPartition, match="no offsets of topic"):
                await admin.delete_group_offsets(bench.group, other.topic)

    run(scenario)


@each
def test_a_call_ends_in_time_without_zookeeper_and_an_admin_that_is_not_open_says_so(
    client: Client, bench: Bench
) -> None:
    async def scenario() -> None:
        with pytest.raises(ClosedError):
            await client(zookeeper=bench.zookeeper).topics()
        with pytest.raises(ZooKeeperUnreachable):
            await client(zookeeper="127.0.0.1:1", timeout=0.3).start()

    run(scenario)
