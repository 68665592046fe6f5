"""What a consumer reads can be changed, and asked about, while it is open; in both spellings."""

from collections.abc import Callable
from typing import Any

import pytest

from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.client.health import State
from folkmoot.protocol.errors import (
    ConcurrentUse,
    ConfigError,
    NotAssigned,
    NotOwner,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.records import OffsetAndMetadata, TopicPartition
from tests.consumers.parts import PARTITIONS, PATIENT, Bench, until
from tests.consumers.tasks import take
from tests.surfaces import both, eventually, run
from tests.waiting import eventually as wait

Client = Callable[..., Any]

each = both(Consumer, AsyncConsumer)


async def owns_all(consumer: Any) -> bool:
    await consumer.poll(0.05)
    return len(consumer.assignment()) == PARTITIONS


@each
def test_a_consumer_subscribes_leaves_its_group_and_subscribes_again(
    client: Client, bench: Bench
) -> None:
    revoked: list[TopicPartition] = []

    def on_revoke(consumer: Any, partitions: list[TopicPartition]) -> None:
        revoked.extend(partitions)

    async def scenario() -> None:
        async with client(
            zookeeper=bench.zookeeper, group=bench.group, on_revoke=on_revoke, **PATIENT
        ) as consumer:
            assert consumer.health().state is State.ALONE
            await consumer.subscribe([bench.topic])
            await eventually(lambda: owns_all(consumer))
            bench.send(range(10))
            assert await take(consumer, 4) == [0, 1, 2, 3]
            await consumer.unsubscribe()
            assert sorted(revoked) == [bench.partition(number) for number in range(PARTITIONS)]
            assert consumer.assignment() == frozenset()
            assert consumer.health().member is None
            assert bench.committed() == 4
            with pytest.raises(NotAssigned, match="reads nothing"):
                await consumer.poll(0.05)
            assert await consumer.committed(bench.partition(0)) == 4
            await consumer.subscribe(pattern=f"{bench.topic}.*")
            assert await take(consumer, 2) == [4, 5]
            await consumer.subscribe([bench.topic])  # leaves by itself
            assert await take(consumer, 4) == [6, 7, 8, 9]
            await consumer.unsubscribe()
            await consumer.unsubscribe()

    run(scenario)
    assert bench.committed() == 10


@each
def test_after_a_group_partitions_may_be_assigned_by_hand_and_the_other_way_round(
    client: Client, bench: Bench
) -> None:
    bench.send(range(10))
    first = bench.partition(0)

    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper, **bench.settings()) as consumer:
            with pytest.raises(ConfigError, match="unsubscribe"):
                await consumer.assign([first])
            await consumer.unsubscribe()
            await consumer.assign({first: 7})
            assert await take(consumer, 1) == [7]
            with pytest.raises(ConfigError, match="by hand"):
                await consumer.subscribe([bench.topic])
            await consumer.assign([])
            await consumer.subscribe([bench.topic])
            assert await take(consumer, 1) == [0]

    run(scenario)


def test_what_is_not_given_up_in_time_others_have_though_on_revoke_goes_on(bench: Bench) -> None:
    refused: list[NotOwner] = []
    with bench.member() as other:

        def on_revoke(consumer: Any, partitions: list[TopicPartition]) -> None:
            until(other, lambda: len(other.assignment()) == PARTITIONS)
            with pytest.raises(NotOwner) as caught:
                consumer.commit(dict.fromkeys(partitions, 0))
            refused.append(caught.value)

        options = {"revoke_timeout": 60.0, "on_revoke": on_revoke}
        with bench.member(**options) as consumer:
            both = (consumer, other)

            def both_have_some() -> bool:
                for each in both:
                    each.poll(0.05)
                return all(each.assignment() for each in both)

            wait(both_have_some, 20.0)
            consumer.unsubscribe(timeout=1.5)
            assert len(refused) == 1
            assert consumer.assignment() == frozenset()


@each
def test_what_cannot_be_subscribed_to_is_refused_and_changes_nothing(
    client: Client, bench: Bench
) -> None:
    def on_assign(consumer: Any, partitions: list[TopicPartition]) -> Any:
        return consumer.unsubscribe()

    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper) as consumer:
            with pytest.raises(ConfigError, match="give group="):
                await consumer.subscribe([bench.topic])
        options = bench.settings(on_assign=on_assign)
        async with client(zookeeper=bench.zookeeper, **options) as consumer:
            with pytest.raises(ConfigError, match="nothing to subscribe to"):
                await consumer.subscribe()
            with pytest.raises(ConfigError, match="regular expression"):
                await consumer.subscribe(pattern="(")
            with pytest.raises(ConfigError, match="a list of names"):
                await consumer.subscribe(bench.topic)
            await eventually(lambda: consumer.health().member)
            member = consumer.health().member
            with pytest.raises(ConcurrentUse, match="callback"):
                await take(consumer, 1)
            assert consumer.health().member == member

    run(scenario)


@each
def test_partitions_are_assigned_with_the_place_where_to_begin(
    client: Client, bench: Bench
) -> None:
    bench.send(range(10))
    first, other = bench.partition(0), bench.partition(1)

    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper) as consumer:
            await consumer.assign({first: 6, other: "latest"})
            assert await take(consumer, 2) == [6, 7]
            await consumer.assign({first: 2, other: None})  # also of what is assigned already
            assert await take(consumer, 2) == [2, 3]
            await consumer.assign({first: None})
            assert await take(consumer, 1) == [4]
            with pytest.raises(ConfigError):
                await consumer.assign({first: -1, bench.partition(2): 0})
            assert consumer.assignment() == {first}

    run(scenario)


@each
def test_the_ends_of_partitions_are_asked_of_their_leaders(client: Client, bench: Bench) -> None:
    bench.send(range(10))
    first, other = bench.partition(0), bench.partition(1)

    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper) as consumer:
            assert await consumer.beginning_offsets([first, other]) == {first: 0, other: 0}
            assert await consumer.end_offsets([first, other]) == {first: 10, other: 0}
            with pytest.raises(UnknownTopicOrPartition, match="partition 9"):
                await consumer.end_offsets([bench.partition(9)])

    run(scenario)


@each
def test_a_commit_carries_a_text_beside_the_offset_and_many_are_asked_for_at_once(
    client: Client, bench: Bench
) -> None:
    first, other = bench.partition(0), bench.partition(1)
    settings = bench.settings(auto_commit=False)

    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper, **settings) as consumer:
            await eventually(lambda: owns_all(consumer))
            bench.send(range(10))
            assert await take(consumer, 4) == [0, 1, 2, 3]
            await consumer.commit({first: OffsetAndMetadata(3, "of the kitchen")})
            known = {first: OffsetAndMetadata(3, "of the kitchen"), other: None}
            assert await consumer.committed([first, other]) == known
            assert await consumer.committed(first) == 3
            for wrong in (OffsetAndMetadata(4, "x" * 513), OffsetAndMetadata(4, 7)):  # type: ignore[arg-type]
                with pytest.raises(ConfigError, match="metadata"):
                    await consumer.commit({first: wrong})
        # It goes along with the offset from owner to owner, and with the next commit it is gone.
        async with client(zookeeper=bench.zookeeper, **settings) as consumer:
            assert await take(consumer, 1) == [3]
            assert await consumer.committed([first]) == {first: known[first]}
            await consumer.commit({first: 3})
            assert await consumer.committed([first]) == {first: OffsetAndMetadata(3)}

    run(scenario)
