"""Producers with a transactional id: the later one fences the earlier, against real brokers."""

import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.producers import claims
from folkmoot.producers.accumulator import WouldBlock
from folkmoot.producers.async_producer import AsyncProducer
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import (
    ConfigError,
    InvalidName,
    OutOfOrderSequence,
    ProducerFenced,
    ZooKeeperUnreachable,
)
from tests.producers.enricher import PARTITIONS, TOPIC
from tests.producers.test_end_to_end import addresses, create_topic, read_all
from tests.seeds import new_seed
from tests.surfaces import both, run
from tests.waiting import eventually

Client = Callable[..., Any]
StartCluster = Callable[..., EmbeddedCluster]
each = both(Producer, AsyncProducer)


@each
def test_a_later_producer_fences_the_earlier_one_of_its_id(
    client: Client, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(brokers=1)
    for name in ("t", "u"):
        create_topic(cluster.zookeeper, name, 2)

    async def scenario() -> None:
        options = {"zookeeper": cluster.zookeeper, "transactional_id": "e-1", "linger": 0.0}
        first, second, third = client(**options), client(**options), client(**options)
        async with client(**options | {"transactional_id": "another"}) as another:
            await first.start()
            await (await first.send("t", b"1", partition=0))
            await second.start()
            await (await first.send("t", b"2", partition=0))  # the second has not written yet
            delivery = await second.send("t", b"x", partition=0)
            assert isinstance(await delivery.exception(), OutOfOrderSequence)
            await third.start()
            await (await third.send("t", b"3", partition=0))
            await (await another.send("t", b"4", partition=0))
            delivery = await first.send("t", b"x", partition=0)
            assert isinstance(await delivery.exception(), ProducerFenced)
            for producer, error in ((first, ProducerFenced), (second, OutOfOrderSequence)):
                for topic in ("t", "u"):
                    with pytest.raises(error, match="e-1"):
                        await producer.send(topic, b"x", partition=1)
                await producer.close()
            await (await third.send_batch("u", [b"5"] * 10))
            with Admin(zookeeper=cluster.zookeeper) as admin:
                admin.add_partitions("t", 4)
            await (await third.send("t", b"6", partition=3))
            await third.close()

    run(scenario)
    log = read_all(addresses(cluster), "t")
    values = {number: [record.value for record in records] for number, records in log.items()}
    assert values == {0: [b"1", b"2", b"3", b"4"], 1: [], 2: [], 3: [b"6"]}


def test_a_topic_that_an_earlier_producer_does_not_know_is_closed_to_it(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(brokers=1)
    create_topic(cluster.zookeeper, "t", 1)
    options: dict[str, Any] = {"zookeeper": cluster.zookeeper, "transactional_id": "e-1"}
    earlier = Producer(**options)
    earlier.start()
    with Producer(**options):
        with pytest.raises(ProducerFenced):
            earlier.send("t", b"x")
        with pytest.raises(ProducerFenced):
            earlier.send("t", b"x")
    earlier.close()
    assert read_all(addresses(cluster), "t") == {0: []}


@pytest.mark.parametrize("step", ["claim_name", "note_starts"])
@pytest.mark.parametrize("dies", [False, True])
def test_a_lost_answer_or_a_death_at_any_step_leaves_all_that_the_next_one_needs(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch, step: str, dies: bool
) -> None:
    """The step takes effect, and its answer does not come."""
    cluster = start_cluster(brokers=1)
    create_topic(cluster.zookeeper, "t", 1)
    options: dict[str, Any] = {"zookeeper": cluster.zookeeper, "transactional_id": "e-1"}
    with Producer(**options) as before:
        before.send("t", b"1").result(30)
    original: Any = getattr(claims, step)
    lost: list[Any] = []

    def loses_its_answer(*arguments: Any) -> Any:
        found = yield from original(*arguments)
        if not lost:
            lost.append(found)
            raise ZooKeeperUnreachable("the answer was lost")
        return found

    monkeypatch.setattr(claims, step, loses_its_answer)
    monkeypatch.setattr(claims, "RETRY_PAUSE", 0.01)
    create_topic(cluster.zookeeper, "new", 1)
    producer = Producer(**options)
    with suppress(ZooKeeperUnreachable):
        producer.start()
        producer._accumulator.blocks = not dies
        with suppress(WouldBlock):
            producer.partitions_of("new")  # it claims the topic
    if dies:
        eventually(lambda: lost)
        producer.close()
        producer = Producer(**options)
    producer.start()
    for topic in ("t", "new"):
        producer.send(topic, b"2").result(30)
    producer.close()
    log = [read_all(addresses(cluster), topic)[0] for topic in ("t", "new")]
    assert [[record.value for record in records] for records in log] == [[b"1", b"2"], [b"2"]]


@pytest.mark.parametrize(
    "options",
    [
        {"zookeeper": "z:1", "acks": 0},
        {"zookeeper": "z:1", "idempotent": False},
        {"bootstrap": "b:1"},
    ],
)
def test_a_transactional_id_needs_zookeeper_and_idempotence(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="transactional_id='e-1'"):
        Producer(transactional_id="e-1", **options)
    with pytest.raises(InvalidName):
        Producer(zookeeper="z:1", transactional_id="e/1")


def start(cluster: EmbeddedCluster, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.producers.enricher", cluster.zookeeper]
    command += [",".join(addresses(cluster)), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_process_that_stood_still_writes_nothing_twice_when_it_goes_on(
    start_cluster: StartCluster,
) -> None:
    chance = random.Random(new_seed())
    cluster = start_cluster(brokers=2)
    create_topic(cluster.zookeeper, TOPIC, PARTITIONS)
    count = 1_500
    said: list[list[str]] = []
    running = start(cluster, count)

    def written() -> list[int]:
        log = read_all(addresses(cluster), TOPIC)
        return [int(each.value or b"") for records in log.values() for each in records]

    def has_written(goal: int) -> bool:
        nonlocal running
        if running.poll() == 3:  # an earlier one had written since it started
            running.communicate()
            running = start(cluster, count)
        return len(written()) >= goal

    zombies = []
    try:
        for _ in range(3):
            goal = min(count, len(written()) + chance.randrange(1, 200))
            eventually(partial(has_written, goal))
            running.send_signal(signal.SIGSTOP)
            zombies.append(running)
            running = start(cluster, count)
            if not said or chance.random() < 0.7:
                goal = min(count, len(written()) + 60)
                eventually(partial(has_written, goal))
            zombies[-1].send_signal(signal.SIGCONT)
            said.append(zombies[-1].communicate(timeout=60)[0].split()[-1:])
        eventually(partial(has_written, count))
        running.communicate(timeout=60)
    finally:
        for process in (*zombies, running):
            process.kill()
            process.communicate()
    assert {number: many for number, many in Counter(written()).items() if many > 1} == {}
    assert sorted(written()) == [*range(count)]
    assert ["ProducerFenced"] in said
