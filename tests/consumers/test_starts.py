"""Where a group starts to read, under every policy: nothing sent after it began is passed over.

A group begins in a partition when its start is committed (`position` tells it then), and in what appears
later with the first record there is. The same lines run against `Consumer` and `AsyncConsumer`.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.consumers.client import core as core_module
from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import discovery
from folkmoot.coordination.connector import connector
from folkmoot.coordination.groups import planning
from folkmoot.coordination.zookeeper.operations import (
    Create,
    Delete,
    Multi,
    Operation,
    Set,
)
from folkmoot.coordination.zookeeper.session import Outcome, Session
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import NoOffset, OffsetOutOfRange, UnknownTopicOrPartition
from folkmoot.protocol.records import TopicPartition
from tests import waiting
from tests.consumers.parts import PARTITIONS, Bench, values
from tests.forwarding_session import ForwardingSession
from tests.surfaces import both, eventually, run

Client = Callable[..., Any]

each = both(Consumer, AsyncConsumer)
CLIENTS: list[Client] = each.args[1]
commits = pytest.mark.parametrize("auto_commit", [True, False], ids=["auto", "by hand"])
strict = pytest.mark.parametrize("policy", ["latest", "error"])
policies = pytest.mark.parametrize("policy", ["latest", "earliest", "error"])

OLD = range(3)
"""Sent to each partition before the group began."""


class Scene:
    """A topic with old records and members of one group, in the asynchronous words."""

    def __init__(self, bench: Bench, client: Client, policy: str, auto_commit: bool) -> None:
        self.bench = bench
        self.client = client
        self.options = {
            "auto_offset_reset": policy,
            "auto_commit": auto_commit,
            "guardian": False,
        }
        self.got: set[int] = set()
        self.sent = 0
        self.sent_to: defaultdict[int, list[int]] = defaultdict(list)
        """The values by partition, of all topics."""
        self.send(*range(PARTITIONS))
        self.old = set(range(self.sent))

    def send(self, *partitions: int, topic: str = "") -> set[int]:
        """Three records to each of these partitions."""
        first, self.sent = self.sent, self.sent + len(partitions) * len(OLD)
        records = [*enumerate(sorted([*partitions] * len(OLD), reverse=True), first)]

        def is_sent() -> bool:
            """Brokers hear of a partition a moment late: then nothing is sent."""
            with Producer(zookeeper=self.bench.zookeeper, linger=0.0) as producer:
                try:
                    for value, number in records:
                        name = topic or self.bench.topic
                        producer.send(name, b"%d" % value, partition=number)
                except UnknownTopicOrPartition:
                    return False
                producer.flush(20.0)
            return True

        waiting.eventually(is_sent, 20.0)
        for value, number in records:
            self.sent_to[number].append(value)
        return set(range(first, self.sent))

    def admin(self) -> Admin:
        return Admin(zookeeper=self.bench.zookeeper)

    def member(self, **options: Any) -> Any:
        settings = self.bench.settings(**self.options) | options
        return self.client(zookeeper=self.bench.zookeeper, **settings)

    async def poll(self, consumer: Any, timeout: float = 0.05) -> None:
        """What was handed out is kept as processed; without auto-commit nothing is committed."""
        with suppress(NoOffset):
            self.got.update(values(await consumer.poll(timeout)))

    async def begun(self, consumer: Any, count: int = PARTITIONS, topic: str = "") -> None:
        """Polls until the member knows where it starts in so many partitions of the topic."""

        async def knows() -> bool:
            await self.poll(consumer)
            known = [
                await consumer.position(TopicPartition(topic or self.bench.topic, number))
                for number in range(count)
                if TopicPartition(topic or self.bench.topic, number) in consumer.assignment()
            ]
            return len(known) == count and None not in known

        await eventually(knows, 20.0)

    async def read(self, wanted: Collection[int], *consumers: Any) -> None:
        async def has_all() -> bool:
            for each in consumers:
                await self.poll(each)
            return self.got.issuperset(wanted)

        await eventually(has_all, 20.0)

    def is_planned(self, topic: str, partitions: int) -> bool:
        plan = self.bench.ask(lambda: planning.get(self.bench.group)).plan
        return topic in plan.topics and plan.topics[topic].partitions == partitions


# -- what was sent while nobody read ------------------------------------------------------------------


@each
@commits
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_what_is_sent_while_an_idle_member_restarts_is_read(
    client: Client, auto_commit: bool, end: str, bench: Bench
) -> None:
    scene = Scene(bench, client, "latest", auto_commit)

    async def scenario() -> None:
        with mortal() as life:
            consumer = scene.member()
            await consumer.start()
            await scene.begun(consumer)
            if end == "killed":
                life.end()
            await consumer.close(0.1 if end == "killed" else 10.0)
        new = scene.send(0, 1, 2)
        async with scene.member() as consumer:
            await scene.read(new, consumer)
        assert not scene.got & scene.old

    run(scenario)


@each
@commits
def test_what_is_sent_while_a_second_member_joins_is_read(
    client: Client, auto_commit: bool, bench: Bench
) -> None:
    scene = Scene(bench, client, "latest", auto_commit)

    async def scenario() -> None:
        async with scene.member() as first:
            await scene.begun(first)
            await first.pause(*first.assignment())
            new = scene.send(0, 1, 2)
            async with scene.member() as second:
                await eventually(lambda: owns(second, first), 20.0)
                await first.resume(*first.assignment())
                await scene.read(new, second, first)
        assert not scene.got & scene.old

    async def owns(second: Any, first: Any) -> bool:
        for member in (second, first):
            await scene.poll(member)
        return bool(second.assignment())

    run(scenario)


# -- what appears after the group began ---------------------------------------------------------------


@each
@strict
def test_a_partition_that_is_added_while_the_member_is_busy_is_read_from_its_start(
    client: Client, policy: str, bench: Bench
) -> None:
    scene = Scene(bench, client, policy, auto_commit=True)

    async def scenario() -> None:
        with scene.admin() as admin:
            async with scene.member() as consumer:
                if policy == "error":
                    await eventually(lambda: scene.is_planned(bench.topic, PARTITIONS), 20.0)
                else:
                    await scene.begun(consumer)
                admin.add_partitions(bench.topic, PARTITIONS + 1)
                new = scene.send(PARTITIONS)
                await eventually(lambda: scene.is_planned(bench.topic, PARTITIONS + 1), 20.0)
                await scene.read(new, consumer)
        assert policy != "latest" or not scene.got & scene.old

    run(scenario)


@each
@strict
@pytest.mark.parametrize("kind", ["matches", "is named", "is made anew"])
def test_a_topic_that_appears_after_the_group_began_is_read_from_its_start(
    client: Client, policy: str, kind: str, bench: Bench
) -> None:
    scene = Scene(bench, client, policy, auto_commit=False)
    name = bench.topic if kind == "is made anew" else f"{bench.topic}-b"
    wants: dict[str, Any] = {"topics": [bench.topic, name]}
    if kind == "matches":
        wants = {"topics": [], "pattern": f"{bench.topic}.*"}

    async def scenario() -> None:
        with scene.admin() as admin:
            async with scene.member(**wants) as consumer:
                if policy == "error":
                    await eventually(lambda: scene.is_planned(bench.topic, PARTITIONS), 20.0)
                else:
                    await scene.begun(consumer)
                if kind == "is made anew":
                    admin.delete_topic(name)
                count = (
                    PARTITIONS + 1
                )  # brokers that know the last know this topic, not an earlier one
                admin.create_topic(name, count)
                new = scene.send(PARTITIONS, topic=name) | scene.send(0, 1, topic=name)
                await eventually(lambda: scene.is_planned(name, count), 20.0)
                await scene.read(new, consumer)

    run(scenario)


@each
@strict
def test_a_partition_that_was_added_while_the_group_was_idle_is_read_from_its_start(
    client: Client, policy: str, bench: Bench
) -> None:
    scene = Scene(bench, client, policy, auto_commit=False)

    async def scenario() -> None:
        with scene.admin() as admin:
            async with scene.member() as consumer:
                await eventually(lambda: scene.is_planned(bench.topic, PARTITIONS), 20.0)
                if policy != "error":
                    await scene.begun(consumer)
            admin.add_partitions(bench.topic, PARTITIONS + 1)
            admin.create_topic(f"{bench.topic}-b", 1)
            new = scene.send(PARTITIONS)
        async with scene.member() as consumer:
            await scene.read(new, consumer)

    run(scenario)


# -- where the policy applies -------------------------------------------------------------------------


@each
def test_a_topic_that_was_there_before_the_group_subscribed_to_it_has_no_past_in_it(
    client: Client, bench: Bench
) -> None:
    """Even one that was made after the group began with another topic."""
    scene = Scene(bench, client, "latest", auto_commit=False)
    name = f"{bench.topic}-b"

    async def scenario() -> None:
        with scene.admin() as admin:
            async with scene.member() as consumer:
                await scene.begun(consumer)
                admin.create_topic(name, 1)
                old = scene.send(0, topic=name)
                assert await consumer.poll(0.0) == []
            async with scene.member(topics=[name]) as consumer:
                await scene.begun(consumer, 1, name)
                new = scene.send(0, topic=name)
                await scene.read(new, consumer)
                admin.add_partitions(bench.topic, PARTITIONS + 1)
                new = scene.send(0, PARTITIONS)
            async with scene.member(topics=[bench.topic]) as consumer:  # which has one
                await scene.read(new, consumer)
        assert not scene.got & (scene.old | old)

    run(scenario)


@each
@pytest.mark.parametrize("forgets", ["the group", "the topic's offsets"])
def test_a_group_that_was_made_to_forget_begins_as_a_new_one_does(
    client: Client, forgets: str, bench: Bench
) -> None:
    scene = Scene(bench, client, "latest", auto_commit=False)

    async def scenario() -> None:
        with scene.admin() as admin:
            async with scene.member() as consumer:
                await scene.begun(consumer)
                admin.add_partitions(bench.topic, PARTITIONS + 1)
                await scene.begun(consumer, PARTITIONS + 1)
            old = scene.send(*range(PARTITIONS + 1))
            if forgets == "the group":
                admin.delete_group(bench.group)
            else:
                admin.delete_group_offsets(bench.group, bench.topic)
        async with scene.member() as consumer:
            await scene.begun(consumer, PARTITIONS + 1)
            await scene.read(scene.send(*range(PARTITIONS + 1)), consumer)
        assert not scene.got & (scene.old | old)

    run(scenario)


@each
def test_a_group_that_was_made_to_forget_one_topic_has_its_past_in_the_others(
    client: Client, bench: Bench
) -> None:
    scene = Scene(bench, client, "latest", auto_commit=False)
    name = f"{bench.topic}-b"

    async def scenario() -> None:
        with scene.admin() as admin:
            admin.create_topic(name, 1)
            async with scene.member(topics=[bench.topic, name]) as consumer:
                await scene.begun(consumer)
                await scene.begun(consumer, 1, name)
            old = scene.send(0, topic=name)
            admin.delete_group_offsets(bench.group, name)
            admin.add_partitions(bench.topic, PARTITIONS + 1)
            new = scene.send(*range(PARTITIONS + 1))
        async with scene.member(topics=[bench.topic, name]) as consumer:
            await scene.begun(consumer, 1, name)
            await scene.read(new | scene.send(0, topic=name), consumer)
        assert not scene.got & (scene.old | old)

    run(scenario)


# -- logs that begin behind what is committed ---------------------------------------------------------


@each
@policies
def test_what_is_sent_to_an_emptied_log_is_read(client: Client, policy: str, bench: Bench) -> None:
    scene = Scene(bench, client, policy, auto_commit=False)
    emptied = bench.partition(0)

    async def scenario() -> None:
        with scene.admin() as admin:
            admin.reset_offsets(bench.group, {emptied: 1})
            admin.delete_records({emptied: "latest"})
        new = scene.send(0)
        async with scene.member() as consumer:
            if policy == "error":
                with pytest.raises(OffsetOutOfRange):
                    await eventually(lambda: reads_in_vain(consumer), 20.0)
                await consumer.seek(emptied, "earliest")
            await scene.read(new, consumer)

    async def reads_in_vain(consumer: Any) -> bool:
        with suppress(NoOffset):
            await consumer.poll(0.1)
        return False

    run(scenario)


@each
@policies
def test_a_reset_says_where_to_go_on(client: Client, policy: str, bench: Bench) -> None:
    scene = Scene(bench, client, policy, auto_commit=False)

    async def scenario() -> None:
        async with scene.member() as consumer:
            await eventually(lambda: scene.is_planned(bench.topic, PARTITIONS), 20.0)
            with scene.admin() as admin:
                admin.reset_offsets(
                    bench.group, dict.fromkeys(map(bench.partition, range(PARTITIONS)), 1)
                )
            wanted = {each for number in range(PARTITIONS) for each in scene.sent_to[number][1:]}
            await scene.read(wanted, consumer)

    run(scenario)


# -- members killed at each step ----------------------------------------------------------------------


class Life:
    """How many writes a process lives for; what is asked of ZooKeeper later reaches nobody."""

    def __init__(self, writes: float, is_done: bool) -> None:
        self.is_over = False
        self._left = writes
        self._is_done = is_done
        """Whether the last one is carried out; its answer is heard by nobody."""

    def end(self) -> None:
        self.is_over = True

    def submit(
        self, session: Session, operation: Operation, done: Callable[[Outcome], None]
    ) -> None:
        if isinstance(operation, Create | Set | Delete | Multi):
            if self._left <= 0 and not self.is_over:
                self.end()
                if self._is_done:
                    session.submit(operation, lambda _: None)
            self._left -= 1
        if not self.is_over:
            session.submit(operation, partial(self._hear, done))

    def _hear(self, done: Callable[[Outcome], None], found: Outcome) -> None:
        if not self.is_over:
            done(found)


class Mortal(ForwardingSession):
    """A process's session, which ends with the process's life."""

    def __init__(self, session: Session, life: Life) -> None:
        super().__init__(session)
        self._life = life

    def submit(self, operation: Operation, done: Callable[[Outcome], None]) -> None:
        self._life.submit(self._session, operation, done)


@contextmanager
def mortal(writes: float = float("inf"), is_done: bool = False) -> Iterator[Life]:
    """Consumers that are made meanwhile live for so many writes, if nobody ends them before."""
    life = Life(writes, is_done)

    def connecting(address: str, **options: Any) -> Callable[[float], Session]:
        connect = connector(address, **options)
        return lambda timeout: Mortal(connect(timeout), life)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "connector", connecting)
        patch.setattr(discovery, "ANSWER_WAIT", 0.2)  # the dead wait for nobody
        yield life


def live_and_die(
    client: Client, policy: str, auto_commit: bool, writes: int, is_done: bool, bench: Bench
) -> bool:
    """A first member dies with that write, and a second one comes when more was sent, and has appeared.

    → whether the first one came so far as to write it.
    """
    scene = Scene(bench, client, policy, auto_commit)
    print(f"{policy=} {auto_commit=} {writes=} {is_done=}")

    async def scenario() -> bool:
        with mortal(writes, is_done) as life:
            consumer = scene.member(commit_interval=0.01)
            await consumer.start()
            until = time.monotonic() + 1.0
            while not life.is_over and time.monotonic() < until:
                await scene.poll(consumer, 0.02)
            died = life.is_over
            life.end()
            await consumer.close(0.1)
        scene.got.clear()  # nothing of it was kept
        starts = [bench.committed(number) for number in range(PARTITIONS)]
        has_begun = scene.is_planned(bench.topic, PARTITIONS)
        with scene.admin() as admin:
            admin.add_partitions(bench.topic, PARTITIONS + 1)
        scene.send(*range(PARTITIONS + 1))
        wanted = {*scene.sent_to[PARTITIONS]} if has_begun else set()
        for number, start in enumerate(starts):
            if start is not None:
                wanted |= {*scene.sent_to[number][start:]}
            elif policy == "earliest":
                wanted |= {*scene.sent_to[number]}
        async with scene.member() as consumer:
            await scene.read(wanted, consumer)
            if policy != "error":
                await scene.begun(consumer, PARTITIONS + 1)
                await scene.read(scene.send(*range(PARTITIONS + 1)), consumer)
        assert policy != "latest" or not scene.got & scene.old
        return died

    return bool(run(scenario))


@pytest.mark.parametrize(
    ("client", "is_done"), [(CLIENTS[0], False), (CLIENTS[1], True)], ids=["before", "after"]
)
def test_a_first_member_that_dies_at_any_write_has_the_next_pass_over_nothing(
    client: Client, is_done: bool, bench: Bench
) -> None:
    for writes in count():
        other = Bench(bench.zookeeper, bench.producer)
        if not live_and_die(client, "latest", writes % 2 == 0, writes, is_done, other):
            assert writes > 5
            break


@pytest.mark.slow
@policies
@pytest.mark.parametrize(
    ("client", "is_done"), [(CLIENTS[0], True), (CLIENTS[1], False)], ids=["after", "before"]
)
def test_under_every_policy_a_first_member_that_dies_has_the_next_pass_over_nothing(
    client: Client, policy: str, is_done: bool, bench: Bench
) -> None:
    for writes in range(20):
        other = Bench(bench.zookeeper, bench.producer)
        if not live_and_die(client, policy, writes % 2 == 1, writes, is_done, other):
            break
